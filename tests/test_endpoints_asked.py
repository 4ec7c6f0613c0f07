"""What each provider's API says about our endpoints, over HTTP: there, on, subscribed to what is handled, once, and mended
where the API allows that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.outage import Beside, beside
from tests.shop import Shop
from webhooks import providers
from webhooks.cli import cli
from webhooks.issues import Finding
from webhooks.testing.simulator import Other

LISTING = [name for name in providers.names() if providers.get(name).subscriptions is not None]
ENABLING = [name for name in providers.names() if providers.get(name).enable is not None]

TYPES = {
    "stripe": ("customer.created", "payout.paid"),
    "github": ("issues", "release"),
    "shopify": ("orders/updated", "inventory_levels/update"),
    "paddle": ("transaction.paid", "customer.created"),
    "svix": ("invoice.paid", "endpoint.created"),
    "mailgun": ("delivered", "failed.temporary"),
    "razorpay": ("payment.captured", "order.paid"),
}
"""Of each provider a type that is handled here and one that is not, as it is subscribed to there."""

HANDLED = {"github": "issues.opened"}
"""Where an event's type is finer than what can be subscribed to."""

SCOPE = {"mailgun": "simulated.test"}
"""Where another endpoint is about a part of the account."""


@pytest.fixture
def asked(request: pytest.FixtureRequest, sqlite_url: str, tmp_path: Path) -> Iterator[Beside]:
    with beside(sqlite_url, tmp_path, request.param, mirror="all") as made:
        name = made.name
        handled = HANDLED.get(name, TYPES[name][0])
        made.shop.webhooks.on(name, handled, name="handled")(lambda _event, _thing: None)
        made.provider.world.url = f"https://example.test/webhooks/{name}"
        yield made


def check(made: Beside) -> dict[str, Finding]:
    return {f.kind: f for f in made.shop.state.watch.check() if f.endpoint == made.name}


def test_every_provider_that_lists_its_endpoints_is_tried_here() -> None:
    assert set(LISTING) == set(TYPES)


@pytest.mark.parametrize("asked", LISTING, indirect=True)
def test_types_that_are_handled_and_types_that_are_subscribed_are_compared_both_ways(asked: Beside) -> None:
    handled, idle = TYPES[asked.name]
    asked.provider.world.subscribed = (handled, idle)
    found = check(asked)
    assert found["no_answer"].good, found["no_answer"].detail
    assert found["not_subscribed"].good
    assert found["not_subscribed"].evidence["missing"] == []
    [unhandled] = found["not_subscribed"].evidence["unhandled"]
    assert unhandled.rstrip("*").replace("/", "_") == idle.replace("/", "_")
    asked.provider.world.subscribed = (idle,)
    lacking = check(asked)["not_subscribed"]
    assert lacking.evidence["missing"] == [HANDLED.get(asked.name, handled)]
    # What the app's configuration file subscribes to, Shopify's API never shows.
    assert lacking.good == (asked.name == "shopify")
    assert asked.name != "shopify" or "as far as its API shows them" in lacking.detail


@pytest.mark.parametrize("asked", LISTING, indirect=True)
def test_an_old_endpoint_at_the_same_url_is_named_and_somebody_elses_is_not(asked: Beside) -> None:
    handled, idle = TYPES[asked.name]
    world = asked.provider.world
    world.subscribed = (handled,)
    world.others = [Other("77", "https://crm.example/hooks/abc", (handled,))]
    assert check(asked)["duplicate_endpoints"].good
    world.others += [Other("78", f"https://example.test/webhooks/{asked.name}", (idle,))]
    assert check(asked)["duplicate_endpoints"].good, "they send different types"
    world.others[-1] = Other("79", f"https://example.test/webhooks/{asked.name}", (handled, idle))
    found = check(asked)["duplicate_endpoints"]
    assert not found.good
    assert "79" in found.detail
    assert {one["url"] for one in found.evidence["subscriptions"]} == {
        f"https://example.test/webhooks/{asked.name}"
    }


