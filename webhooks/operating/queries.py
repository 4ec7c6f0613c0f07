"""What operators read: rows as dicts, instants aware and in UTC. Nothing here writes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, and_, case, exists, func, or_, select

from ..inbox.rows import stored_key
from ..state import State
from .words import utc

__all__ = [
    "OPEN",
    "effects",
    "events",
    "events_named",
    "events_with_ids",
    "flows",
    "given",
    "kept",
    "ledger",
    "newest_effects",
    "now",
    "objects",
    "open_count",
    "open_within",
    "rows",
    "types_received",
]

OPEN = ("pending", "applying")

EVENT_COLUMNS = (
    "id",
    "endpoint",
    "dedup_key",
    "origin",
    "type",
    "object_kind",
    "object_id",
    "account",
    "livemode",
    "occurred_at",
    "received_at",
    "deliveries",
    "last_delivery_at",
    "secret",
    "correlation",
    "state",
    "outcome",
    "attempts",
    "due_at",
    "claim_no",
    "claimed_at",
    "finished_at",
    "error",
)
OBJECT_COLUMNS = (
    "endpoint",
    "account",
    "kind",
    "id",
    "claim_no",
    "as_of",
    "version",
    "deleted_at",
    "checked_at",
    "data",
)

MANY = 500
"""Ids per statement; databases limit the number of bound values."""


def rows(state: State, statement: Select[Any]) -> list[dict[str, Any]]:
    """All rows of a statement."""
    with state.inbox.engine.connect() as connection:
        return [
            {name: utc(value) if isinstance(value, datetime) else value for name, value in row.items()}
            for row in connection.execute(statement).mappings()
        ]


def now(state: State) -> datetime:
    """The database's clock, which all instants in the tables are of."""
    found = rows(state, select(state.inbox.moment().label("now")))[0]["now"]
    assert isinstance(found, datetime)
    return found


# -- events


def events(
    state: State,
    *,
    endpoint: str | None = None,
    states: Collection[str] = (),
    outcome: str | None = None,
    type_: str | None = None,
    about: str | None = None,
    since: datetime | None = None,
    after: int | None = None,
    before: int | None = None,
    limit: int | None = None,
) -> list[dict[str, Any]]:
    """The newest events that fit, in the order in which they were recorded."""
    c = state.tables.events.c
    wanted = given(
        (endpoint, lambda: c.endpoint == endpoint),
        (states, lambda: c.state.in_(states)),
        (outcome, lambda: c.outcome == outcome),
        (type_, lambda: _matches(c.type, str(type_))),
        (about, lambda: _about(c.object_kind, c.object_id, str(about))),
        (since, lambda: c.received_at >= since),
        (after, lambda: c.id > after),
        (before, lambda: c.id < before),
    )
    statement = _columns(state.tables.events, EVENT_COLUMNS).where(*wanted).order_by(c.id.desc()).limit(limit)
    return rows(state, statement)[::-1]


def events_named(state: State, text: str, endpoint: str | None = None) -> list[dict[str, Any]]:
    """The event with that id; otherwise those with that dedup key, at one or at any endpoint."""
    c = state.tables.events.c
    of = [c.endpoint == endpoint] if endpoint is not None else []
    number = text.removeprefix("#")
    if number.isascii() and number.isdigit() and len(number) < 19:
        found = rows(state, _columns(state.tables.events, EVENT_COLUMNS).where(c.id == int(number), *of))
        if found:
            return found
    return rows(
        state,
        _columns(state.tables.events, EVENT_COLUMNS)
        .where(c.dedup_key == stored_key(text), *of)
        .order_by(c.id),
    )


def events_with_ids(state: State, ids: Sequence[int]) -> list[dict[str, Any]]:
    """The events with these ids, in their order in the inbox."""
    found: list[dict[str, Any]] = []
    for start in range(0, len(ids), MANY):
        some = ids[start : start + MANY]
        found += rows(
            state, _columns(state.tables.events, EVENT_COLUMNS).where(state.tables.events.c.id.in_(some))
        )
    return sorted(found, key=lambda row: int(row["id"]))


def kept(state: State, event_id: int) -> tuple[bytes | None, dict[str, str]]:
    """The body and headers that were kept of an event; no body where it has been dropped."""
    body, headers = state.inbox.bodies([event_id]).get(event_id, (None, {}))
    return body, dict(headers)


def answer(state: State, event_id: int) -> dict[str, Any] | None:
    """What the provider was answered within the request, if an `answer` handler was asked."""
    c = state.tables.bodies.c
    found = rows(state, select(c.answer).where(c.event_id == event_id))
    return found[0]["answer"] if found else None


def ledger(state: State, ids: Collection[int]) -> list[dict[str, Any]]:
    """Which handlers have applied these events, and when."""
    c = state.tables.processed_events.c
    return rows(
        state,
        select(c.event_id, c.handler, c.processed_at)
        .where(c.event_id.in_(ids))
        .order_by(c.event_id, c.processed_at, c.handler),
    )


