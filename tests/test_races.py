"""What happens at the same time: deliveries, workers, crashes."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.shop import NO_LEASE, Shop, truth
from webhooks.apply import Applied
from webhooks.apply.fetching import Fetched
from webhooks.testing import Simulator

ROOT = Path(__file__).parent.parent


@pytest.fixture
def stripe() -> Iterator[Simulator]:
    with Simulator("stripe") as simulator:
        yield simulator


@contextmanager
def opened(url: str, simulator: Simulator, folder: Path, **config: Any) -> Iterator[Shop]:
    shop = Shop(url, {"stripe": simulator.config}, folder, **config)
    simulator._send = shop.receiver("stripe")
    try:
        yield shop
    finally:
        shop.close()


class Worker:
    """A worker process that starts to apply when told."""

    def __init__(self, url: str, simulator: Simulator, folder: Path, step: str = "") -> None:
        arguments = [url, json.dumps({"stripe": simulator.config}), str(folder), *([step] if step else [])]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.worker", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self) -> int:
        try:
            return self.process.wait(90)
        finally:
            self.process.kill()
            self.process.communicate()


# -- at the door


def test_of_fifty_identical_deliveries_at_once_one_is_new_and_all_are_answered_200(
    database_url: str, stripe: Simulator, tmp_path: Path
) -> None:
    """A56."""
    with opened(database_url, stripe, tmp_path) as shop:
        stripe.create("customer")
        happening = stripe.world.log[0]
        start = threading.Barrier(50)

        def deliver(_number: int) -> int | None:
            start.wait()
            return stripe.send(happening)

        with ThreadPoolExecutor(50) as threads:
            assert list(threads.map(deliver, range(50))) == [200] * 50
        (event,) = shop.events()
        assert event.deliveries == 50
        shop.state.applier.drain()
        assert shop.noted() == [happening.id]
        assert shop.copies() == truth(stripe)


def test_a_burst_of_different_events_is_recorded_whole_and_in_few_commits(
    database_url: str, stripe: Simulator, tmp_path: Path
) -> None:
    with opened(database_url, stripe, tmp_path) as shop:
        for _ in range(200):
            stripe.create("customer")
        with ThreadPoolExecutor(16) as threads:
            assert set(threads.map(stripe.send, stripe.world.log)) == {200}
        assert sorted(event.dedup_key for event in shop.events()) == sorted(h.id for h in stripe.world.log)


# -- two workers


def test_the_newer_state_stays_when_an_older_fetch_comes_back_late(
    fresh_postgres: str, stripe: Simulator, tmp_path: Path
) -> None:
    """The race that "fetch, then write" loses, with two real processes: the first one's fetch is slow."""
    with opened(fresh_postgres, stripe, tmp_path) as shop:
        customer = stripe.create("customer", title="v1")
        stripe.deliver()
        first_fetch, second_written = threading.Event(), threading.Event()

        def hold(_call: Any, answer: Any) -> None:
            if answer.json.get("title") == "v1":
                first_fetch.set()
                assert second_written.wait(30)

        stripe.before_reply = hold
        slow = Worker(fresh_postgres, stripe, tmp_path)
        fast = Worker(fresh_postgres, stripe, tmp_path)
        slow.go()
        assert first_fetch.wait(30)  # the slow one holds v1 …
        stripe.update(customer, title="v2")
        stripe.deliver()
        fast.go()  # … while the fast one claims, fetches and writes v2
        while [event.state for event in shop.events()] != ["applying", "applied"]:
            assert fast.process.poll() in {None, 0}
        second_written.set()
        assert (slow.end(), fast.end()) == (0, 0)
        assert shop.copies() == truth(stripe)
        assert shop.objects()[0].data["title"] == "v2"
        assert [(e.state, e.outcome) for e in shop.events()] == [("applied", "applied")] * 2
        assert shop.noted() == sorted(h.id for h in stripe.world.log)


def test_two_processes_share_a_backlog_and_each_occasion_is_taken_once(
    fresh_postgres: str, stripe: Simulator, tmp_path: Path
) -> None:
    """A71."""
    with opened(fresh_postgres, stripe, tmp_path) as shop:
        customers = [stripe.create("customer") for _ in range(30)]
        for number in range(300):
            stripe.update(customers[number % 30], title=str(number))
        stripe.deliver()
        workers = [Worker(fresh_postgres, stripe, tmp_path) for _ in range(2)]
        for worker in workers:
            worker.go()
        assert [worker.end() for worker in workers] == [0, 0]
        assert shop.copies() == truth(stripe)
        assert shop.noted() == sorted(h.id for h in stripe.world.log)
        assert {event.state for event in shop.events()} == {"applied"}


@pytest.mark.parametrize("step", ["claimed", "fetched", "committing", "written"])
def test_a_worker_killed_at_any_step_loses_nothing_and_doubles_nothing(
    step: str, database_url: str, stripe: Simulator, tmp_path: Path
) -> None:
    """A65, A69, A70: SIGKILL, then another worker."""
    with opened(database_url, stripe, tmp_path) as shop:
        for number in range(5):
            customer = stripe.create("customer")
            stripe.update(customer, title=str(number))
        stripe.deliver()
        shop.close()
        victim = Worker(database_url, stripe, tmp_path, step)
        victim.go()
        assert victim.end() == -9
        heir = Worker(database_url, stripe, tmp_path)
        heir.go()
        assert heir.end() == 0
        assert shop.copies() == truth(stripe)
        assert shop.noted() == sorted(h.id for h in stripe.world.log)
        assert {event.state for event in shop.events()} == {"applied"}


