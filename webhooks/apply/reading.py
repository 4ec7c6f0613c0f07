"""Read events again out of their kept bodies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..endpoints import Endpoint
from ..inbox import Event, Group
from ..inbox.rows import stored_key
from ..provider import Envelope, Request

__all__ = ["Bodies", "read_again", "with_bodies"]

Bodies = Mapping[int, tuple[bytes, dict[str, str]]]


def with_bodies(endpoint: Endpoint, group: Group, bodies: Bodies) -> Group:
    """The group with its events' data, as far as their bodies are still there."""
    return replace(
        group, events=[_with_body(endpoint, event, bodies.get(event.id)) for event in group.events]
    )


def _with_body(endpoint: Endpoint, event: Event, kept: tuple[bytes, dict[str, str]] | None) -> Event:
    if kept is None:
        return event
    envelope = read_again(endpoint, event.dedup_key, *kept)
    return event if envelope is None else replace(event, data=envelope.data, snapshot=envelope.snapshot)


def read_again(endpoint: Endpoint, dedup_key: str, body: bytes, headers: dict[str, str]) -> Envelope | None:
    """The envelope of an event out of its kept body; None if it cannot be read (any more)."""
    try:
        envelopes = endpoint.provider.parse(Request("POST", "", headers, body))
    except Exception:  # noqa: BLE001 - whatever it is, it must not hold the other events of the claim
        return None
    return next(
        (e for e in envelopes if stored_key(e.dedup_key) == dedup_key), envelopes[0] if envelopes else None
    )
