"""Find what deliveries did not bring. Whatever is found goes into the inbox and then the same way as a delivery."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError

from . import jsontext
from .api import Apis
from .apply import Applier, summary
from .endpoints import Endpoint, Endpoints
from .errors import ApiRefused, ConfigError, NotFetchable, RetryLater
from .inbox import Arrival, Inbox, arrival, inserted_id, write_version
from .inbox.rows import stored_key
from .jsontext import Json
from .provider import Change, LogEntry
from .queue import Bell

__all__ = ["EVERY", "Drift", "Reconciler", "Run", "differences"]

EVERY = {
    "sweep": timedelta(seconds=30),
    "recover": timedelta(minutes=5),
    "check": timedelta(minutes=15),
    "reconcile": timedelta(hours=1),
    "purge": timedelta(days=1),
}
"""How often beat runs each task."""

OVERLAP = timedelta(minutes=10)
"""A run looks back beyond the last good one: what was stamped before it may have become visible after it."""

FIRST_LOOK = timedelta(days=3)
"""How far the first run of an endpoint looks back, where the provider's log reaches that far."""

SETTLE = timedelta(seconds=60)
"""Beat's recover leaves younger log entries for the next run: their deliveries are probably still on the way."""

RUN_LIMIT = timedelta(hours=6)
"""An open run that is older has died; the next one takes over."""

BATCH = 100

