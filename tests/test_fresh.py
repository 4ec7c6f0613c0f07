"""`ensure_fresh`: what a success page asks for goes the same way as a delivery, and never twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.till import Till
from webhooks import ConfigError, Copy
from webhooks.cli import cli
from webhooks.testing import ApiFaults
from webhooks.testing.simulator import Answer

Build = Callable[..., Till]


@pytest.fixture
def till(database_url: str, tmp_path: Path) -> Iterator[Till]:
    def register(made: Till) -> None:
        @made.webhooks.sync("stripe", "checkout.session", name="copy")
        def copy(event: Any, session: Any) -> None:
            made.db.session.add(
                made.Row(what=f"copied {None if session is None else session['payment_status']}")
            )

        @made.webhooks.on(
            "stripe",
            "checkout.session.completed",
            "checkout.session.async_payment_succeeded",
            flow="fulfil-order",
            once_per="id",
            when=lambda session: session["payment_status"] == "paid",
            name="ship",
        )
        def ship(event: Any, session: Any) -> None:
            made.db.session.add(made.Row(what="shipped"))

        @made.webhooks.on("stripe", "checkout.session.completed", name="greet")
        def greet(event: Any, session: Any) -> None:
            made.db.session.add(made.Row(what="greeted"))

    made = Till(database_url, tmp_path, register)
    yield made
    made.close()


def ask(till: Till, id_: str, **options: Any) -> Copy:
    with till.app.app_context():
        return till.webhooks.ensure_fresh("stripe", "checkout.session", id_, **options)


def session(till: Till, status: str = "paid") -> Any:
    return till.simulator.create("checkout.session", silent=True, payment_status=status)


def test_without_a_delivery_one_fetch_is_made_and_the_copy_is_what_the_provider_has(till: Till) -> None:
    key = session(till)
    copy = ask(till, key[2])
    assert (copy.state, copy.data["payment_status"]) == ("fresh", "paid")
    assert (len(till.simulator.calls), till.rows()) == (1, ["copied paid"])
    assert till.outcomes() == [("fresh.checkout.session", "applied", "applied")]
    explained = till.app.test_cli_runner().invoke(cli, ["explain", str(till.events()[0].id)]).stdout
    assert "No delivery brought it: code of the app asked" in explained
    till.simulator.update(key, silent=True, payment_status="refunded")
    assert ask(till, key[2]).data["payment_status"] == "refunded"
    assert len(till.simulator.calls) == 2


def test_a_delivery_that_waits_is_applied_and_nothing_else_is_fetched(till: Till) -> None:
    key = session(till)
    till.simulator.emit("checkout.session.completed", key)
    till.deliver()
    assert ask(till, key[2]).is_fresh
    assert len(till.simulator.calls) == 1
    assert till.rows() == ["copied paid", "greeted", "shipped"]
    assert till.outcomes() == [("checkout.session.completed", "applied", "applied")]


@pytest.mark.parametrize("flow", [None, "fulfil-order"])
def test_a_claim_that_is_running_is_waited_for(till: Till, flow: str | None) -> None:
    key = session(till)
    till.simulator.emit("checkout.session.completed", key)
    till.deliver()
    till.simulator.api = ApiFaults(latency=0.6)
    worker = threading.Thread(target=till.state.applier.drain)
    worker.start()
    wait_for(lambda: till.events()[0].state == "applying")
    copy = ask(till, key[2], flow=flow)
    worker.join()
    assert copy.is_fresh
    assert len(till.simulator.calls) == 1, "no second fetch"
    assert till.rows() == ["copied paid", "greeted", "shipped"]


def test_it_never_takes_longer_than_it_may(till: Till) -> None:
    key = session(till)
    assert ask(till, key[2]).is_fresh
    till.simulator.update(key, silent=True, payment_status="refunded")
    till.simulator.api = ApiFaults(latency=3)
    started = time.monotonic()
    copy = ask(till, key[2], within=timedelta(seconds=0.4))
    assert time.monotonic() - started < 1.5
    assert (copy.state, copy.data["payment_status"]) == ("late", "paid")
    assert ask(till, "cs_unknown", within=timedelta(seconds=0.2)).state == "absent"


def test_what_is_gone_is_gone_and_a_new_object_is_waited_for(till: Till) -> None:
    key = session(till)
    ask(till, key[2])
    till.simulator.world.put(key, None)
    assert ask(till, key[2]).state == "gone"
    later = ("", "checkout.session", "cs_later")

    def appear() -> None:
        time.sleep(0.5)
        till.simulator.world.put(
            later, {"id": "cs_later", "object": "checkout.session", "payment_status": "paid"}
        )

    thread = threading.Thread(target=appear)
    thread.start()
    copy = ask(till, "cs_later", within=timedelta(seconds=6))
    thread.join()
    assert copy.state == "fresh", "a 404 so soon may be a replica that lags"


def test_many_pages_at_once_make_one_fetch(till: Till) -> None:
    key = session(till)
    till.simulator.api = ApiFaults(latency=0.3)
    copies: list[Copy] = []
    threads = [threading.Thread(target=lambda: copies.append(ask(till, key[2]))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [copy.state for copy in copies] == ["fresh"] * 6
    assert len(till.simulator.calls) == 1


@pytest.mark.parametrize("delivery", ["before", "after", "never"])
def test_a_flow_is_decided_by_the_page_or_by_the_delivery_and_once(till: Till, delivery: str) -> None:
    key = session(till)
    happening = till.simulator.emit("checkout.session.completed", key)
    till.simulator._due.clear()
    if delivery == "before":
        till.simulator.send(happening)
    assert ask(till, key[2], flow="fulfil-order").is_fresh
    assert till.rows().count("shipped") == 1
    if delivery == "after":
        till.simulator.send(happening)
    till.apply()
    assert ask(till, key[2], flow="fulfil-order").is_fresh
    assert till.rows().count("shipped") == 1
    assert till.rows().count("greeted") == (0 if delivery == "never" else 1), (
        "an occasion is the provider's to give"
    )


def test_a_flow_whose_condition_does_not_hold_yet_is_left_to_the_delivery(till: Till) -> None:
    key = session(till, "unpaid")
    assert ask(till, key[2], flow="fulfil-order").data["payment_status"] == "unpaid"
    assert till.rows().count("shipped") == 0
    till.simulator.update(key, silent=True, payment_status="paid")
    till.simulator.emit("checkout.session.async_payment_succeeded", key)
    till.deliver()
    till.apply()
    assert till.rows().count("shipped") == 1


def test_an_api_that_refuses_is_no_reason_to_hang(till: Till) -> None:
    key = session(till)
    till.simulator.api = ApiFaults(script=[Answer(401, {})])
    started = time.monotonic()
    assert ask(till, key[2]).state == "absent"
    assert time.monotonic() - started < 3
    assert till.outcomes() == [("fresh.checkout.session", "dead", "gave_up")]
    assert ask(till, key[2]).state == "fresh", "the API is well again"


def test_what_cannot_be_asked_for_is_refused_with_what_to_do(till: Till) -> None:
    with till.app.app_context():
        fresh = till.webhooks.ensure_fresh
        with pytest.raises(
            ConfigError, match=r"there is no endpoint 'x' in WEBHOOKS; there are \['stripe'\]"
        ):
            fresh("x", "checkout.session", "cs_1")
        with pytest.raises(ConfigError, match="nobody keeps a copy of 'customer' of stripe"):
            fresh("stripe", "customer", "cus_1")
        with pytest.raises(ConfigError, match="no handler for stripe has flow='x'"):
            fresh("stripe", "checkout.session", "cs_1", flow="x")


def test_a_handler_that_asks_is_stopped(database_url: str, tmp_path: Path) -> None:
    def register(made: Till) -> None:
        made.webhooks.on("stripe", "customer.created")(
            lambda event, customer: made.webhooks.ensure_fresh("stripe", "customer", "cus_1") and None
        )

    made = Till(database_url, tmp_path, register)
    made.simulator.create("customer")
    made.deliver()
    made.apply()
    assert made.events()[0].error.startswith("HandlerCommitted: ensure_fresh waits for the network")
    made.close()


def wait_for(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)
