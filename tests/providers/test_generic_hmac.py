from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given

from tests.providers.recorded import (
    NOW,
    Recording,
    assert_reads_as_recorded,
    assert_reads_or_refuses,
    assert_samples_pass,
    garbage_bodies,
    garbage_headers,
    recordings,
    verdict,
)
from webhooks.errors import ConfigError, Unreadable
from webhooks.provider import ObjectRef, Provider, Request
from webhooks.providers.generic_hmac import SETTINGS, provider

SECRET = "a-secret-of-this-endpoint"
SHOP = {
    "signature_header": "X-Shop-Signature",
    "signature_prefix": "sha256=",
    "id_header": "X-Shop-Delivery",
    "type_header": "X-Shop-Event",
    "object_path": "order",
    "object_id_path": "order.number",
    "gone_types": "order.removed, order.erased",
    "time_path": "order.changed",
    "account_path": "shop.id",
}


def made(**settings: str) -> Provider:
    assert provider.configure is not None
    return provider.configure({"signature_header": "X-Sign", **settings})


def mistakes(**settings: str) -> str:
    with pytest.raises(ConfigError) as raised:
        made(**settings)
    return str(raised.value)


@pytest.mark.parametrize("recording", recordings("generic-hmac"), ids=lambda recording: recording.name)
def test_a_recorded_delivery_is_read_as_configured(recording: Recording) -> None:
    assert_reads_as_recorded(made(**SHOP), recording)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        SHOP,
        {"timestamp_header": "X-Time"},
        {"timestamp_header": "X-Time", "signed": "v0:{timestamp}:{body}", "signature_prefix": "v0="},
        {"timestamp_header": "X-Time", "id_header": "X-Id", "signed": "{id}.{timestamp}.{body}", "signature_encoding": "base64"},
        {"algorithm": "sha512", "object_kind": "thing", "object_id_path": "thing.id", "account_path": "tenant"},
        {"algorithm": "sha1", "signature_separator": ",", "object_path": "data", "object_kind_path": "data.kind", "object_id_path": "data.id"},
    ],
    ids=lambda settings: "+".join(settings) or "nothing",
)  # fmt: skip
def test_whatever_is_configured_is_signed_verified_and_read(settings: dict[str, str]) -> None:
    assert_samples_pass(made(**settings), SECRET)


def test_it_also_stands_without_settings() -> None:
    assert_samples_pass(provider, SECRET)


@given(
    garbage_bodies("order", "shop", "number", "changed", "id", "type"),
    garbage_headers("X-Shop-Signature", "X-Shop-Delivery", "X-Shop-Event", "X-Time"),
)
def test_garbage_is_refused_and_nothing_else(body: bytes, headers: dict[str, str]) -> None:
    for settings in (SHOP, {**SHOP, "timestamp_header": "X-Time", "signature_separator": ","}, {}):
        for type_ in ("application/json", "application/x-www-form-urlencoded"):
            assert_reads_or_refuses(
                made(**settings), Request("POST", "", {**headers, "Content-Type": type_}, body), SECRET
            )


def test_a_signature_made_by_hand_is_accepted() -> None:
    body, time = b'{"type": "a.b", "id": 1}', str(int(NOW.timestamp()))
    mac = hmac.new(SECRET.encode(), time.encode() + b"|" + body, hashlib.sha256).hexdigest()
    headers = {"X-Sign": f"old=0, new={mac.upper()}", "X-Time": time}
    ours = made(
        timestamp_header="X-Time",
        signed="{timestamp}|{body}",
        signature_prefix="new=",
        signature_separator=",",
    )
    request = Request("POST", "", headers, body)
    assert verdict(ours, request, [SECRET], NOW) == "accepted"
    assert verdict(ours, replace(request, body=body + b" "), [SECRET], NOW) == "mismatch"
    assert verdict(ours, request, [SECRET], NOW + timedelta(seconds=301)) == "clock"
    for time in ("soon", "inf", "nan", "1e999", "-1e999"):
        assert verdict(ours, request.with_headers({"X-Time": time}), [SECRET], NOW) == "malformed"
    assert verdict(ours, request.with_headers({"X-Sign": "old=0"}), [SECRET], NOW) == "malformed"
    assert verdict(ours, request.with_headers({"X-Sign": ""}), [SECRET], NOW) == "missing"
    assert verdict(ours, request, [""], NOW) == "no_secret"


