"""Find what deliveries did not bring, and why. Whatever is found goes into the inbox and then the same way as a delivery."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from ..api import Apis
from ..apply import Applier
from ..endpoints import Endpoint, Endpoints
from ..inbox import Inbox
from ..inbox.marks import Marks
from ..issues import Finding, Issues
from ..provider import instant
from ..queue import Bell
from .auditing import SAMPLE, Auditing, statement, upper_bound
from .causes import CAUSES
from .comparing import Comparing, differences
from .late import Late
from .limits import EVERY, KEEP_BODIES, KEEP_CLAIMS, KEEP_EVENTS, KEEP_LISTED, KEEP_NONCES, KEEP_REJECTIONS
from .reconciling import Reconciling
from .recovering import Recovering
from .reverifying import Reverified, reverify
from .runs import Drift, Run, Runs

__all__ = [
    "CAUSES",
    "EVERY",
    "KEEP_EVENTS",
    "SAMPLE",
    "Drift",
    "Reconciler",
    "Reverified",
    "Run",
    "differences",
    "statement",
    "upper_bound",
]

GAP = "gap"
"""The mark that says since when and until when the provider's log is lost to us."""

log = logging.getLogger(__name__)


class Reconciler:
    """Recover, reconcile, sweep, audit and purge for one app."""

    def __init__(
        self,
        inbox: Inbox,
        endpoints: Endpoints,
        apis: Apis,
        bell: Bell,
        applier: Applier,
        issues: Issues | None = None,
    ) -> None:
        self.inbox, self.endpoints, self.apis, self.bell, self.applier = inbox, endpoints, apis, bell, applier
        self._issues = issues or Issues(inbox)
        self._marks = Marks(inbox)
        runs = Runs(inbox)
        comparing = Comparing(inbox, apis, Late(inbox, applier.handlers))
        self._recovering = Recovering(inbox, apis, runs)
        self._reconciling = Reconciling(inbox, apis, runs, comparing, applier.wants_kind)
        self._auditing = Auditing(inbox, runs, comparing)

    def sweep(self) -> int:
        """Ring for what is due; return how many events that are."""
        due = self.inbox.due(self.endpoints)
        if due:
            self.bell.ring_now()
        return due

    # -- one endpoint

    def recover(
        self,
        endpoint: Endpoint,
        since: datetime | None = None,
        *,
        scheduled: bool = False,
        redeliver: bool = False,
    ) -> Run | None:
        """Read the provider's own log since the last good run and record what the inbox lacks; see `Recovering.recover`.

        Where the log does not reach back so far, objects are compared instead, an issue says so, and a full sweep begins.
        """
        run = self._recovering.recover(endpoint, since, scheduled=scheduled, redeliver=redeliver)
        if run is not None:
            if "gap" in run.report and not run.error:
                self._compare_instead(endpoint, run)
            self._note(endpoint, run)
        return run

    def reconcile(
        self,
        endpoint: Endpoint,
        since: datetime | None = None,
        *,
        scheduled: bool = False,
        dry: bool = False,
        kind: str | None = None,
    ) -> Run | None:
        """Ask which objects changed since the last good run and mend what differs; see `Reconciling.reconcile`."""
        run = self._reconciling.reconcile(endpoint, since, scheduled=scheduled, dry=dry, kind=kind)
        if run is not None and not dry:
            self._note(endpoint, run, drift=True)
        return run

    def full_sweep(self, endpoint: Endpoint, *, scheduled: bool = False, **limits: int) -> Run | None:
        """List everything and ask for what the list does not show; see `Reconciling.full_sweep`."""
        run = self._reconciling.full_sweep(endpoint, scheduled=scheduled, **limits)
        if run is not None:
            self._note(endpoint, run, drift=True)
        return run

    def audit(
        self, endpoint: Endpoint, *, sample: int = SAMPLE, scheduled: bool = False, heal: bool = True
    ) -> Run | None:
        """Compare a random sample and say what that supports; see `Auditing.audit`."""
        run = self._auditing.audit(endpoint, sample=sample, scheduled=scheduled, heal=heal)
        if run is not None:
            self._note(endpoint, run, drift=True)
        return run

    # -- all endpoints

    def recover_all(self, *, scheduled: bool = True) -> list[Run]:
        """Recover every endpoint whose provider has a log."""
        return _each(
            (e for e in self.endpoints.values() if can_recover(e)),
            lambda endpoint: self.recover(endpoint, scheduled=scheduled),
        )

    def reconcile_all(self, *, scheduled: bool = True) -> list[Run]:
        """Reconcile every endpoint whose provider lists objects."""
        return _each(
            (e for e in self.endpoints.values() if can_reconcile(e)),
            lambda endpoint: self.reconcile(endpoint, scheduled=scheduled),
        )

    def full_sweep_all(self, *, scheduled: bool = True) -> list[Run]:
        """Go on with the full sweep of every endpoint whose objects can be fetched, and begin those that are due."""
        return _each(
            (e for e in self.endpoints.values() if e.fetches and e.can_ask),
            lambda endpoint: self.full_sweep(endpoint, scheduled=scheduled),
        )

    def audit_all(self, *, scheduled: bool = True) -> list[Run]:
        """Audit every endpoint whose objects can be fetched."""
        return _each(
            (e for e in self.endpoints.values() if e.fetches and e.can_ask),
            lambda endpoint: self.audit(endpoint, scheduled=scheduled),
        )

    # -- what a run means

    def _compare_instead(self, endpoint: Endpoint, run: Run) -> None:
        """The log does not reach back to where we were: look at the objects themselves, and say what that cannot show."""
        gap = run.report["gap"]
        self._marks.put(endpoint.name, GAP, {**gap, "noted": datetime.now(UTC).isoformat()})
        if can_reconcile(endpoint):
            self.reconcile(endpoint, instant(gap["from"]))
            self._marks.put(endpoint.name, "full_sweep_done", None)

    def _note(self, endpoint: Endpoint, run: Run, *, drift: bool = False) -> None:
        """Ring for what was recorded; open and close the issues that this run can judge."""
        if run.healed or run.missed:
            self.bell.ring_now()
        name, found = endpoint.name, []
        if run.refused is not None or not (run.error or run.skipped):
            found.append(Finding(name, "access_refused", run.refused is None, run.error))
        if drift and not run.error and not run.skipped:
            said = ", ".join(f"{number} {cause}" for cause, number in sorted(run.causes.items()))
            found.append(
                Finding(
                    name,
                    "drift",
                    run.missed == 0,
                    f"{run.task}: {said}",
                    {"causes": run.causes, "run": run.id},
                )
            )
        gap = self._marks.get(name, GAP)
        if gap:
            found.append(self._lost(endpoint, gap))
        self._issues.enter(found)

    def _lost(self, endpoint: Endpoint, gap: dict[str, str]) -> Finding:
        """Whether the gap still matters: once everything has been compared only occasions can be missing."""
        noted = instant(gap.get("noted"))
        swept = noted is not None and self._reconciling.swept_since(endpoint.name, noted)
        if swept:
            self._marks.put(endpoint.name, GAP, None)
        detail = (
            f"the log of {endpoint.provider.name} has nothing from {gap['from'][:16]} to {gap['until'][:16]} UTC any more; "
            "objects are compared instead, which shows results and not occasions"
        )
        return Finding(endpoint.name, "lost_events", swept, detail, {"gap": gap})

    def reverify(self, endpoint: Endpoint, since: datetime | None = None, *, dry: bool = False) -> Reverified:
        """Check the kept refused deliveries again and record those that were genuine; see `reverifying`."""
        done = reverify(self.inbox, endpoint, since, dry=dry)
        if done.recorded and not dry:
            self.bell.ring_now()
        return done

    # -- purge

    def purge(self) -> dict[str, int]:
        """Drop what is old: bodies first, whole events much later, claims in between."""
        return {
            "bodies": self.inbox.purge_bodies(
                KEEP_BODIES,
                {name: e.keep_bodies for name, e in self.endpoints.items() if e.keep_bodies is not None},
            ),
            "events": self.inbox.purge_events(KEEP_EVENTS),
            "claims": self.inbox.purge_claims(KEEP_CLAIMS),
            "listed": self.inbox.purge_listed(KEEP_LISTED),
            "nonces": self.inbox.purge_nonces(KEEP_NONCES),
            "rejections": self.inbox.purge_rejections(KEEP_REJECTIONS),
            "refused_bodies": sum(
                self.inbox.purge_refused_bodies(name, endpoint.keep_refused or timedelta(0))
                for name, endpoint in self.endpoints.items()
            ),
            "issues": self._issues.purge(),
        }


def can_recover(endpoint: Endpoint) -> bool:
    """Whether there is a log to read, or somebody to ask to send again."""
    return endpoint.provider.list_events is not None


def can_reconcile(endpoint: Endpoint) -> bool:
    """Whether the provider can say which objects changed, and show them."""
    return endpoint.provider.list_changed is not None and endpoint.fetches and endpoint.can_ask


def _each(endpoints: Iterable[Endpoint], start: Callable[[Endpoint], Run | None]) -> list[Run]:
    return [run for endpoint in endpoints if (run := start(endpoint)) is not None]
