"""Old rows go, in small transactions that the door does not notice; keys stay much longer than bodies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Column, delete, func, select
from sqlalchemy.sql import ColumnElement

from .database import Database

__all__ = ["Retention"]

PURGE_BATCH = 1000
"""Rows per transaction when old rows are deleted; the door waits for none longer than this takes."""


class Retention(Database):
    """What is kept for how long is the caller's to say."""

    def purge_bodies(self, older_than: timedelta) -> int:
        """Drop bodies of finished events that were recorded longer ago, in small transactions; keys stay."""
        bodies = self.tables.bodies
        return self._purge_finished(bodies.c.event_id, older_than, (bodies.c.event_id,))

    def purge_events(self, older_than: timedelta) -> int:
        """Delete finished events and their ledger rows when nothing can send them any more."""
        events, ledger, bodies = self.tables.events, self.tables.processed_events, self.tables.bodies
        return self._purge_finished(
            events.c.id, older_than, (ledger.c.event_id, bodies.c.event_id, events.c.id)
        )

    def _purge_finished(self, key: Column[int], older_than: timedelta, columns: Sequence[Column[int]]) -> int:
        """Delete the rows that name a finished old event in these columns; how many events were found by `key`.

        In the order of ids, which is that of arrival: what is kept is passed once, and what is new is not looked at.
        """
        events = self.tables.events
        old: ColumnElement[bool] = events.c.received_at < self.moment(-older_than)
        finished: ColumnElement[bool] = events.c.state.in_(["applied", "ignored"])
        if key.table is not events:
            # One look each, and no join, for which a planner may read all events.
            old, finished = self._of(key, old), self._of(key, finished)
        last, total = 0, 0
        while True:
            with self.transaction() as connection:
                some = select(key.label("id"), old.label("old"), finished.label("finished"))
                window = connection.execute(some.where(key > last).order_by(key).limit(PURGE_BATCH)).all()
                ids = [row.id for row in window if row.old and row.finished]
                for column in columns if ids else ():
                    connection.execute(delete(column.table).where(column.in_(ids)))
            total += len(ids)
            if not any(row.old for row in window):
                return total
            last = max(row.id for row in window)

    def _of(self, key: Column[int], condition: ColumnElement[bool]) -> ColumnElement[bool]:
        """The condition, of the event that this key names."""
        return select(condition).where(self.tables.events.c.id == key).scalar_subquery()

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
