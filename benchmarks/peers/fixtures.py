"""What Stripe sends and serves about customers, with every field that the peers write: made up, in no account."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from webhooks import providers
from webhooks.provider import Sample

from ..doors import SECRET
from ..serving import as_http

__all__ = ["ACCOUNT", "API_KEY", "DELIVERED", "SERVED", "api", "customer", "deliveries"]

API_KEY = "sk_test_0123456789benchmarkOfThePeers"

ACCOUNT = {
    "id": "acct_1Benchmark",
    "object": "account",
    "business_profile": {"name": "Benchmark", "url": None, "mcc": None, "support_email": None},
    "business_type": "company",
    "charges_enabled": True,
    "country": "NL",
    "created": 1_700_000_000,
    "default_currency": "eur",
    "details_submitted": True,
    "email": "billing@example.test",
    "metadata": {},
    "payouts_enabled": True,
    "settings": {
        "branding": {"icon": None, "logo": None, "primary_color": None, "secondary_color": None},
        "dashboard": {"display_name": "Benchmark", "timezone": "Etc/UTC"},
    },
    "type": "standard",
}


DELIVERED, SERVED = 0, 1
"""A customer's balance, by which a row says whether the delivery or the API wrote it."""


def customer(id_: str, balance: int = DELIVERED) -> dict[str, Any]:
    """A customer of about 1.5 KB."""
    return {
        "id": id_,
        "object": "customer",
        "address": {
            "city": "Delft",
            "country": "NL",
            "line1": "Oude Delft 1",
            "line2": None,
            "postal_code": "2611 AA",
            "state": None,
        },
        "balance": balance,
        "created": 1_700_000_000,
        "currency": "eur",
        "default_source": None,
        "delinquent": False,
        "description": "text " * 120,
        "discount": None,
        "email": "ada@example.test",
        "invoice_prefix": "ADA0001",
        "invoice_settings": {
            "custom_fields": None,
            "default_payment_method": None,
            "footer": None,
            "rendering_options": None,
        },
        "livemode": False,
        "metadata": {"plan": "team", "seats": "12"},
        "name": "Ada Example",
        "next_invoice_sequence": 7,
        "phone": None,
        "preferred_locales": ["nl"],
        "shipping": None,
        "tax_exempt": "none",
        "test_clock": None,
    }


def deliveries(run: str, count: int, *, path: str, customers: range) -> Iterator[bytes]:
    """So many distinct signed events about these customers in turn, as HTTP requests to this path."""
    stripe = providers.get("stripe")
    assert stripe.sample is not None
    now = datetime.now(UTC)
    template = stripe.sample(Sample("customer.updated", "evt_PLACEHOLDER", now, customer("cus_NUMBER")))
    for number in range(count):
        body = template.body.replace(b"PLACEHOLDER", f"{run}{number:08}".encode())
        body = body.replace(b"NUMBER", f"{customers[number % len(customers)]:08}".encode())
        yield as_http(stripe.signature.sign(replace(template, body=body), SECRET, now), path)


def api(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Stripe's API, as far as these peers ask it: a WSGI app that costs little, because it shares our cores."""
    kind, _, id_ = environ["PATH_INFO"].removeprefix("/v1/").partition("/")
    found: Any = (
        customer(id_, SERVED)
        if kind == "customers" and id_
        else ACCOUNT
        if kind.startswith("account")
        else None
    )
    body = json.dumps(found if found is not None else {"error": {"message": "no such path"}}).encode()
    status = "200 OK" if found is not None else "404 Not Found"
    start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
