"""Recover: read the provider's own log and record what the inbox lacks."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any

from ..api import Apis, HttpApi
from ..apply import summary
from ..endpoints import Endpoint
from ..errors import ApiRefused, ConfigError, RetryLater
from ..inbox import Arrival, Inbox, arrival
from ..inbox.marks import Marks
from ..inbox.rows import stored_key
from ..provider import LogEntry
from .accounts import of_all_accounts
from .limits import BATCH, SETTLE, SLICE
from .places import Place
from .runs import Run, Runs

__all__ = ["UNDELIVERED", "Recovering"]

UNDELIVERED = "undelivered"
"""The mark that says what the provider, by its log, has not been able to deliver."""

MARGIN = timedelta(minutes=5)
"""Of a log's oldest hour a little may be gone by the time that we ask for it."""

log = logging.getLogger(__name__)


class Recovering:
    """Recover on one inbox."""

    def __init__(self, inbox: Inbox, apis: Apis, runs: Runs) -> None:
        self._inbox, self._apis, self._runs, self._marks = inbox, apis, runs, Marks(inbox)

    def recover(
        self,
        endpoint: Endpoint,
        since: datetime | None = None,
        *,
        scheduled: bool = False,
        redeliver: bool = False,
    ) -> Run | None:
        """Read the log since the last good run and record what the inbox lacks.

        What is older than the log reaches is entered as a gap. Where there is no log, or with `redeliver`, the provider
        is asked to send again. None if another run of it is under way (or, when scheduled, was just now).
        """
        provider = endpoint.provider
        if provider.list_events is None and provider.redeliver is None:
            raise ConfigError(f"{provider.name} offers nothing to recover from")
        with self._runs.run(endpoint, "recover", since, scheduled=scheduled) as run:
            if run is not None:
                place = Place.of(self._inbox, run, keeps=provider.list_events is not None and not run.chosen)
                self._note_gap(endpoint, run)
                if provider.list_events is not None:
                    self._read(endpoint, run, place, settle=scheduled)
                    place.drop()
                if provider.redeliver is not None and (redeliver or provider.list_events is None):
                    self._redeliver(endpoint, run)
        return run

    def _note_gap(self, endpoint: Endpoint, run: Run) -> None:
        """Say what the log cannot show any more, and begin where it can."""
        window = endpoint.provider.policy.log_window
        if window is None or endpoint.provider.list_events is None:
            return
        reach = datetime.now(UTC) - window + MARGIN
        if run.since < reach:
            if run.watermark is not None and run.watermark < reach:
                run.report["gap"] = {"from": run.since.isoformat(), "until": reach.isoformat()}
                log.warning(
                    "%s: the log of %s reaches back to %s and we have read it until %s: objects are compared instead",
                    endpoint.name,
                    endpoint.provider.name,
                    reach.isoformat(timespec="minutes"),
                    run.since.isoformat(timespec="minutes"),
                )
            run.since = reach

    def _read(self, endpoint: Endpoint, run: Run, place: Place, *, settle: bool) -> None:
        now = datetime.now(UTC)
        until = now - SETTLE if settle else None
        undelivered: dict[str, Any] = {"count": 0, "missing": 0}
        try:
            for _, end, entries in self._pieces(endpoint, run, place, now):
                for batch in _batches(entries, BATCH):
                    run.seen += len(batch)
                    _note_undelivered(undelivered, batch)
                    settled = [e for e in batch if until is None or (e.occurred_at or until) <= until]
                    self._ingest(endpoint, settled, run)
                    undelivered["missing"] = 0
                    place.size += len(batch)
                    self._note(run, place)
                if end < now:
                    run.reached = end
                    place.piece(end)
                    self._note(run, place)
        finally:
            self._keep_undelivered(endpoint, run, undelivered)

    def _note(self, run: Run, place: Place) -> None:
        """How far the run is, and where the next one goes on if this one is killed."""
        with self._inbox.transaction() as connection:
            self._runs.note(run, connection)
            place.write(connection, run)

    def _keep_undelivered(self, endpoint: Endpoint, run: Run, found: dict[str, Any]) -> None:
        """Keep what the provider could not deliver; what was so in the last run, and still is, began then."""
        before = self._marks.get(endpoint.name, UNDELIVERED)
        if before and before.get("count") and (found["count"] or not run.seen):
            found = {**before, **found, "count": found["count"] or before["count"]}
            found["oldest"] = min(filter(None, (before.get("oldest"), found.get("oldest"))), default=None)
        run.report[UNDELIVERED] = found
        self._marks.put(endpoint.name, UNDELIVERED, found)

    def _pieces(
        self, endpoint: Endpoint, run: Run, place: Place, now: datetime
    ) -> Iterator[tuple[datetime, datetime, Iterable[LogEntry]]]:
        """(from, until, the entries of that time), oldest first, where the log can be asked so; else all at once."""
        between, whole = endpoint.provider.list_events_between, endpoint.provider.list_events
        assert whole is not None
        begin = run.since
        while between is not None and now - begin > SLICE:
            since, until = begin, begin + SLICE
            ask = partial(_stretch, between, since, until)
            yield since, until, of_all_accounts(self._inbox, self._apis, endpoint, run, ask, place)
            begin = until
        yield (
            begin,
            now,
            of_all_accounts(self._inbox, self._apis, endpoint, run, partial(_from, whole, begin), place),
        )

    def _ingest(self, endpoint: Endpoint, entries: Sequence[LogEntry], run: Run) -> None:
        keys = {stored_key(entry.dedup_key): entry for entry in entries if entry.dedup_key}
        missing = self._inbox.missing(endpoint.name, keys) if keys else set()
        run.missed += len(missing)
        arrivals = [
            made
            for key, entry in keys.items()
            if key in missing
            for made in _read_entry(endpoint, key, entry)
        ]
        recorded = self._inbox.record(arrivals)
        run.healed += sum(r.new for r, a in zip(recorded, arrivals, strict=True) if a.state == "pending")

    def _redeliver(self, endpoint: Endpoint, run: Run) -> None:
        assert endpoint.provider.redeliver is not None
        api = self._apis.of(endpoint, priority="reconcile")
        asked = 0
        for asked, _ in enumerate(endpoint.provider.redeliver(api, run.since), start=1):
            if asked % BATCH == 0:
                self._runs.goes_on(run)
        run.report["redeliveries"] = asked


