"""How often events usually come, by the hour of the week, and whether it has been quiet for too long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Any, Self

__all__ = ["ENOUGH", "EXPECTED", "HOUR", "HOURS", "WEEKS", "Cadence"]

HOURS = 168
HOUR = timedelta(hours=1)

ENOUGH = 4
"""Weeks of history before anything is called unusual: a month has paydays, billing days and a quiet week."""

WEEKS = 8
"""Weeks that are learned from; older habits do not count."""

EXPECTED = 5.0
"""Events that should have come by now. That none came has then a chance of e ** -5, below 1 %, and only leads to a question."""


@dataclass(frozen=True)
class Cadence:
    """Events per hour of the week (0: Monday 00:00 UTC)."""

    weeks: int
    rates: Sequence[float]

    @classmethod
    def learn(cls, counts: Mapping[datetime, int], now: datetime, first: datetime) -> Self:
        """From events per hour (a missing hour had none) in the time from the first event until now.

        The median over the weeks: a holiday is one quiet week among several, and one burst is one loud one. Hours that
        have events in fewer than half of the weeks count nothing, unless all hours are so: then the mean is all there is.
        """
        weeks = max(min(int((now - first) / timedelta(weeks=1)), WEEKS), 0)
        begin = _hour(now) - weeks * timedelta(weeks=1)
        by_hour: list[list[int]] = [[] for _ in range(HOURS)]
        for step in range(weeks * HOURS):
            at = begin + step * HOUR
            by_hour[hour_of_week(at)].append(counts.get(at, 0))
        rates = [float(median(each)) if each else 0.0 for each in by_hour]
        if not any(rates):
            rates = [sum(each) / len(each) if each else 0.0 for each in by_hour]
        return cls(weeks, rates)

    @property
    def knows(self) -> bool:
        """Whether there was enough history."""
        return self.weeks >= ENOUGH and any(self.rates)

    def expected(self, since: datetime, until: datetime) -> float:
        """How many events usually come from one instant to another."""
        total, at = 0.0, since
        while at < until and total < 1_000_000:
            end = min(_hour(at) + HOUR, until)
            total += self.rates[hour_of_week(at)] * ((end - at) / HOUR)
            at = end
        return total

    def is_late(self, last: datetime, now: datetime) -> bool:
        """Whether so much should have come since the last event that none is unusual."""
        return self.knows and self.expected(last, now) >= EXPECTED

    def as_json(self) -> dict[str, Any]:
        return {"weeks": self.weeks, "rates": [round(rate, 3) for rate in self.rates]}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        return cls(int(value["weeks"]), [float(rate) for rate in value["rates"]])

    @classmethod
    def together(cls, several: Iterable[Cadence]) -> Self:
        """The cadence of all types of an endpoint taken together."""
        found = list(several)
        weeks = max((each.weeks for each in found), default=0)
        return cls(weeks, [sum(each.rates[hour] for each in found) for hour in range(HOURS)])


def hour_of_week(at: datetime) -> int:
    return at.weekday() * 24 + at.hour


def _hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)
