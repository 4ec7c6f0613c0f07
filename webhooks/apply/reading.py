"""Read events out of deliveries, and again out of their kept bodies."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from datetime import datetime

from ..endpoints import Endpoint
from ..errors import Unreadable
from ..inbox import Event, Group, arrival, unreadable
from ..inbox.rows import stored_key
from ..inbox.spool import Held, Nonce
from ..provider import Envelope, Request
from .failures import summary

__all__ = ["Bodies", "Body", "read_again", "read_delivery", "with_bodies"]

log = logging.getLogger(__name__)

Body = tuple[bytes, Mapping[str, str]]
"""A body as it came, and those headers that are needed to read it."""

Bodies = Mapping[int, Body]
"""By the event's id."""


def with_bodies(endpoint: Endpoint, group: Group, bodies: Bodies) -> Group:
    """The group with its events' data, as far as their bodies are given."""
    if not any(event.id in bodies for event in group.events):
        return group
    events = [_with_body(endpoint, event, bodies.get(event.id)) for event in group.events]
    return Group(group.endpoint, group.account, group.object, events)


def _with_body(endpoint: Endpoint, event: Event, kept: Body | None) -> Event:
    if kept is None:
        return event
    envelope = read_again(endpoint, event.dedup_key, *kept)
    return event if envelope is None else event.with_data(envelope.data, envelope.snapshot)


def read_again(
    endpoint: Endpoint, dedup_key: str, body: bytes, headers: Mapping[str, str]
) -> Envelope | None:
    """The envelope of an event out of its kept body; None if it cannot be read (any more)."""
    try:
        envelopes = endpoint.provider.parse(Request("POST", "", headers, body))
    except Exception:  # noqa: BLE001 - whatever it is, it must not hold the other events of the claim
        return None
    return next(
        (e for e in envelopes if stored_key(e.dedup_key) == dedup_key), envelopes[0] if envelopes else None
    )


def read_delivery(
    endpoint: Endpoint, delivery: Request, secret: str, now: datetime
) -> tuple[Held, list[Envelope]]:
    """What a verified delivery brings into the inbox; what cannot be read is a dead letter. Raises nothing."""
    why = ""
    try:
        envelopes = endpoint.provider.parse(delivery)
        arrivals = [arrival(endpoint.name, endpoint.provider, e, delivery, secret=secret) for e in envelopes]
    except Unreadable as reason:
        why = str(reason)
    except Exception as error:  # noqa: BLE001 - a mistake in a provider file must not turn deliveries away
        why = f"the provider file stumbled: {summary(error)}"
        log.error("%s: %s", endpoint.name, why)
    else:
        digest = hashlib.sha256(delivery.body).hexdigest()
        nonces = [Nonce(e.nonce, e.dedup_key, digest) for e in envelopes if e.nonce]
        return Held(endpoint.name, now, arrivals, nonces), envelopes
    return Held(endpoint.name, now, [unreadable(endpoint.name, endpoint.provider, delivery, secret, why)]), []
