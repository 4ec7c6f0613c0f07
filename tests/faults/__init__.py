"""Faults in a running deployment: real processes, a real database, a real broker, a simulated provider.

Nothing may be lost, doubled or left different from the provider, whatever breaks. `catalogue` holds the faults, `deployment` what
they happen to and the verdict; the soak (`python -m tests.soak`) uses the same two for hours.
"""
