"""Pause an endpoint, and let it go on."""

from __future__ import annotations

from ..endpoints import Endpoint
from ..state import State

__all__ = ["PAUSED", "pause", "resume"]

PAUSED = "paused"
"""The reason of a hold that a person asked for."""


def pause(inbox: State, endpoint: Endpoint) -> None:
    """Apply nothing of the endpoint until `resume`. Its deliveries are still recorded and answered."""
    inbox.inbox.hold(endpoint.name, PAUSED)


def resume(inbox: State, endpoint: Endpoint) -> tuple[bool, int]:
    """Apply its events again; whether it was paused, and how many of its events are due."""
    released = bool(inbox.inbox.release(endpoint.name, PAUSED))
    due = inbox.inbox.due([endpoint.name])
    if released and due:
        inbox.reconciler.sweep()
    return released, due
