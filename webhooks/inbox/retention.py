"""Old rows go, in small transactions that the door does not notice; keys stay much longer than bodies."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, func, select, tuple_

from .database import Database

__all__ = ["Retention"]

PURGE_BATCH = 1000
"""Rows per transaction when old rows are deleted; the door waits for none longer than this takes."""


class Retention(Database):
    """What is kept for how long is the caller's to say."""

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

    def purge_listed(self, older_than: timedelta) -> int:
        """Delete what was listed by runs that nobody went on with."""
        listed, runs = self.tables.listed, self.tables.runs
        old = select(runs.c.id).where(runs.c.started_at < self.moment(-older_than))
        some = select(listed.c.listing, listed.c.n).where(listed.c.listing.in_(old)).limit(PURGE_BATCH)
        return self._purge(lambda: delete(listed).where(tuple_(listed.c.listing, listed.c.n).in_(some)))

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
