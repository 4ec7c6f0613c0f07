"""Take due events, grouped by object, under a number that says what is newer."""

from __future__ import annotations

import math
import os
import random
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    Connection,
    CursorResult,
    DateTime,
    Engine,
    TextClause,
    TextualSelect,
    bindparam,
    delete,
    insert,
    text,
    update,
)

from ..models import Tables
from ..provider import ObjectRef
from .database import Database
from .rows import Claim, Event, Group, Origin, aware
from .sql import CLAIM_POSTGRESQL, CLAIM_SQLITE, FAIR_CLAIM_POSTGRESQL, FAIR_CLAIM_SQLITE, NEXT_DUE

__all__ = ["CLAIM_SIZE", "LEASE", "Claiming", "inserted_id"]

LEASE = timedelta(minutes=5)
"""A worker that holds an event for longer is taken to be dead."""

LONGEST_LEASE = 8
"""At most so many times the lease, for an event whose workers do not come back."""

CLAIM_SIZE = 128
"""Events per claim, where nothing says otherwise: enough to keep the fetches busy, few enough that a crash delays few."""

MATES = 5000
"""At most so many further events of the claimed objects come along."""

LANES = 20
"""A claim is shared by so many accounts; the next one goes on behind them."""

VISITS = 1000
"""Accounts that are looked at for that, a few microseconds each. Behind so many that all wait for later, the oldest are next."""

EVERY_LANE = 2**31 - 1
"""As many visits as there are accounts with something pending; who only wants to know the time has to hear of each."""

NEWEST = 4
"""One in so many events of a claim is one that came last: a backlog must not keep what is new waiting."""

LOOK_EVERY = 1.0
"""Seconds. Before a backlog a worker looks so often for what dead workers have left, and whenever nothing else is due."""

_START = ("", "")


class Claiming(Database):
    """Claims on one inbox."""

    def __init__(self, engine: Callable[[], Engine], tables: Tables, *, lease: timedelta = LEASE) -> None:
        super().__init__(engine, tables)
        self.lease = lease
        self._looked = -math.inf
        self._after = _START
        """The endpoint and account behind which the next claim begins. Threads may share it: it is only about fairness."""

    def claim(
        self, endpoints: Collection[str], *, limit: int = CLAIM_SIZE, only: Collection[int] | None = None
    ) -> Claim | None:
        """Take due events, together with the other due events of their objects; None if nothing is due.

        No account waits for the backlog of another, and new events do not wait for that of their own.
        An event whose worker died comes alone with its object, so that one that kills its worker takes no others along.
        `only` narrows the claim to these event ids and whatever else is due of their objects.
        """
        if not endpoints:
            return None
        if only is None:
            looks = time.monotonic() - self._looked >= LOOK_EVERY
            found = self._left(endpoints) if looks else None
            found = found or self._claim_fairly(endpoints, limit)
            if found is None and not looks:
                found = self._left(endpoints)
            if found is not None:
                return found
        return self._claim("pending", endpoints, limit, only)

    def _left(self, endpoints: Collection[str]) -> Claim | None:
        """A claim of what a dead worker has left."""
        found = self._claim("applying", endpoints, 1, None)
        if found is None:
            self._looked = time.monotonic()
        return found

    def _claim_fairly(self, endpoints: Collection[str], limit: int) -> Claim | None:
        """A claim that is shared by accounts in turn."""
        newest, lanes = limit // NEWEST, min(LANES, limit)
        values = {
            "oldest": limit - newest,
            "newest": newest,
            "lanes": lanes,
            "most": limit + lanes,
            "visits": VISITS,
            "after_endpoint": self._after[0],
            "after_account": self._after[1],
        }
        claim = self._claim("pending", endpoints, limit, None, fair=values)
        shared = {(group.endpoint, group.account) for group in claim.groups} if claim else set()
        # Any of them: which is the last one only the database's collation knows.
        self._after = random.choice(list(shared)) if len(shared) >= lanes else _START  # noqa: S311
        return claim

    def _claim(
        self,
        state: str,
        endpoints: Collection[str],
        limit: int,
        only: Collection[int] | None,
        *,
        fair: Mapping[str, Any] | None = None,
    ) -> Claim | None:
        now = datetime.now(UTC)
        names = _named(endpoints)
        values: dict[str, Any] = {**names, "mates": MATES, **({"limit": limit} if fair is None else fair)}
        if only is not None:
            values |= {f"only_{n}": id_ for n, id_ in enumerate(only)}
        parts = {
            "state": f"'{state}'",
            # The transaction's start, which an index can be searched for; it begins with this statement.
            "now": ":now" if self.is_sqlite else "now()",
            "endpoints": _in(names),
            "only": ""
            if only is None
            else "AND e.id IN (" + ", ".join(f":only_{n}" for n in range(len(only))) + ")",
        }
        if self.is_sqlite:
            statement = CLAIM_SQLITE if fair is None else FAIR_CLAIM_SQLITE
        else:
            statement = CLAIM_POSTGRESQL if fair is None else FAIR_CLAIM_POSTGRESQL
        with self.transaction() as connection:
            if self.is_sqlite:
                rows: Sequence[Any] = self._claim_sqlite(connection, statement.format(**parts), values, now)
            else:
                values |= {"worker": _worker(), "lease": self.lease}
                rows = connection.execute(_read(statement.format(**parts)), values).all()
            if not rows:
                return None
            # By position, as the statements return them: twenty names for each of some hundred rows take their time.
            events = sorted((_event(*row[:-1]) for row in rows), key=lambda event: event.id)
            if state == "applying":
                self._lengthen(connection, events)
        return Claim(events[0].claim_no, aware(rows[0][-1]), list(_grouped(events)), len(events) >= limit)

    def next_due(self, endpoints: Collection[str]) -> timedelta | None:
        """How long until the next postponed event may be claimed; None if there is none.

        What is held counts from the end of its hold, and not at all if the hold has none: otherwise whoever waits for
        it would come back at once, again and again. Events under a live lease are not due.
        """
        if not endpoints:
            return None
        names = _named(endpoints)
        values = {**names, "after_endpoint": "", "after_account": "", "visits": EVERY_LANE}
        statement = NEXT_DUE.format(endpoints=_in(names), now=":now" if self.is_sqlite else "now()")
        if self.is_sqlite:
            values["now"] = datetime.now(UTC)
            typed = _read(statement, ("now",), ("free", "held", "now"))
        else:
            typed = _read(statement)
        with self.engine.connect() as connection:
            free, held, now = connection.execute(typed, values).one()
        first = min((aware(moment) for moment in (free, held) if moment is not None), default=None)
        return None if first is None else max(first - aware(now), timedelta(0))

    def _lengthen(self, connection: Connection, claimed: Sequence[Event]) -> None:
        """A longer lease for what was claimed before and not finished: perhaps nobody died, and it only takes longer.
        Two workers would take it from each other for ever."""
        longer = self.lease * min(2 ** max(event.attempts - 1 for event in claimed), LONGEST_LEASE)
        events = self.tables.events
        again = update(events).where(events.c.id.in_([event.id for event in claimed]))
        connection.execute(again.values(due_at=self.moment(longer)))

    def _claim_sqlite(
        self, connection: Connection, statement: str, values: dict[str, Any], now: datetime
    ) -> Sequence[Any]:
        drawn = connection.execute(insert(self.tables.claims).values(worker=_worker(), claimed_at=now))
        values |= {"now": now, "lease_ends": now + self.lease, "claim_no": inserted_id(drawn)}
        typed = _read(statement, ("now", "lease_ends"), ("claimed_at", "received_at", "occurred_at"))
        rows = connection.execute(typed, values).all()
        if not rows:
            connection.execute(
                delete(self.tables.claims).where(self.tables.claims.c.claim_no == values["claim_no"])
            )
        return rows


