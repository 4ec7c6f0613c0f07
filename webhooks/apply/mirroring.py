"""Objects that no handler is for: many of them written by one statement, under the same guard as one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, select, text, tuple_

from .. import jsontext
from ..endpoints import Endpoint
from ..inbox import Claim, Group, Inbox, write_version
from ..inbox.door import sqlite_instant
from .fetching import Fetched, is_behind, regresses

__all__ = ["Mirrored", "is_plain", "mirror"]

BATCH = 128
"""Objects per statement; a round trip is shared by so many, and none waits long for the others."""

Key = tuple[str, str, str, str]
"""(endpoint, account, kind, id)"""


@dataclass(frozen=True)
class Mirrored:
    """One object that is to be written as it is."""

    endpoint: Endpoint
    group: Group
    fetched: Fetched
    key: Key = field(init=False)

    def __post_init__(self) -> None:
        assert self.group.object is not None
        ref = self.group.object
        object.__setattr__(self, "key", (self.endpoint.name, self.group.account, ref.kind, ref.id))


def is_plain(group: Group, fetched: Fetched) -> bool:
    """Whether nothing about this object needs a transaction of its own. The caller knows that no handler is for it."""
    if group.object is None or any(event.gone for event in group.events):
        return False
    if fetched.asked:
        return fetched.data is not None
    # The event's own time decides; a provider's rank would need the stored one to compare with.
    return all(event.snapshot is not None and event.version is None for event in group.events)


def mirror(inbox: Inbox, claim: Claim, batch: Sequence[Mirrored]) -> tuple[list[Mirrored], list[str]]:
    """Write the objects and close their events, in one transaction; return those that need one of their own, and the
    outcomes of the others' events.

    An object whose row a later claim has written is left as it is, and its events are `stale`. Events that are not
    this claim's any more are not touched.
    """
    with inbox.transaction() as connection:
        stored, copies = _versions(inbox, connection, batch), _copies(connection, batch)
        left = [one for one in batch if _needs_care(claim, one, stored) or _holds(one, copies)]
        apart = {id(one) for one in left}
        ready = sorted((one for one in batch if id(one) not in apart), key=lambda one: one.key)
        outcomes: list[str] = []
        if ready:
            asked = [one for one in ready if one.fetched.asked]
            carried = [one for one in ready if not one.fetched.asked]
            written = _write(inbox, connection, claim, asked, "claim_no") | _write(
                inbox, connection, claim, carried, "as_of"
            )
            outcomes = _close(inbox, connection, claim, ready, written)
    return left, outcomes


def _versions(inbox: Inbox, connection: Connection, batch: Iterable[Mirrored]) -> dict[Key, str | None]:
    """The stored versions, locked, of those objects whose provider has versions."""
    keys = sorted(one.key for one in batch if one.endpoint.provider.version is not None and one.fetched.asked)
    if not keys:
        return {}
    if not inbox.is_sqlite:
        columns = [list(column) for column in zip(*keys, strict=True)]
        found = connection.exec_driver_sql(_VERSIONS_POSTGRESQL, tuple(columns))
        return {(row[0], row[1], row[2], row[3]): row[4] for row in found}
    o = inbox.tables.objects.c
    query = select(o.endpoint, o.account, o.kind, o.id, o.version).where(
        tuple_(o.endpoint, o.account, o.kind, o.id).in_(keys)
    )
    return {(row[0], row[1], row[2], row[3]): row[4] for row in connection.execute(query)}


# One look by the primary key for each, in the order given: two workers do not lock the same rows in opposite order.
_VERSIONS_POSTGRESQL = (
    "SELECT f.* FROM unnest(%b::text[], %b::text[], %b::text[], %b::text[]) AS k (endpoint, account, kind, id)"
    " CROSS JOIN LATERAL (SELECT o.endpoint, o.account, o.kind, o.id, o.version FROM webhook_objects o"
    " WHERE o.endpoint = k.endpoint AND o.account = k.account AND o.kind = k.kind AND o.id = k.id FOR UPDATE) f"
)

_COPIES = text(
    "SELECT e.id FROM webhook_events e WHERE e.id IN :ids AND EXISTS (SELECT 1 FROM webhook_events o WHERE"
    " o.endpoint = e.endpoint AND o.digest = e.digest AND o.id <> e.id AND o.type = e.type AND o.account = e.account"
    " AND (o.id < e.id OR o.state = 'applied') AND coalesce(o.outcome, '') <> 'duplicate_body')"
).bindparams(bindparam("ids", expanding=True))


def _copies(connection: Connection, batch: Iterable[Mirrored]) -> set[int]:
    """Those events whose body came before under another id."""
    guarded = [
        event.id
        for one in batch
        if one.endpoint.provider.guards_body
        for event in one.group.events
        if event.digest is not None and event.origin != "replay"
    ]
    return set(connection.execute(_COPIES, {"ids": guarded}).scalars()) if guarded else set()


def _holds(one: Mirrored, copies: set[int]) -> bool:
    return any(event.id in copies for event in one.group.events)


def _needs_care(claim: Claim, one: Mirrored, stored: dict[Key, str | None]) -> bool:
    """Whether the fetched object looks older than what we know of it: a lagging replica."""
    if one.endpoint.provider.version is None or not one.fetched.asked:
        return False
    events = one.group.events
    behind = any(is_behind(one.endpoint, event, one.fetched, claim.as_of) for event in events)
    return behind or regresses(events, _version(one), stored.get(one.key), claim.as_of)


def _version(one: Mirrored) -> str | None:
    version = one.endpoint.provider.version
    assert one.group.object is not None
    return write_version(version(one.group.object, one.fetched.data)) if version is not None else None


_COLUMNS = {
    "endpoint": "text",
    "account": "text",
    "kind": "text",
    "id": "text",
    "path": "text",
    "as_of": "timestamptz",
    "version": "text",
    "digest": "text",
    "data": "text",
}
_SET = ", ".join(
    f"{name} = excluded.{name}"
    for name in ("path", "claim_no", "as_of", "version", "digest", "data", "deleted_at", "checked_at")
)
_CONFLICT = (
    f"ON CONFLICT (endpoint, account, kind, id) DO UPDATE SET {_SET} WHERE o.{{guard}} <= excluded.{{guard}}"
)
_INTO = "endpoint, account, kind, id, path, as_of, version, digest, data, claim_no, deleted_at, checked_at"

WRITE_POSTGRESQL = (
    f"INSERT INTO webhook_objects AS o ({_INTO})"
    " SELECT endpoint, account, kind, id, path, as_of, version, digest, data::json, %s, NULL, now()"
    f" FROM unnest({', '.join(f'%b::{kind}[]' for kind in _COLUMNS.values())}) AS g ({', '.join(_COLUMNS)}) "
    + _CONFLICT
    + " RETURNING endpoint, account, kind, id"
)
WRITE_SQLITE = (
    f"INSERT INTO webhook_objects AS o ({_INTO}) VALUES ({', '.join(':' + name for name in _COLUMNS)},"
    " :claim_no, NULL, :now) " + _CONFLICT + " RETURNING endpoint, account, kind, id"
)


def _write(
    inbox: Inbox, connection: Connection, claim: Claim, batch: Sequence[Mirrored], guard: str
) -> set[Key]:
    """Write the rows that the guard allows; return their keys. Sorted by the caller, so that two workers do not
    take the same rows in opposite order."""
    if not batch:
        return set()
    rows = [_row(claim, one) for one in batch]
    if not inbox.is_sqlite:
        columns = [[row[name] for row in rows] for name in _COLUMNS]
        found = connection.exec_driver_sql(WRITE_POSTGRESQL.format(guard=guard), (claim.no, *columns))
        return {(row[0], row[1], row[2], row[3]) for row in found}
    now = sqlite_instant(claim.as_of)
    written = set()
    for row in rows:
        values = {**row, "as_of": sqlite_instant(row["as_of"]), "claim_no": claim.no, "now": now}
        done = connection.exec_driver_sql(WRITE_SQLITE.format(guard=guard), values).first()
        if done is not None:
            written.add((done[0], done[1], done[2], done[3]))
    return written


def _row(claim: Claim, one: Mirrored) -> dict[str, Any]:
    newest = max(one.group.events, key=lambda event: (event.occurred_at or event.received_at, event.id))
    data = one.fetched.data if one.fetched.asked else newest.snapshot
    as_of: datetime = claim.as_of if one.fetched.asked else newest.occurred_at or newest.received_at
    kept = one.endpoint.mirror != "none"
    return {
        "endpoint": one.key[0],
        "account": one.key[1],
        "kind": one.key[2],
        "id": one.key[3],
        "path": (one.group.object.path or None) if one.group.object else None,
        "as_of": as_of,
        "version": _version(one) if one.fetched.asked else None,
        "digest": jsontext.digest(data),
        "data": jsontext.dumps(data).decode() if kept else None,
    }


def _close(
    inbox: Inbox, connection: Connection, claim: Claim, batch: Sequence[Mirrored], written: set[Key]
) -> list[str]:
    outcomes: dict[str, list[int]] = {}
    for one in batch:
        for event in one.group.events:
            newest = event is one.group.events[-1]
            healed = "healed" if event.origin == "reconcile" else "applied"
            outcome = "stale" if one.key not in written else healed if newest else "covered"
            outcomes.setdefault(outcome, []).append(event.id)
    for outcome, ids in outcomes.items():
        if inbox.is_sqlite:
            inbox.close(connection, claim.no, ids, "applied", outcome)
        else:
            connection.exec_driver_sql(_CLOSE_POSTGRESQL, (outcome, ids, claim.no))
    return [outcome for outcome, ids in outcomes.items() for _ in ids]


_CLOSE_POSTGRESQL = (
    "UPDATE webhook_events SET state = 'applied', outcome = %s, error = NULL, finished_at = clock_timestamp()"
    " WHERE id = ANY(%b) AND claim_no = %s AND state = 'applying'"
)
