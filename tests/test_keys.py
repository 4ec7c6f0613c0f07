"""Idempotency keys end up where each callee reads them: seen in the requests that the official SDKs make."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import Adyen
import pytest
import razorpay
import stripe
from hypothesis import given
from hypothesis import strategies as st
from svix.api import MessageIn, Svix, SvixOptions
from svix.api.message import MessageCreateOptions

from webhooks.effects.keys import derived_key, for_adyen, for_razorpay, for_shopify, for_stripe, for_svix

KEY = derived_key("event", "stripe", "evt_1", "on:pay_back", "refund")


class Callee:
    """Any API: it answers JSON and remembers what it was asked."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        callee = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                callee.requests.append((self.command, self.path, headers, body))
                answer = json.dumps(
                    {
                        "id": "x",
                        "object": "refund",
                        "eventType": "a",
                        "payload": {},
                        "timestamp": "2026-01-01T00:00:00Z",
                    }
                ).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    @property
    def headers(self) -> dict[str, str]:
        ((_, _, headers, _),) = self.requests
        return headers


@pytest.fixture
def callee() -> Iterator[Callee]:
    made = Callee()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_stripe_gets_the_key_from_a_class_method_and_from_a_client(callee: Callee) -> None:
    client = stripe.StripeClient(
        "sk_test_x", base_addresses={"api": callee.url}, http_client=stripe.RequestsClient()
    )
    client.v1.refunds.create({"charge": "ch_1"}, for_stripe(KEY))  # type: ignore[arg-type]
    assert callee.headers["idempotency-key"] == KEY
    callee.requests.clear()
    before, http = stripe.api_base, stripe.default_http_client
    stripe.api_base, stripe.default_http_client = callee.url, stripe.RequestsClient()
    try:
        stripe.Refund.create(charge="ch_1", api_key="sk_test_x", **for_stripe(KEY))
    finally:
        stripe.api_base, stripe.default_http_client = before, http
    assert callee.headers["idempotency-key"] == KEY
    assert b"idempotency" not in callee.requests[0][3]


def test_adyen_gets_the_key(callee: Callee, monkeypatch: pytest.MonkeyPatch) -> None:
    adyen = Adyen.Adyen(xapikey="x", platform="test")
    monkeypatch.setattr(adyen.client, "_determine_api_url", lambda platform, endpoint: callee.url)
    adyen.checkout.modifications_api.refund_captured_payment({"reference": "r"}, "psp", **for_adyen(KEY))
    assert callee.headers["idempotency-key"] == KEY


@pytest.mark.parametrize(
    ("call", "header"),
    [
        ("refund", "x-refund-idempotency"),
        ("payout", "x-payout-idempotency"),
        ("transfer", "x-transfer-idempotency"),
    ],
)
def test_razorpay_gets_the_key_in_the_header_of_what_is_called(
    callee: Callee, call: Any, header: str
) -> None:
    client = razorpay.Client(auth=("key", "secret"), base_url=callee.url)
    keyword = for_razorpay(call, KEY)
    if call == "refund":
        client.payment.refund("pay_1", 100, **keyword)
    elif call == "transfer":
        client.transfer.create({"amount": 100}, **keyword)
    else:
        client.post("/v1/payouts", {"amount": 100}, **keyword)
    assert callee.headers[header] == KEY
    assert [name for name in callee.headers if name.endswith("-idempotency")] == [header]


def test_svix_gets_the_key(callee: Callee) -> None:
    svix = Svix("testsk_x", SvixOptions(server_url=callee.url))
    svix.message.create("app", MessageIn(event_type="a", payload={}), MessageCreateOptions(**for_svix(KEY)))
    assert callee.headers["idempotency-key"] == KEY


MUTATION = """
mutation Refund($input: RefundInput!, $idempotencyKey: String!) {
  refundCreate(input: $input) @idempotent(key: $idempotencyKey) { refund { id } userErrors { field message } }
}
"""


def test_shopify_gets_the_key_as_a_variable_of_its_directive() -> None:
    request = for_shopify(MUTATION, {"input": {"orderId": "gid://shopify/Order/1"}}, KEY)
    assert request == {
        "query": MUTATION,
        "variables": {"input": {"orderId": "gid://shopify/Order/1"}, "idempotencyKey": KEY},
    }


@pytest.mark.parametrize(
    "mutation",
    [
        MUTATION.replace("@idempotent(key: $idempotencyKey)", ""),
        MUTATION.replace("$idempotencyKey: String!", ""),
        MUTATION.replace("key: $idempotencyKey", 'key: "fixed"'),
    ],
)
def test_shopify_would_not_see_the_key_so_the_mutation_is_refused(mutation: str) -> None:
    with pytest.raises(ValueError, match=r"put @idempotent\(key: \$idempotencyKey\)"):
        for_shopify(mutation, {}, KEY)


def test_a_derived_key_fits_every_callee() -> None:
    for_stripe(KEY), for_adyen(KEY), for_svix(KEY)
    for_razorpay("refund", KEY), for_razorpay("payout", KEY), for_razorpay("transfer", KEY)
    assert str(uuid.UUID(KEY)) == KEY


@pytest.mark.parametrize(
    ("place", "key"),
    [
        (for_adyen, "x" * 65),
        (for_stripe, "x" * 256),
        (for_stripe, ""),
        (for_svix, "a\nb"),
        (for_adyen, "ключ"),
        (lambda key: for_razorpay("payout", key), "x" * 37),
        (lambda key: for_razorpay("refund", key), "short"),
        (lambda key: for_razorpay("refund", key), "evt:1:refund"),
    ],
)
def test_a_key_that_a_callee_would_refuse_is_refused_here(place: Any, key: str) -> None:
    with pytest.raises(ValueError, match="take"):
        place(key)


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_other_parts_are_another_key(one: list[str], other: list[str]) -> None:
    assert (derived_key(*one) == derived_key(*other)) is (one == other)
