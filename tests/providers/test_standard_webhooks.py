from __future__ import annotations

import base64
import sys
from dataclasses import replace
from datetime import timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
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
from webhooks.errors import SignatureError
from webhooks.provider import Request
from webhooks.providers.standard_webhooks import provider

SECRET = "whsec_" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldY"


def pair(seed: int) -> tuple[str, str]:
    private = bytes([seed]) * 32
    public = Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    return "whsk_" + base64.b64encode(private).decode(), "whpk_" + base64.b64encode(public).decode()


PRIVATE, PUBLIC = pair(7)
_, STRANGER = pair(8)
BOTH = [SECRET, PUBLIC]


def signed(secret: str = SECRET) -> Request:
    return provider.signature.sign(sampled(provider, "invoice.paid"), secret, NOW)


@pytest.mark.parametrize("recording", recordings("standard-webhooks"), ids=lambda recording: recording.name)
def test_a_recorded_delivery_is_read_for_what_it_is(recording: Recording) -> None:
    assert_reads_as_recorded(provider, recording)


@pytest.mark.parametrize("vector", vectors("clerk"), ids=lambda vector: vector.name)
def test_a_published_vector_gets_its_verdict(vector: Vector) -> None:
    # They are Svix's, whose own headers are not the standard's; under the standard's names each has the same verdict,
    # but for a secret with Supabase's `v1,` in front, which is the same secret.
    headers = {
        name.lower().replace("svix-", "webhook-"): value for name, value in vector.request.headers.items()
    }
    accepted = (
        verdict(provider, replace(vector.request, headers=headers), vector.secrets, vector.now) == "accepted"
    )
    assert accepted == vector.accept or vector.name == "secret_with_v1_prefix"
    if vector.public_key:
        by_public_key = verdict(
            provider, replace(vector.request, headers=headers), [vector.public_key], vector.now
        )
        assert by_public_key == "accepted"


def test_every_sample_is_accepted_and_read_under_a_shared_and_a_public_key() -> None:
    assert_samples_pass(provider, SECRET)
    assert_samples_pass(provider, PRIVATE, PUBLIC)


@given(
    garbage_bodies("type", "data", "id", "timestamp"),
    garbage_headers("webhook-id", "webhook-timestamp", "webhook-signature"),
)
def test_garbage_is_refused_and_nothing_else(body: bytes, headers: dict[str, str]) -> None:
    for secret in (SECRET, PUBLIC, PRIVATE, "whpk_AAAA", "whpk_!", "\xe9"):
        assert_reads_or_refuses(provider, Request("POST", "", headers, body), secret)


def test_the_key_that_signed_is_named_among_several() -> None:
    for request, expected in ((signed(), SECRET), (signed(PRIVATE), PUBLIC)):
        for secrets in (BOTH, BOTH[::-1], [STRANGER, *BOTH]):
            assert provider.signature.verify(request, secrets, NOW) == expected


def test_a_public_key_is_no_shared_secret() -> None:
    # A public key is public: whoever signs v1 with its bytes must not get in.
    request = provider.signature.sign(
        sampled(provider, "invoice.paid"), "whsec_" + PUBLIC.removeprefix("whpk_"), NOW
    )
    assert verdict(provider, request, [PUBLIC], NOW) == "malformed"
    relabelled = request.with_headers(
        {"webhook-signature": request.headers["webhook-signature"].replace("v1,", "v1a,")}
    )
    assert verdict(provider, relabelled, BOTH, NOW) == "mismatch"


def test_what_was_changed_is_refused_under_either_key() -> None:
    for request, secrets in ((signed(), [SECRET]), (signed(PRIVATE), [PUBLIC])):
        assert verdict(provider, request, secrets, NOW) == "accepted"
        assert verdict(provider, replace(request, body=request.body + b" "), secrets, NOW) == "mismatch"
        assert verdict(provider, request.with_headers({"webhook-id": "another"}), secrets, NOW) == "mismatch"
        assert verdict(provider, request, secrets, NOW + timedelta(seconds=301)) == "clock"
        assert verdict(provider, request, secrets, NOW - timedelta(seconds=301)) == "clock"
    assert verdict(provider, signed(PRIVATE), [STRANGER], NOW) == "mismatch"


def test_without_the_package_cryptography_a_public_key_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = signed(PRIVATE)
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)  # importing it raises ImportError
    assert "flask-webhook-inbox[crypto]" in (provider.secret_problem(PUBLIC) or "")
    with pytest.raises(SignatureError, match="cryptography") as raised:
        provider.signature.verify(request, [PUBLIC], NOW)
    assert raised.value.reason == "no_secret"
    assert verdict(provider, provider.signature.sign(request, SECRET, NOW), BOTH, NOW) == "accepted"


def test_what_is_not_a_key_is_named() -> None:
    assert provider.secret_problem(SECRET) is None
    assert provider.secret_problem(SECRET.removeprefix("whsec_")) is None
    assert provider.secret_problem(PUBLIC) is None
    assert "private key" in (provider.secret_problem(PRIVATE) or "")
    assert "32 bytes" in (provider.secret_problem("whpk_" + base64.b64encode(b"x" * 31).decode()) or "")
    assert "base64" in (provider.secret_problem("whsec_!") or "")
    assert "shorter" in (provider.secret_problem("") or "")


def test_a_delivery_without_an_id_is_known_by_its_bytes() -> None:
    body = sampled(provider, "invoice.paid").body
    [first], [second] = (provider.parse(Request("POST", "", {}, b)) for b in (body, body + b" "))
    assert first.dedup_key.startswith("sha256:")
    assert first.dedup_key != second.dedup_key
