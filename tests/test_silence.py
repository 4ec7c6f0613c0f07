"""Nights, weekends and holidays are quiet; a real stop on Monday morning is not."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.outage import Beside, beside
from webhooks.issues import Issues
from webhooks.watch import Watch
from webhooks.watch.cadence import ENOUGH, EXPECTED, Cadence

CHECK = timedelta(minutes=15)
MONDAY = datetime(2026, 1, 5, tzinfo=UTC)
WEEKS = 26
HOLIDAYS = {MONDAY.date() + timedelta(days=n) for n in (88, 91, 116, 130, 141, 151)}
"""Easter, May Day and the like; the last one is a Thursday with a bridge day behind it."""
HOLIDAYS |= {day + timedelta(days=1) for day in HOLIDAYS if day.weekday() == 3}
SUMMER = MONDAY + timedelta(days=83, hours=1)
"""From here on the office is open an hour earlier in UTC."""


def office_hours(seed: int = 7) -> list[datetime]:
    """26 weeks of events: Monday to Friday, nine to five by the local clock, about 20 an hour, none on holidays."""
    chance = random.Random(seed)
    events, at = [], MONDAY
    while at < MONDAY + timedelta(weeks=WEEKS):
        at += timedelta(minutes=chance.expovariate(1 / 3))
        local = at + timedelta(hours=1 if at >= SUMMER else 0)
        if local.weekday() < 5 and 9 <= local.hour < 17 and local.date() not in HOLIDAYS:
            events.append(at)
    return events


class Quiet:
    """An app with that history, whose provider is asked and counts how often."""

    def __init__(self, made: Beside) -> None:
        self.made, self.asked = made, 0
        self.lacking: list[datetime] = []
        self.now = MONDAY
        state = made.shop.state
        self.issues = Issues(state.inbox)

        def probe(_endpoint: Any, since: datetime, until: datetime) -> dict[str, Any] | None:
            self.asked += 1
            found = [at for at in self.lacking if since < at <= until]
            return {"count": len(found), "oldest": min(found).isoformat()} if found else {}

        self.watch = Watch(
            state.inbox,
            state.endpoints,
            state.apis,
            state.handlers,
            self.issues,
            clock=lambda: self.now,
            probe_with=probe,
        )

    def record(self, times: list[datetime]) -> None:
        rows = [
            {
                "endpoint": "stripe",
                "dedup_key": f"evt_{at.timestamp()}",
                "origin": "delivery",
                "type": "invoice.paid",
                "account": "",
                "received_at": at,
                "deliveries": 1,
                "last_delivery_at": at,
                "state": "applied",
                "attempts": 1,
                "due_at": at,
            }
            for at in times
        ]
        if rows:
            with self.made.shop.state.inbox.transaction() as connection:
                connection.execute(self.made.shop.state.tables.events.insert(), rows)

    def check(self) -> None:
        """The part of a check that watches for silence; the provider's health is another test's."""
        endpoint = self.made.endpoint
        self.issues.enter(self.watch._silence.of(endpoint, self.now))

    def silence(self) -> Any:
        return self.made.issues().get("silence")

    def episodes(self) -> int:
        issues = self.made.shop.state.tables.issues
        with self.made.shop.state.inbox.engine.connect() as connection:
            return len(connection.execute(issues.select().where(issues.c.kind == "silence")).all())


@pytest.fixture
def quiet(sqlite_url: str, tmp_path: Path) -> Iterator[Quiet]:
    with beside(sqlite_url, tmp_path, "stripe") as made:
        yield Quiet(made)


def walk(
    quiet: Quiet, events: list[datetime], begin: datetime, end: datetime, step: timedelta = CHECK
) -> None:
    """Let time pass from check to check; events arrive as they happen."""
    waiting = deque(at for at in events if begin <= at < end)
    quiet.now = begin
    while quiet.now < end:
        quiet.now += step
        due = []
        while waiting and waiting[0] < quiet.now:
            due.append(waiting.popleft())
        quiet.record(due)
        quiet.check()
        assert quiet.silence() is None, f"a false issue at {quiet.now}"


@pytest.mark.slow
def test_a78_26_weeks_of_office_hours_with_holidays_make_no_false_issue_checked_every_15_minutes(
    quiet: Quiet,
) -> None:
    events = office_hours()
    begin = MONDAY + timedelta(weeks=ENOUGH)
    quiet.record([at for at in events if at < begin])
    walk(quiet, events, begin, MONDAY + timedelta(weeks=WEEKS))
    assert 0 < quiet.asked < 500  # on the mornings of holidays the provider is asked


def test_26_weeks_of_office_hours_with_holidays_make_no_false_issue(quiet: Quiet) -> None:
    """The same with a check every six hours, at 10, 16, 22 and 4: a night, a weekend, a holiday each have theirs."""
    events = office_hours()
    begin = MONDAY + timedelta(weeks=ENOUGH, hours=4)
    quiet.record([at for at in events if at < begin])
    walk(quiet, events, begin, MONDAY + timedelta(weeks=WEEKS), step=timedelta(hours=6))
    assert quiet.asked > 0


def test_a_real_stop_on_monday_morning_is_an_issue_within_half_an_hour(quiet: Quiet) -> None:
    """The bound: as long as five events usually take, here 15 minutes, and one interval of checks."""
    stop = MONDAY + timedelta(weeks=10, hours=9)
    events = office_hours()
    quiet.record([at for at in events if at < stop])
    quiet.lacking = [at for at in events if at >= stop]
    quiet.now = stop - timedelta(hours=1)
    while quiet.silence() is None:
        assert quiet.now < stop + timedelta(minutes=30)
        quiet.now += CHECK
        quiet.check()
    assert quiet.now > stop
    assert "did not deliver" in quiet.silence().evidence["detail"]
    assert quiet.silence().evidence["types"] == ["invoice.paid"]


def test_a_provider_that_cannot_be_asked_makes_no_issue_of_a_guess(quiet: Quiet) -> None:
    stop = MONDAY + timedelta(weeks=10, hours=9)
    quiet.record([at for at in office_hours() if at < stop])
    quiet.watch._silence.ask = lambda *_: None
    quiet.now = stop + timedelta(hours=3)
    [finding] = quiet.watch._silence.of(quiet.made.endpoint, quiet.now)
    assert finding.good
    assert "cannot be asked" in finding.detail


def test_too_little_history_says_nothing(quiet: Quiet) -> None:
    stop = MONDAY + timedelta(weeks=ENOUGH - 1, hours=12)
    events = office_hours()
    quiet.record([at for at in events if at < stop])
    quiet.lacking = [at for at in events if at >= stop]
    quiet.now = stop + timedelta(hours=3)
    quiet.check()
    assert quiet.silence() is None
    assert quiet.asked == 0


def test_a79_gaps_just_above_and_below_the_limit_are_one_issue_and_not_twenty(quiet: Quiet) -> None:
    endpoint = replace(quiet.made.endpoint, max_silence=timedelta(hours=1))
    quiet.made.shop.state.endpoints._endpoints["stripe"] = endpoint
    at = quiet.now = MONDAY
    quiet.record([at])
    for number in range(20):
        at += timedelta(minutes=66 if number % 2 == 0 else 55)
        while quiet.now < at:
            quiet.now += timedelta(minutes=5)
            quiet.check()
        quiet.record([at])
    assert quiet.episodes() == 1
    for _ in range(8 * 12):  # and when it comes regularly again, it is over
        quiet.now += timedelta(minutes=5)
        quiet.record([quiet.now])
        quiet.check()
    assert quiet.silence() is None
    assert quiet.episodes() == 1


def test_longer_than_max_silence_is_an_issue_without_any_history(quiet: Quiet) -> None:
    endpoint = replace(quiet.made.endpoint, max_silence=timedelta(hours=2))
    quiet.made.shop.state.endpoints._endpoints["stripe"] = endpoint
    quiet.record([MONDAY])
    quiet.now = MONDAY + timedelta(hours=2)
    quiet.check()
    assert quiet.silence() is None
    quiet.now += timedelta(minutes=1)
    quiet.check()
    assert "max_silence" in quiet.silence().evidence["detail"]


def test_the_provider_itself_is_asked_and_what_recover_found_counts_as_not_delivered(
    sqlite_url: str, tmp_path: Path
) -> None:
    with beside(sqlite_url, tmp_path, "stripe") as made:
        quiet = Quiet(made)
        now = made.clock()
        regular = [now - timedelta(hours=n, minutes=2) for n in range(1, 24 * 7 * 5)]
        quiet.record([at - timedelta(hours=20) for at in regular])
        made.clock.offset = -timedelta(hours=2)
        made.provider.create("customer", email="lost@example.test")
        made.lose_all()
        made.clock.is_now()
        made.recover()
        check = Watch(
            made.shop.state.inbox,
            made.shop.state.endpoints,
            made.shop.state.apis,
            made.shop.state.handlers,
            quiet.issues,
        ).check()
        [finding] = [finding for finding in check if finding.kind == "silence"]
        assert not finding.good
        assert finding.evidence["count"] == 1


def test_one_quiet_week_does_not_change_what_is_usual() -> None:
    now = MONDAY + timedelta(weeks=8)
    hour = timedelta(hours=1)
    counts = {MONDAY + timedelta(weeks=week, hours=10): 30 for week in range(8) if week != 5}
    cadence = Cadence.learn(counts, now, MONDAY)
    assert cadence.expected(now + 10 * hour, now + 11 * hour) == 30
    assert cadence.expected(now + 12 * hour, now + 24 * hour) == 0
    assert cadence.is_late(now, now + 10 * hour + hour * EXPECTED / 30)
    assert not cadence.is_late(now, now + 10 * hour)


def test_what_comes_a_few_times_a_week_is_expected_over_weeks_and_not_hours() -> None:
    now = MONDAY + timedelta(weeks=8)
    counts = {MONDAY + timedelta(weeks=week, hours=7 * week): 1 for week in range(8)}
    cadence = Cadence.learn(counts, now, MONDAY)
    assert not cadence.is_late(now, now + timedelta(weeks=4))
    assert cadence.is_late(now, now + timedelta(weeks=6))
