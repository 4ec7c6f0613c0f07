"""Whatever happens on the way, the database ends as the provider is, and each occasion was taken once."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.shop import NO_LEASE, Shop, truth
from webhooks.testing import ApiFaults, Simulator
from webhooks.testing.simulator import Answer


class Crash(BaseException):
    """The worker process is gone: nothing after this line of it happens, not even error handling."""


class Convergence(RuleBasedStateMachine):
    """A provider, an inbox and a worker; every rule is one thing that can happen to them."""

    provider: str
    database: str | None = None
    keys = Bundle("keys")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.simulator = Simulator(self.provider)
        self.simulator.start()
        # What a crash costs is not at issue here: nothing may die for lack of attempts.
        config = {self.provider: {**self.simulator.config, "max_attempts": 1000}}
        url = self.database or f"sqlite:///{self.folder / 'inbox.sqlite'}"
        self.shop = Shop(url, config, self.folder, **NO_LEASE)
        if self.database is not None:
            with self.shop.app.app_context():
                self.shop.db.drop_all()
                self.shop.db.create_all()
        self.simulator._send = self.shop.receiver(self.provider)
        self.crashes = 0

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            self.shop.close()
            self.simulator.stop()
            shutil.rmtree(self.folder)

    # -- at the provider

    @rule(target=keys, kind=st.integers(0, 1))
    def create(self, kind: int) -> Any:
        return self.simulator.create(self.simulator.service.kinds[kind], title="new")

    @rule(key=keys, title=st.text(max_size=3))
    def change(self, key: Any, title: str) -> None:
        if self.simulator.world.get(key) is not None:
            # Never twice the same body: where the id is not signed, a copy of a body is taken for a replay.
            self.simulator.update(key, title=f"{title} {len(self.simulator.world.log)}")

    @rule(key=keys)
    def delete(self, key: Any) -> None:
        if self.simulator.world.get(key) is not None and self.simulator.service.deletable(key[1]):
            self.simulator.delete(key)

    # -- on the way

    @rule(duplicates=st.booleans(), reordered=st.booleans(), unanswered=st.booleans())
    def deliver(self, duplicates: bool, reordered: bool, unanswered: bool) -> None:
        faults = self.simulator.delivery
        faults.reordered, faults.unanswered = float(reordered), float(unanswered)
        waiting = list(self.simulator._due)
        if duplicates:
            self.simulator._due.extend(waiting)
        self.simulator.deliver(all_due=True)
        faults.reordered = faults.unanswered = 0.0

    @rule()
    def lose(self) -> None:
        for due in self.simulator._due:
            self.simulator._attempted(due.happening, None, redelivery=False)
        self.simulator._due.clear()

    @rule(data=st.data())
    def send_an_old_event_again(self, data: st.DataObject) -> None:
        if self.simulator.world.log:
            self.simulator.send(data.draw(st.sampled_from(self.simulator.world.log)))

    # -- at the worker

    @rule()
    def work(self) -> None:
        self.shop.state.applier.drain()

    @rule(step=st.sampled_from(["claimed", "fetched", "written"]), skip=st.integers(0, 2))
    def crash_at(self, step: str, skip: int) -> None:
        left = skip

        def at(reached: str) -> None:
            nonlocal left
            if reached == step:
                left -= 1
                if left < 0:
                    raise Crash

        self._crashing(at)

    @rule()
    def crash_before_the_commit(self) -> None:
        def crash() -> None:
            raise Crash

        self.shop.before_commit = crash
        self._crashing(lambda _: None)
        self.shop.before_commit = lambda: None

    def _crashing(self, at: Any) -> None:
        self.shop.state.applier.at = at
        try:
            self.shop.state.applier.drain()
        except Crash:
            self.crashes += 1
            with self.shop.app.app_context():
                self.shop.db.session.remove()
        finally:
            self.shop.state.applier.at = lambda _: None

    @rule(status=st.sampled_from([429, 500, 503]))
    def the_api_fails_once(self, status: int) -> None:
        self.simulator.api = ApiFaults(script=[Answer(status, {}, {"Retry-After": "0"})])

    @rule()
    def recover(self) -> None:
        self.shop.state.reconciler.recover(self.shop.state.endpoints[self.provider])

    @rule()
    def reconcile(self) -> None:
        self.shop.state.reconciler.reconcile(self.shop.state.endpoints[self.provider])

    # -- what must hold

    @invariant()
    def no_occasion_was_taken_twice(self) -> None:
        noted = self.shop.noted()
        assert len(noted) == len(set(noted))

    @invariant()
    def every_event_is_there_once(self) -> None:
        keys = [event.dedup_key for event in self.shop.events()]
        assert len(keys) == len(set(keys))

    def settle(self) -> None:
        """Deliver what is planned, recover, apply: then everything must be equal."""
        self.simulator.api = ApiFaults()
        self.simulator.deliver(all_due=True)
        endpoint = self.shop.state.endpoints[self.provider]
        run = self.shop.state.reconciler.recover(endpoint)
        assert run is not None
        assert not run.error
        self._apply_all()
        note(str([(e.dedup_key, e.state, e.outcome, e.error) for e in self.shop.events()]))
        assert self.shop.copies() == truth(self.simulator)
        assert self.simulator.drift(self.shop.objects()) == []
        assert self.shop.noted() == sorted(happening.id for happening in self.simulator.world.log)
        assert {event.state for event in self.shop.events()} <= {"applied"}

    def _apply_all(self) -> None:
        """Apply whatever is open, also what is postponed."""
        events = self.shop.state.tables.events
        for _ in range(50):
            with self.shop.state.inbox.transaction() as connection:
                connection.execute(
                    events.update()
                    .where(events.c.state.in_(["pending", "applying"]))
                    .values(due_at=self.shop.state.inbox.moment())
                )
                connection.execute(self.shop.state.tables.holds.delete())
            self.shop.state.apis._brakes.clear()
            self.shop.state.applier.drain()
            if all(event.state not in {"pending", "applying"} for event in self.shop.events()):
                return
        pytest.fail(f"still open: {[(e.dedup_key, e.state, e.outcome, e.error) for e in self.shop.events()]}")


class StripeConvergence(Convergence):
    provider = "stripe"


class GithubConvergence(Convergence):
    provider = "github"


LENGTH = settings(
    max_examples=settings().max_examples // 2,
    stateful_step_count=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

TestStripe = StripeConvergence.TestCase
TestStripe.settings = LENGTH
TestGithub = GithubConvergence.TestCase
TestGithub.settings = LENGTH


@pytest.mark.parametrize("provider", ["stripe", "github"])
def test_any_sequence_converges_on_postgresql(provider: str, fresh_postgres: str) -> None:
    machine = type("Machine", (Convergence,), {"provider": provider, "database": fresh_postgres})
    run_state_machine_as_test(machine, settings=settings(LENGTH, max_examples=LENGTH.max_examples // 3))
