"""Idempotency keys: derived, so that whoever asks again asks with the same one; and where each SDK wants them.

>>> stripe.Refund.create(charge="ch_1", **keys.for_stripe(key))
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

from .. import jsontext
from ..inbox import Event

__all__ = [
    "ADYEN",
    "SHOPIFY",
    "STRIPE",
    "SVIX",
    "derived_key",
    "for_adyen",
    "for_razorpay",
    "for_shopify",
    "for_stripe",
    "for_svix",
    "idempotency_key",
]

STRIPE = timedelta(hours=24)
"""https://docs.stripe.com/api/idempotent_requests: keys may be removed once they are at least 24 hours old."""
ADYEN = timedelta(days=7)
"""https://docs.adyen.com/development-resources/api-idempotency: stored for a minimum of 7 days."""
SHOPIFY = timedelta(hours=24)
"""https://shopify.dev/docs/api/usage/idempotent-requests"""
SVIX = timedelta(hours=12)
"""https://docs.svix.com/idempotency: afterwards the key is forgotten."""


def derived_key(*parts: str) -> str:
    """The same key for the same parts, another for others.

    Written as a UUID: of all the forms in use it is the one that every callee takes (Adyen at most 64 characters,
    Razorpay at most 36 and at least 10, none of them a colon). It holds nothing of what it was derived from.
    """
    digest = hashlib.sha256(jsontext.dumps(list(parts))).digest()
    return str(uuid.UUID(bytes=digest[:16], version=5))


def idempotency_key(event: Event, step: str) -> str:
    """The key for one step of what this event asks for: the same on every retry, another for every other step."""
    return derived_key("step", event.endpoint, event.dedup_key, step)


def for_stripe(key: str) -> dict[str, Any]:
    """The keyword for a method of `stripe` (`Refund.create(…, **for_stripe(key))`), or for a client's `options=`."""
    return {"idempotency_key": _fitting(key, 1, 255, "Stripe")}


def for_adyen(key: str) -> dict[str, Any]:
    """The keyword for a method of `Adyen`: `adyen.checkout.payments_api.payments(request, **for_adyen(key))`."""
    return {"idempotency_key": _fitting(key, 1, 64, "Adyen")}


def for_svix(key: str) -> dict[str, Any]:
    """The keyword for the options of a POST: `svix.message.create(app, message, MessageCreateOptions(**for_svix(key)))`."""
    return {"idempotency_key": _fitting(key, 1, 255, "Svix")}


_RAZORPAY: Mapping[str, tuple[str, int, int, str]] = {
    "refund": ("X-Refund-Idempotency", 10, 255, r"[A-Za-z0-9_-]+"),
    "payout": ("X-Payout-Idempotency", 4, 36, r"[A-Za-z0-9_ -]+"),
    "transfer": ("X-Transfer-Idempotency", 4, 36, r"[A-Za-z0-9_ -]+"),
}


def for_razorpay(call: Literal["refund", "payout", "transfer"], key: str) -> dict[str, Any]:
    """The keyword for a method of `razorpay`, whose header differs by what is called:
    `client.payment.refund(payment, amount, **for_razorpay("refund", key))`. Other calls of Razorpay know no key."""
    header, shortest, longest, pattern = _RAZORPAY[call]
    _fitting(key, shortest, longest, "Razorpay")
    if re.fullmatch(pattern, key) is None:
        raise ValueError("Razorpay takes letters, digits, - and _ in a key")
    return {"headers": {header: key}}


_VARIABLE = re.compile(r"\$idempotencyKey\s*:\s*String!")
_DIRECTIVE = re.compile(r"@idempotent\s*\(\s*key\s*:\s*\$idempotencyKey\s*\)")


def for_shopify(mutation: str, variables: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The GraphQL request with its key, for a mutation that takes `$idempotencyKey: String!` and hands it to
    `@idempotent(key: $idempotencyKey)`. Raises ValueError if it does not: Shopify would not see the key."""
    if not _VARIABLE.search(mutation) or not _DIRECTIVE.search(mutation):
        raise ValueError(
            "declare $idempotencyKey: String! and put @idempotent(key: $idempotencyKey) behind the mutation's field"
        )
    return {"query": mutation, "variables": {**variables, "idempotencyKey": _fitting(key, 1, 255, "Shopify")}}


def _fitting(key: str, shortest: int, longest: int, callee: str) -> str:
    if not shortest <= len(key) <= longest or not key.isascii() or not key.isprintable():
        raise ValueError(f"{callee} takes keys of {shortest} to {longest} printable ASCII characters")
    return key
