"""How many events a claim takes: as many as are worked off in about a second."""

from __future__ import annotations

from ..inbox import CLAIM_SIZE

__all__ = ["LEAST", "MOST", "QUICK", "SLOW", "Pace"]

QUICK = 0.5
"""Seconds. A full claim that was worked off sooner is followed by one of twice the size: what a claim costs by itself is
shared by more events, and an API that takes its time is sent more requests before somebody waits for the last one."""

SLOW = 2.0
"""Seconds. One that took longer is followed by one of half the size: other workers take their part of what is due, and
no lease runs out."""

LEAST, MOST = CLAIM_SIZE // 16, CLAIM_SIZE * 4


class Pace:
    """What one worker process has learned of it; holds from drain to drain."""

    def __init__(self) -> None:
        self.size = CLAIM_SIZE
        self.is_quick = False
        """Whether the next claim may be made while the last one is written: it does not lie about for long."""

    def took(self, seconds: float) -> None:
        """A full claim was worked off in that time."""
        self.is_quick = seconds <= SLOW
        if seconds < QUICK:
            self.size = min(self.size * 2, MOST)
        elif seconds > SLOW:
            self.size = max(self.size // 2, LEAST)