KEEP_BODIES = timedelta(days=30)
KEEP_EVENTS = timedelta(days=365)
"""Longer than any provider can still send: Stripe resends for 30 days."""
KEEP_CLAIMS = timedelta(days=7)
KEEP_NONCES = timedelta(days=7)
"""Longer than any scheme's tolerance."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Drift:
    """One object that is not what the provider has."""

    endpoint: str
    kind: str
    id: str
    account: str
    differences: Sequence[tuple[str, Json, Json]] = field(repr=False)
    """(path, ours, theirs) for each field."""


@dataclass
class Run:
    """What one pass of recover or reconcile did."""

    endpoint: str
    task: str
    since: datetime
    seen: int = 0
    missed: int = 0
    healed: int = 0
    skipped: str = ""
    error: str = ""
    drifts: list[Drift] = field(default_factory=list)


class Reconciler:
    """Recover, reconcile, sweep and purge for one app."""

    def __init__(self, inbox: Inbox, endpoints: Endpoints, apis: Apis, bell: Bell, applier: Applier) -> None:
        self.inbox, self.endpoints, self.apis, self.bell, self.applier = inbox, endpoints, apis, bell, applier

    # -- sweep

    def sweep(self) -> int:
        """Ring for what is due; return how many events that are."""
        due = self.inbox.due(self.endpoints)
        if due:
            self.bell.ring_now()
        return due

    # -- recover

    def recover_all(self, *, scheduled: bool = True) -> list[Run]:
        """Recover every endpoint whose provider has a log."""
        offered = [
            endpoint for endpoint in self.endpoints.values() if endpoint.provider.list_events is not None
        ]
        return [run for e in offered if (run := self.recover(e, scheduled=scheduled)) is not None]

    def recover(
        self, endpoint: Endpoint, since: datetime | None = None, *, scheduled: bool = False
    ) -> Run | None:
        """Read the provider's own log since the last good run and record what the inbox lacks.

        None if another run of it is under way (or, when scheduled, was just now).
        """
        with self._run(endpoint, "recover", since, scheduled) as run:
            if run is not None:
                until = datetime.now(UTC) - SETTLE if scheduled else None
                for batch in _batches(self._asked(run, lambda: self._log(endpoint, run.since)), BATCH):
                    run.seen += len(batch)
                    self._ingest(
                        endpoint,
                        [e for e in batch if until is None or (e.occurred_at or until) <= until],
                        run,
                    )
        return self._rung(run)

    def _rung(self, run: Run | None) -> Run | None:
        if run is not None and run.healed:
            self.bell.ring_now()
        return run

    def _log(self, endpoint: Endpoint, since: datetime) -> Iterator[LogEntry]:
        assert endpoint.provider.list_events is not None
        return endpoint.provider.list_events(self.apis.of(endpoint), since)

    def _ingest(self, endpoint: Endpoint, entries: Sequence[LogEntry], run: Run) -> None:
        keys = {stored_key(entry.dedup_key): entry for entry in entries if entry.dedup_key}
        missing = self.inbox.missing(endpoint.name, keys) if keys else set()
        run.missed += len(missing)
        arrivals = [a for key, entry in keys.items() if key in missing for a in _read(endpoint, key, entry)]
        recorded = self.inbox.record(arrivals)
        run.healed += sum(r.new for r, a in zip(recorded, arrivals, strict=True) if a.state == "pending")

    # -- reconcile

    def reconcile_all(self, *, scheduled: bool = True) -> list[Run]:
        """Reconcile every endpoint whose provider lists objects."""
        offered = [
            e
            for e in self.endpoints.values()
            if e.provider.list_changed is not None and e.fetches and e.can_ask
        ]
        return [run for e in offered if (run := self.reconcile(e, scheduled=scheduled)) is not None]

    def reconcile(
        self, endpoint: Endpoint, since: datetime | None = None, *, scheduled: bool = False, dry: bool = False
    ) -> Run | None:
        """Ask which objects changed since the last good run, compare, and record an event for each that differs.

        `dry` only reports. None if another run of it is under way (or, when scheduled, was just now).
        """
        with self._run(endpoint, "reconcile", since, scheduled, dry=dry) as run:
            if run is not None:
                for batch in _batches(self._asked(run, lambda: self._changed(endpoint, run.since)), BATCH):
                    self._heal(endpoint, batch, run, dry=dry)
        return self._rung(run)

    def _heal(self, endpoint: Endpoint, batch: Sequence[Change], run: Run, *, dry: bool) -> None:
        wanted = [change for change in batch if self.applier.wants_kind(endpoint, change.object.kind)]
        found = [drift for change in wanted if (drift := self._compare(endpoint, change)) is not None]
        run.seen += len(wanted)
        run.missed += len(found)
        if dry:
            run.drifts += [drift for drift, _ in found]
        else:
            run.healed += sum(r.new for r in self.inbox.record([heal for _, heal in found]))

    def _changed(self, endpoint: Endpoint, since: datetime) -> Iterator[Change]:
        assert endpoint.provider.list_changed is not None
        return endpoint.provider.list_changed(self.apis.of(endpoint), since)

    def _compare(self, endpoint: Endpoint, change: Change) -> tuple[Drift, Arrival] | None:
        """The drift of a listed object and the event that heals it; None if our copy is the same."""
        ref, objects = change.object, self.inbox.tables.objects
        with self.inbox.engine.connect() as connection:
            stored = connection.execute(
                select(
                    objects.c.digest,
                    objects.c.version,
                    objects.c.claim_no,
                    objects.c.data,
                    objects.c.deleted_at,
                    objects.c.as_of,
                ).where(
                    objects.c.endpoint == endpoint.name,
                    objects.c.account == change.account,
                    objects.c.kind == ref.kind,
                    objects.c.id == stored_key(ref.id),
                )
            ).one_or_none()
        if stored is not None and stored.deleted_at is None and _same(endpoint, change, stored):
            return None
        assert endpoint.provider.fetch is not None
        current = endpoint.provider.fetch(self.apis.of(endpoint, change.account), ref)
        digest = None if current is None else jsontext.digest(current)
        if (
            stored is not None
            and stored.digest == digest
            and (current is None) == (stored.deleted_at is not None)
        ):
            return None  # a list shows some objects in another form than they are fetched in
        if stored is None and current is None:
            return None
        drift = Drift(
            endpoint.name, ref.kind, ref.id, change.account, differences(stored and stored.data, current)
        )
        claim_no = 0 if stored is None else stored.claim_no
        heal = Arrival(
            endpoint.name,
            stored_key(f"reconcile:{change.account}:{ref.kind}:{ref.id}:{claim_no}:{digest}"),
            origin="reconcile",
            type=f"reconcile.{ref.kind}",
            object=ref,
            account=change.account,
            gone=current is None,
            body=jsontext.dumps({"reconcile": ref.kind, "id": ref.id}),
        )
        return drift, heal

    # -- purge

    def purge(self) -> dict[str, int]:
        """Drop what is old: bodies first, whole events much later, claims in between."""
        return {
            "bodies": self.inbox.purge_bodies(KEEP_BODIES),
            "events": self.inbox.purge_events(KEEP_EVENTS),
            "claims": self.inbox.purge_claims(KEEP_CLAIMS),
            "nonces": self.inbox.purge_nonces(KEEP_NONCES),
        }

    # -- runs

    def _asked(self, run: Run, ask: Any) -> Iterator[Any]:
        try:
            yield from ask()
        except NotFetchable as reason:
            run.skipped = str(reason)

    @contextmanager
    def _run(
        self, endpoint: Endpoint, task: str, since: datetime | None, scheduled: bool, *, dry: bool = False
    ) -> Iterator[Run | None]:
        """One run: alone on its endpoint, entered into `runs`. A run that fails does not move the watermark."""
        offers = endpoint.provider.list_events if task == "recover" else endpoint.provider.list_changed
        if offers is None:
            raise ConfigError(f"{endpoint.provider.name} offers nothing to {task} from")
        begun = self._begin(endpoint, task, since, scheduled)
        if begun is None:
            yield None
            return
        id_, run = begun
        try:
            yield run
        except Exception as error:  # noqa: BLE001 - the other endpoints have their turn whatever it is
            run.error = summary(error)
            log.warning("%s: %s failed: %s", endpoint.name, task, run.error)
        except BaseException as error:
            run.error = type(error).__name__
            raise
        finally:
            self._end(id_, run, moves=not dry and not run.skipped)

    def _begin(
        self, endpoint: Endpoint, task: str, since: datetime | None, scheduled: bool
    ) -> tuple[int, Run] | None:
        runs = self.inbox.tables.runs
        mine = (runs.c.endpoint == endpoint.name) & (runs.c.task == task)
        try:
            with self.inbox.transaction() as connection:
                now = self.inbox.moment()
                dead = mine & runs.c.finished_at.is_(None) & (runs.c.expires_at < now)
                connection.execute(update(runs).where(dead).values(finished_at=now, error="died"))
                last = connection.scalar(
                    select(runs.c.started_at)
                    .where(mine, runs.c.finished_at.is_not(None), runs.c.error.is_(None))
                    .order_by(runs.c.started_at.desc())
                    .limit(1)
                )
                last = last and last.replace(tzinfo=UTC) if last is not None and last.tzinfo is None else last
                if scheduled and last is not None and datetime.now(UTC) - last < EVERY[task] * 0.8:
                    return None  # a second beat
                run = Run(endpoint.name, task, since or self._since(endpoint, last))
                made = connection.execute(
                    insert(runs).values(
                        endpoint=endpoint.name,
                        task=task,
                        since=run.since,
                        started_at=now,
                        expires_at=self.inbox.moment(RUN_LIMIT),
                        seen=0,
                        missed=0,
                        healed=0,
                    )
                )
                return inserted_id(made), run
        except IntegrityError:
            return None  # another one is under way: the unique index says so

    def _since(self, endpoint: Endpoint, last: datetime | None) -> datetime:
        if last is not None:
            return last - OVERLAP
        window = endpoint.provider.policy.log_window
        return datetime.now(UTC) - (min(FIRST_LOOK, window) if window is not None else FIRST_LOOK)

    def _end(self, id_: int, run: Run, *, moves: bool) -> None:
        runs = self.inbox.tables.runs
        error = run.error or ("" if moves else run.skipped or "dry run")
        with self.inbox.transaction() as connection:
            connection.execute(
                update(runs)
                .where(runs.c.id == id_)
                .values(
                    finished_at=self.inbox.moment(),
                    seen=run.seen,
                    missed=run.missed,
                    healed=run.healed,
                    error=error or None,
                )
            )


def _read(endpoint: Endpoint, key: str, entry: LogEntry) -> list[Arrival]:
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


RACY = timedelta(seconds=2)
"""A version with a one-second clock, fetched within that second, may stand for two states."""


def _same(endpoint: Endpoint, change: Change, stored: Any) -> bool:
    """Whether our copy is what the list shows, as far as that can be told without fetching it."""
    listed: Any = change.changed_at
    if change.data is not None and endpoint.provider.version is not None:
        listed = endpoint.provider.version(change.object, change.data)
    if listed is not None and stored.version is not None and write_version(listed) == stored.version:
        as_of = stored.as_of if stored.as_of.tzinfo else stored.as_of.replace(tzinfo=UTC)
        return not isinstance(listed, datetime) or as_of - listed > RACY
    return change.data is not None and jsontext.digest(change.data) == stored.digest


def differences(ours: Json, theirs: Json, path: str = "") -> list[tuple[str, Json, Json]]:
    """The fields in which two documents differ: (path, ours, theirs)."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found = []
        for key in sorted({*ours, *theirs}):
            found += differences(ours.get(key), theirs.get(key), f"{path}.{key}" if path else key)
        return found
    return [] if ours == theirs else [(path or "(all)", ours, theirs)]


def _batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch
