"""What happens in the demo: changes at the provider, deliveries that go wrong, and the comparison at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import func, select

from ...state import State
from ..simulator import DeliveryFaults, Key, Simulator

__all__ = ["FAULTS", "Figures", "Story"]

FAULTS = DeliveryFaults(duplicates=0.25, reordered=0.3, lost=0.08, unanswered=0.05)
"""Far worse than any provider, so that a short demo shows it."""

RATE = 15.0
"""Changes per second and provider."""

APART = 0.002
"""Seconds between two changes, at least: where nothing can be fetched, times of a millisecond tell which is newer."""

SETTLE = 45.0
"""Seconds in which the database must have become equal once nothing changes any more."""

WORDS = ("amber", "birch", "cedar", "dune", "ember", "fjord", "grove", "heath", "inlet", "juniper")


@dataclass
class Figures:
    """What the demo counts; `drift` is the number of objects that differ from the provider's now."""

    changes: int = 0
    deliveries: int = 0
    duplicates: int = 0
    reordered: int = 0
    lost: int = 0
    recorded: int = 0
    applied: int = 0
    waiting: int = 0
    dead: int = 0
    recovered: int = 0
    api_calls: int = 0
    calls_saved: int = 0
    drift: int = 0

    def document(self) -> dict[str, int]:
        return asdict(self)


class Story:
    """Drives simulators against a deployment, whose database it reads through `state`."""

    def __init__(self, simulators: Mapping[str, Simulator], state: State) -> None:
        self.simulators = simulators
        self.state = state
        self.recovered = 0
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._keys: dict[str, list[Key]] = {name: [] for name in simulators}

    # -- in motion

    def begin(self) -> None:
        """Start changing objects and delivering events."""
        self.misbehave()
        for name, simulator in self.simulators.items():
            for work in (self._change, self._deliver):
                thread = threading.Thread(target=work, args=(name, simulator), daemon=True)
                thread.start()
                self._threads.append(thread)

    def misbehave(self) -> None:
        """Let deliveries go wrong from now on; lost are only those that can be found again."""
        for simulator in self.simulators.values():
            provider = simulator.provider
            can_heal = provider.list_events is not None or provider.list_changed is not None
            simulator.delivery = FAULTS if can_heal else replace(FAULTS, lost=0.0)

    def _change(self, name: str, simulator: Simulator) -> None:
        while not self._stop.wait(max(simulator.chance.expovariate(RATE), APART)):
            self.change_once(name, simulator)

    def change_once(self, name: str, simulator: Simulator) -> None:
        """One change: a new object, a new state of one, or its end."""
        keys, chance = self._keys[name], simulator.chance
        if len(keys) < 3 or chance.random() < 0.15:
            keys.append(simulator.create(chance.choice(simulator.service.kinds), title=chance.choice(WORDS)))
            return
        key = chance.choice(
            keys[-8:]
        )  # what is new changes most, and several events of one object come together
        if chance.random() < 0.05 and simulator.service.deletable(key[1]):
            keys.remove(key)
            simulator.delete(key)
        else:
            simulator.update(key, title=f"{chance.choice(WORDS)} {chance.randrange(1000)}")

    def _deliver(self, _name: str, simulator: Simulator) -> None:
        while not self._stop.wait(0.8):
            simulator.deliver()

    def end(self) -> None:
        """Stop the changes and send what is planned, retries included."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for simulator in self.simulators.values():
            simulator.delivery = DeliveryFaults()
            for _ in range(10):
                if not simulator.deliver(all_due=True):
                    break

    def settle(self, tick: Callable[[], None], *, within: float = SETTLE) -> None:
        """Recover and reconcile as beat does, and wait until nothing is open, or until the time is over."""
        for name in self.simulators:
            endpoint = self.state.endpoints[name]
            for offered, task in (
                (endpoint.provider.list_events, self.state.reconciler.recover),
                (endpoint.provider.list_changed, self.state.reconciler.reconcile),
            ):
                if offered is not None:
                    self._wait_until_applied(tick, within)
                    run = task(endpoint)
                    self.recovered += run.healed if run is not None else 0
        self._wait_until_applied(tick, within)

    def _wait_until_applied(self, tick: Callable[[], None], within: float) -> None:
        ends = time.monotonic() + within
        while time.monotonic() < ends:
            tick()
            if self._open() == 0:
                return
            time.sleep(0.3)

    # -- in numbers

    def _open(self) -> int:
        events = self.state.tables.events
        with self.state.inbox.engine.connect() as connection:
            query = (
                select(func.count()).select_from(events).where(events.c.state.in_(["pending", "applying"]))
            )
            return int(connection.scalar(query) or 0)

    def figures(self) -> Figures:
        """The counts as they are now."""
        figures = Figures(recovered=self.recovered)
        for simulator in self.simulators.values():
            counts = simulator.counts
            figures.changes += counts.changes
            figures.deliveries += counts.deliveries
            figures.duplicates += counts.duplicates
            figures.reordered += counts.reordered
            figures.lost += counts.lost
            figures.api_calls += counts.api_calls
        states = self._states()
        figures.recorded = sum(states.values())
        figures.applied = states.get("applied", 0)
        figures.waiting = states.get("pending", 0) + states.get("applying", 0)
        figures.dead = states.get("dead", 0)
        figures.calls_saved = figures.applied - self._fetches()
        figures.drift = len(self.differences())
        return figures

    def _states(self) -> dict[str, int]:
        events = self.state.tables.events
        with self.state.inbox.engine.connect() as connection:
            rows: Any = connection.execute(select(events.c.state, func.count()).group_by(events.c.state))
            return dict(rows.all())

    def _fetches(self) -> int:
        """Fetches that carried the applied events: one per object and claim."""
        c = self.state.tables.events.c
        carried = (
            select(c.claim_no, c.endpoint, c.object_kind, c.object_id).where(c.state == "applied").distinct()
        )
        with self.state.inbox.engine.connect() as connection:
            return int(connection.scalar(select(func.count()).select_from(carried.subquery())) or 0)

    def differences(self) -> list[str]:
        """Each object that is not in our database as it is at the provider."""
        objects = self.state.tables.objects
        found: list[str] = []
        for name, simulator in self.simulators.items():
            with self.state.inbox.engine.connect() as connection:
                rows = connection.execute(select(objects).where(objects.c.endpoint == name)).all()
            found += [f"{name}: {line}" for line in simulator.drift(rows)]
        return found
