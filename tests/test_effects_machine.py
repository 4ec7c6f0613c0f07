"""Whatever crashes, and whenever: the other side does it once, or the effect is known to be unknown."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.till import Crash, Till
from webhooks import GiveUp, RetryLater

Kind = Literal["once", "keyed", "seen"]
KINDS: tuple[Kind, ...] = ("once", "keyed", "seen")
LIFETIME = timedelta(hours=24)


class Callee:
    """The other side: it does what it is asked for, once per key where it honours keys and remembers this one."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[Kind, str]] = Counter()
        self.happened: Counter[tuple[Kind, str]] = Counter()
        self.known: dict[str, timedelta] = {}
        """Keys that it remembers → for how long already."""
        self.before: Exception | None = None
        """Raised before anything happens."""
        self.after: Exception | None = None
        """Raised when it has happened: the answer is lost."""

    def call(self, kind: Kind, key: str) -> str:
        self.calls[kind, key] += 1
        if self.before is not None:
            raise self.before
        if kind != "keyed" or key not in self.known:
            self.happened[kind, key] += 1
            self.known[key] = timedelta(0)
        if self.after is not None:
            raise self.after
        return "ok"

    def time_passes(self, span: timedelta) -> None:
        self.known = {key: age + span for key, age in self.known.items() if age + span <= LIFETIME}


class Calls(RuleBasedStateMachine):
    """Handlers that promise, workers that call and die, a callee, a clock and a person."""

    database: str | None = None

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.callee = Callee()
        self.before_commit: Callable[[], None] = lambda: None
        url = self.database or f"sqlite:///{self.folder / 'inbox.sqlite'}"
        self.till = Till(url, self.folder, self.build, WEBHOOKS_LEASE=timedelta(microseconds=1))

    def teardown(self) -> None:
        try:
            self.everything_ends()
        finally:
            self.till.close()
            shutil.rmtree(self.folder)

    def build(self, till: Till) -> None:
        callee = self.callee

        @till.webhooks.effect(name="once")
        def once(key: str) -> str:
            return callee.call("once", key)

        @till.webhooks.effect(name="keyed", idempotent=True, key_lifetime=LIFETIME)
        def keyed(key: str) -> str:
            return callee.call("keyed", key)

        @till.webhooks.effect(name="seen", lookup=lambda key: callee.happened["seen", key] > 0)
        def seen(key: str) -> str:
            return callee.call("seen", key)

        @till.webhooks.on("stripe", "customer.created", name="promise")
        def promise(event: Any, customer: Any) -> None:
            till.db.session.add(till.Row(what=event.dedup_key))
            for effect in (once, keyed, seen):
                effect.later()
            till.db.session.flush()
            self.before_commit()

    # -- what can happen

    @rule(twice=st.booleans())
    def an_event_comes(self, twice: bool) -> None:
        self.till.simulator.delivery.duplicates = float(twice)
        self.till.simulator.create("customer")
        self.till.deliver()

    @rule(crash=st.sampled_from(["", "before commit", "after commit"]))
    def a_worker_applies(self, crash: str) -> None:
        def die(*_: object) -> None:
            raise Crash

        self.before_commit = die if crash == "before commit" else lambda: None
        if crash == "after commit":
            self.till.state.applier.at = lambda step: die() if step == "written" else None
        self.until_it_dies(self.till.apply)
        self.before_commit, self.till.state.applier.at = lambda: None, lambda _: None

    @rule(
        crash=st.sampled_from(["", "started", "called", "finished"]),
        skip=st.integers(0, 3),
        before=st.sampled_from([None, RetryLater("busy", timedelta(0)), GiveUp("never")]),
        after=st.sampled_from([None, TimeoutError()]),
    )
    def a_worker_calls(
        self, crash: str, skip: int, before: Exception | None, after: Exception | None
    ) -> None:
        reached = 0

        def at(step: str) -> None:
            nonlocal reached
            reached += step == crash
            if step == crash and reached > skip:
                raise Crash

        self.callee.before, self.callee.after = before, after
        self.till.state.caller.at = at
        self.until_it_dies(self.till.call)
        self.callee.before = self.callee.after = None
        self.till.state.caller.at = lambda _: None

    @rule()
    def all_leases_run_out(self) -> None:
        self.till.all_leases_run_out()

    @rule(hours=st.sampled_from([1, 12, 23, 25]))
    def time_passes(self, hours: int) -> None:
        self.callee.time_passes(timedelta(hours=hours))
        self.till.time_passes(timedelta(hours=hours))

    @precondition(lambda self: "unknown" in self.till.states())
    @rule()
    def a_person_looks_at_the_other_side_and_settles(self) -> None:
        for effect in self.till.effects():
            if effect.state == "unknown":
                happened = self.callee.happened[effect.name, effect.idempotency_key] > 0
                assert self.till.state.outbox.settle(effect.idempotency_key, done=happened)

    @precondition(lambda self: "dead" in self.till.states())
    @rule()
    def a_person_redrives(self) -> None:
        dead = [e.idempotency_key for e in self.till.effects() if e.state == "dead"]
        assert self.till.state.outbox.redrive(dead) == len(dead)

    def until_it_dies(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Crash:
            note("the worker died")

    # -- what must hold

    @invariant()
    def nothing_happens_twice(self) -> None:
        assert {key: count for key, count in self.callee.happened.items() if count > 1} == {}

    @invariant()
    def what_is_committed_is_promised_and_nothing_else_is(self) -> None:
        promised = Counter(effect.event_id for effect in self.till.effects())
        assert len(promised) == len(self.till.rows())
        assert set(promised.values()) <= {len(KINDS)}

    @invariant()
    def every_state_is_true(self) -> None:
        for effect in self.till.effects():
            happened = self.callee.happened[effect.name, effect.idempotency_key]
            calls = self.callee.calls[effect.name, effect.idempotency_key]
            if effect.state == "done":
                assert happened == 1, effect
            elif (
                effect.attempts == 0
                or effect.state == "dead"
                or (effect.state == "recorded" and effect.name == "once")
            ):
                assert happened == 0, effect
            assert calls == 0 or effect.call_no > 0

    def everything_ends(self) -> None:
        """With workers that live, nothing is left in between; what is not done is not repeated without being asked."""
        for _ in range(8):
            self.till.apply()
            self.till.all_leases_run_out()
            self.till.call()
        note(str([(e.name, e.state, e.attempts, e.error) for e in self.till.effects()]))
        assert len(self.till.rows()) == len(self.till.simulator.world.log)
        assert set(self.till.states()) <= {"done", "dead", "unknown"}
        for effect in self.till.effects():
            assert effect.state != "unknown" or effect.name != "seen", "its lookup can always tell"
        self.nothing_happens_twice()
        self.every_state_is_true()


LENGTH = settings(
    max_examples=settings().max_examples // 2,
    stateful_step_count=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)

TestCalls = Calls.TestCase
TestCalls.settings = LENGTH


def test_whatever_crashes_on_postgresql_it_happens_once_or_is_known_to_be_unknown(
    fresh_postgres: str,
) -> None:
    machine = type("Machine", (Calls,), {"database": fresh_postgres})
    run_state_machine_as_test(machine, settings=settings(LENGTH, max_examples=LENGTH.max_examples // 3))