@pytest.mark.parametrize(
    ("encoding", "secret", "key"),
    [
        ("hex", "00ff" * 8, b"\x00\xff" * 8),
        ("base64", "AP8A/wD/AP8=", b"\x00\xff" * 4),
        ("utf-8", "pässword", "pässword".encode()),
    ],
)
def test_the_secret_is_decoded_as_configured(encoding: str, secret: str, key: bytes) -> None:
    body = b'{"type": "t"}'
    request = Request("POST", "", {"X-Sign": hmac.new(key, body, hashlib.sha256).hexdigest()}, body)
    ours = made(secret_encoding=encoding)
    assert verdict(ours, request, [secret], NOW) == "accepted"
    assert ours.secret_problem(secret) is None
    assert "shorter" in (ours.secret_problem("") or "")
    if encoding != "utf-8":
        assert encoding in (ours.secret_problem("no!") or "")
        assert verdict(ours, request, ["no!"], NOW) == "no_secret"


def test_what_is_signed_is_told_truthfully() -> None:
    def truth(**settings: str) -> tuple[bool, bool, bool, bool]:
        ours = made(**settings)
        return ours.signature.signs_body, ours.signature.signs_time, ours.signature.signs_id, ours.guards_body

    assert truth() == (True, False, True, False)
    assert truth(timestamp_header="X-Time") == (True, True, True, False)
    assert truth(id_header="X-Id") == (True, False, False, True)  # the body's digest is the guard
    assert truth(id_header="X-Id", signed="{id}.{body}") == (True, False, True, False)


def test_every_wrong_setting_is_named_at_once() -> None:
    said = mistakes(
        signature_header="X Sign",
        signature_encoding="base32",
        algorithm="md5",
        secret_encoding="rot13",
        signed="{timestamp}.{url}",
        id_path="data..id",
        object_kind="order",
    )
    for word in (
        "X Sign",
        "base32",
        "md5",
        "rot13",
        "{url}",
        "{body} once",
        "timestamp_header is missing",
        "data..id",
        "object_id_path",
    ):
        assert word in said, word


def test_settings_that_would_protect_nothing_are_refused() -> None:
    assert "signature_header is missing" in mistakes(signature_header="")
    assert "signed lacks {timestamp}" in mistakes(timestamp_header="X-Time", signed="{body}")
    assert "id_header is missing" in mistakes(signed="{id}.{body}")
    assert "{body} once" in mistakes(signed="{timestamp}", timestamp_header="X-Time")


def test_the_configured_headers_are_kept_but_never_the_signature() -> None:
    assert made(**SHOP).headers == ("X-Shop-Delivery", "X-Shop-Event")
    assert made().headers == ()


@pytest.mark.parametrize("id_", ['""', '" "', "null", "[]", "true", "1.5"])
def test_a_blank_id_is_no_key(id_: str) -> None:
    bodies = [f'{{"type": "t", "id": {id_}, "n": {n}}}'.encode() for n in (1, 2)]
    keys = [made().parse(Request("POST", "", {}, body))[0].dedup_key for body in bodies]
    assert all(key.startswith("sha256:") for key in keys)
    assert keys[0] != keys[1]


def test_a_delivery_without_a_type_says_which_setting_to_look_at() -> None:
    with pytest.raises(Unreadable, match="type"):
        made().parse(Request("POST", "", {}, b'{"id": 1}'))
    [envelope] = made(type_path="").parse(Request("POST", "", {}, b'{"id": 1}'))
    assert envelope.type == "message"


def test_an_object_is_what_the_paths_say() -> None:
    body = b'{"type": "x", "id": 1, "data": {"kind": "invoice", "ref": "in_1", "total": 5}}'
    ours = made(object_path="data", object_kind_path="data.kind", object_id_path="data.ref")
    [envelope] = ours.parse(Request("POST", "", {}, body))
    assert (envelope.object, envelope.snapshot["total"]) == (ObjectRef("invoice", "in_1"), 5)
    [envelope] = made(object_id_path="data.missing").parse(Request("POST", "", {}, body))
    assert (envelope.object, envelope.snapshot) == (None, None)


def test_every_setting_is_explained() -> None:
    from webhooks.providers import generic_hmac

    for name in SETTINGS:
        assert name in (generic_hmac.__doc__ or ""), name
