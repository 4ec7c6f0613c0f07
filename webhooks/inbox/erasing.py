"""Take one person's data out of everything that we keep; keys stay, so that what comes again is still recognised."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus

from sqlalchemy import ColumnElement, Connection, Table, delete, select, tuple_, update

from .. import jsontext
from ..errors import Unreadable
from ..provider import ObjectRef
from . import Inbox
from .rows import Arrival
from .sealing import Sealed

__all__ = ["Erased", "Erasing"]

BATCH = 500
ERASED = "erased"
"""What stands where something was."""


@dataclass
class Erased:
    """How many rows were touched, by table; and what could not be."""

    rows: dict[str, int] = field(default_factory=dict)
    in_keys: int = 0
    """Events whose key, type or object's id holds the text: those stay, or a redelivery would be taken for a new event."""
    sealed: int = 0
    """Bodies that could not be looked into, because their key is not there."""
    never_applied: int = 0
    """Events that were still open and could only have been applied with their body: they are closed."""


@dataclass
class Erasing:
    """One erasure: of an object and all that holds its id, of all that holds a text, or both."""

    inbox: Inbox
    can_fetch: Callable[[str], bool]
    about: ObjectRef | None = None
    texts: Sequence[str] = ()
    endpoint: str | None = None
    dry: bool = False

    def __post_init__(self) -> None:
        wanted = [*self.texts, *([self.about.id] if self.about is not None else [])]
        self._texts = [text.casefold() for text in wanted if text.strip()]
        self._done = Erased()

    def run(self) -> Erased:
        """Erase, in small transactions; a run that was cut short is simply run again."""
        events = self._events()
        self._bodies(events)
        self._errors(events)
        self._objects()
        self._effects(events)
        self._refused()
        self._issues_and_runs()
        return self._done

    def is_theirs(self, arrival: Arrival) -> bool:
        """Whether a delivery in a spool is one of theirs."""
        if self.endpoint is not None and arrival.endpoint != self.endpoint:
            return False
        return self._is_about(arrival.object) or self._holds_body(arrival.body, arrival.sealed)

    # -- what is theirs

    def _is_about(self, ref: ObjectRef | None) -> bool:
        return self.about is not None and ref is not None and ref == self.about

    def _holds(self, value: Any) -> bool:
        """Whether a text, or a JSON document, holds one of the texts, in whatever case and however it is escaped."""
        if value is None:
            return False
        told = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return any(_has(told, text) for text in self._texts)

    def _holds_body(self, stored: bytes, sealed: str | None) -> bool:
        try:
            body = self.inbox.sealer.open(bytes(stored), sealed)
        except Sealed:
            self._done.sealed += 1
            return False
        told = body.decode("utf-8", "replace")
        if self._holds(told) or self._holds(unquote_plus(told)):
            return True
        try:
            return self._holds(jsontext.loads(body))
        except Unreadable:
            return False

    def _events(self) -> set[int]:
        """The ids of the events that are about the object, or whose bodies hold a text."""
        events, bodies = self.inbox.tables.events, self.inbox.tables.bodies
        found: set[int] = set()
        columns = [bodies.c.event_id, bodies.c.body, bodies.c.sealed, bodies.c.answer]
        walk = select(*columns, events.c.object_kind, events.c.object_id)
        walk = walk.join(events, events.c.id == bodies.c.event_id).where(*self._at(events))
        for row in self._walk(walk, bodies.c.event_id):
            ref = ObjectRef(row.object_kind, row.object_id) if row.object_id else None
            if self._is_about(ref) or self._holds_body(row.body, row.sealed) or self._holds(row.answer):
                found.add(row.event_id)
        return found

    # -- the tables

    def _bodies(self, ids: set[int]) -> None:
        events, bodies = self.inbox.tables.events, self.inbox.tables.bodies
        for some in _batches(sorted(ids)):
            open_ = select(events.c.id, events.c.endpoint).where(
                events.c.id.in_(some), events.c.state.in_(["pending", "applying"])
            )
            with self._transaction() as connection:
                # Without its body it could only be fetched; where that cannot be, nothing would be written over something.
                ends = [row.id for row in connection.execute(open_) if not self.can_fetch(row.endpoint)]
                self._done.never_applied += len(ends)
                self._write(
                    connection,
                    update(events)
                    .where(events.c.id.in_(ends))
                    .values(
                        state="ignored",
                        outcome="condition_not_met",
                        error=ERASED,
                        finished_at=self.inbox.moment(),
                    ),
                )
                self._write(connection, delete(bodies).where(bodies.c.event_id.in_(some)))
        self._count("bodies", len(ids))

    def _errors(self, theirs: set[int]) -> None:
        events = self.inbox.tables.events
        found = []
        keys = ("dedup_key", "type", "object_id", "account")
        columns = [events.c[name] for name in ("id", "error", "object_path", "correlation", *keys)]
        for row in self._walk(select(*columns).where(*self._at(events)), events.c.id):
            if any(self._holds(getattr(row, name)) for name in keys if not self._names_the_object(row, name)):
                self._done.in_keys += 1
            if any(map(self._holds, (row.error, row.object_path, row.correlation))) or (
                row.id in theirs and row.error not in {None, ERASED}
            ):
                found.append(row.id)
        for some in _batches(found):
            with self._transaction() as connection:
                self._write(
                    connection,
                    update(events)
                    .where(events.c.id.in_(some))
                    .values(error=ERASED, object_path=None, correlation=None),
                )
        self._count("errors", len(found))

    def _names_the_object(self, row: Any, name: str) -> bool:
        """The object's own id, given by whoever asks, is what they want to keep apart from."""
        return name == "object_id" and self.about is not None and row.object_id == self.about.id

    def _objects(self) -> None:
        objects = self.inbox.tables.objects
        key = [objects.c.endpoint, objects.c.account, objects.c.kind, objects.c.id]
        found = [
            tuple(row[:4])
            for row in self._stream(
                select(*key, objects.c.data).where(*self._at(objects), objects.c.data.is_not(None))
            )
            if self._is_about(ObjectRef(row.kind, row.id)) or self._holds(row.data)
        ]
        for some in _batches(found):
            with self._transaction() as connection:
                # The row stays, with the number that says how fresh it was: an older worker must not bring it back.
                self._write(
                    connection,
                    update(objects).where(_among(key, some)).values(data=None, digest=None, path=None),
                )
        self._count("objects", len(found))

    def _effects(self, theirs: set[int]) -> None:
        effects = self.inbox.tables.effects
        key = effects.c.idempotency_key
        names = ("arguments", "result", "error", "per")
        columns = [effects.c[name] for name in ("idempotency_key", "event_id", "state", *names)]
        found: dict[bool, list[str]] = {True: [], False: []}
        for row in self._stream(select(*columns).where(*self._at(effects))):
            has = any(self._holds(getattr(row, name)) for name in names)
            if has or (
                row.event_id in theirs and (row.arguments or row.result or row.error not in {None, ERASED})
            ):
                found[row.state in {"done", "dead"}].append(row.idempotency_key)
        nothing: dict[str, Any] = {"arguments": {}, "result": None, "error": ERASED, "per": None}
        for over, keys in found.items():
            # What was not called yet cannot be called without its arguments.
            ends = {} if over else {"state": "dead", "due_at": None, "finished_at": self.inbox.moment()}
            for some in _batches(keys):
                with self._transaction() as connection:
                    self._write(connection, update(effects).where(key.in_(some)).values(**nothing, **ends))
        self._count("effects", sum(map(len, found.values())))

    def _refused(self) -> None:
        refused = self.inbox.tables.rejections
        walk = select(refused.c.id, refused.c.body, refused.c.sealed, refused.c.headers).where(
            *self._at(refused), refused.c.body.is_not(None)
        )
        found = [
            row.id
            for row in self._walk(walk, refused.c.id)
            if self._holds_body(row.body, row.sealed) or self._holds(row.headers)
        ]
        for some in _batches(found):
            with self._transaction() as connection:
                self._write(
                    connection,
                    update(refused).where(refused.c.id.in_(some)).values(body=None, sealed=None, headers={}),
                )
        self._count("rejections", len(found))

    def _issues_and_runs(self) -> None:
        issues, runs = self.inbox.tables.issues, self.inbox.tables.runs
        for name, table, columns, nothing in (
            ("issues", issues, ("evidence",), {"evidence": {"detail": ERASED}}),
            ("runs", runs, ("report", "error"), {"report": {}, "error": ERASED}),
        ):
            wanted = [table.c[column] for column in columns]
            rows = self._walk(select(table.c.id, *wanted).where(*self._at(table)), table.c.id)
            found = [row.id for row in rows if any(map(self._holds, row[1:]))]
            for some in _batches(found):
                with self._transaction() as connection:
                    self._write(connection, update(table).where(table.c.id.in_(some)).values(**nothing))
            self._count(name, len(found))

    # -- the parts

    def _at(self, table: Table) -> list[ColumnElement[bool]]:
        return [] if self.endpoint is None else [table.c.endpoint == self.endpoint]

    def _count(self, name: str, number: int) -> None:
        self._done.rows[name] = number

    def _transaction(self) -> Any:
        return self.inbox.engine.connect() if self.dry else self.inbox.transaction()

    def _write(self, connection: Connection, statement: Any) -> None:
        if self.dry:
            return
        if self.inbox.is_sqlite:
            connection.exec_driver_sql("PRAGMA secure_delete = ON")  # or the bytes stay in free pages
        connection.execute(statement)

    def _walk(self, walk: Any, key: ColumnElement[int]) -> Iterator[Any]:
        """All rows, along an integer key, a query for each batch: no transaction stays open meanwhile."""
        last = 0
        while True:
            with self.inbox.engine.connect() as connection:
                rows = connection.execute(walk.where(key > last).order_by(key).limit(BATCH)).all()
            yield from rows
            if len(rows) < BATCH:
                return
            last = rows[-1][0]

    def _stream(self, wanted: Any) -> Iterator[Any]:
        with self.inbox.engine.connect().execution_options(yield_per=BATCH) as connection:
            yield from connection.execute(wanted)


def _has(told: str, text: str) -> bool:
    return text in told.casefold()


def _batches(keys: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(keys), BATCH):
        yield keys[start : start + BATCH]


def _among(columns: Collection[ColumnElement[Any]], keys: Iterable[tuple[Any, ...]]) -> ColumnElement[bool]:
    return tuple_(*columns).in_(list(keys))
