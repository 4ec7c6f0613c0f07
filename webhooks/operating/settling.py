"""Decide what became of an effect that nobody knows of."""

from __future__ import annotations

from datetime import timedelta

from ..state import State

__all__ = ["settle"]


def settle(inbox: State, key: str, *, done: bool) -> bool:
    """Say that an unknown effect happened, or have it called again, and ring for that; whether it was unknown."""
    settled = bool(inbox.outbox.settle(key, done=done))
    if settled and not done:
        inbox.caller.bell.ring_in(timedelta(0))
    return settled
