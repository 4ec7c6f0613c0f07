"""Reconcile what changed, and sweep everything: both compare with the provider and mend through the inbox."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, select, update

from ..api import Apis
from ..endpoints import Endpoint
from ..errors import ConfigError, NotFetchable
from ..inbox import Inbox
from ..inbox.marks import Marks
from ..inbox.rows import stored_key
from ..provider import Change, ObjectRef, instant
from .accounts import of_all_accounts
from .comparing import Comparing
from .limits import BATCH, EPOCH, FULL_SWEEP_EVERY, REREAD, SWEEP_CALLS
from .listing import Candidate, Listing
from .places import Place
from .runs import Run, Runs

__all__ = ["Reconciling"]

UNDER_WAY = "full_sweep"
"""The mark of a full sweep that is under way: when it began, and whether the listing is behind it."""
DONE = "full_sweep_done"
BEGAN = "began"
"""The mark that says since when an endpoint is watched."""


@dataclass
class Reconciling:
    """Reconcile and full sweep on one inbox."""

    inbox: Inbox
    apis: Apis
    runs: Runs
    comparing: Comparing
    wants_kind: Callable[[Endpoint, str], bool]

    def reconcile(
        self,
        endpoint: Endpoint,
        since: datetime | None = None,
        *,
        scheduled: bool = False,
        dry: bool = False,
        kind: str | None = None,
    ) -> Run | None:
        """Ask which objects changed since the last good run, read those again that no list shows, and mend what differs.

        `dry` only reports; `kind` narrows the comparison. None if another run of it is under way (or, when scheduled,
        was just now).
        """
        if endpoint.provider.list_changed is None:
            raise ConfigError(f"{endpoint.provider.name} offers nothing to reconcile from")
        with self.runs.run(
            endpoint, "reconcile", since, scheduled=scheduled, dry=dry or kind is not None
        ) as run:
            if run is not None:
                self._note_began(endpoint)
                place = Place.of(self.inbox, run, keeps=not (dry or kind is not None or run.chosen))
                with Listing.of(self.inbox, endpoint, place) as listing:
                    self._compare_listed(endpoint, listing, place, run, dry=dry, kind=kind)
                    listing.done()
                place.drop()
                self._reread(endpoint, run, dry=dry, kind=kind)
        return run

    def _note_began(self, endpoint: Endpoint) -> None:
        marks = Marks(self.inbox)
        known = instant(marks.get(endpoint.name, BEGAN))
        if known is None:
            known = datetime.now(UTC)
            marks.put(endpoint.name, BEGAN, known.isoformat())
        self.comparing.began[endpoint.name] = known

    def _compare_listed(
        self,
        endpoint: Endpoint,
        listing: Listing,
        place: Place,
        run: Run,
        *,
        dry: bool = False,
        kind: str | None = None,
    ) -> None:
        listed = endpoint.provider.list_changed
        assert listed is not None

        def note(connection: Connection, size: int) -> None:
            run.seen += size
            place.size += size
            place.write(connection, run)
            self.runs.note(run, connection)

        if not place.read:
            since = run.since
            every = of_all_accounts(
                self.inbox, self.apis, endpoint, run, lambda api: listed(api, since), place
            )
            for _ in listing.read(self._wanted(endpoint, every, kind), note):
                pass
            place.read = True
            place.save(run)
        for candidates in listing.differing(BATCH):
            self.comparing.look(endpoint, candidates, run, dry=dry)
            self.runs.goes_on(run)

    def _wanted(self, endpoint: Endpoint, changes: Iterator[Change], kind: str | None) -> Iterator[Change]:
        for change in changes:
            if kind in {None, change.object.kind} and self.wants_kind(endpoint, change.object.kind):
                yield change

    # -- where lists know only creation

    def _reread(self, endpoint: Endpoint, run: Run, *, dry: bool, kind: str | None) -> None:
        """Read our copies again that are not in their last state, the longest unchecked first, so many per run."""
        kinds = [each for each in endpoint.provider.final if kind in {None, each}]
        left = REREAD
        o = self.inbox.tables.objects.c
        unfinished = (
            select(o.account, o.kind, o.id, o.path, o.data, o.checked_at)
            .where(
                o.endpoint == endpoint.name,
                o.kind.in_(kinds),
                o.deleted_at.is_(None),
                o.settled.is_not(True),
                o.checked_at < datetime.now(UTC),
            )
            .order_by(o.checked_at)
            .limit(BATCH)
        )
        looked: set[tuple[str, str, str]] = set()
        while kinds and left > 0:
            rows = self._rows(unfinished)
            done = [
                row for row in rows if row.data is not None and endpoint.provider.final[row.kind](row.data)
            ]
            self._settle(endpoint, done)
            todo = [
                Candidate(row.account, ObjectRef(row.kind, row.id, row.path or ""))
                for row in rows
                if row not in done
            ]
            todo = [candidate for candidate in todo if candidate.key not in looked][:left]
            if not todo and not done:
                return
            looked |= {candidate.key for candidate in todo}
            left -= len(todo)
            run.seen += len(todo)
            self.comparing.look(endpoint, todo, run, dry=dry)
            self.runs.goes_on(run)
            if dry or len(rows) < BATCH:
                return

    def _settle(self, endpoint: Endpoint, rows: list[Any]) -> None:
        objects = self.inbox.tables.objects
        o = objects.c
        with self.inbox.transaction() as connection:
            for row in rows:
                mine = (o.endpoint == endpoint.name) & (o.account == row.account)
                mine = mine & (o.kind == row.kind) & (o.id == row.id)
                connection.execute(update(objects).where(mine).values(settled=True))

    # -- everything

    def full_sweep(
        self, endpoint: Endpoint, *, scheduled: bool = False, calls: int = SWEEP_CALLS
    ) -> Run | None:
        """List everything, then fetch every copy that the listing did not show; goes on where the last run ended.

        Finds deletions and what is older than the log. Missing from a list is not gone: gone is what the provider says
        is gone when it is asked for that very object. None if none is due or another run of it is under way.
        """
        marks = Marks(self.inbox)
        under_way = marks.get(endpoint.name, UNDER_WAY)
        done = instant(marks.get(endpoint.name, DONE))
        if (
            scheduled
            and under_way is None
            and done is not None
            and datetime.now(UTC) - done < FULL_SWEEP_EVERY
        ):
            return None
        with self.runs.run(endpoint, UNDER_WAY, EPOCH, scheduled=scheduled) as run:
            if run is not None:
                self._note_began(endpoint)
                if under_way is None:
                    under_way = {"began": datetime.now(UTC).isoformat(), "listed": False}
                    marks.put(endpoint.name, UNDER_WAY, under_way)
                if not under_way["listed"]:
                    self._list_all(endpoint, run)
                    under_way = under_way | {"listed": True}
                    marks.put(endpoint.name, UNDER_WAY, under_way)
                left = self._confirm(endpoint, run, calls)
                run.report["left"] = left
                if left == 0:
                    marks.put(endpoint.name, DONE, datetime.now(UTC).isoformat())
                    marks.drop(endpoint.name, UNDER_WAY)
        return run

    def swept_since(self, endpoint: str, moment: datetime) -> bool:
        """Whether a full sweep that is done was done after that moment."""
        done = instant(Marks(self.inbox).get(endpoint, DONE))
        return done is not None and done >= moment

    def _list_all(self, endpoint: Endpoint, run: Run) -> None:
        place = Place.of(self.inbox, run)
        began = run.started
        assert began is not None
        with Listing.of(self.inbox, endpoint, place) as listing:
            if endpoint.provider.list_changed is not None:
                try:
                    self._compare_listed(endpoint, listing, place, run)
                except NotFetchable as reason:
                    run.report["not listed"] = str(reason)
            listing.mark_unlisted(began)
            listing.done()
        place.drop()

    def _confirm(self, endpoint: Endpoint, run: Run, calls: int) -> int:
        """Ask for copies that no list showed; return how many are left for the next run."""
        objects = self.inbox.tables.objects
        o = objects.c
        mine = (o.endpoint == endpoint.name) & o.unlisted_at.is_not(None)
        waiting = select(o.account, o.kind, o.id, o.path).where(mine).order_by(o.unlisted_at, o.kind, o.id)
        while calls > 0:
            rows = self._rows(waiting.limit(min(BATCH, calls)))
            if not rows:
                return 0
            calls -= len(rows)
            run.seen += len(rows)
            candidates = [Candidate(row.account, ObjectRef(row.kind, row.id, row.path or "")) for row in rows]
            self.comparing.look(endpoint, candidates, run)
            with self.inbox.transaction() as connection:
                for row in rows:
                    same = (o.account == row.account) & (o.kind == row.kind) & (o.id == stored_key(row.id))
                    connection.execute(update(objects).where(mine, same).values(unlisted_at=None))
            self.runs.goes_on(run)
        return len(self._rows(waiting.limit(BATCH)))

    def _rows(self, wanted: Any) -> list[Any]:
        with self.inbox.engine.connect() as connection:
            return list(connection.execute(wanted))
