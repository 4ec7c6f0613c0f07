from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from tests.providers.recorded import (
    NOW,
    Recording,
    Vector,
    assert_reads_as_recorded,
    assert_reads_or_refuses,
    assert_samples_pass,
    garbage_bodies,
    garbage_headers,
    recordings,
    sampled,
    vectors,
    verdict,
)
from webhooks.errors import Unreadable
from webhooks.provider import Request
from webhooks.providers.adyen import provider

SECRET = "AB" * 32
OTHER = "cd" * 32


def signed(type_: str = "AUTHORISATION", secret: str = SECRET, **fields: Any) -> Request:
    return provider.signature.sign(sampled(provider, type_, object=fields or None), secret, NOW)


def changed(request: Request, **fields: Any) -> Request:
    """The delivery with these fields of its first item changed after signing."""
    document = json.loads(request.body)
    document["notificationItems"][0]["NotificationRequestItem"] |= fields
    return replace(request, body=json.dumps(document).encode())


@pytest.mark.parametrize("recording", recordings("adyen"), ids=lambda recording: recording.name)
def test_a_recorded_delivery_is_read_for_what_it_is(recording: Recording) -> None:
    assert_reads_as_recorded(provider, recording)


@pytest.mark.parametrize("vector", vectors("adyen"), ids=lambda vector: vector.name)
def test_a_published_vector_gets_its_verdict(vector: Vector) -> None:
    assert (verdict(provider, vector.request, vector.secrets, vector.now) == "accepted") == vector.accept


def test_the_signature_that_adyen_publishes_is_ours() -> None:
    item = {
        "pspReference": "7914073381342284",
        "merchantReference": "TestPayment-1407325143704",
        "merchantAccountCode": "TestMerchant",
        "amount": {"currency": "EUR", "value": 1130},
        "eventCode": "AUTHORISATION",
        "success": "true",
    }
    body = json.dumps({"live": "false", "notificationItems": [{"NotificationRequestItem": item}]}).encode()
    key = "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056"
    request = provider.signature.sign(Request("POST", "", {}, body), key, NOW)
    [wrapped] = request.document["notificationItems"]
    given_ = wrapped["NotificationRequestItem"]["additionalData"]["hmacSignature"]
    assert given_ == "coqCmt/IZ4E3CzPvMY8zTjQVL5hYJUiBRg8UU+iCWo0="


def test_every_sample_is_accepted_and_read() -> None:
    assert_samples_pass(provider, SECRET)


@given(
    garbage_bodies("notificationItems", "NotificationRequestItem", "additionalData", "hmacSignature", "amount", "eventCode",
                   "pspReference", "type", "data", "id"),
    garbage_headers("HmacSignature"),
)  # fmt: skip
def test_garbage_is_refused_and_nothing_else(body: bytes, headers: dict[str, str]) -> None:
    assert_reads_or_refuses(provider, Request("POST", "", headers, body), SECRET)


def test_what_is_signed_cannot_be_changed_and_the_rest_can() -> None:
    request = signed()
    refused: list[dict[str, Any]] = [
        {"amount": {"currency": "EUR", "value": 1}},
        {"success": "false"},
        {"success": True},
        {"pspReference": "X"},
        {"merchantReference": "order-2"},
        {"eventCode": "CAPTURE"},
        {"merchantAccountCode": "Other"},
    ]
    assert {verdict(provider, changed(request, **fields), [SECRET], NOW) for fields in refused} == {
        "mismatch"
    }
    assert (
        verdict(provider, changed(request, reason="x", eventDate="2030-01-01T00:00:00Z"), [SECRET], NOW)
        == "accepted"
    )
    assert provider.signature.signs_body is False


def test_every_item_is_verified() -> None:
    one, two = signed(), signed("REFUND", secret=OTHER)
    items = [wrapped for request in (one, two) for wrapped in request.document["notificationItems"]]
    both = replace(one, body=json.dumps({"live": "false", "notificationItems": items}).encode())
    assert verdict(provider, both, [SECRET], NOW) == "mismatch"
    assert (
        verdict(provider, both, [SECRET, OTHER], NOW) == "accepted"
    )  # each key is live while one is replaced


def test_a_signature_fits_one_reading_only() -> None:
    # `…:Shop:a:b:1000:…` could be the shop `Shop:a` with the order `b`, if a colon were allowed anywhere.
    request = signed(merchantAccountCode="Shop", merchantReference="a:b")
    assert verdict(provider, request, [SECRET], NOW) == "accepted"
    assert (
        verdict(
            provider, changed(request, merchantAccountCode="Shop:a", merchantReference="b"), [SECRET], NOW
        )
        == "malformed"
    )


def test_a_platform_webhook_is_signed_as_a_whole() -> None:
    request = signed("balancePlatform.transfer.updated")
    assert verdict(provider, request, [SECRET], NOW) == "accepted"
    assert verdict(provider, replace(request, body=request.body + b" "), [SECRET], NOW) == "mismatch"
    without = replace(request, headers={"Content-Type": "application/json"})
    assert verdict(provider, without, [SECRET], NOW) == "missing"


def test_nothing_signed_is_nothing_accepted() -> None:
    for body in (b'{"notificationItems": []}', b'{"notificationItems": {}}', b"{}"):
        assert verdict(provider, Request("POST", "", {}, body), [SECRET], NOW) == "missing"
    assert (
        verdict(provider, Request("POST", "", {}, b'{"notificationItems": [{}]}'), [SECRET], NOW)
        == "malformed"
    )
    assert verdict(provider, signed(), ["", " "], NOW) == "no_secret"


def test_the_same_result_is_the_same_event_whatever_comes_with_it() -> None:
    request = signed()
    [first], [again] = (
        provider.parse(request),
        provider.parse(changed(request, reason="other", eventDate="2026-03-05T00:00:00Z")),
    )
    [opposite] = provider.parse(changed(request, success="false"))
    assert first.dedup_key == again.dedup_key != opposite.dedup_key


def test_a_modification_is_about_the_payment() -> None:
    [capture] = provider.parse(
        sampled(provider, "CAPTURE", object={"pspReference": "P2", "originalReference": "P1"})
    )
    assert capture.object is not None
    assert (capture.object.kind, capture.object.id, capture.dedup_key) == (
        "payment",
        "P1",
        "P2:P1:CAPTURE:true",
    )


def test_an_item_without_a_reference_is_known_by_its_content() -> None:
    [first], [second] = (
        provider.parse(sampled(provider, "AUTHORISATION", object={"pspReference": "", "reason": reason}))
        for reason in "ab"
    )
    assert first.dedup_key.startswith("sha256:")
    assert first.dedup_key != second.dedup_key
    assert first.object is None


def test_neither_shape_is_unreadable() -> None:
    for body in (
        b"{}",
        b'{"notificationItems": [{}]}',
        b'{"notificationItems":[{"NotificationRequestItem":{}}]}',
        b"[]",
    ):
        with pytest.raises(Unreadable):
            provider.parse(Request("POST", "", {}, body))


def test_the_answer_is_what_older_configurations_insist_on() -> None:
    reply = provider.reply(signed())
    assert (reply.status, reply.body) == (200, "[accepted]")


def test_what_is_not_a_key_is_named() -> None:
    assert provider.secret_problem(SECRET) is None
    for wrong in ("", "AB" * 15, "AB" * 32 + "C", "xyz" * 20):
        assert "hexadecimal" in (provider.secret_problem(wrong) or ""), wrong
        assert verdict(provider, signed(), [wrong], NOW) == "no_secret"
