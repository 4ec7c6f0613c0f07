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
from webhooks.testing import Simulator
from webhooks.watch import simulate

LONG = timedelta(days=2)

TOLD = {
    "log": lambda p: p.list_events is not None,
    "objects": lambda p: p.list_changed is not None and p.fetch is not None,
}
"""What a provider must offer, for anything to be found again."""


def _can(name: str, what: str) -> bool:
    check: Callable[[Any], bool] = TOLD[what]
    return check(providers.get(name))


def outage(made: Beside) -> None:
    """Objects are made and changed while nobody is there, and the provider gives up on all of it."""
    kinds = made.provider.service.kinds
    before = [made.provider.create(kind) for kind in kinds for _ in range(2)]
    made.live()
    made.reachable = False
    for number, key in enumerate(before):
        made.clock.go(timedelta(seconds=2))
        made.provider.update(key, title=f"during {number}")
    for kind in kinds:
        made.provider.create(kind)
    made.provider.deliver(all_due=True)
    made.lose_all()
    made.reachable = True


@pytest.mark.parametrize("name", [n for n in providers.names() if _can(n, "log") or _can(n, "objects")])
def test_service_comes_back_and_our_copies_are_what_the_provider_has(
    name: str, sqlite_url: str, tmp_path: Path
) -> None:
    with beside(sqlite_url, tmp_path, name) as made:
        outage(made)
        assert made.provider.drift(made.shop.objects()) != []
        endpoint = made.endpoint
        if endpoint.provider.list_events is not None:
            made.recover()
        if endpoint.provider.list_changed is not None and endpoint.fetches:
            made.reconcile()
        if endpoint.fetches:
            made.sweep()
        assert made.provider.drift(made.shop.objects()) == []


@pytest.mark.parametrize(
    "name", [n for n in providers.names() if not _can(n, "log") and not _can(n, "objects")]
)
def test_what_cannot_be_known_is_said(name: str) -> None:
    said = simulate(providers.get(name), LONG)
    assert not said.recovered
    assert not said.reconciled
    assert "Recover brings back nothing" in said.sentences[2]
    assert "cannot be known" in said.sentences[3] or "new ones are not found" in said.sentences[3]


def test_every_provider_is_simulated() -> None:
    for name in providers.names():
        assert Simulator(name).provider.name == name
