"""Group commit: requests that arrive together are recorded by one statement and one commit.

Whoever comes first writes; who comes meanwhile waits, and one of them then writes for all who wait. A lone request waits
for nobody. There is no writer thread, so none can die, none is lost in a fork, and at shutdown every request has either
its answer or its error.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import Engine, PoolProxiedConnection
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from ..errors import InboxUnavailable
from .line import Line, TooSlow, cut
from .rows import Arrival, Recorded
from .sql import AGAIN_SQLITE, ARRIVAL, KEEP_SQLITE, RECORD_POSTGRESQL, RECORD_SQLITE

__all__ = ["PATIENCE", "UNHURRIED", "Door", "sqlite_instant"]

BATCH = 64
"""Arrivals per statement; more would make the first one in it wait longer than a commit takes."""

PATIENCE = timedelta(seconds=4)
"""How long a provider may wait for the database: most cut the line after ten seconds, and then hear no 503."""

UNHURRIED = timedelta(seconds=30)
"""The same for whoever is no provider."""

LEAST = timedelta(seconds=0.5)
"""What a batch gets in any case."""

REST = timedelta(seconds=2)
"""A database that did not answer in time is left alone for so long, and then asked by one: every further one would cost
a thread of the web server the whole time."""

T = TypeVar("T")


class _Ticket:
    """Somebody who waits. A lock is cheaper than an Event, and whoever is called wakes alone, not all one by one."""

    __slots__ = ("arrivals", "called", "ends", "error", "leads", "recorded")

    def __init__(self, arrivals: Sequence[Arrival], ends: float) -> None:
        self.arrivals, self.ends = arrivals, ends
        self.recorded: list[Recorded] | None = None
        self.error: Exception | None = None
        self.leads = False
        """Whether it is this one's turn to write; changes under the door's `_queue`."""
        self.called = threading.Lock()
        """Held until there is a result, or it is this one's turn."""
        self.called.acquire()

    @property
    def done(self) -> bool:
        return self.recorded is not None or self.error is not None