@pytest.mark.parametrize("asked", ["mailgun"], indirect=True)
def test_the_hooks_of_two_domains_are_no_duplicates_and_that_of_the_account_is_one(asked: Beside) -> None:
    listed = providers.get("mailgun").subscriptions
    assert listed is not None
    asked.provider.world.others = [
        Other("acc", "https://example.test/webhooks/mailgun", ("opened", "failed.permanent"))
    ]
    found = {one.id: one for one in listed(asked.shop.state.apis.of(asked.endpoint))}
    assert {one.scope for one in found.values()} == {"simulated.test", ""}
    assert found["account: acc"].types == ("opened", "failed.permanent")
    assert not check(asked)["duplicate_endpoints"].good


@pytest.mark.parametrize("asked", ["stripe", "github", "paddle", "svix"], indirect=True)
def test_a_url_that_is_not_ours_is_named_where_an_id_says_which_endpoint_is(asked: Beside) -> None:
    asked.provider.world.subscribed = TYPES[asked.name]
    assert check(asked)["wrong_url"].good
    asked.provider.world.url = "https://example.test/hooks/of-last-year"
    found = check(asked)["wrong_url"]
    assert not found.good
    assert "of-last-year" in found.detail


@pytest.mark.parametrize("asked", ["shopify"], indirect=True)
def test_another_api_version_is_named_where_deliveries_are_what_is_applied(asked: Beside) -> None:
    assert check(asked)["api_version"].good
    asked.provider.world.api_version = "2025-01"
    found = check(asked)["api_version"]
    assert "of version 2025-01, fetches of 2026-10" in found.detail
    assert found.good, "the current object is fetched, so that what a delivery looks like does not matter"


@pytest.mark.parametrize("asked", ENABLING, indirect=True)
def test_an_endpoint_that_is_off_is_mended_when_asked_and_what_it_missed_is_caught_up_with(
    asked: Beside,
) -> None:
    kind = asked.provider.service.kinds[0]
    asked.provider.world.enabled = False
    lost = asked.provider.create(kind, title="while it was off")
    run = asked.shop.app.test_cli_runner().invoke
    off = run(cli, ["check", "--json"])
    assert off.exit_code == 1
    assert {f["kind"] for f in json.loads(off.stdout)["findings"] if not f["good"]} <= {
        "endpoint_disabled",
        "endpoint_missing",
    }
    assert not asked.provider.world.enabled, "nothing is changed unless asked"
    fixed = run(cli, ["check", "--fix", "--json"])
    assert asked.provider.world.enabled
    said: Any = json.loads(fixed.stdout)
    assert said["fixed"][0].startswith(f"{asked.name}: enabled, reco"), said
    asked.provider.deliver()
    asked.work()
    assert asked.provider.drift(asked.shop.objects()) == [], lost
    assert "endpoint_disabled" not in asked.issues()
    assert "endpoint_missing" not in asked.issues()


@pytest.mark.parametrize("asked", ["stripe"], indirect=True)
def test_an_endpoint_of_which_no_id_is_known_is_told_by_its_url(
    asked: Beside, sqlite_url: str, tmp_path: Path
) -> None:
    world = asked.provider.world
    options = {**asked.provider.config, "endpoint_id": "", "public_url": "https://example.test"}
    shop = Shop(f"{sqlite_url}2", {"stripe": options}, tmp_path / "other")
    try:

        def found() -> dict[str, Finding]:
            return {f.kind: f for f in shop.state.watch.check() if f.endpoint == "stripe"}

        assert found()["endpoint_disabled"].good
        world.enabled = False
        assert not found()["endpoint_disabled"].good
        world.url = "https://elsewhere.example/webhooks/stripe"
        missing = found()
        assert not missing["endpoint_missing"].good
        assert "has none at https://example.test" in missing["endpoint_missing"].detail
    finally:
        shop.close()


@pytest.mark.parametrize("asked", ["razorpay", "mailgun"], indirect=True)
def test_where_the_api_enables_nothing_it_is_said_who_can(asked: Beside) -> None:
    asked.provider.world.enabled = False
    done = asked.shop.app.test_cli_runner().invoke(cli, ["check", "--fix", "--json"])
    assert done.exit_code == 1
    [said] = json.loads(done.stdout)["fixed"]
    assert said.startswith(
        f"{asked.name}: not enabled: {asked.name} lets nobody enable an endpoint by its API: "
    )
    assert providers.get(asked.name).untold["enable"] in said