def flows(state: State, event_id: int) -> list[dict[str, Any]]:
    """The flows that this event has decided."""
    c = state.tables.flow_keys.c
    return rows(
        state,
        select(c.flow, c.key, c.handler, c.decided_at).where(c.event_id == event_id).order_by(c.flow, c.key),
    )


def effects(state: State, event_id: int) -> list[dict[str, Any]]:
    """The effects that this event's handlers promised."""
    c = state.tables.effects.c
    names = (
        "idempotency_key",
        "name",
        "state",
        "attempts",
        "recorded_at",
        "started_at",
        "finished_at",
        "error",
    )
    return rows(
        state, select(*(c[name] for name in names)).where(c.event_id == event_id).order_by(c.recorded_at)
    )


def newest_effects(state: State, *, states: Collection[str] = (), limit: int) -> list[dict[str, Any]]:
    """The newest effects; those first that a person has to decide, then what is dead."""
    c = state.tables.effects.c
    wanted = given((states, lambda: c.state.in_(states)))
    urgent = case((c.state == "unknown", 0), (c.state == "dead", 1), else_=2)
    statement = (
        select(state.tables.effects).where(*wanted).order_by(urgent, c.recorded_at.desc()).limit(limit)
    )
    return rows(state, statement)


def open_within(state: State, wait: timedelta) -> int:
    """How many events will be due within that time, without those that are held for longer."""
    events_, held = state.tables.events, state.tables.holds
    soon = state.inbox.moment(wait)
    holding = and_(
        held.c.endpoint == events_.c.endpoint,
        held.c.account.in_(["", events_.c.account]),
        or_(held.c.until.is_(None), held.c.until > soon),
    )
    found = rows(
        state,
        select(func.count().label("open"))
        .select_from(events_)
        .where(
            events_.c.state.in_(OPEN),
            events_.c.due_at <= soon,
            events_.c.endpoint.in_(list(state.endpoints)),
            ~exists().where(holding),
        ),
    )
    return int(found[0]["open"])


def open_count(state: State) -> int:
    """How many events are open."""
    c = state.tables.events.c
    return int(rows(state, select(func.count().label("open")).where(c.state.in_(OPEN)))[0]["open"])


def types_received(state: State, *, endpoint: str | None, since: datetime | None) -> list[dict[str, Any]]:
    """How many events of each type and kind of object each endpoint has had, and when last."""
    c = state.tables.events.c
    wanted = given((endpoint, lambda: c.endpoint == endpoint), (since, lambda: c.received_at >= since))
    return rows(
        state,
        select(
            c.endpoint,
            c.type,
            c.object_kind,
            func.count().label("events"),
            func.max(c.received_at).label("last_received_at"),
        )
        .where(c.type != "", c.origin.not_in(["reconcile", "fresh"]), *wanted)
        .group_by(c.endpoint, c.type, c.object_kind)
        .order_by(c.endpoint, func.count().desc(), c.type),
    )


# -- objects


def objects(
    state: State,
    *,
    endpoint: str | None = None,
    kind: str | None = None,
    id_: str | None = None,
    limit: int | None = None,
) -> list[dict[str, Any]]:
    """The objects that we have a row of, by endpoint, account, kind and id; with a limit those that were written last."""
    c = state.tables.objects.c
    wanted = given(
        (endpoint, lambda: c.endpoint == endpoint),
        (kind, lambda: c.kind == kind),
        (id_, lambda: c.id == stored_key(str(id_))),
    )
    statement = _columns(state.tables.objects, OBJECT_COLUMNS).where(*wanted)
    found = rows(state, statement.order_by(c.claim_no.desc()).limit(limit))
    return sorted(found, key=lambda row: (row["endpoint"], row["account"], row["kind"], row["id"]))


# -- parts


def _columns(table: Table, names: Iterable[str]) -> Select[Any]:
    return select(*(table.c[name] for name in names))


def given(*pairs: tuple[Any, Any]) -> list[ColumnElement[bool]]:
    """The conditions whose value was given."""
    return [
        condition() for value, condition in pairs if value is not None and value is not False and value != ()
    ]


def _matches(column: ColumnElement[str], pattern: str) -> ColumnElement[bool]:
    escaped = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return column.like(escaped.replace("*", "%"), escape="\\") if "*" in pattern else column == pattern


def _about(kind: ColumnElement[Any], id_: ColumnElement[Any], text: str) -> ColumnElement[bool]:
    """An object's id, its kind, or `kind:id`."""
    before, _, rest = text.partition(":")
    both = and_(kind == before, id_ == stored_key(rest)) if rest else kind == text
    return or_(id_ == stored_key(text), both)