class Door:
    """Writes arrivals of all threads of a process over one connection of its own."""

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        # A child must not use its parent's connection, nor wait for a lock that a thread of the parent held.
        self._writing = threading.Lock()
        self._queue = threading.Lock()
        self._led = False
        self._waiting: list[_Ticket] = []
        self._connection: PoolProxiedConnection | None = None
        self._line = Line()
        self._slow_until: float | None = None

    def record(self, arrivals: Sequence[Arrival], within: timedelta = UNHURRIED) -> list[Recorded]:
        """Commit the arrivals; one result each, in order. Raises InboxUnavailable if they are not committed in time."""
        if not arrivals:
            return []
        ticket = _Ticket(arrivals, time.monotonic() + within.total_seconds())
        try:
            if self._leads(ticket):
                self._write_waiting(ticket)
        finally:
            if ticket.leads or not ticket.done:
                self._leave(ticket)
        if ticket.error is not None:
            raise InboxUnavailable(type(ticket.error).__name__) from ticket.error
        assert ticket.recorded is not None
        return ticket.recorded

    def _leads(self, ticket: _Ticket) -> bool:
        """Wait until the ticket is done, or it is its turn to write, or its time is over; whether it is its turn."""
        with self._queue:
            if self._led and self._slow_until is not None:
                return False  # one asks a database that was silent; the others do not wait for what it says
            self._waiting.append(ticket)
            if not self._led:
                ticket.leads = self._led = True
                return True
        ticket.called.acquire(timeout=max(ticket.ends - time.monotonic(), 0.0))
        return ticket.leads

    def run(self, work: Callable[[Any], T], *, within: timedelta) -> T:
        """Do something else in a transaction on the door's connection; `work` gets a cursor. Raises InboxUnavailable."""
        ends = time.monotonic() + within.total_seconds()
        if not self._enter(ends):
            raise TooSlow("the database did not answer in time")
        try:
            self._line.ends = ends
            try:
                return self._run(work)
            except Exception as error:
                self._give_up(error)
                if not _is_stale_connection(error):
                    raise InboxUnavailable(type(error).__name__) from error
            try:
                return self._run(work)
            except Exception as error:
                self._give_up(error)
                raise InboxUnavailable(type(error).__name__) from error
        finally:
            self._writing.release()

    def _run(self, work: Callable[[Any], T]) -> T:
        with _Connection(self, self._engine()) as cursor:
            done = work(cursor)
        self._slow_until = None
        return done

    def _enter(self, ends: float) -> bool:
        """Take the connection, in time; False if it cannot be had, or the database is left alone for a while."""
        left = max(ends - time.monotonic(), 0.0) if self._slow_until is None else 0.0
        if not self._writing.acquire(timeout=left):
            return False
        slow = self._slow_until
        if slow is not None and time.monotonic() < slow:
            self._writing.release()
            return False
        return True

    def _leave(self, ticket: _Ticket) -> None:
        """Wait no longer, nor lead: the next one's turn comes. Whether a ticket that is not done is written after all,
        nobody knows; once more does no harm."""
        with self._queue:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            if ticket.leads:
                ticket.leads = False
                self._led = bool(self._waiting)
                if self._led:
                    self._waiting[0].leads = True
                    self._waiting[0].called.release()
        if not ticket.done:
            ticket.error = TooSlow("the database did not answer in time")

    def _give_up(self, error: Exception) -> None:
        self._disconnect()
        if _is_timeout(error):
            self._slow_until = time.monotonic() + REST.total_seconds()

    def close(self) -> None:
        """Close the connection; the next arrival opens one."""
        with self._writing:
            self._disconnect()

    def _write_waiting(self, leader: _Ticket) -> None:
        batch: list[_Ticket] = []
        try:
            if not self._enter(leader.ends):
                return
            try:
                with self._queue:
                    size = 0
                    while self._waiting and (not batch or size + len(self._waiting[0].arrivals) <= BATCH):
                        batch.append(self._waiting.pop(0))
                        size += len(batch[-1].arrivals)
                # Who has waited long for others must not make a batch fail for want of time.
                self._line.ends = max(leader.ends, time.monotonic() + LEAST.total_seconds())
                try:
                    self._write(batch)
                except Exception as error:  # noqa: BLE001 - every waiter must get an answer, whatever broke
                    self._write_each(batch, error)
            finally:
                self._writing.release()
        finally:
            self._leave(leader)  # first, so that the database has to do while these go their way
            for ticket in batch:
                if not ticket.done:
                    ticket.error = InboxUnavailable("the write was interrupted")
                if ticket is not leader:
                    ticket.called.release()

    def _write_each(self, batch: Iterable[_Ticket], error: Exception) -> None:
        """One bad row must not fail its neighbours; but where the database is away, one try is enough for all."""
        self._give_up(error)
        tickets = list(batch)
        for ticket in tickets:
            if _is_timeout(error) or (len(tickets) == 1 and not _is_stale_connection(error)):
                ticket.error = error
                continue
            try:
                self._write([ticket])
            except Exception as again:  # noqa: BLE001 - goes to the one waiter
                self._give_up(again)
                ticket.error = again
                if _is_connection_error(again):
                    break
        for ticket in tickets:
            if ticket.recorded is None and ticket.error is None:
                ticket.error = error

    def _write(self, batch: Sequence[_Ticket]) -> None:
        merged: dict[tuple[str, str], tuple[Arrival, int]] = {}
        for ticket in batch:
            for arrival in ticket.arrivals:
                first, deliveries = merged.get(arrival.key, (arrival, 0))
                merged[arrival.key] = (first, deliveries + (arrival.origin == "delivery"))
        # Sorted, so that two processes that touch the same rows take them in the same order.
        rows = [_row(*merged[key]) for key in sorted(merged)]
        engine = self._engine()
        with _Connection(self, engine, alone=True) as cursor:
            write = _write_sqlite if engine.dialect.name == "sqlite" else _write_postgresql
            written = write(cursor, rows)
        self._slow_until = None
        fresh = {key for key, recorded in written.items() if recorded.new}
        for ticket in batch:
            ticket.recorded = []
            for arrival in ticket.arrivals:
                ticket.recorded.append(Recorded(written[arrival.key].id, arrival.key in fresh))
                fresh.discard(arrival.key)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            cut(connection)


