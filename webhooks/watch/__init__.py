"""Tell people: ask the providers about our endpoints, look at the inbox, keep one open issue per kind and endpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from sqlalchemy import func, select

from ..api import Apis
from ..endpoints import Endpoint, Endpoints
from ..errors import ConfigError
from ..handlers import Handlers
from ..inbox import Inbox
from ..inbox.marks import EVERYWHERE, Marks
from ..inbox.rows import aware
from ..inbox.spool import Spool
from ..issues import KINDS, Finding, Issues
from ..provider import instant
from .asking import ask
from .countdown import Trouble, findings
from .outage import Outage, simulate
from .rows import BEAT, Rows
from .silence import Probe, Silence, probe

__all__ = ["BEAT", "Finding", "Outage", "Watch", "simulate"]


def _now() -> datetime:
    return datetime.now(UTC)


class Watch:
    """Checks for one app."""

    def __init__(
        self,
        inbox: Inbox,
        endpoints: Endpoints,
        apis: Apis,
        handlers: Handlers,
        issues: Issues,
        *,
        clock: Callable[[], datetime] = _now,
        probe_with: Probe | None = None,
        spool: Spool | None = None,
    ) -> None:
        self.inbox, self.endpoints, self.apis, self.issues = inbox, endpoints, apis, issues
        self._handlers, self._clock = handlers, clock
        self._rows = Rows(inbox, endpoints, spool)
        self._silence = Silence(inbox, probe_with or probe(inbox, apis))

    def alive(self) -> None:
        """Note that beat has rung and a worker has heard it."""
        Marks(self.inbox).put(EVERYWHERE, BEAT, True)  # noqa: FBT003 - a value

    def check(self, only: Endpoint | None = None) -> list[Finding]:
        """Look at every endpoint, open and close issues; return what was found."""
        found: list[Finding] = []
        for endpoint in [only] if only is not None else self.endpoints.values():
            found += self._check(endpoint)
        found += self._rows.everywhere()
        self.issues.enter([finding for finding in found if finding.kind in KINDS])
        return found

    def _check(self, endpoint: Endpoint) -> Sequence[Finding]:
        now = self._clock()
        found = [*ask(self.apis, self._handlers, endpoint), *self._rows.of(endpoint)]
        found += self._silence.of(endpoint, now)
        found += findings(
            endpoint.name, endpoint.provider.name, endpoint.provider.policy, self.trouble(endpoint), now
        )
        if endpoint.name in self.apis.apart:
            found.append(self._clock_there(endpoint))
        elif any(finding.kind == "no_answer" and not finding.good for finding in found):
            # What our own rows say of the clocks is not all of it: nothing is closed for half of the evidence.
            found = [finding for finding in found if finding.kind != "clock_skew" or not finding.good]
        return _joined(found)

    def _clock_there(self, endpoint: Endpoint) -> Finding:
        """Our clock beside that of the provider's API, as its last answer showed it."""
        apart = abs(self.apis.apart[endpoint.name])
        detail = f"our clock and that of {endpoint.provider.name} are {apart:.0f} s apart"
        return Finding(endpoint.name, "clock_skew", apart <= APART, detail)

    def trouble(self, endpoint: Endpoint) -> Trouble:
        """What the provider could not deliver: from our own refusals, and from its log as recover last read it."""
        e, r = self.inbox.tables.events.c, self.inbox.tables.rejections.c
        with self.inbox.engine.connect() as connection:
            good = connection.scalar(
                select(func.max(e.last_delivery_at)).where(e.endpoint == endpoint.name, e.deliveries > 0)
            )
            refused = (r.endpoint == endpoint.name) & r.reason.in_(OURS)
            if good is not None:
                refused = refused & (r.received_at > good)
            first, failures = connection.execute(
                select(func.min(r.received_at), func.count()).where(refused)
            ).one()
        log = Marks(self.inbox).get(endpoint.name, "undelivered") or {}
        oldest, newest = instant(log.get("oldest")), instant(log.get("newest"))
        lost = int(log.get("missing", 0))
        refused_since = aware(first) if first is not None else None
        waiting = [at for at in (refused_since, oldest if log.get("count") else None) if at is not None]
        since = min(waiting, default=None)
        return Trouble(
            since=since,
            failing_since=since
            if since is not None and (good is None or aware(good) < since)
            else refused_since,
            failures=failures,
            lost=lost,
            lost_from=oldest if lost else None,
            lost_until=newest if lost else None,
        )

    def enable(self, endpoint: Endpoint) -> None:
        """Have the provider send to this endpoint again. Raises ConfigError where its API cannot do that."""
        if endpoint.provider.enable is None:
            why = endpoint.provider.untold.get("enable", "its API has no such thing")
            raise ConfigError(f"{endpoint.provider.name} lets nobody enable an endpoint by its API: {why}")
        endpoint.provider.enable(self.apis.of(endpoint))


APART = 60.0
"""Seconds; providers that sign their time allow five minutes."""

OURS = ("mismatch", "clock", "no_secret", "too_large", "unsupported")
"""Refusals that may have been the provider's deliveries; `missing` and `malformed` are somebody else."""


def _joined(found: Sequence[Finding]) -> list[Finding]:
    """One finding per kind: bad if one of them is, with the details of those that are."""
    by_kind: dict[str, list[Finding]] = {}
    for finding in found:
        by_kind.setdefault(finding.kind, []).append(finding)
    joined = []
    for kind, several in by_kind.items():
        bad = [finding for finding in several if not finding.good]
        told = bad or several[:1]
        evidence = {key: value for finding in told for key, value in finding.evidence.items()}
        detail = "; ".join(finding.detail for finding in told)
        joined.append(Finding(several[0].endpoint, kind, not bad, detail, evidence))
    return joined
