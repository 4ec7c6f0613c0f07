"""Old rows go, in small transactions that the door does not notice; keys stay much longer than bodies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Select, delete, func, select, tuple_, update
from sqlalchemy.sql import ColumnElement

from .database import Database
from .rows import aware

__all__ = ["Retention"]

PURGE_BATCH = 1000
"""Rows per transaction when old rows are deleted; the door waits for none longer than this takes."""

RESEAL_BATCH = 100
"""Bodies per transaction when they are encrypted anew: they may be large."""

DONE = frozenset({"applied", "ignored"})
"""Events in any other state are kept however old they are."""


class Retention(Database):
    """What is kept for how long is the caller's to say."""

    def purge_bodies(self, older_than: timedelta, by_endpoint: Mapping[str, timedelta] | None = None) -> int:
        """Drop bodies of finished events that were recorded longer ago, in small transactions; keys stay.

        `by_endpoint` says otherwise for some endpoints. It may be ended at any moment: the next run goes on.
        """
        events, bodies = self.tables.events, self.tables.bodies
        ages = dict(by_endpoint or {})
        now = self._now()
        newest = now - min([older_than, *ages.values()])
        # By the key and not by a condition on the time, which no index serves: ids grow as events come, so that the old
        # ones are the first, and each batch begins where the last one ended, not among the rows that it has deleted.
        its = [
            # One look each, and no join, for which a planner may read and sort all events.
            select(column).where(events.c.id == bodies.c.event_id).scalar_subquery().label(column.name)
            for column in (events.c.endpoint, events.c.state, events.c.received_at)
        ]
        walk = select(bodies.c.event_id, *its).order_by(bodies.c.event_id).limit(PURGE_BATCH)

        def is_old(row: Any) -> bool:
            age = ages.get(row.endpoint, older_than)
            return row.state in DONE and aware(row.received_at) < now - age

        def drop(connection: Connection, ids: Sequence[int]) -> None:
            connection.execute(delete(bodies).where(bodies.c.event_id.in_(ids)))

        return self._walk(walk, bodies.c.event_id, is_old, lambda row: aware(row.received_at) < newest, drop)

    def purge_events(self, older_than: timedelta) -> int:
        """Delete finished events and their ledger rows when nothing can send them any more."""
        events, ledger, bodies = self.tables.events, self.tables.processed_events, self.tables.bodies
        before = self._now() - older_than
        walk = (
            select(events.c.id, events.c.state, events.c.received_at).order_by(events.c.id).limit(PURGE_BATCH)
        )

        def drop(connection: Connection, ids: Sequence[int]) -> None:
            connection.execute(delete(ledger).where(ledger.c.event_id.in_(ids)))
            connection.execute(delete(bodies).where(bodies.c.event_id.in_(ids)))
            connection.execute(delete(events).where(events.c.id.in_(ids)))

        return self._walk(
            walk,
            events.c.id,
            lambda row: row.state in DONE and aware(row.received_at) < before,
            lambda row: aware(row.received_at) < before,
            drop,
        )

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

    def purge_refused_bodies(self, endpoint: str, older_than: timedelta) -> int:
        """Drop the kept bodies of refused deliveries of this endpoint, and all headers with them; the notes stay."""
        r = self.tables.rejections
        old = (
            (r.c.endpoint == endpoint) & r.c.body.is_not(None) & (r.c.received_at < self.moment(-older_than))
        )
        some = select(r.c.id).where(old).limit(PURGE_BATCH)
        return self._purge(lambda: update(r).where(r.c.id.in_(some)).values(body=None, headers={}))

    def purge_listed(self, older_than: timedelta) -> int:
        """Delete what was listed by runs that nobody went on with."""
        listed, runs = self.tables.listed, self.tables.runs
        old = select(runs.c.id).where(runs.c.started_at < self.moment(-older_than))
        some = select(listed.c.listing, listed.c.n).where(listed.c.listing.in_(old)).limit(PURGE_BATCH)
        return self._purge(lambda: delete(listed).where(tuple_(listed.c.listing, listed.c.n).in_(some)))

    def purge_claims(self, older_than: timedelta) -> int:
        """Delete claims that are over; their numbers are never drawn again."""
        claims, before = self.tables.claims, self._now() - older_than
        walk = select(claims.c.claim_no, claims.c.claimed_at).order_by(claims.c.claim_no).limit(PURGE_BATCH)

        def is_old(row: Any) -> bool:
            return aware(row.claimed_at) < before

        def drop(connection: Connection, numbers: Sequence[int]) -> None:
            connection.execute(delete(claims).where(claims.c.claim_no.in_(numbers)))

        return self._walk(walk, claims.c.claim_no, is_old, is_old, drop)

    # -- bodies at rest

    def reseal(
        self, seal: Callable[[bytes, str | None], tuple[bytes, str | None]], current: str | None
    ) -> int:
        """Write every kept body that is not sealed with the key `current` (None: with none) as `seal` says, in small
        transactions; return how many. A body that goes or changes meanwhile is left to whoever did that."""
        total = 0
        for table, key in (
            (self.tables.bodies, self.tables.bodies.c.event_id),
            (self.tables.rejections, self.tables.rejections.c.id),
        ):
            wrong = table.c.sealed.is_distinct_from(current) & table.c.body.is_not(None)
            walk = select(key.label("key"), table.c.body, table.c.sealed).order_by(key).limit(RESEAL_BATCH)
            last = 0
            while True:
                with self.engine.connect() as connection:
                    rows = connection.execute(walk.where(key > last, wrong)).all()
                if not rows:
                    break
                with self.transaction() as connection:
                    for row in rows:
                        body, sealed = seal(bytes(row.body), row.sealed)
                        same = (key == row.key) & table.c.sealed.is_not_distinct_from(row.sealed)
                        changed = update(table).where(same).values(body=body, sealed=sealed)
                        total += connection.execute(changed).rowcount
                last = rows[-1].key
        return total

    # -- the parts

    def _now(self) -> datetime:
        with self.engine.connect() as connection:
            return aware(connection.execute(select(self.moment())).scalar_one())

    def _walk(
        self,
        walk: Select[Any],
        key: ColumnElement[int],
        is_old: Callable[[Any], bool],
        goes_on: Callable[[Any], bool],
        drop: Callable[[Connection, Sequence[int]], None],
    ) -> int:
        """Go through a table along its key and drop what is old, a batch and a transaction at a time, as long as a batch
        holds a row that `goes_on`."""
        total, last = 0, 0
        while True:
            with self.transaction() as connection:
                rows = connection.execute(walk.where(key > last)).all()
                old = [row[0] for row in rows if is_old(row)]
                if old:
                    drop(connection, old)
            total += len(old)
            if len(rows) < PURGE_BATCH or not any(goes_on(row) for row in rows):
                return total
            last = rows[-1][0]

    def _purge(self, statement: Callable[[], Any]) -> int:
        total = 0
        while True:
            with self.transaction() as connection:
                gone = connection.execute(statement()).rowcount
            total += gone
            if gone < PURGE_BATCH:
                return int(total)
