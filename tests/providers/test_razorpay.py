from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.providers.recorded import (
    NOW,
    Recording,
    Vector,
    assert_reads_as_recorded,
    assert_samples_pass,
    recordings,
    sampled,
    vectors,
    verdict,
)
from webhooks.errors import ApiRefused, NotFetchable
from webhooks.provider import ObjectRef, Request
from webhooks.providers.razorpay import provider
from webhooks.testing.contract import FakeApi

SECRET = "a secret that somebody typed in, with ümlauts"
PAYMENT = ObjectRef("payment", "pay_Kettle0000001")
URL = "https://hooks.example.test/webhooks/razorpay"


def rank(kind: str, **data: Any) -> Any:
    assert provider.version is not None
    return provider.version(ObjectRef(kind, "x"), data)


@pytest.mark.parametrize("recording", recordings("razorpay"), ids=lambda recording: recording.name)
def test_a_recorded_delivery_is_read_for_what_it_is(recording: Recording) -> None:
    assert_reads_as_recorded(provider, recording)


@pytest.mark.parametrize("vector", vectors("razorpay"), ids=lambda vector: vector.name)
def test_a_published_vector_gets_its_verdict(vector: Vector) -> None:
    accepted = verdict(provider, vector.request, vector.secrets, vector.now) == "accepted"
    # Signed over bytes that are no UTF-8: accepted, and recorded as unreadable.
    assert accepted == (vector.accept or vector.name == "invalid_utf8_body_valid_hmac")


def test_every_sample_is_accepted_and_read() -> None:
    assert_samples_pass(provider, SECRET)


def test_without_an_event_id_the_bytes_are_the_key() -> None:
    bare = [
        Request("POST", "", {}, sampled(provider, "payment.captured", id_).body)
        for id_ in ("a", "a", "a", "b")
    ]
    blank = bare[0].with_headers({"X-Razorpay-Event-Id": "  "})
    keys = [provider.parse(request)[0].dedup_key for request in (*bare, blank)]
    assert keys[0] == keys[1] == keys[2] == keys[4] != keys[3]
    assert keys[0].startswith("sha256:")


def test_a_replay_under_another_id_is_signed_so_the_body_is_guarded() -> None:
    signed = provider.signature.sign(sampled(provider, "payment.captured"), SECRET, NOW)
    replay = signed.with_headers({"X-Razorpay-Event-Id": "another"})
    assert verdict(provider, replay, [SECRET], NOW + timedelta(days=3650)) == "accepted"
    assert provider.parse(replay)[0].dedup_key != provider.parse(signed)[0].dedup_key
    assert provider.guards_body


def test_an_unknown_id_is_answered_with_400_and_is_gone() -> None:
    answer = {"error": {"code": "BAD_REQUEST_ERROR", "description": "The id provided does not exist"}}
    api = FakeApi(lambda _: ApiRefused("answered 400 (BAD_REQUEST_ERROR)", 400, answer))
    assert provider.fetch is not None
    assert provider.fetch(api, PAYMENT) is None
    assert api.calls[0].path == "/v1/payments/pay_Kettle0000001"


@pytest.mark.parametrize(
    ("status", "description"),
    [
        (400, "from must be between 946684800 and 4765046400"),
        (401, "The id provided does not exist"),
        (400, None),
    ],
)
def test_another_refusal_is_not_taken_for_gone(status: int, description: str | None) -> None:
    answer = {"error": {"description": description}} if description else None
    assert provider.fetch is not None
    with pytest.raises(ApiRefused):
        provider.fetch(FakeApi(lambda _: ApiRefused("refused", status, answer)), PAYMENT)


def test_a_payment_that_failed_can_still_be_captured_and_never_goes_back() -> None:
    states = ["created", "failed", "authorized", "captured", "refunded"]
    ranks = [rank("payment", status=state, amount_refunded=0) for state in states]
    assert ranks == sorted(ranks)
    partly = rank("payment", status="captured", amount_refunded=100)
    assert ranks[3] < partly < rank("payment", status="captured", amount_refunded=200) < ranks[4]


def test_versions_are_what_only_grows_and_unknown_where_nothing_does() -> None:
    assert rank("order", status="attempted", amount_paid=0) < rank("order", status="paid", amount_paid=5)
    assert rank("refund", status="processed") == rank("refund", status="failed")
    assert rank("payment_link", updated_at=1772600766) == 1772600766
    assert rank("subscription", status="halted", paid_count=3) == rank(
        "subscription", status="active", paid_count=3
    )
    assert rank("dispute", status="open") is None
    assert rank("payment", status="brand_new") is None


def test_no_listing_without_the_account_that_deliveries_name() -> None:
    # Else what is listed would be another object than what was delivered.
    assert provider.list_changed is not None
    with pytest.raises(NotFetchable, match="account_id"):
        list(provider.list_changed(FakeApi(lambda _: {"items": []}), NOW))
    one = FakeApi(
        lambda call: {"items": [{"id": "pay_1"}] if call.path == "/v1/payments" else []}, account="acc_1"
    )
    [change] = provider.list_changed(one, NOW)
    assert (change.account, change.data) == ("acc_1", None)


@pytest.mark.parametrize(
    ("webhook", "state"),
    [
        ({"url": URL, "active": True, "disabled_at": 0, "secret_exists": True}, "enabled"),
        ({"url": URL, "active": True, "disabled_at": 1772600000, "secret_exists": True}, "disabled"),
        ({"url": URL, "active": False, "disabled_at": 0, "secret_exists": True}, "disabled"),
        ({"url": URL, "active": True, "disabled_at": 0, "secret_exists": False}, "failing"),
        ({"url": "https://else.example.test/", "active": True}, "missing"),
    ],
)
def test_health_is_what_razorpay_says_about_our_url(webhook: dict[str, Any], state: str) -> None:
    health = provider.endpoint_health
    assert health is not None
    assert health(FakeApi({"/v1/webhooks": {"items": [webhook]}}, {"webhook_url": URL})).state == state
    assert health(FakeApi({})).state == "unknown"


def test_an_api_key_is_no_secret_and_tells_the_mode() -> None:
    assert provider.secret_problem(SECRET) is None
    assert "API key" in (provider.secret_problem("rzp_live_KettleKettle1") or "")
    assert provider.livemode is not None
    modes = [provider.livemode({"key_id": key}) for key in ("rzp_live_x", "rzp_test_x", "")]
    assert modes == [True, False, None]


def test_the_official_library_accepts_what_we_sign() -> None:
    razorpay = pytest.importorskip("razorpay")
    signed = provider.signature.sign(sampled(provider, "order.paid"), "ascii secret", NOW)
    utility = razorpay.Client(auth=("x", "x")).utility
    utility.verify_webhook_signature(
        signed.body.decode(), signed.headers["X-Razorpay-Signature"], "ascii secret"
    )
