"""Faults planted in our own code: the suite must notice each of them."""
