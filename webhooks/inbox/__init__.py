"""All events, each once: record, claim, postpone, finish, bury, purge.

The rows are the queue; the broker is only its doorbell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine, delete, exists, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql import ColumnElement

from ..errors import InboxUnavailable
from ..models import Tables
from .claiming import CLAIM_SIZE, LEASE, Claiming, inserted_id
from .door import Door
from .retention import Retention
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

__all__ = [
    "CLAIM_SIZE",
    "LEASE",
    "Arrival",
    "Claim",
    "Event",
    "Group",
    "Inbox",
    "Origin",
    "Recorded",
    "arrival",
    "inserted_id",
    "read_version",
    "unreadable",
    "write_version",
]


class Inbox(Claiming, Retention):
    """The inbox in one database. Every method is a transaction of its own, on a connection of its own."""

    def __init__(self, engine: Callable[[], Engine], tables: Tables, *, lease: timedelta = LEASE) -> None:
        super().__init__(engine, tables, lease=lease)
        self._door = Door(engine)

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
            & events.c.endpoint.concat("").in_(
                endpoints
            )  # as for a claim: only the index on what is due will do
        )
        query = select(func.count()).select_from(events).where(wanted, self._free())
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

    def _free(self) -> ColumnElement[bool]:
        """That none does; a count, which no planner turns into a join with the whole backlog."""
        holds = select(func.count()).select_from(self.tables.holds).where(self._holding())
        return holds.correlate(self.tables.events).scalar_subquery() == 0

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
                select(func.min(events.c.due_at), self.moment()).where(pending, self._free())
            ).one()
            held = connection.scalar(
                select(func.min(holds.c.until)).where(
                    holds.c.until > self.moment(), exists().where(pending, holding)
                )
            )
        first = min((aware(moment) for moment in (free, held) if moment is not None), default=None)
        return None if first is None else max(first - aware(now), timedelta(0))


def _insert_or_ignore(is_sqlite: bool, table: Any) -> Any:
    made: Any = sqlite.insert(table) if is_sqlite else postgresql.insert(table)
    return made.on_conflict_do_nothing()
