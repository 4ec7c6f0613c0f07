"""One budget of calls per account, shared by all workers; live events go first and never wait for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.outage import Beside, beside
from webhooks.api import Apis
from webhooks.api import budget as budgeting
from webhooks.api.budget import RESERVE, Budget, account_key
from webhooks.endpoints import Endpoint
from webhooks.errors import OverBudget, RetryLater
from webhooks.testing.simulator import Answer

RATE = 10.0
"""Calls per second; the configuration counts them over ten seconds, so that a hundred are the whole budget."""


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 12, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def made(database_url: str, tmp_path: Path) -> Iterator[Beside]:
    with beside(database_url, tmp_path, "stripe", api_rate=RATE) as made:
        yield made


def budgets(made: Beside, number: int = 2) -> tuple[Clock, list[Budget]]:
    """As many workers, each with what it knows itself, over one database."""
    clock, state = Clock(), made.shop.state
    return clock, [Budget(state.inbox._engine, state.tables, clock=clock) for _ in range(number)]


def taken(budget: Budget, endpoint: Endpoint, priority: str, most: int = 500) -> int:
    for number in range(most):
        if budget.take(endpoint, "", priority) > timedelta(0):  # type: ignore[arg-type]
            return number
    return most


def test_workers_share_one_budget_and_each_priority_leaves_the_more_urgent_their_share(made: Beside) -> None:
    _, (one, other) = budgets(made)
    assert taken(one, made.endpoint, "audit") == 25
    assert taken(other, made.endpoint, "audit") == 0
    assert taken(other, made.endpoint, "reconcile") == 25
    assert taken(one, made.endpoint, "reconcile") == 0
    assert taken(one, made.endpoint, "retry") == 40
    assert taken(other, made.endpoint, "retry") == 0
    assert RESERVE["live"] < RESERVE["retry"] < RESERVE["reconcile"] < RESERVE["audit"]


def test_live_events_are_counted_and_never_refused(made: Beside) -> None:
    _, (one, other) = budgets(made)
    for _ in range(200):
        one.spend(made.endpoint, "")
    assert taken(other, made.endpoint, "retry") == 0
    assert taken(other, made.endpoint, "reconcile") == 0


def test_what_live_events_spend_of_a_large_budget_is_written_in_parts_of_it(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with beside(database_url, tmp_path, "stripe", api_rate=1_000) as made:
        _, (one, _) = budgets(made)
        written: list[float] = []
        monkeypatch.setattr(one, "_write", lambda *_, spent, **__: written.append(spent))
        monkeypatch.setattr(budgeting, "FLUSH_AFTER", 3600.0)
        for _ in range(1_200):
            one.spend(made.endpoint, "")
        assert written == [500, 500], "a twentieth of the budget at a time, and not every twenty calls"


def test_time_gives_back_what_was_spent(made: Beside) -> None:
    clock, (one, _) = budgets(made)
    assert taken(one, made.endpoint, "reconcile") == 50
    wait = one.take(made.endpoint, "", "reconcile")
    assert timedelta(0) < wait <= timedelta(seconds=0.5)
    clock.now += timedelta(seconds=1)
    assert taken(one, made.endpoint, "reconcile") == 10


def test_what_the_provider_asks_for_holds_for_all_workers(made: Beside) -> None:
    clock, (one, other) = budgets(made)
    one.block(made.endpoint, "", timedelta(seconds=30))
    assert other.take(made.endpoint, "", "reconcile") == timedelta(seconds=30)
    clock.now += timedelta(seconds=31)
    assert other.take(made.endpoint, "", "reconcile") == timedelta(0)


def test_what_its_headers_say_is_left_counts_more_than_our_own_count(made: Beside) -> None:
    clock, (one, other) = budgets(made)
    one.learn(made.endpoint, "", 0.4, timedelta(minutes=10))
    assert other.take(made.endpoint, "", "reconcile") == timedelta(minutes=10)
    assert other.take(made.endpoint, "", "retry") == timedelta(0)
    clock.now += timedelta(minutes=11)
    assert other.take(made.endpoint, "", "reconcile") == timedelta(0)


def test_two_endpoints_with_the_same_credentials_are_one_account_and_hold_none_of_them(made: Beside) -> None:
    twin = replace(made.endpoint, name="twin")
    assert account_key(twin, "") == account_key(made.endpoint, "")
    assert account_key(made.endpoint, "acct_1") != account_key(made.endpoint, "")
    stranger = replace(made.endpoint, settings={**made.endpoint.settings, "api_key": "sk_test_other"})
    assert account_key(stranger, "") != account_key(made.endpoint, "")
    assert "sk_test" not in account_key(made.endpoint, "")


def test_many_threads_take_no_more_than_there_is(made: Beside) -> None:
    _, several = budgets(made, 6)
    got: list[int] = []
    threads = [
        threading.Thread(target=lambda b=budget: got.append(taken(b, made.endpoint, "reconcile")))  # type: ignore[misc]
        for budget in several
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(got) == 50


def test_a_backfill_waits_while_live_events_are_applied(made: Beside) -> None:
    """A reconcile that has used its share sleeps; the events that come meanwhile do not."""
    state = made.shop.state
    clock = Clock()
    state.apis.budget = Budget(state.inbox._engine, state.tables, clock=clock)
    applied: list[str] = []
    slept = 0

    def sleep(seconds: float) -> None:
        nonlocal slept
        slept += 1
        key = made.provider.create("customer", email=f"live {slept}")
        made.live()
        if ("customer", key[2]) in made.shop.copies():
            applied.append(key[2])
        clock.now += timedelta(seconds=seconds)

    state.apis.sleep = sleep
    for number in range(60):
        made.provider.create("customer", silent=True, email=f"{number}@example.test")
    run = made.reconcile()
    assert run.healed >= 60
    assert slept > 0
    assert len(applied) == slept
    assert made.is_equal()


def test_a_retry_that_finds_no_budget_is_postponed_and_holds_nobody_else(made: Beside) -> None:
    state = made.shop.state
    state.apis.budget = Budget(state.inbox._engine, state.tables, clock=Clock())
    for _ in range(200):
        state.apis.budget.spend(made.endpoint, "")
    made.provider.create("customer", email="first@example.test")
    made.provider.api.script = [Answer(500, {})]
    made.provider.deliver()
    made.work()
    events = state.tables.events
    with state.inbox.transaction() as connection:
        connection.execute(events.update().values(due_at=state.inbox.moment()))
    made.work()
    [event] = made.shop.events()
    assert (event.state, event.outcome, event.attempts) == ("pending", "rate_limited", 1)
    made.provider.create("customer", email="second@example.test")
    made.live()
    assert [e.state for e in made.shop.events()] == ["pending", "applied"]


def test_a_caller_in_a_hurry_does_not_wait(made: Beside) -> None:
    def sleep(_: float) -> None:
        pytest.fail("it waited")

    apis = Apis(sleep=sleep)
    made.provider.api.script = [Answer(503, {})]
    with pytest.raises(RetryLater):
        apis.of(made.endpoint).get("/v1/events")
    assert issubclass(OverBudget, RetryLater)


def test_whoever_may_wait_does_so_only_so_often(made: Beside) -> None:
    slept: list[float] = []
    apis = Apis(sleep=slept.append)
    made.provider.api.script = [Answer(503, {})] * 20
    with pytest.raises(RetryLater):
        apis.of(made.endpoint, priority="reconcile").get("/v1/events")
    assert slept == [2, 4, 8, 16]
