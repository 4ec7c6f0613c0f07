"""After an outage that outlasts every retry our copies are what the provider has, wherever its API allows that; where it
does not, what cannot be known is said beforehand."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.outage import Beside, beside
from webhooks import providers
from webhooks.errors import ConfigError
from webhooks.testing import Simulator
from webhooks.testing.simulator import Happening, schedule
from webhooks.watch import simulate

TOLD = {
    "log": lambda p: p.list_events is not None,
    "objects": lambda p: p.list_changed is not None and p.fetch is not None,
}
"""What a provider must offer, for anything to be found again."""


def _can(name: str, what: str) -> bool:
    check: Callable[[Any], bool] = TOLD[what]
    return check(providers.get(name))


def whole_window(name: str) -> timedelta:
    """From the first attempt to the last one, as the provider's policy says or else as the simulator does it."""
    window = providers.get(name).policy.retry_window
    return window if window is not None else sum(schedule(providers.get(name).policy), timedelta(0))


def go_through_the_window(made: Beside) -> tuple[list[Happening], list[Happening]]:
    """An outage of the whole retry window, attempt by attempt, on the provider's clock: what happened at its beginning and is
    given up, and what happened in the middle of it."""
    world, service = made.provider.world, made.provider.service
    window, steps = whole_window(made.name), schedule(made.provider.provider.policy)
    before = [made.provider.create(kind, title="before") for kind in service.kinds for _ in range(3)]
    made.live()
    assert made.provider.drift(made.shop.objects()) == []
    runs = ("recover", "reconcile", "full_sweep")
    if made.endpoint.provider.list_events is not None:
        made.recover()
    if made.endpoint.provider.list_changed is not None:
        made.reconcile()
    for task in runs:
        made.set_back(task, window + timedelta(hours=1))
    made.reachable = False
    begin, number = made.clock(), len(world.log)
    for key in before[::3]:
        made.provider.update(key, title="at the beginning")
    for kind in service.kinds:
        made.provider.create(kind, title="made at the beginning")
    for key in before[2::3]:
        if service.deletable(key[1]):
            made.provider.delete(key)
    first = world.log[number:]
    made.provider.deliver()
    middle, seconds = begin + window / 2, timedelta(seconds=1)
    while any(len(happening.attempts) <= len(steps) for happening in first):
        at = made.provider.next_at
        assert at is not None
        if len(world.log) == number + len(first) and at > middle:
            made.clock.offset += max(middle - made.clock(), seconds)
            for key in before[1::3]:
                made.provider.update(key, title="in the middle")
        else:
            made.clock.offset += max(at - made.clock(), timedelta(0)) + timedelta(milliseconds=1)
        made.provider.deliver()
    second = world.log[number + len(first) :]
    made.clock.offset += max(begin + window - made.clock(), timedelta(0))
    took = made.clock() - begin
    assert window <= took <= window + timedelta(minutes=1), took
    assert all(len(happening.attempts) == 1 + len(steps) and not happening.delivered for happening in first)
    return first, second


@pytest.mark.parametrize("name", [n for n in providers.names() if _can(n, "log") or _can(n, "objects")])
def test_an_outage_of_the_whole_retry_window_ends_with_the_providers_truth(
    name: str, sqlite_url: str, tmp_path: Path
) -> None:
    provider = providers.get(name)
    back = whole_window(name) + timedelta(minutes=30)
    with beside(sqlite_url, tmp_path, name, back=back, mirror="all") as made:
        first, second = go_through_the_window(made)
        disables = provider.policy.disables
        if disables is not None and (disables.after is None or disables.after <= whole_window(name)):
            # By now it has switched the endpoint off: what happens then is never sent.
            made.provider.world.enabled = False
            key = made.provider.create(made.provider.service.kinds[0], title="while it was off")
            assert not next(h for h in made.provider.world.log if h.key == key).attempts
            made.provider.world.enabled = True  # by a person, or by `check --fix`
        made.reachable = True
        made.clock.is_now()
        assert made.provider.drift(made.shop.objects()) != []
        made.live()  # what it still tries again
        if provider.list_events is not None:
            run = made.recover()
            assert run.missed > 0
        if provider.list_changed is not None:
            made.reconcile()
        made.sweep()
        assert made.provider.drift(made.shop.objects()) == []
        known = {event.dedup_key for event in made.shop.events() if event.origin in {"delivery", "recover"}}
        keys = {made.provider.provider.parse(happening.request)[0].dedup_key for happening in first + second}
        said = simulate(provider, whole_window(name))
        if said.recovered:
            assert keys <= known, "every occasion is known"
            assert "Recover brings back every event" in said.sentences[2]
        else:
            # Copies are right again; what happened to them in between, nobody can know, and that is said.
            lost = {made.provider.provider.parse(happening.request)[0].dedup_key for happening in first}
            assert not lost & known
            assert said.sentences[2:] == [
                f"Recover brings back nothing: {name} has no log that can be read.",
                "Reconcile finds what became of the objects, and not what happened to them in between.",
            ]


@pytest.mark.parametrize(
    "name", [n for n in providers.names() if not _can(n, "log") and not _can(n, "objects")]
)
def test_where_nobody_can_be_asked_what_cannot_be_known_is_said_exactly(
    name: str, sqlite_url: str, tmp_path: Path
) -> None:
    provider = providers.get(name)
    back = whole_window(name) + timedelta(minutes=30)
    with beside(sqlite_url, tmp_path, name, back=back, mirror="all") as made:
        first, second = go_through_the_window(made)
        made.reachable = True
        while (at := made.provider.next_at) is not None:
            made.clock.offset += max(at - made.clock(), timedelta(0)) + timedelta(milliseconds=1)
            made.live()
        known = {event.dedup_key for event in made.shop.events()}
        keys = [provider.parse(happening.request)[0].dedup_key for happening in first]
        assert not set(keys) & known, "given up, and nobody can ask for it"
        assert {provider.parse(happening.request)[0].dedup_key for happening in second} <= known, (
            "tried again"
        )
        lost = {happening.key[1:] for happening in first} - {happening.key[1:] for happening in second}
        assert {
            tuple(line.split(":")[0].split(" ", 1)) for line in made.provider.drift(made.shop.objects())
        } == lost
        said = simulate(provider, whole_window(name) + timedelta(minutes=1))
        assert said.sentences[2:] == [
            f"Recover brings back nothing: {name} has no log that can be read.",
            f"{name} shows no objects: what is lost cannot be known.",
        ]
        [shown] = [f for f in made.shop.state.watch.check() if f.kind == "no_answer"]
        assert shown.evidence["unknown"] == [provider.untold["endpoint_health"]]
        with pytest.raises(ConfigError, match=f"{name} offers nothing to recover from"):
            made.reconciler.recover(made.endpoint)


def test_every_provider_is_simulated() -> None:
    for name in providers.names():
        assert Simulator(name).provider.name == name
