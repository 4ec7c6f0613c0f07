"""`flask webhooks effects` and `flows`: what an operator sees and decides."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.till import Till
from webhooks import GiveUp, RetryLater
from webhooks.cli import cli


class Typed(Till):
    """A till, and somebody who types commands."""

    def run(self, *arguments: str, exit_code: int = 0) -> Result:
        result = self.app.test_cli_runner().invoke(cli, list(arguments))
        assert result.exit_code == exit_code, result.output + repr(result.exception)
        return result

    def says(self, *arguments: str) -> str:
        return self.run(*arguments).stdout

    def json(self, *arguments: str, exit_code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", exit_code=exit_code).stdout)

    def fails(self, *arguments: str, exit_code: int = 1) -> str:
        return self.run(*arguments, exit_code=exit_code).stderr


def build_refunds(till: Till) -> None:
    @till.webhooks.effect(name="refund")
    def refund(key: str, *, payment: str) -> dict[str, str]:
        return till.other.call(key)

    @till.webhooks.on("stripe", "customer.created", name="pay_back")
    def pay_back(event: Any, customer: Any) -> None:
        refund.later(payment=customer["id"])

    @till.webhooks.on("stripe", "charge.succeeded", name="note")
    def note(event: Any, charge: Any) -> None:
        pass

    @till.webhooks.on(
        "stripe",
        "checkout.session.completed",
        "checkout.session.async_payment_succeeded",
        flow="fulfil-order",
        once_per="id",
        when=lambda session: session.get("payment_status") != "unpaid",
        name="ship",
    )
    def ship(event: Any, session: Any) -> None:
        pass


@pytest.fixture
def till(database_url: str, tmp_path: Path) -> Iterator[Typed]:
    made = Typed(database_url, tmp_path, build_refunds)
    yield made
    made.close()


def unknown(till: Typed, error: Exception | None = None) -> str:
    """One effect whose call ended with this error (by default with one that leaves it unknown); its key."""

    def behave(_key: str) -> None:
        raise error or TimeoutError

    till.other.behave = behave
    till.simulator.create("customer")
    till.deliver()
    till.run("work", "--until-empty", "--wait", "0")
    till.other.behave = lambda _: None
    return str(till.effects()[-1].idempotency_key)


def test_list_and_show_say_what_is_and_what_to_do(till: Typed) -> None:
    assert "No effect fits" in till.says("effects", "list")
    key = unknown(till)
    (row,) = till.json("effects", "list")
    assert (row["idempotency_key"], row["state"], row["idempotent"], row["registered"]) == (
        key,
        "unknown",
        False,
        True,
    )
    assert row["what_to_do"].startswith("It may have happened")
    assert till.json("effects", "list", "--state", "dead") == []
    assert len(till.json("effects", "list", "--state", "open", "--name", "refund")) == 1
    assert till.json("effects", "show", key)["arguments"] == {"payment": row["arguments"]["payment"]}
    shown = till.says("effects", "show", key)
    assert "settle it with --done or --again" in shown
    assert "there is no effect 'x'" in till.fails("effects", "show", "x")


@pytest.mark.parametrize(("how", "state", "calls"), [("--done", "done", 1), ("--again", "recorded", 2)])
def test_settle_decides_and_nothing_is_called_without_it(
    till: Typed, how: str, state: str, calls: int
) -> None:
    key = unknown(till)
    till.run("work", "--until-empty", "--wait", "0")
    assert len(till.other.calls) == 1
    assert "say --done" in till.fails("effects", "settle", key, exit_code=2)
    assert till.json("effects", "settle", key, how)["state"] == state
    till.run("work", "--until-empty", "--wait", "0")
    assert (till.states(), till.other.calls) == (["done"], [key] * calls)
    assert "it is done, not unknown" in till.fails("effects", "settle", key, "--again")


def test_redrive_calls_dead_effects_again_and_no_others(till: Typed) -> None:
    key = unknown(till, GiveUp("no such payment"))
    other = unknown(till)
    assert till.json("effects", "redrive", key, other, exit_code=1) == {"redriven": 1, "not_dead": 1}
    assert till.json("effects", "redrive", "--all") == {"redriven": 0, "not_dead": 0}
    assert "give KEYS, or --all" in till.fails("effects", "redrive", exit_code=2)
    till.run("work", "--until-empty", "--wait", "0")
    assert sorted(till.states()) == ["done", "unknown"]


def test_work_calls_effects_too_and_says_what_became_of_them(till: Typed) -> None:
    till.simulator.create("customer")
    till.deliver()
    assert till.json("work", "--until-empty", "--wait", "0")["effects"] == {"done": 1}
    unknown(till, RetryLater("busy"))
    assert till.json("work", "--until-empty", "--wait", "0")["effects"] == {}
    assert till.json("sweep") == {"due": 0, "effects": 0}
    till.all_leases_run_out()
    assert till.json("sweep")["effects"] == 1
    assert "1 effects: 1 done." in till.says("work", "--until-empty", "--wait", "0")


def test_flows_tells_trigger_what_is_ignored_on_purpose_and_the_last_decisions(till: Typed) -> None:
    key = till.simulator.create("checkout.session", silent=True, payment_status="paid")
    for type_ in ("checkout.session.completed", "checkout.session.async_payment_succeeded"):
        till.simulator.emit(type_, key)
    till.simulator.world.put(("", "charge", "ch_1"), {"id": "ch_1", "object": "charge"})
    till.simulator.emit("charge.succeeded", ("", "charge", "ch_1"))
    till.deliver()
    till.run("work", "--until-empty", "--wait", "0")
    (flow,) = till.json("flows")
    assert (flow["flow"], flow["handler"], flow["once_per"]) == ("fulfil-order", "ship", "id")
    assert flow["triggers"] == ["checkout.session.completed", "checkout.session.async_payment_succeeded"]
    assert flow["authoritative"] == [
        {"types": flow["triggers"], "source": "https://docs.stripe.com/checkout/fulfillment"}
    ]
    ignored = {row["type"]: row for row in flow["ignored"]}
    assert ignored["payment_intent.succeeded"]["received"] == 0
    assert ignored["charge.succeeded"] == {
        "type": "charge.succeeded",
        "other_handlers": ["note"],
        "received": 1,
    }
    assert set(flow["triggers"]) & set(ignored) == set()
    assert flow["decided"] == 1
    assert [(row["key"], row["type"]) for row in flow["last"]] == [(key[2], "checkout.session.completed")]
    said = till.says("flows")
    assert "ignored on purpose: payment_intent.succeeded (0 received)" in said
    assert "wanted by note for something else" in said
    assert "there is no flow 'x'; there are fulfil-order" in till.fails("flows", "--flow", "x")


def test_an_effect_that_nobody_will_settle_is_an_issue_until_a_person_does(till: Typed) -> None:
    key = unknown(till)
    till.run("check", exit_code=1)
    (issue,) = [row for row in till.json("issues") if row["kind"] == "unknown_effect"]
    assert (issue["state"], issue["evidence"]["unknown"]) == ("open", 1)
    assert "effects list --state unknown" in till.run("check", exit_code=1).stdout
    till.run("effects", "settle", key, "--done")
    till.run("check")
    assert not [row for row in till.json("issues") if row["closed_at"] is None]