def _stretch(between: Any, since: datetime, until: datetime, api: HttpApi) -> Iterable[LogEntry]:
    found: Iterable[LogEntry] = between(api, since, until)
    return found


def _from(whole: Any, since: datetime, api: HttpApi) -> Iterable[LogEntry]:
    found: Iterable[LogEntry] = whole(api, since)
    return found


def _read_entry(endpoint: Endpoint, key: str, entry: LogEntry) -> list[Arrival]:
    """An entry of the provider's log as arrivals. One that cannot be read, or is there no more, becomes a dead letter:
    it must neither hold the others nor be passed over in silence."""
    try:
        return [
            arrival(endpoint.name, endpoint.provider, e, e.request, origin="recover") for e in entry.read()
        ]
    except RetryLater:
        raise
    except ApiRefused as refusal:
        if refusal.http_status not in {404, 410}:
            raise
        why = summary(refusal)
    except Exception as error:  # noqa: BLE001 - whatever the entry holds
        why = summary(error)
    log.warning("%s: an entry of the provider's log cannot be read: %s", endpoint.name, why)
    # Under a key of its own: a delivery of the event may still come, and bring what can be read.
    return [
        Arrival(
            endpoint.name,
            stored_key(f"recover:{key}"),
            origin="recover",
            occurred_at=entry.occurred_at,
            state="dead",
            outcome="unreadable",
            error=why,
        )
    ]


def _note_undelivered(found: dict[str, Any], batch: Sequence[LogEntry]) -> None:
    for entry in batch:
        if entry.delivered is False:
            found["count"] += 1
            found["missing"] += 1
            if entry.occurred_at is not None:
                at = entry.occurred_at.astimezone(UTC).isoformat()
                found["oldest"] = min(at, found.get("oldest", at))
                found["newest"] = max(at, found.get("newest", at))


def _batches(items: Iterable[LogEntry], size: int) -> Iterator[Sequence[LogEntry]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
