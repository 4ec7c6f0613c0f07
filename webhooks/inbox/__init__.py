"""All events, each once: record, claim, postpone, finish, bury, purge.

The rows are the queue; the broker is only its doorbell.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    Connection,
    CursorResult,
    DateTime,
    Engine,
    Interval,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql import ColumnElement

from ..errors import InboxUnavailable
from ..models import Tables
from ..provider import ObjectRef
from .door import Door
from .rows import (
    Arrival,
    Claim,
    Event,
    Group,
    Origin,
    Recorded,
    arrival,
    aware,
    read_version,
    stored_key,
    unreadable,
    write_version,
)
from .sql import CLAIM_POSTGRESQL, CLAIM_SQLITE

__all__ = [
    "LEASE",
    "Arrival",
    "Claim",
    "Event",
    "Group",
    "Inbox",
    "Origin",
    "Recorded",
    "arrival",
    "read_version",
    "unreadable",
    "write_version",
]

LEASE = timedelta(minutes=5)
"""A worker that holds an event for longer is taken to be dead."""

CLAIM_SIZE = 100
"""Events per claim: enough to keep the fetches busy, few enough that a crash delays few."""

MATES = 5000
"""At most so many further events of the claimed objects come along."""

PURGE_BATCH = 1000
"""Rows per transaction when old rows are deleted; the door waits for none longer than this takes."""


class Inbox:
    """The inbox in one database. Every method is a transaction of its own, on a connection of its own."""

    def __init__(self, engine: Callable[[], Engine], tables: Tables, *, lease: timedelta = LEASE) -> None:
        self._engine = engine
        self.tables = tables
        self.lease = lease
        self._door = Door(engine)

    @property
    def engine(self) -> Engine:
        return self._engine()

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction that writes first. SQLite takes its write lock at once, so that it never fails half-way."""
        with self.engine.connect() as connection:
            if self.is_sqlite and not _in_transaction(connection):
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection
            connection.commit()

    def moment(self, offset: timedelta = timedelta(0)) -> ColumnElement[datetime]:
        """The database's clock now, or that much later: one clock for all hosts."""
        if self.is_sqlite:  # the database is in this process, and so is its clock
            return literal(datetime.now(UTC) + offset, DateTime(timezone=True))
        return func.clock_timestamp() + literal(offset, Interval) if offset else func.clock_timestamp()

    def close_connections(self) -> None:
        """Give back what is held open between requests; it is opened again when needed."""
        self._door.close()

    # -- in

    def record(self, arrivals: Sequence[Arrival]) -> list[Recorded]:
        """Put events into the inbox; return for each its id and whether it is new.

        One statement, so that of two deliveries at once only one is new. What is returned is committed. Raises
        InboxUnavailable (503) if it could not be committed.
        """
        return self._door.record(arrivals)

    def use_nonce(self, endpoint: str, nonce: str, dedup_key: str, digest: str) -> bool:
        """Whether the nonce is new, or is used again for the event and the body that it first came with.

        One statement and a unique key decide, also between two deliveries at once.
        """
        nonces = self.tables.nonces
        row = {
            "endpoint": endpoint,
            "nonce": stored_key(nonce),
            "dedup_key": stored_key(dedup_key),
            "digest": digest,
            "used_at": self.moment(),
        }
        statement = (sqlite if self.is_sqlite else postgresql).insert(nonces).values(row)
        claimed = statement.on_conflict_do_update(
            index_elements=["endpoint", "nonce"], set_={"used_at": nonces.c.used_at}
        ).returning(nonces.c.dedup_key, nonces.c.digest)
        try:
            with self.transaction() as connection:
                first = connection.execute(claimed).one()
        except SQLAlchemyError as error:
            raise InboxUnavailable(type(error).__name__) from error
        return (first.dedup_key, first.digest) == (row["dedup_key"], digest)

    def missing(self, endpoint: str, keys: Collection[str]) -> set[str]:
        """Those of the keys that the inbox does not have."""
        events = self.tables.events
        with self.engine.connect() as connection:
            found = connection.execute(
                select(events.c.dedup_key).where(events.c.endpoint == endpoint, events.c.dedup_key.in_(keys))
            )
            return set(keys) - set(found.scalars())

    # -- claim

    def claim(
        self, endpoints: Collection[str], *, limit: int = CLAIM_SIZE, only: Collection[int] | None = None
    ) -> Claim | None:
        """Take due events, together with the other due events of their objects; None if nothing is due.

        An event whose worker died comes alone with its object, so that one that kills its worker takes no others along.
        `only` narrows the claim to these event ids and whatever else is due of their objects.
        """
        if not endpoints:
            return None
        if only is None:
            crashed = self._claim("applying", endpoints, 1, None)
            if crashed is not None:
                return crashed
        return self._claim("pending", endpoints, limit, only)

    def _claim(
        self, state: str, endpoints: Collection[str], limit: int, only: Collection[int] | None
    ) -> Claim | None:
        now = datetime.now(UTC)
        names: dict[str, Any] = {f"endpoint_{n}": name for n, name in enumerate(endpoints)}
        values: dict[str, Any] = {**names, "limit": limit, "mates": MATES}
        if only is not None:
            values |= {f"only_{n}": id_ for n, id_ in enumerate(only)}
        parts = {
            "state": f"'{state}'",
            # The transaction's start, which an index can be searched for; it begins with this statement.
            "now": ":now" if self.is_sqlite else "now()",
            "endpoints": "(" + ", ".join(":" + name for name in names) + ")",
            "only": ""
            if only is None
            else "AND e.id IN (" + ", ".join(f":only_{n}" for n in range(len(only))) + ")",
        }
        with self.transaction() as connection:
            if self.is_sqlite:
                rows = self._claim_sqlite(connection, CLAIM_SQLITE.format(**parts), values, now)
            else:
                values |= {"worker": _worker(), "lease": self.lease}
                found = connection.execute(text(CLAIM_POSTGRESQL.format(**parts)), values).mappings().all()
                rows = [dict(row) for row in found]
        if not rows:
            return None
        events = sorted((_event(row) for row in rows), key=lambda event: event.id)
        return Claim(
            events[0].claim_no, aware(rows[0]["claimed_at"]), list(_grouped(events)), len(events) >= limit
        )

    def _claim_sqlite(
        self, connection: Connection, statement: str, values: dict[str, Any], now: datetime
    ) -> Sequence[Mapping[str, Any]]:
        instant = DateTime(timezone=True)
        drawn = connection.execute(insert(self.tables.claims).values(worker=_worker(), claimed_at=now))
        values |= {"now": now, "lease_ends": now + self.lease, "claim_no": inserted_id(drawn)}
        typed = (
            text(statement)
            .bindparams(bindparam("now", type_=instant), bindparam("lease_ends", type_=instant))
            .columns(claimed_at=instant, received_at=instant, occurred_at=instant)
        )
        rows: Sequence[Mapping[str, Any]] = connection.execute(typed, values).mappings().all()  # type: ignore[assignment]
        if not rows:
            connection.execute(
                delete(self.tables.claims).where(self.tables.claims.c.claim_no == values["claim_no"])
            )
        return rows

    def bodies(self, ids: Collection[int]) -> dict[int, tuple[bytes, dict[str, str]]]:
        """The bodies and kept headers of these events, as far as they have not been dropped."""
        bodies = self.tables.bodies
        with self.engine.connect() as connection:
            rows = connection.execute(
                select(bodies.c.event_id, bodies.c.body, bodies.c.headers).where(bodies.c.event_id.in_(ids))
            )
            return {id_: (body, headers or {}) for id_, body, headers in rows}

    # -- out

    def close(
        self,
        connection: Any,
        claim_no: int,
        ids: Collection[int],
        state: str,
        outcome: str,
        error: str | None = None,
    ) -> int:
        """Within the caller's transaction: give these events their state and outcome, if they are still this claim's.

        Returns how many were. A worker that slept past its lease finds fewer, and must roll back.
        """
        events = self.tables.events
        result = connection.execute(
            update(events)
            .where(events.c.id.in_(ids), events.c.claim_no == claim_no, events.c.state == "applying")
            .values(state=state, outcome=outcome, error=error, finished_at=self.moment())
        )
        return int(result.rowcount)

    def finish(
        self, claim_no: int, ids: Collection[int], state: str, outcome: str, error: str | None = None
    ) -> int:
        """`close` in a transaction of its own, for events that need no other write (ignored, dead)."""
        with self.transaction() as connection:
            return self.close(connection, claim_no, ids, state, outcome, error)

    def postpone(
        self,
        claim_no: int,
        ids: Collection[int],
        outcome: str | None,
        after: timedelta,
        *,
        error: str | None = None,
        counts: bool = True,
    ) -> int:
        """Give the events back, due again after that time. `counts=False`: the attempt was nobody's fault."""
        events = self.tables.events
        with self.transaction() as connection:
            result = connection.execute(
                update(events)
                .where(events.c.id.in_(ids), events.c.claim_no == claim_no, events.c.state == "applying")
                .values(
                    state="pending",
                    outcome=outcome,
                    error=error,
                    due_at=self.moment(after),
                    attempts=events.c.attempts if counts else events.c.attempts - 1,
                )
            )
            return int(result.rowcount)

    # -- by people

    def redrive(self, ids: Collection[int]) -> int:
        """Make dead events due again, with all their attempts."""
        events = self.tables.events
        with self.transaction() as connection:
            result = connection.execute(
                update(events)
                .where(events.c.id.in_(ids), events.c.state == "dead")
                .values(state="pending", attempts=0, due_at=self.moment(), finished_at=None)
            )
            return int(result.rowcount)

    def replay(self, ids: Collection[int], handlers: Collection[str] | None = None) -> int:
        """Apply again, on purpose, what was applied: forget the ledger rows (of these handlers) and make it due."""
        events, ledger = self.tables.events, self.tables.processed_events
        with self.transaction() as connection:
            forget = delete(ledger).where(ledger.c.event_id.in_(ids))
            connection.execute(forget if handlers is None else forget.where(ledger.c.handler.in_(handlers)))
            result = connection.execute(
                update(events)
                .where(events.c.id.in_(ids), events.c.state.in_(["applied", "ignored", "dead"]))
                .values(state="pending", origin="replay", attempts=0, due_at=self.moment(), finished_at=None)
            )
            return int(result.rowcount)

    def hold(self, endpoint: str, reason: str, *, account: str = "", until: timedelta | None = None) -> None:
        """Claim nothing of this endpoint and account for that long, or until it is released."""
        holds = self.tables.holds
        end = None if until is None else self.moment(until)
        with self.transaction() as connection:
            done = connection.execute(
                update(holds)
                .where(holds.c.endpoint == endpoint, holds.c.account == account, holds.c.reason == reason)
                .values(until=end)
            )
            if not done.rowcount:
                values = {
                    "endpoint": endpoint,
                    "account": account,
                    "reason": reason,
                    "since": self.moment(),
                    "until": end,
                }
                # Two workers may be told to wait at the same moment: the second one finds the row and leaves it.
                connection.execute(_insert_or_ignore(self.is_sqlite, holds).values(values))

    def release(self, endpoint: str, reason: str) -> bool:
        """End a hold; whether there was one."""
        holds = self.tables.holds
        with self.transaction() as connection:
            gone = connection.execute(
                delete(holds).where(holds.c.endpoint == endpoint, holds.c.reason == reason)
            )
            return bool(gone.rowcount)

    # -- numbers

    def due(self, endpoints: Collection[str], within: timedelta = timedelta(0)) -> int:
        """How many events may be claimed, now or within that time; what is held does not count."""
        events = self.tables.events
        wanted = (
            events.c.state.in_(["pending", "applying"])
            & (events.c.due_at <= self.moment(within))
            & events.c.endpoint.in_(endpoints)
        )
        query = select(func.count()).select_from(events).where(wanted, ~exists().where(self._holding()))
        with self.engine.connect() as connection:
            return int(connection.scalar(query) or 0)

    def _holding(self) -> ColumnElement[bool]:
        """That a row of `holds` keeps an event from being claimed."""
        events, holds = self.tables.events, self.tables.holds
        return (
            (holds.c.endpoint == events.c.endpoint)
            & holds.c.account.in_(["", events.c.account])
            & (holds.c.until.is_(None) | (holds.c.until > self.moment()))
        )

    def next_due(self, endpoints: Collection[str]) -> timedelta | None:
        """How long until the next postponed event may be claimed; None if there is none.

        What is held counts from the end of its hold, and not at all if the hold has none: otherwise whoever waits for
        it would come back at once, again and again. Events under a live lease are not due.
        """
        events, holds = self.tables.events, self.tables.holds
        holding = self._holding()
        pending = (
            events.c.state.in_(["pending", "applying"])
            & (events.c.state == "pending")
            & events.c.endpoint.in_(endpoints)
        )
        with self.engine.connect() as connection:
            free, now = connection.execute(
                select(func.min(events.c.due_at), self.moment()).where(pending, ~exists().where(holding))
            ).one()
            held = connection.scalar(
                select(func.min(holds.c.until)).where(
                    holds.c.until > self.moment(), exists().where(pending, holding)
                )
            )
        first = min((aware(moment) for moment in (free, held) if moment is not None), default=None)
        return None if first is None else max(first - aware(now), timedelta(0))

    # -- old rows

    def purge_bodies(self, older_than: timedelta) -> int:
        """Drop bodies of finished events that were recorded longer ago, in small transactions; keys stay."""
        events, bodies = self.tables.events, self.tables.bodies
        old = (
            select(bodies.c.event_id)
            .join(events, events.c.id == bodies.c.event_id)
            .where(
                events.c.state.in_(["applied", "ignored"]), events.c.received_at < self.moment(-older_than)
            )
            .limit(PURGE_BATCH)
        )
        return self._purge(lambda: delete(bodies).where(bodies.c.event_id.in_(old)))

    def purge_events(self, older_than: timedelta) -> int:
        """Delete finished events and their ledger rows when nothing can send them any more."""
        events, ledger, bodies = self.tables.events, self.tables.processed_events, self.tables.bodies
        total = 0
        while True:
            with self.transaction() as connection:
                ids = list(
                    connection.scalars(
                        select(events.c.id)
                        .where(
                            events.c.state.in_(["applied", "ignored"]),
                            events.c.received_at < self.moment(-older_than),
                        )
                        .limit(PURGE_BATCH)
                    )
                )
                connection.execute(delete(ledger).where(ledger.c.event_id.in_(ids)))
                connection.execute(delete(bodies).where(bodies.c.event_id.in_(ids)))
                connection.execute(delete(events).where(events.c.id.in_(ids)))
            total += len(ids)
            if len(ids) < PURGE_BATCH:
                return total

    def purge_nonces(self, older_than: timedelta) -> int:
        """Delete nonces whose time is over: their deliveries are refused for their age."""
        nonces = self.tables.nonces
        return self._purge(lambda: delete(nonces).where(nonces.c.used_at < self.moment(-older_than)))

    def purge_rejections(self, older_than: timedelta, keep: int = 1000) -> int:
        """Delete rejections that are old, and all but the newest of each endpoint."""
        rejections = self.tables.rejections
        rank = func.row_number().over(partition_by=rejections.c.endpoint, order_by=rejections.c.id.desc())
        ranked = select(rejections.c.id, rank.label("rank")).subquery()
        crowd = select(ranked.c.id).where(ranked.c.rank > keep)
        old = rejections.c.received_at < self.moment(-older_than)
        some = select(rejections.c.id).where(old | rejections.c.id.in_(crowd)).limit(PURGE_BATCH)
        return self._purge(lambda: delete(rejections).where(rejections.c.id.in_(some)))

    def purge_claims(self, older_than: timedelta) -> int:
        """Delete claims that are over; their numbers are never drawn again."""
        claims = self.tables.claims
        old = (
            select(claims.c.claim_no).where(claims.c.claimed_at < self.moment(-older_than)).limit(PURGE_BATCH)
        )
        return self._purge(lambda: delete(claims).where(claims.c.claim_no.in_(old)))

    def _purge(self, statement: Callable[[], Any]) -> int:
        total = 0
        while True:
            with self.transaction() as connection:
                gone = connection.execute(statement()).rowcount
            total += gone
            if gone < PURGE_BATCH:
                return int(total)