def _named(endpoints: Collection[str]) -> dict[str, Any]:
    """Each endpoint under the name of a parameter."""
    return {f"endpoint_{n}": name for n, name in enumerate(endpoints)}


def _in(names: Iterable[str]) -> str:
    return "(" + ", ".join(":" + name for name in names) + ")"


def inserted_id(result: CursorResult[Any]) -> int:
    """The generated key of the row that was inserted."""
    key = result.inserted_primary_key
    assert key is not None
    return int(key[0])


@lru_cache(maxsize=32)
def _read(
    statement: str, parameters: tuple[str, ...] = (), columns: tuple[str, ...] = ()
) -> TextClause | TextualSelect:
    """The statement with its parameters found: a long text is searched for them once, not once per claim.

    SQLite has no instants; there those parameters and columns are named that are.
    """
    read, instant = text(statement), DateTime(timezone=True)
    if not columns:
        return read
    typed = read.bindparams(*(bindparam(name, type_=instant) for name in parameters))
    return typed.columns(**dict.fromkeys(columns, instant))


def _worker() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"[:255]


def _event(
    id_: int,
    endpoint: str,
    dedup_key: str,
    origin: Origin,
    type_: str,
    kind: str | None,
    object_id: str | None,
    path: str | None,
    account: str,
    livemode: bool | None,
    gone: bool,
    version: str | None,
    occurred_at: datetime | None,
    received_at: datetime,
    deliveries: int,
    digest: str | None,
    correlation: str | None,
    attempts: int,
    claim_no: int,
) -> Event:
    return Event(
        id_,
        endpoint,
        dedup_key,
        origin,
        type_,
        ObjectRef(kind, object_id, path or "") if kind and object_id else None,
        account,
        None if livemode is None else bool(livemode),
        bool(gone),
        version,
        occurred_at and aware(occurred_at),
        aware(received_at),
        deliveries,
        digest,
        correlation,
        attempts,
        claim_no,
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
