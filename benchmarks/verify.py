"""What it costs to verify and to read a delivery of about 2 KB, for every provider; beside the provider's own SDK where it
has a verifier that can be called alone."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from webhooks import jsontext, providers
from webhooks.provider import Provider, Request, Sample

from .machine import Figures, figure

__all__ = ["run"]

ROUNDS, CALLS = 15, 400

SECRETS = {
    "github": "a github secret",
    "shopify": "shpss_0123456789abcdef0123456789abcdef",
    "slack": "0123456789abcdef0123456789abcdef",
    "razorpay": "a razorpay secret",
    "paddle": "pdl_ntfset_01gkpjp8bkm3tm53kdgkx6sms7_6h3qd3uFSi9YCD3OLYAShQI90XTI5vEI",
    "twilio": "0123456789abcdef0123456789abcdef",
    "mailgun": "key-0123456789abcdef0123456789abcdef",
    "adyen": "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056",
    "stripe": "whsec_0123456789abcdef0123456789abcdef",
    "generic-hmac": "a secret of nobody in particular",
}
STANDARD = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
SIZE = 2000


def run() -> Figures:
    """Microseconds per delivery, median of rounds; the variants are interleaved round by round."""
    now = datetime.now(UTC)
    variants: dict[str, Callable[[], Any]] = {}
    for name in providers.names():
        provider = providers.get(name)
        if provider.sample is None:
            continue
        request, secret = _delivery(provider, now)
        variants[name] = lambda p=provider, r=request, s=secret: _ours(p, r, s, now)  # type: ignore[misc]
        own = _sdk(name, request, secret)
        if own is not None:
            variants[f"{name} (own SDK)"] = own
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(ROUNDS):
        for name, call in variants.items():
            started = time.perf_counter()
            for _ in range(CALLS):
                call()
            samples[name].append((time.perf_counter() - started) / CALLS * 1e6)
    return {name: figure(taken, "us per delivery") for name, taken in samples.items()}


def _delivery(provider: Provider, now: datetime) -> tuple[Request, str]:
    assert provider.sample is not None
    plain = provider.sample(Sample(provider.sample_types[0], "evt_0001", now))
    if plain.headers.get("Content-Type", "").startswith("application/json") and len(plain.body) < SIZE:
        document = jsontext.loads(plain.body)
        document["filler"] = {f"field {n}": "text " * 4 for n in range((SIZE - len(plain.body)) // 36)}
        plain = Request(plain.method, plain.url, plain.headers, jsontext.dumps(document))
    if provider.name == "twilio":
        plain = Request(plain.method, "https://hooks.example.test/webhooks/twilio", plain.headers, plain.body)
    secret = SECRETS.get(provider.name, STANDARD)
    return provider.signature.sign(plain, secret, now), secret


def _ours(provider: Provider, request: Request, secret: str, now: datetime) -> None:
    # A fresh request each time: it remembers what it has decoded.
    fresh = Request(request.method, request.url, request.headers, request.body)
    provider.signature.verify(fresh, [secret], now)
    provider.parse(fresh)


def _sdk(name: str, request: Request, secret: str) -> Callable[[], Any] | None:
    headers, body = request.headers, request.body
    if name == "stripe":
        import stripe  # noqa: PLC0415 - only what is measured is imported

        return lambda: stripe.Webhook.construct_event(body, headers["Stripe-Signature"], secret)
    if name == "slack":
        from slack_sdk.signature import SignatureVerifier  # noqa: PLC0415

        verifier = SignatureVerifier(secret)
        return lambda: (verifier.is_valid_request(body, dict(headers)), jsontext.loads(body))
    if name in {"svix", "standard-webhooks"}:
        from standardwebhooks import Webhook  # noqa: PLC0415

        hook = Webhook(secret)
        given = {key.lower().replace("svix-", "webhook-"): value for key, value in headers.items()}
        return lambda: hook.verify(body, given)
    return None
