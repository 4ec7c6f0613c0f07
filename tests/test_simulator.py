"""The simulator: Stripe's own library reads what it holds, and what is wrong with it is told as Stripe tells it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import stripe
import urllib3

from tests.apps import build, rows
from webhooks.extension import state
from webhooks.provider import Request
from webhooks.testing import Simulator


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    with Simulator("stripe") as made:
        yield made


@pytest.fixture
def client(simulator: Simulator) -> Iterator[stripe.StripeClient]:
    http = stripe.RequestsClient()
    yield stripe.StripeClient(
        simulator.config["api_key"],
        base_addresses={"api": simulator.api_url},
        http_client=http,
        max_network_retries=0,
    )
    http.close()


def test_stripes_library_retrieves_what_is_there(simulator: Simulator, client: stripe.StripeClient) -> None:
    key = simulator.create("customer", email="ada@example.test", metadata={"a": "b"})
    found = client.v1.customers.retrieve(key[2])
    assert isinstance(found, stripe.Customer)
    assert (found.id, found.email, found.metadata["a"]) == (key[2], "ada@example.test", "b")
    simulator.update(key, email="lovelace@example.test")
    assert client.v1.customers.retrieve(key[2]).email == "lovelace@example.test"
    subscription = simulator.create("subscription", status="active")
    assert client.v1.subscriptions.retrieve(subscription[2]).status == "active"
    session = simulator.create("checkout.session", payment_status="paid")
    expanded = client.v1.checkout.sessions.retrieve(session[2], {"expand": ["line_items"]})
    assert expanded.payment_status == "paid"


def test_stripes_library_sees_a_deleted_customer_as_a_stub(
    simulator: Simulator, client: stripe.StripeClient
) -> None:
    key = simulator.create("customer")
    simulator.delete(key)
    found = client.v1.customers.retrieve(key[2])
    assert (found.id, found.deleted) == (key[2], True)
    assert not hasattr(found, "email")


def test_stripes_library_pages_through_lists(simulator: Simulator, client: stripe.StripeClient) -> None:
    keys = [simulator.create("customer", name=f"customer {n}") for n in range(25)]
    first = client.v1.customers.list({"limit": 10})
    assert (len(first.data), first.has_more) == (10, True)
    found = [customer.id for customer in first.auto_paging_iter()]
    assert found == [key[2] for key in reversed(keys)]
    later = {"created": {"gte": int((datetime.now(UTC) + timedelta(days=1)).timestamp())}}
    assert client.v1.customers.list(later).data == []


def test_stripes_library_reads_the_event_log(simulator: Simulator, client: stripe.StripeClient) -> None:
    key = simulator.create("customer", email="ada@example.test")
    simulator.update(key, email="lovelace@example.test")
    events = client.v1.events.list({"limit": 1})
    assert [event.type for event in events.auto_paging_iter()] == ["customer.updated", "customer.created"]
    newest = events.data[0]
    assert newest.data.object["email"] == "lovelace@example.test"
    assert client.v1.events.retrieve(newest.id).type == "customer.updated"


def test_stripes_library_acts_for_a_connected_account(
    simulator: Simulator, client: stripe.StripeClient
) -> None:
    key = simulator.create("customer", account="acct_T", email="ada@example.test")
    options: Any = {"stripe_account": "acct_T"}
    assert client.v1.customers.retrieve(key[2], options=options).email == "ada@example.test"
    with pytest.raises(stripe.InvalidRequestError, match="simulated") as caught:
        client.v1.customers.retrieve(key[2])
    assert (caught.value.http_status, caught.value.code) == (404, "resource_missing")


def test_stripes_library_asks_for_the_endpoint(simulator: Simulator, client: stripe.StripeClient) -> None:
    assert client.v1.webhook_endpoints.retrieve("we_simulated").status == "enabled"
    simulator.world.enabled = False
    assert [e.status for e in client.v1.webhook_endpoints.list().data] == ["disabled"]


def test_stripes_library_is_told_off_as_by_stripe(simulator: Simulator) -> None:
    http = stripe.RequestsClient()
    wrong = stripe.StripeClient(
        "sk_test_wrong", base_addresses={"api": simulator.api_url}, http_client=http, max_network_retries=0
    )
    with pytest.raises(stripe.AuthenticationError):
        wrong.v1.customers.retrieve("cus_1")
    http.close()


def test_a_rate_limit_is_told_as_one(simulator: Simulator, client: stripe.StripeClient) -> None:
    simulator.api.rate = 0
    with pytest.raises(stripe.RateLimitError):
        client.v1.customers.list()


def test_stripes_library_accepts_the_deliveries(simulator: Simulator) -> None:
    sent: list[Request] = []

    def receive(request: Request) -> int:
        sent.append(request)
        return 200

    simulator._send = receive
    simulator.create("customer", email="ada@example.test")
    assert simulator.deliver() == 1
    (request,) = sent
    event = stripe.Webhook.construct_event(
        request.body, request.headers["Stripe-Signature"], simulator.config["secrets"][0]
    )
    assert (event.type, event.data.object.email) == ("customer.created", "ada@example.test")


def test_what_nobody_serves_is_missing_and_not_a_broken_connection(simulator: Simulator) -> None:
    with urllib3.PoolManager() as pool:
        headers = {"Authorization": f"Bearer {simulator.config['api_key']}"}
        for path in (
            "/",
            "/v1",
            "/v1/",
            "/v1/nothing/x",
            "/v1/customers/",
            "/v1/events/x",
            "/v1/webhook_endpoints/x",
        ):
            answer = pool.request("GET", simulator.api_url + path, headers=headers, retries=False)
            assert answer.status == 404, path
        for query in ("limit=x", "created[gte]=x", "limit=-1", "starting_after=nobody"):
            answer = pool.request(
                "GET", f"{simulator.api_url}/v1/customers?{query}", headers=headers, retries=False
            )
            assert answer.status in {200, 400}, query


def test_a_stopped_simulator_is_gone(sqlite_url: str) -> None:
    with Simulator("stripe") as made, build(sqlite_url, {"stripe": made.config}) as app:
        port = int(made.api_url.rpartition(":")[2])
        made.stop()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port))
        with pytest.raises(RuntimeError, match="start the simulator first"):
            _ = made.api_url
        assert state(app).endpoints["stripe"].api_base_url == f"http://127.0.0.1:{port}"
        assert rows(app, "events") == []
