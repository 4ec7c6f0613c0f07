"""One pass of a task on an endpoint: alone, entered into `runs`, with the watermark up to which everything is read."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from ..apply import summary
from ..endpoints import Endpoint
from ..errors import NotFetchable, WebhooksError
from ..inbox import Inbox, inserted_id
from ..jsontext import Json
from .limits import EVERY, FIRST_LOOK, OVERLAP, RUN_LEASE

__all__ = ["Drift", "Run", "RunLost", "Runs"]

SHOWN_DRIFTS = 50
"""Drifts that a run keeps by name for its report; it counts all of them."""

log = logging.getLogger(__name__)


class RunLost(WebhooksError):
    """The run said nothing for longer than its lease, and another one has taken over."""


@dataclass(frozen=True)
class Drift:
    """One object that is not what the provider has."""

    endpoint: str
    kind: str
    id: str
    account: str
    cause: str
    differences: list[tuple[str, Json, Json]] = field(repr=False)
    """(path, ours, theirs) for each field."""


@dataclass
class Run:
    """What one pass did."""

    endpoint: str
    task: str
    since: datetime
    seen: int = 0
    missed: int = 0
    healed: int = 0
    skipped: str = ""
    error: str = ""
    refused: int | None = None
    """The HTTP status with which the provider refused our credentials."""
    causes: dict[str, int] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    """What else people should know: gaps, what is undelivered, what an audit supports."""
    drifts: list[Drift] = field(default_factory=list)
    """Of a dry run all, of others none."""
    reached: datetime | None = None
    id: int = 0
    contiguous: bool = True
    """It begins where earlier ones ended, so that its end is the new watermark."""
    watermark: datetime | None = None
    """Up to when earlier runs have read everything; None: nothing has been read."""
    started: datetime | None = None
    """By the database's clock. Of a run that goes on with the listing of one that was killed: when that one started."""
    chosen: bool = False
    """A person said since when it looks."""

    def count(self, drift: Drift) -> None:
        """Enter a drift with its cause, and by name as long as the report is short."""
        self.missed += 1
        self.causes[drift.cause] = self.causes.get(drift.cause, 0) + 1
        shown = self.report.setdefault("drifts", [])
        if len(shown) < SHOWN_DRIFTS:
            fields = [path for path, _, _ in drift.differences]
            shown.append({"kind": drift.kind, "id": drift.id, "cause": drift.cause, "fields": fields[:20]})


class Runs:
    """The runs of one inbox."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    @contextmanager
    def run(
        self,
        endpoint: Endpoint,
        task: str,
        since: datetime | None = None,
        *,
        scheduled: bool = False,
        dry: bool = False,
    ) -> Iterator[Run | None]:
        """One run, entered and left; None if another one is under way, or, when scheduled, was just now.

        An error of ours ends it and is entered; the watermark stays where the last finished piece of it was.
        """
        run = self._begin(endpoint, task, since, scheduled=scheduled)
        if run is None:
            yield None
            return
        try:
            yield run
        except NotFetchable as reason:
            run.skipped = str(reason)
        except Exception as error:  # noqa: BLE001 - the other endpoints have their turn whatever it is
            run.error = summary(error)
            status = getattr(error, "http_status", None)
            run.refused = status if status in {401, 403} else None
            log.warning("%s: %s failed: %s", endpoint.name, task, run.error)
        except BaseException as error:
            run.error = type(error).__name__
            raise
        finally:
            self._end(run, dry=dry)

    def watermark(self, endpoint: str, task: str) -> datetime | None:
        """Up to when everything has been read; None: nothing has."""
        runs = self._inbox.tables.runs
        with self._inbox.engine.connect() as connection:
            found = connection.scalar(
                select(func.max(runs.c.reached)).where(runs.c.endpoint == endpoint, runs.c.task == task)
            )
        return _aware(found)

    def goes_on(self, run: Run) -> None:
        """Say that the run is alive and how far it is. Raises RunLost if another one has taken over."""
        with self._inbox.transaction() as connection:
            self.note(run, connection)

    def note(self, run: Run, connection: Connection) -> None:
        """The same within a transaction of the caller's, which is then one of a run that still is the one."""
        runs = self._inbox.tables.runs
        mine = connection.execute(
            update(runs)
            .where(runs.c.id == run.id, runs.c.finished_at.is_(None))
            .values(
                expires_at=self._inbox.moment(RUN_LEASE),
                reached=run.reached if run.contiguous else None,
                seen=run.seen,
                missed=run.missed,
                healed=run.healed,
            )
        ).rowcount
        if not mine:
            raise RunLost("another run has taken over")

    def _begin(self, endpoint: Endpoint, task: str, since: datetime | None, *, scheduled: bool) -> Run | None:
        runs = self._inbox.tables.runs
        mine = (runs.c.endpoint == endpoint.name) & (runs.c.task == task)
        watermark = self.watermark(endpoint.name, task)
        try:
            with self._inbox.transaction() as connection:
                now = self._inbox.moment()
                dead = mine & runs.c.finished_at.is_(None) & (runs.c.expires_at < now)
                connection.execute(update(runs).where(dead).values(finished_at=now, error="died"))
                good = select(func.max(runs.c.started_at)).where(
                    mine, runs.c.finished_at.is_not(None), runs.c.error.is_(None)
                )
                last = _aware(connection.scalar(good))
                if scheduled and last is not None and datetime.now(UTC) - last < EVERY[task] * 0.8:
                    return None  # a second beat
                from_there = watermark - OVERLAP if watermark is not None else self._first(endpoint)
                run = Run(endpoint.name, task, since or from_there, watermark=watermark)
                run.contiguous = watermark is None or run.since <= watermark
                made = connection.execute(
                    insert(runs).values(
                        endpoint=endpoint.name,
                        task=task,
                        since=run.since,
                        started_at=now,
                        expires_at=self._inbox.moment(RUN_LEASE),
                        seen=0,
                        missed=0,
                        healed=0,
                    )
                )
                run.id = inserted_id(made)
                run.chosen = since is not None
                run.started = _aware(connection.scalar(select(runs.c.started_at).where(runs.c.id == run.id)))
                return run
        except IntegrityError:
            return None  # another one is under way: the unique index says so

    def _first(self, endpoint: Endpoint) -> datetime:
        window = endpoint.provider.policy.log_window
        back: timedelta = min(FIRST_LOOK, window) if window is not None else FIRST_LOOK
        return datetime.now(UTC) - back

    def _end(self, run: Run, *, dry: bool) -> None:
        runs = self._inbox.tables.runs
        good = not dry and not run.skipped and not run.error
        moves = good and run.contiguous
        with self._inbox.transaction() as connection:
            connection.execute(
                update(runs)
                .where(runs.c.id == run.id, runs.c.finished_at.is_(None))
                .values(
                    finished_at=self._inbox.moment(),
                    reached=run.started if moves else runs.c.reached,
                    seen=run.seen,
                    missed=run.missed,
                    healed=run.healed,
                    causes=run.causes or None,
                    report=run.report or None,
                    error=run.error or run.skipped or ("dry run" if dry else None),
                )
            )


def _aware(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment
