"""All events, each once: record, claim, postpone, finish, bury, purge.

The rows are the queue; the broker is only its doorbell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Engine,
    Text,
    any_,
    cast,
    delete,
    func,
    literal,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql import ColumnElement

from .. import jsontext
from ..errors import InboxUnavailable
from ..models import Tables
from ..provider import Headers
from .claiming import CLAIM_SIZE, LEASE, Claiming, inserted_id
from .door import PATIENCE, UNHURRIED, Door, sqlite_instant
from .marks import SECRET
from .retention import Retention
from .rows import (
    Arrival,
    Claim,
    Event,
    Group,
    Origin,
    Recorded,
    arrival,
    read_version,
    stored_key,
    unreadable,
    write_version,
)
from .sealing import Sealed, Sealer
from .spool import Held
from .sql import (
    IS_UP,
    KEPT_POSTGRESQL,
    KEPT_SQLITE,
    MARK_POSTGRESQL,
    MARK_SQLITE,
    NONCE_POSTGRESQL,
    NONCE_SQLITE,
    REFUSED_POSTGRESQL,
    REFUSED_SQLITE,
)

__all__ = [
    "CLAIM_SIZE",
    "LEASE",
    "PATIENCE",
    "Arrival",
    "Claim",
    "Event",
    "Group",
    "Inbox",
    "Origin",
    "Recorded",
    "Sealed",
    "Sealer",
    "arrival",
    "inserted_id",
    "read_version",
    "unreadable",
    "write_version",
]


class Inbox(Claiming, Retention):
    """The inbox in one database. Every method is a transaction of its own, on a connection of its own."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        tables: Tables,
        *,
        lease: timedelta = LEASE,
        sealer: Sealer | None = None,
    ) -> None:
        super().__init__(engine, tables, lease=lease)
        self.sealer = sealer or Sealer()
        self._door = Door(engine)

    def close_connections(self) -> None:
        """Give back what is held open between requests; it is opened again when needed."""
        self._door.close()

    # -- in

    def record(self, arrivals: Sequence[Arrival], within: timedelta = UNHURRIED) -> list[Recorded]:
        """Put events into the inbox; return for each its id and whether it is new.

        One statement, so that of two deliveries at once only one is new. What is returned is committed. Raises
        InboxUnavailable (503) if it could not be committed within that time.
        """
        return self._door.record(self.sealer.sealed(arrivals), within)

    def is_up(self) -> bool:
        """Whether the database answers, and has our tables."""
        try:
            self._door.run(lambda cursor: cursor.execute(IS_UP), within=PATIENCE)
        except InboxUnavailable:
            return False
        return True

    def use_nonce(
        self, endpoint: str, nonce: str, dedup_key: str, digest: str, within: timedelta = UNHURRIED
    ) -> bool:
        """Whether the nonce is new, or is used again for the event and the body that it first came with.

        One statement and a unique key decide, also between two deliveries at once. Raises InboxUnavailable (503).
        """
        row = {
            "endpoint": endpoint,
            "nonce": stored_key(nonce),
            "dedup_key": stored_key(dedup_key),
            "digest": digest,
        }
        found = self._door.run(
            lambda cursor: self._told(cursor, NONCE_SQLITE, NONCE_POSTGRESQL, row).fetchone(), within=within
        )
        return tuple(found) == (row["dedup_key"], digest)

    def is_first_use(self, held: Held, within: timedelta) -> bool:
        """Whether all nonces of a delivery are new, or used again for what they first came with. Raises InboxUnavailable."""
        return all(
            self.use_nonce(held.endpoint, nonce.value, nonce.dedup_key, nonce.digest, within)
            for nonce in held.nonces
        )

    def kept_refusals(self, endpoint: str, within: timedelta) -> tuple[int, int]:
        """How many bodies of refused deliveries are kept, and their bytes. Raises InboxUnavailable."""
        row = {"endpoint": endpoint}
        rows, size = self._door.run(
            lambda cursor: self._told(cursor, KEPT_SQLITE, KEPT_POSTGRESQL, row).fetchone(), within=within
        )
        return int(rows), int(size)

    def note_use(self, endpoint: str, secret: str) -> None:
        """Leave the mark that this secret (by its fingerprint) has just verified a delivery. Raises InboxUnavailable."""
        row = {"endpoint": endpoint, "name": SECRET + secret}
        self._door.run(
            lambda cursor: self._told(cursor, MARK_SQLITE, MARK_POSTGRESQL, row), within=timedelta(seconds=1)
        )

    def note_refusal(self, row: Mapping[str, Any], within: timedelta) -> None:
        """Write a row of `webhook_rejections`. Raises InboxUnavailable."""
        self._door.run(
            lambda cursor: self._told(cursor, REFUSED_SQLITE, REFUSED_POSTGRESQL, row), within=within
        )

    def _told(self, cursor: Any, on_sqlite: str, on_postgresql: str, row: Mapping[str, Any]) -> Any:
        if self.is_sqlite:
            return cursor.execute(on_sqlite, {**row, "now": sqlite_instant(datetime.now(UTC))})
        return cursor.execute(on_postgresql, row)

    def missing(self, endpoint: str, keys: Collection[str]) -> set[str]:
        """Those of the keys that the inbox does not have."""
        events = self.tables.events
        with self.engine.connect() as connection:
            found = connection.execute(
                select(events.c.dedup_key).where(events.c.endpoint == endpoint, events.c.dedup_key.in_(keys))
            )
            return set(keys) - set(found.scalars())

    # -- claim

    def bodies(self, ids: Collection[int]) -> dict[int, tuple[bytes, Mapping[str, str]]]:
        """The bodies and kept headers of these events, as far as they have not been dropped. Raises Sealed."""
        bodies = self.tables.bodies
        headers = cast(bodies.c.headers, Text)
        query = select(bodies.c.event_id, bodies.c.body, headers, bodies.c.sealed)
        # One parameter however many ids there are: a statement that is always the same is prepared, and planned once.
        wanted = (
            bodies.c.event_id.in_(ids)
            if self.is_sqlite
            else bodies.c.event_id == any_(literal(list(ids), ARRAY(BigInteger)))
        )
        with self.engine.connect() as connection:
            rows = connection.execute(query.where(wanted)).all()
        return {id_: (self.sealer.open(body, sealed), _headers(kept)) for id_, body, kept, sealed in rows}

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

    def _free(self) -> ColumnElement[bool]:
        """That no hold keeps an event from being claimed; a count, which no planner turns into a join with the whole
        backlog."""
        events, holds = self.tables.events, self.tables.holds
        count = (
            select(func.count())
            .select_from(holds)
            .where(
                holds.c.endpoint == events.c.endpoint,
                holds.c.account.in_(["", events.c.account]),
                holds.c.until.is_(None) | (holds.c.until > self.moment()),
            )
        )
        return count.correlate(events).scalar_subquery() == 0


@lru_cache(maxsize=256)
def _headers(kept: str | None) -> Mapping[str, str]:
    """Kept headers, which are the same few for most events of an endpoint."""
    return Headers(jsontext.loads(kept.encode()) or {} if kept else {})


def _insert_or_ignore(is_sqlite: bool, table: Any) -> Any:
    made: Any = sqlite.insert(table) if is_sqlite else postgresql.insert(table)
    return made.on_conflict_do_nothing()
