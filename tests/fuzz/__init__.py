"""Hostile bytes for every parser and every verifier: with Hypothesis in the tests, for longer with atheris (`make fuzz`)."""
