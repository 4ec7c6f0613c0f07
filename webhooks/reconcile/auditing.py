"""Audit: fetch a random sample of our copies, compare them, and say what that supports."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil, exp, floor, lgamma, log, log1p, log10
from typing import Any

from sqlalchemy import func, select

from ..endpoints import Endpoint
from ..errors import ConfigError
from ..inbox import Inbox
from ..provider import ObjectRef
from .comparing import Comparing
from .limits import BATCH
from .listing import Candidate
from .runs import Run, Runs

__all__ = ["CONFIDENCE", "SAMPLE", "Auditing", "statement", "upper_bound"]

SAMPLE = 299
"""The smallest sample that, all equal, puts drift below 1 % with 95 % confidence: 0.99 ** 299 < 0.05."""

CONFIDENCE = 0.95

RECENT = timedelta(days=7)
"""Copies that were written within this are sampled once more by themselves: what drifts has mostly just changed."""


@dataclass
class Auditing:
    """Audits one inbox."""

    inbox: Inbox
    runs: Runs
    comparing: Comparing

    def audit(
        self, endpoint: Endpoint, *, sample: int = SAMPLE, scheduled: bool = False, heal: bool = True
    ) -> Run | None:
        """Compare a random sample of all copies, and one of the recent ones, with what the provider has now.

        Each sample is drawn evenly from its own population, so that each statement holds for it. What differs is mended,
        unless `heal` is off. None if another audit is under way (or, when scheduled, was just now).
        """
        if not endpoint.fetches:
            raise ConfigError(f"{endpoint.name}: nothing can be fetched, so nothing can be compared")
        now = datetime.now(UTC)
        with self.runs.run(endpoint, "audit", now, scheduled=scheduled, dry=False) as run:
            if run is not None:
                drawn = {"all": self._sample(endpoint, None, sample)}
                drawn["recent"] = self._sample(endpoint, now - RECENT, sample // 2)
                verdicts = self._look(
                    endpoint, [c for found, _ in drawn.values() for c in found], run, heal=heal
                )
                run.report["statement"] = []
                for name, (found, population) in drawn.items():
                    counts = Counter(verdicts[candidate.key] for candidate in found)
                    compared = counts["equal"] + counts["drifted"]
                    run.report[name] = {
                        **counts,
                        "population": population,
                        "compared": compared,
                        "drift_below": upper_bound(counts["drifted"], compared)
                        if compared < population
                        else counts["drifted"] / max(population, 1),
                    }
                    of = "all copies" if name == "all" else f"copies written within {RECENT.days} days"
                    said = statement(counts["equal"], compared, population)
                    run.report["statement"].append(f"{of}: {said}")
        return run

    def _look(
        self, endpoint: Endpoint, found: list[Candidate], run: Run, *, heal: bool
    ) -> dict[tuple[str, str, str], str]:
        """The verdict on each; one that was drawn twice is looked at once."""
        once = list({candidate.key: candidate for candidate in found}.values())
        verdicts: dict[tuple[str, str, str], str] = {}
        for start in range(0, len(once), BATCH):
            some = once[start : start + BATCH]
            run.seen += len(some)
            verdicts |= self.comparing.look(endpoint, some, run, priority="audit", dry=not heal)
            self.runs.goes_on(run)
        return verdicts

    def _sample(self, endpoint: Endpoint, since: datetime | None, size: int) -> tuple[list[Candidate], int]:
        """So many copies by chance, and of how many."""
        o = self.inbox.tables.objects.c
        mine: Any = (o.endpoint == endpoint.name) & o.deleted_at.is_(None)
        if endpoint.provider.kinds:
            mine = mine & o.kind.in_(endpoint.provider.kinds)
        if since is not None:
            mine = mine & (o.as_of >= since)
        with self.inbox.engine.connect() as connection:
            population = int(connection.scalar(select(func.count()).where(mine)) or 0)
            rows = connection.execute(
                select(o.account, o.kind, o.id, o.path).where(mine).order_by(func.random()).limit(size)
            ).all()
        return [
            Candidate(row.account, ObjectRef(row.kind, row.id, row.path or "")) for row in rows
        ], population


def statement(equal: int, compared: int, population: int) -> str:
    """What a comparison supports, in one sentence."""
    drifted = compared - equal
    if compared == 0:
        return "nothing could be compared, so nothing can be said"
    if compared >= population:
        return f"{equal} of {compared} equal, and these are all: " + (
            "no drift" if not drifted else f"drift is {_percent(drifted / compared)}"
        )
    bound = upper_bound(drifted, compared)
    return f"{equal} of {compared} equal: drift below {_percent(bound)} with {CONFIDENCE:.0%} confidence".replace(
        "95%", "95 %"
    )


def upper_bound(drifted: int, compared: int, confidence: float = CONFIDENCE) -> float:
    """The exact (Clopper and Pearson) upper bound of a share of which so many of so many were found.

    It is the share at which finding no more than that would have a chance of 1 - confidence. For none found this is the
    rule of three, exactly: 1 - 0.05 ** (1 / n).
    """
    if compared == 0 or drifted >= compared:
        return 1.0
    low, high = drifted / compared, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        if _chance_of_at_most(drifted, compared, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def _chance_of_at_most(found: int, of: int, share: float) -> float:
    if share >= 1.0:
        return 0.0
    return sum(
        exp(
            lgamma(of + 1)
            - lgamma(n + 1)
            - lgamma(of - n + 1)
            + (n * log(share) if n else 0.0)
            + (of - n) * log1p(-share)
        )
        for n in range(found + 1)
    )


def _percent(share: float) -> str:
    """A share with two figures, rounded up: a bound must not become smaller by rounding."""
    if share <= 0:
        return "0 %"
    figures = 1 - floor(log10(share * 100))
    rounded = ceil(share * 100 * 10**figures - 1e-9) / 10**figures
    return (
        f"{rounded:.{max(figures, 0)}f}".rstrip("0").rstrip(".").rjust(1, "0") + " %"
        if figures > 0
        else f"{rounded:.0f} %"
    )