def _insert_or_ignore(is_sqlite: bool, table: Any) -> Any:
    made: Any = sqlite.insert(table) if is_sqlite else postgresql.insert(table)
    return made.on_conflict_do_nothing()


def inserted_id(result: CursorResult[Any]) -> int:
    """The generated key of the row that was inserted."""
    key = result.inserted_primary_key
    assert key is not None
    return int(key[0])


def _in_transaction(connection: Connection) -> bool:
    return bool(getattr(connection.connection.driver_connection, "in_transaction", False))


def _worker() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"[:255]


def _event(row: Mapping[str, Any]) -> Event:
    kind, id_ = row["object_kind"], row["object_id"]
    occurred_at = row["occurred_at"]
    return Event(
        id=row["id"],
        endpoint=row["endpoint"],
        dedup_key=row["dedup_key"],
        origin=row["origin"],
        type=row["type"],
        object=ObjectRef(kind, id_, row["object_path"] or "") if kind and id_ else None,
        account=row["account"],
        livemode=None if row["livemode"] is None else bool(row["livemode"]),
        gone=bool(row["gone"]),
        version=row["version"],
        occurred_at=occurred_at and aware(occurred_at),
        received_at=aware(row["received_at"]),
        deliveries=row["deliveries"],
        digest=row["digest"],
        correlation=row["correlation"],
        attempts=row["attempts"],
        claim_no=row["claim_no"],
    )


def _grouped(events: Iterable[Event]) -> Iterator[Group]:
    groups: dict[Any, list[Event]] = {}
    for event in events:
        ref = event.object
        key = (event.endpoint, event.account, ref.kind, ref.id) if ref else event.id
        groups.setdefault(key, []).append(event)
    for members in groups.values():
        newest = members[-1]
        yield Group(newest.endpoint, newest.account, newest.object, members)
