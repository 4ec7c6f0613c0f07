"""Read again what could not be read: its row learns what it is, so that it goes the same way as any other event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError

from ..errors import Unreadable
from ..inbox import Arrival, arrival
from ..provider import Request
from ..state import State
from . import queries

__all__ = ["Reread", "read"]


@dataclass(frozen=True)
class Reread:
    """What became of an unreadable event. `ready`: it may be redriven. `dead`: it stays dead."""

    ready: bool
    dead: bool
    type: str = ""
    reason: str | None = None


def read(state: State, row: Mapping[str, Any]) -> Reread:
    """Read the kept body of a dead, unreadable event once more and write what it says into its row.

    It was verified at the door, so its signature is not asked for again. The row also gets the event's own dedup key:
    otherwise the next delivery of the event would be taken for another one.
    """
    endpoint = state.endpoints[row["endpoint"]]
    body, headers = queries.kept(state, row["id"])
    if body is None:
        return Reread(ready=False, dead=True, reason="its body has been dropped")
    request = Request("POST", "", headers, body)
    try:
        envelopes = endpoint.provider.parse(request)
    except Unreadable as reason:
        return Reread(ready=False, dead=True, reason=f"still cannot be read: {reason}")
    if not envelopes:
        return Reread(ready=False, dead=True, reason="holds no event")
    read_ = [arrival(endpoint.name, endpoint.provider, e, request, secret=row["secret"]) for e in envelopes]
    own = next((a for a in read_ if a.dedup_key == row["dedup_key"]), read_[0])
    if not _update(state, row["id"], own):
        return Reread(ready=False, dead=False, type=own.type, reason=_close(state, row["id"], own))
    others = [a for a in read_ if a is not own]
    missing = state.inbox.missing(endpoint.name, [a.dedup_key for a in others]) if others else set()
    state.inbox.record([a for a in others if a.dedup_key in missing])
    return Reread(ready=True, dead=False, type=own.type, reason="was read")


def _update(state: State, event_id: int, known: Arrival) -> bool:
    """Give the row what its body says; False if another row is this event already."""
    events, ref = state.tables.events, known.object
    try:
        with state.inbox.transaction() as connection:
            connection.execute(
                update(events)
                .where(events.c.id == event_id, events.c.state == "dead")
                .values(
                    dedup_key=known.dedup_key,
                    type=known.type,
                    object_kind=ref and ref.kind,
                    object_id=ref and ref.id,
                    object_path=(ref and ref.path) or None,
                    account=known.account,
                    livemode=known.livemode,
                    gone=known.gone,
                    version=known.version,
                    occurred_at=known.occurred_at,
                    digest=known.digest,
                    correlation=known.correlation,
                    outcome=None,
                    error=None,
                )
            )
    except IntegrityError:
        return False
    return True


def _close(state: State, event_id: int, known: Arrival) -> str:
    """End a row whose event has another row, which could be read; say which."""
    events = state.tables.events
    [other] = queries.rows(
        state,
        select(events.c.id).where(events.c.endpoint == known.endpoint, events.c.dedup_key == known.dedup_key),
    )
    said = f"is the same event as {other['id']}, which could be read"
    with state.inbox.transaction() as connection:
        connection.execute(
            update(events)
            .where(events.c.id == event_id, events.c.state == "dead")
            .values(state="ignored", outcome="duplicate_body", error=said)
        )
    return said
