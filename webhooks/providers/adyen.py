"""Adyen: payment webhooks sign a few fields of each item, platform webhooks their whole body. There is no event log."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

from .. import jsontext
from ..errors import SignatureError, Unreadable
from ..provider import (
    Envelope,
    Json,
    ObjectRef,
    Policy,
    Provider,
    Reply,
    Request,
    Sample,
    as_text,
    body_key,
    dig,
    instant,
)
from ..signatures import header_bytes, hmac, matching

__all__ = ["provider"]

HEADER = "HmacSignature"
"""Only platform, banking and management webhooks have it."""

_KEY = re.compile(r"(?:[0-9A-Fa-f]{2}){16,}", re.ASCII)


@dataclass(frozen=True)
class AdyenSignature:
    """HMAC under a key in hex: over the body where a header holds it, else over eight fields of every item.

    An item's date, reason, payment method and the rest are not signed, and neither is `live` beside it. No time is
    signed anywhere.
    """

    signs_body: bool = False
    signs_time: bool = False
    signs_id: bool = True  # what the dedup key is made of is signed, here as there

    def verify(self, request: Request, secrets: Sequence[str], now: datetime | float) -> str:  # noqa: ARG002 - no time is signed
        if HEADER in request.headers:
            return matching(
                secrets, [header_bytes(request, HEADER)], lambda secret: _mac(secret, request.body)
            )
        try:
            items = _items(request.document)
        except Unreadable:
            raise SignatureError("malformed", "body") from None
        if not items:
            raise SignatureError("missing")
        # Every item: one that is genuine says nothing about the next.
        signers = [self._verify_item(item, secrets) for item in items]
        return signers[0]

    def _verify_item(self, item: Mapping[str, Any], secrets: Sequence[str]) -> str:
        given = as_text(dig(item, "additionalData", "hmacSignature"))
        if not given:
            raise SignatureError("missing", "hmacSignature")
        text = _signed_text(item)
        return matching(secrets, [given.encode("utf-8", "replace")], lambda secret: _mac(secret, text))

    def sign(self, request: Request, secret: str, now: datetime | float) -> Request:  # noqa: ARG002 - no time is signed
        document = jsontext.loads(request.body)
        if "notificationItems" not in document:
            return request.with_headers({HEADER: _mac(secret, request.body).decode()})
        for item in _items(document):
            more = item.get("additionalData") or {}
            item["additionalData"] = {**more, "hmacSignature": _mac(secret, _signed_text(item)).decode()}
        return replace(request, body=jsontext.dumps(document))


def _mac(secret: str, text: bytes) -> bytes:
    if _KEY.fullmatch(secret) is None:
        raise SignatureError("no_secret")
    return base64.b64encode(hmac(bytes.fromhex(secret), text))


def _signed_text(item: Mapping[str, Any]) -> bytes:
    plain = [as_text(item.get(name)) for name in ("pspReference", "originalReference", "merchantAccountCode")]
    amount = [as_text(dig(item, "amount", name)) for name in ("value", "currency")]
    # "true" and "false" are strings; anything else makes a text that nobody signed.
    result = [as_text(item.get(name)) for name in ("eventCode", "success")]
    # Nothing is escaped. With a colon in more than one field, one signature would fit several readings.
    if any(":" in text for text in (*plain, *amount, *result)):
        raise SignatureError("malformed", "a colon")
    return ":".join([*plain, as_text(item.get("merchantReference")), *amount, *result]).encode(
        "utf-8", "replace"
    )


def _items(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    wrapped = document.get("notificationItems")
    if not isinstance(wrapped, list):
        return []
    items = [dig(wrapper, "NotificationRequestItem") for wrapper in wrapped]
    if not all(isinstance(item, dict) for item in items):
        raise Unreadable("each notification item holds a NotificationRequestItem")
    return items


def parse(request: Request) -> list[Envelope]:
    document = request.document
    if "notificationItems" not in document:
        return [_from_platform(document, request.body)]
    # Not signed, so somebody else's copy of a test payment could say that it is live.
    live = {"true": True, "false": False}.get(as_text(document.get("live")))
    return [_from_item(item, live) for item in _items(document)]


def _from_item(item: dict[str, Any], live: bool | None) -> Envelope:
    code, reference = as_text(item.get("eventCode")), as_text(item.get("pspReference"))
    original, success = as_text(item.get("originalReference")), as_text(item.get("success"))
    if not code:
        raise Unreadable("a notification item has an eventCode")
    # There is no id of an event. The same result of the same request is the same event, whatever comes with it.
    key = (
        f"{reference}:{original}:{code}:{success}" if reference.strip() else "sha256:" + jsontext.digest(item)
    )
    # A capture or refund has a reference of its own and names the payment's; a report has its file's name.
    kind = "report" if code == "REPORT_AVAILABLE" else "payment"
    subject = original or reference
    return Envelope(
        key,
        code,
        item,
        object=ObjectRef(kind, subject) if subject.strip() else None,
        snapshot=item,
        occurred_at=instant(item.get("eventDate")),  # not signed
        account=as_text(item.get("merchantAccountCode")),
        livemode=live,
        correlation=as_text(item.get("merchantReference")),
    )


def _from_platform(document: dict[str, Any], body: bytes) -> Envelope:
    type_, data = as_text(document.get("type")), document.get("data")
    if not type_ or not isinstance(data, dict):
        raise Unreadable("an Adyen webhook has notificationItems, or a type and data")
    event = as_text(document.get("eventId"))
    kind, _, action = type_.removeprefix("balancePlatform.").rpartition(".")
    # Some hold the object in `data`, others one level deeper under its kind.
    thing = data[kind] if isinstance(data.get(kind), dict) else data
    id_ = as_text(thing.get("id"))
    return Envelope(
        f"{type_}:{event}" if event.strip() else body_key(body),
        type_,
        document,
        object=ObjectRef(kind, id_) if kind and id_.strip() else None,
        snapshot=thing,
        gone=action == "deleted",
        occurred_at=instant(document.get("timestamp")) or instant(document.get("createdAt")),
        account=as_text(data.get("balancePlatform")),
        livemode={"live": True, "test": False}.get(as_text(document.get("environment"))),
    )


def reply(_request: Request) -> Reply:
    """What older configurations insist on; newer ones only look at the status."""
    return Reply(200, "[accepted]")


def secret_problem(secret: str) -> str | None:
    if _KEY.fullmatch(secret) is None:
        return "an HMAC key of Adyen is an even number of hexadecimal digits, 32 or more (usually 64)"
    return None


def sample(wanted: Sample) -> Request:
    at = wanted.at.astimezone(UTC).isoformat(timespec="milliseconds")
    document: Json
    if "." in wanted.type:
        kind = wanted.type.split(".")[-2]
        thing = {
            "id": wanted.id,
            "balancePlatform": "SamplePlatform",
            "status": "authorised",
            **(wanted.object or {}),
        }
        data = (
            thing
            if kind in {"transfer", "transaction"}
            else {"balancePlatform": "SamplePlatform", kind: thing}
        )
        document = {"data": data, "environment": "test", "timestamp": at, "type": wanted.type}
    else:
        item = {
            "pspReference": wanted.id,
            "merchantAccountCode": wanted.account or "SampleMerchant",
            "merchantReference": "order-1",
            "amount": {"currency": "EUR", "value": 1000},
            "eventCode": wanted.type,
            "eventDate": at,
            "success": "true",
            "paymentMethod": "visa",
            "reason": "",
        }
        if wanted.type not in {"AUTHORISATION", "REPORT_AVAILABLE"}:
            item["originalReference"] = f"{wanted.id}-payment"
        wrapped = [{"NotificationRequestItem": {**item, **(wanted.object or {})}}]
        document = {"live": "false", "notificationItems": wrapped}
    return Request("POST", "", {"Content-Type": "application/json"}, jsontext.dumps(document))


TROUBLESHOOT = "https://docs.adyen.com/development-resources/webhooks/troubleshoot"

provider = Provider(
    name="adyen",
    docs="https://docs.adyen.com/development-resources/webhooks",
    signature=AdyenSignature(),
    parse=parse,
    reply=reply,
    policy=Policy(
        checked=date(2026, 12, 1),
        # Said on a page of one product; the general ones name no figure.
        respond_within=timedelta(seconds=10),
        # Three at once, then after 2, 5, 10, 15 and 30 minutes, 1, 2, 4 and 8 hours; how it goes on until the 30th day
        # is not said, and the pages differ about the first three.
        retries=None,
        retry_window=timedelta(days=30),
        log_window=None,  # the Customer Area shows failures, no API does
        disables=None,
        sources={
            "respond_within": "https://docs.adyen.com/japan-sellers-screening/webhooks",
            "retry_window": TROUBLESHOOT,
        },
    ),
    secret_problem=secret_problem,
    authoritative={
        "payment": (
            ("AUTHORISATION",),
            "https://docs.adyen.com/development-resources/webhooks/webhook-types",
        ),
    },
    untold={
        "endpoint_health": "no API of Adyen's is used: its Customer Area shows failures.",
        "subscriptions": "no API of Adyen's is used: its Customer Area shows the webhooks.",
        "enable": "webhooks are enabled in the Customer Area.",
    },
    sample=sample,
    sample_types=(
        "AUTHORISATION",
        "CAPTURE",
        "CANCELLATION",
        "REFUND",
        "CHARGEBACK",
        "REPORT_AVAILABLE",
        "balancePlatform.transfer.updated",
        "balancePlatform.accountHolder.updated",
    ),
)