class _Connection:
    """A transaction on the door's own connection (in-memory SQLite has only one, which is everybody's)."""

    def __init__(self, door: Door, engine: Engine, *, alone: bool = False) -> None:
        """`alone`: there is one statement, which PostgreSQL commits by itself: one round trip instead of three."""
        self._door, self._engine = door, engine
        self._explicit = engine.dialect.name != "sqlite" and not alone
        self._shared = isinstance(engine.pool, StaticPool | SingletonThreadPool)

    def __enter__(self) -> Any:
        connection = self._door._connection
        if connection is None:
            if self._shared:
                connection = self._engine.raw_connection()
            else:
                connection = self._door._connection = self._door._line.connect(self._engine)
                if self._engine.dialect.name != "sqlite":
                    psycopg: Any = connection.driver_connection
                    psycopg.autocommit = True
        self._raw = connection
        cursor = connection.cursor()
        if self._engine.dialect.name == "sqlite" and not self._shared:
            self._door._line.hurry(cursor)
        if self._engine.dialect.name == "sqlite" and not self._in_transaction():
            cursor.execute("BEGIN IMMEDIATE")
        elif self._explicit and not self._shared:
            cursor.execute("BEGIN")
        return cursor

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._raw.commit()
            else:
                # Closing is not enough for SQLite: as long as anybody still holds a statement of ours (a traceback
                # does), the write lock stays, and the next try waits for it in vain.
                with suppress(Exception):
                    self._raw.rollback()
        finally:
            if self._shared:
                self._raw.close()

    def _in_transaction(self) -> bool:
        raw = self._raw.driver_connection
        return isinstance(raw, sqlite3.Connection) and raw.in_transaction


def _row(arrival: Arrival, deliveries: int) -> dict[str, Any]:
    ref = arrival.object
    return {
        "endpoint": arrival.endpoint,
        "dedup_key": arrival.dedup_key,
        "origin": arrival.origin,
        "type": arrival.type,
        "object_kind": ref.kind if ref else None,
        "object_id": ref.id if ref else None,
        "object_path": (ref.path or None) if ref else None,
        "account": arrival.account,
        "livemode": arrival.livemode,
        "gone": arrival.gone,
        "version": arrival.version,
        "occurred_at": arrival.occurred_at,
        "deliveries": deliveries,
        "digest": arrival.digest,
        "secret": arrival.secret,
        "correlation": arrival.correlation,
        "state": arrival.state,
        "outcome": arrival.outcome,
        "error": arrival.error,
        "body": arrival.body,
        "headers": arrival.headers,
        "received_at": arrival.received_at,
        "sealed": arrival.sealed,
    }


def _write_postgresql(cursor: Any, rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], Recorded]:
    cursor.execute(
        RECORD_POSTGRESQL, [[row[name] for row in rows] for name in ARRIVAL], prepare=True, binary=True
    )
    return {(endpoint, key): Recorded(id_, new) for id_, endpoint, key, new in cursor.fetchall()}


def _write_sqlite(cursor: Any, rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], Recorded]:
    now = sqlite_instant(datetime.now(UTC))
    written = {}
    for row in rows:
        values = {**row, "now": now, "occurred_at": row["occurred_at"] and sqlite_instant(row["occurred_at"])}
        values["received_at"] = sqlite_instant(row["received_at"]) if row["received_at"] else now
        inserted = cursor.execute(RECORD_SQLITE, values).fetchone()
        if inserted is not None:
            kept = {name: row[name] for name in ("body", "headers", "sealed")}
            cursor.execute(KEEP_SQLITE, {"id": inserted[0], **kept})
        id_ = inserted[0] if inserted else cursor.execute(AGAIN_SQLITE, values).fetchone()[0]
        written[row["endpoint"], row["dedup_key"]] = Recorded(id_, inserted is not None)
    return written


def sqlite_instant(moment: datetime) -> str:
    """As SQLAlchemy writes instants into SQLite: UTC, so that texts compare as instants do."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def _is_connection_error(error: Exception) -> bool:
    original = error.orig if isinstance(error, SQLAlchemyError) and hasattr(error, "orig") else error
    return type(original).__name__ in {"OperationalError", "InterfaceError", "AdminShutdown"}


def _is_timeout(error: Exception) -> bool:
    """A database that lets nobody in, or says nothing: each further try costs everybody who waits the whole time again."""
    names = {type(error).__name__, type(getattr(error, "orig", None)).__name__}
    return bool(names & {"ConnectionTimeout", "TooSlow"})


def _is_stale_connection(error: Exception) -> bool:
    """A database that was restarted shows at the first write; a new connection may well do."""
    return _is_connection_error(error)