def test_a_worker_that_slept_past_its_lease_writes_nothing(
    database_url: str, stripe: Simulator, tmp_path: Path
) -> None:
    with opened(database_url, stripe, tmp_path, **NO_LEASE) as shop:
        customer = stripe.create("customer", title="v1")
        stripe.deliver()
        claims = [shop.state.inbox.claim(shop.state.endpoints) for _ in range(2)]
        for claim in claims:
            assert claim is not None
            fetched = Fetched(asked=True, data=stripe.world.get(customer))
            shop.state.applier._write(claim, claim.groups[0], fetched, Applied())
            (event,) = shop.events()
            assert event.claim_no == claims[1].no  # type: ignore[union-attr]
            if claim is claims[0]:
                assert (event.state, shop.noted(), shop.copies(), shop.objects()) == ("applying", [], {}, [])
        assert (event.state, event.outcome) == ("applied", "applied")
        assert shop.noted() == [stripe.world.log[0].id]
        assert shop.copies() == truth(stripe)


# -- every schedule


def schedules(changes: int) -> Iterator[list[int]]:
    """Every order of N changes and N workers that each claim, fetch and write; -1 is a change, n a step of worker n."""

    def go(done: int, steps: tuple[int, ...], path: list[int]) -> Iterator[list[int]]:
        moved = False
        if done < changes:
            moved = True
            yield from go(done + 1, steps, [*path, -1])
        for worker, step in enumerate(steps):
            if step < 3 and (step > 0 or done > worker):
                moved = True
                yield from go(done, (*steps[:worker], step + 1, *steps[worker + 1 :]), [*path, worker])
        if not moved:
            yield path

    yield from go(0, (0,) * changes, [])


def model(schedule: list[int], *, guarded: bool) -> int:
    """The version that is stored in the end, by the rule on paper: a write is refused if a later claim has written."""
    version = claims = stored = stored_by = 0
    claimed: dict[int, int] = {}
    fetched: dict[int, int] = {}
    for step in schedule:
        if step == -1:
            version += 1
        elif step not in claimed:
            claims += 1
            claimed[step] = claims
        elif step not in fetched:
            fetched[step] = version
        elif not guarded or claimed[step] >= stored_by:
            stored, stored_by = fetched[step], claimed[step]
    return stored


def test_the_guard_holds_in_every_schedule_where_the_usual_recipe_does_not() -> None:
    for changes, number, stale in ((2, 35, 1), (3, 5775, 295)):
        every = list(schedules(changes))
        assert len(every) == number
        assert sum(model(s, guarded=False) != changes for s in every) == stale
        assert sum(model(s, guarded=True) != changes for s in every) == 0


def play(shop: Shop, stripe: Simulator, schedule: list[int], number: int) -> int:
    """Run one schedule against the real statements; return the version that is stored in the end."""
    key = stripe.create("customer", id_=f"cus_{number}", silent=True, n=0)
    applier = shop.state.applier
    ids: list[int] = []
    claims: dict[int, Any] = {}
    fetched: dict[int, Fetched] = {}
    version = 0
    for step in schedule:
        if step == -1:
            version += 1
            stripe.world.put(key, {**(stripe.world.get(key) or {}), "n": version})
            happening = stripe.emit("customer.updated", key)
            stripe._due.clear()
            assert stripe.send(happening) == 200
            ids.append(shop.events()[-1].id)
        elif step not in claims:
            # Each worker takes the event of its own change, as if no other one were due.
            claims[step] = shop.state.inbox.claim(shop.state.endpoints, only=[ids[step]])
        elif step not in fetched:
            fetched[step] = Fetched(asked=True, data=stripe.world.get(key))
        elif claims[step] is not None:
            for group in claims[step].groups:
                applier._write(claims[step], group, fetched[step], Applied())
    (row,) = [row for row in shop.objects() if row.id == key[2]]
    assert all(event.state == "applied" for event in shop.events())
    return int(row.data["n"])


def test_the_real_statements_do_what_the_model_says_in_every_schedule_of_two_changes(
    database_url: str, stripe: Simulator, tmp_path: Path
) -> None:
    with opened(database_url, stripe, tmp_path) as shop:
        for number, schedule in enumerate(schedules(2)):
            assert play(shop, stripe, schedule, number) == 2, schedule


@pytest.mark.parametrize("share", [0.02, pytest.param(1.0, marks=pytest.mark.slow)])
def test_the_real_statements_do_what_the_model_says_in_schedules_of_three_changes(
    share: float, sqlite_url: str, stripe: Simulator, tmp_path: Path
) -> None:
    chance = random.Random(7)
    with opened(sqlite_url, stripe, tmp_path) as shop:
        for number, schedule in enumerate(schedules(3)):
            if chance.random() < share:
                assert play(shop, stripe, schedule, number) == 3, schedule
                with shop.state.inbox.transaction() as connection:
                    connection.execute(shop.state.tables.events.delete())
