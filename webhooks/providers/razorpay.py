"""Razorpay: signs the body alone; the event id is an unsigned header, objects have no version, no log.

A captured delivery verifies for ever, so the body's digest is the second guard. Lists only know when a thing
was created, not when it changed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timedelta
from typing import Any

from .. import jsontext
from ..errors import ApiRefused, NotFetchable, Unreadable
from ..provider import (
    Api,
    ApiSpec,
    Change,
    Disables,
    Envelope,
    Health,
    Json,
    ObjectRef,
    Policy,
    Provider,
    Request,
    Sample,
    Subscription,
    Version,
    as_text,
    body_key,
    dig,
    instant,
    listed,
    parts,
    path_segment,
    served,
    turn,
)
from ..signatures import HmacBody

__all__ = ["provider"]

PATHS: Mapping[str, str] = {
    "payment": "/v1/payments",
    "order": "/v1/orders",
    "refund": "/v1/refunds",
    "subscription": "/v1/subscriptions",
    "invoice": "/v1/invoices",
    "payment_link": "/v1/payment_links",
    "dispute": "/v1/disputes",
    "settlement": "/v1/settlements",
}
"""Kind → where the API lists it and, with an id behind, serves it (razorpay 2.0.1, `constants/url.py`)."""

FINAL = {
    "order": lambda order: order.get("status") == "paid",
    "payment": lambda payment: payment.get("status") in {"failed", "refunded"},
    "refund": lambda refund: refund.get("status") in {"processed", "failed"},
    "settlement": lambda settlement: settlement.get("status") in {"processed", "failed"},
    "subscription": lambda subscription: subscription.get("status") in {"completed", "cancelled", "expired"},
}
"""Kind → whether it is in its last state (https://razorpay.com/docs/api, the entity of each). A captured payment may still be
refunded."""

LISTED = ("payment", "order", "refund", "subscription", "settlement")
"""Kinds whose list takes `from` and `to`, which are times of creation."""

RANKS: Mapping[str, Mapping[str, int]] = {
    # A failed payment can still be authorized and captured: late authorization, or a second try with UPI.
    "payment": {"created": 0, "failed": 1, "authorized": 2, "captured": 3, "refunded": 4},
    "order": {"created": 0, "attempted": 1, "paid": 2},  # stays paid when it is refunded
    "refund": {"pending": 0, "processed": 1, "failed": 1},
    "settlement": {"created": 0, "processed": 1, "failed": 1},
}
"""States that only go forward, in place of the version that Razorpay's objects lack."""

GROWING: Mapping[str, str] = {
    "payment": "amount_refunded",
    "order": "amount_paid",
    "invoice": "amount_paid",
    "payment_link": "updated_at",
    "subscription": "paid_count",
}
"""A number that never gets smaller while the state stays."""

LIST_LAG = timedelta(minutes=15)
"""Lists were measured to lag minutes behind the objects themselves."""

PAGE = 100
DOCS = "https://razorpay.com/docs"
S2S = f"{DOCS}/payments/payment-gateway/s2s-integration/test-s2s"


def parse(request: Request) -> list[Envelope]:
    body = request.document
    type_ = body.get("event")
    if not isinstance(type_, str) or not type_.strip():
        raise Unreadable("a Razorpay event names its type in `event`")
    ref, snapshot = _object(type_, body.get("payload"))
    return [
        Envelope(
            # The only id there is, and not signed. Razorpay sends the same one to every URL that subscribed.
            request.headers.get("X-Razorpay-Event-Id", "").strip() or body_key(request.body),
            type_,
            body,
            object=ref,
            snapshot=snapshot,
            occurred_at=instant(body.get("created_at")),
            account=as_text(body.get("account_id")),
            livemode=None,  # known only by the secret and the key
            correlation=_order(snapshot),
        )
    ]


def _object(type_: str, payload: Json) -> tuple[ObjectRef | None, Json]:
    # `contains` also names what comes along: order.paid holds the payment first. The type tells which one it
    # is about: payment.dispute.created the dispute, payment.downtime.started what is `payment.downtime`.
    words = type_.split(".")[:-1]
    for kind in (".".join(words), *reversed(words)):
        entity = dig(payload, kind, "entity")
        if kind and isinstance(entity, dict):
            id_ = as_text(entity.get("id"))
            return ObjectRef(kind, id_) if id_ else None, entity
    return None, None


def _order(snapshot: Json) -> str:
    """The order that a payment, an invoice or a payment link is for: their events tell of one purchase."""
    own = as_text(dig(snapshot, "id"))
    return own if own.startswith("order_") else as_text(dig(snapshot, "order_id"))


def fetch(api: Api, ref: ObjectRef) -> Json | None:
    if ref.kind not in PATHS:
        raise NotFetchable(f"Razorpay: no path is known for {ref.kind}")
    try:
        return served(api.find(f"{PATHS[ref.kind]}/{path_segment(ref.id)}"), ref.id)
    except ApiRefused as refusal:
        # An unknown id is answered with 400 and not with 404; so is every id under a key of the other mode.
        text = as_text(dig(refusal.answer, "error", "description")) or refusal.reason
        if refusal.http_status == 400 and "does not exist" in text:
            return None
        raise


def version(ref: ObjectRef, data: Json) -> Version | None:
    """How far along it is: the state's rank first, then what only grows; None where neither is known."""
    ranks, grown = RANKS.get(ref.kind), dig(data, GROWING.get(ref.kind, ""))
    grown = grown if isinstance(grown, int) and not isinstance(grown, bool) else 0
    if ranks is None:
        return grown if ref.kind in GROWING else None
    rank = ranks.get(as_text(dig(data, "status")))
    return None if rank is None else rank * 10**15 + grown


def list_changed(api: Api, since: datetime) -> Iterator[Change]:
    """Payments, orders, refunds, subscriptions and settlements created since. Misses every change to an older
    object (open ones must be read again by id), and all invoices, payment links and disputes."""
    account = api.account or api.settings.get("account_id", "")
    if not account:
        raise NotFetchable("Razorpay: set `account_id` (acc_…), which its lists do not tell, to reconcile")
    start = int((since - LIST_LAG).timestamp())
    for kind, skip in parts(api, LISTED):
        for item in _items(api, kind, start, skip or 0):
            # A list lags behind, so an entry only says that there is something.
            ref = ObjectRef(kind, as_text(item.get("id")))
            yield Change(ref, None, instant(item.get("created_at")), account)


def _items(api: Api, kind: str, start: int, skip: int) -> Iterator[dict[str, Any]]:
    """By offset, newest first: what is created meanwhile moves the rest: seen twice, not missed."""
    seen: set[str] = set()
    before = None
    while True:
        page = dig(api.get(PATHS[kind], count=PAGE, skip=skip, **{"from": start}), "items") or []
        items = [item for item in page if isinstance(item, dict) and as_text(item.get("id"))]
        new = [item for item in items if as_text(item.get("id")) not in seen]
        yield from turn(api, new, kind, skip + len(page))
        seen |= {as_text(item.get("id")) for item in items}
        if len(page) < PAGE or page == before:
            return
        skip, before = skip + len(page), page


def endpoint_health(api: Api) -> Health:
    """What Razorpay says about our URL. It switches one off that failed for 24 hours, and never on again."""
    wanted = api.settings.get("webhook_url")
    if not wanted:
        return Health("unknown", "set `webhook_url`, as it stands in Razorpay's dashboard, to ask about it")
    try:
        page = api.get("/v1/webhooks", count=PAGE)
    except ApiRefused as refusal:
        return Health("unknown", refusal.reason, refusal.http_status)
    found = [item for item in dig(page, "items") or [] if dig(item, "url") == wanted]
    if not found:
        return Health("missing", f"Razorpay has no webhook for {wanted}")
    disabled_at = instant(found[0].get("disabled_at") or None)
    if disabled_at is not None or found[0].get("active") is False:
        return Health(
            "disabled", f"since {disabled_at:%Y-%m-%d %H:%M} UTC" if disabled_at else "it is not active"
        )
    if found[0].get("secret_exists") is False:
        return Health(
            "failing", "it has no secret there, so its deliveries are not signed and we refuse them"
        )
    return Health("enabled")


def subscriptions(api: Api) -> list[Subscription]:
    """The webhooks of the account, the first hundred of them."""
    wanted = api.settings.get("webhook_url")
    return [
        Subscription(
            as_text(item.get("id")),
            as_text(item.get("url")),
            item.get("active") is not False and not item.get("disabled_at"),
            _events(item.get("events")),
            ours=item.get("url") == wanted if wanted else None,
        )
        for item in listed(api.get("/v1/webhooks", count=PAGE), "items")
    ]


def _events(events: Json) -> tuple[str, ...]:
    # The partners' API documents a list and its examples a mapping of names to whether they are on.
    on = [name for name, wanted in events.items() if wanted] if isinstance(events, dict) else events or []
    return tuple(as_text(name) for name in on)


def secret_problem(secret: str) -> str | None:
    if re.match(r"rzp_(test|live)_", secret):
        return "this is an API key; deliveries are signed with the secret that was typed in for the webhook"
    return None


def livemode(settings: Mapping[str, str]) -> bool | None:
    match = re.match(r"rzp_(live|test)_", settings.get("key_id", ""))
    return match and match[1] == "live"


def sample(wanted: Sample) -> Request:
    words = wanted.type.split(".")[:-1]
    kind = words[-1] if words else "event"
    tail = hashlib.sha256(wanted.id.encode()).hexdigest()[:14]
    at = int(wanted.at.timestamp())
    prefix = PREFIXES.get(kind, kind)
    state = wanted.type.rpartition(".")[2]
    thing: dict[str, Any] = {"id": f"{prefix}_{tail}", "entity": kind, "amount": 49900, "currency": "INR"}
    thing |= {
        "status": STATES.get(wanted.type, state),
        "notes": [],
        "created_at": at,
    }  # notes: empty ones are a list
    if kind != "order":
        thing["order_id"] = f"order_{tail}"
    things = {kind: wanted.object or thing}
    if kind == "order":
        # What comes along stands first, as in real deliveries.
        payment = {"id": f"pay_{tail}", "entity": "payment", "status": "captured", "order_id": thing["id"]}
        things = {"payment": payment, **things}
    body = {
        "entity": "event",
        "account_id": wanted.account or "acc_ACMEwidgets001",
        "event": wanted.type,
        "contains": list(things),
        "payload": {name: {"entity": entity} for name, entity in things.items()},
        "created_at": at,
    }
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "Razorpay-Webhook/v1",
        "Request-Id": wanted.id,
        "X-Razorpay-Event-Id": wanted.id,
    }
    return Request("POST", "", headers, jsontext.dumps(body))


PREFIXES = {
    "payment": "pay",
    "refund": "rfnd",
    "subscription": "sub",
    "invoice": "inv",
    "payment_link": "plink",
    "dispute": "disp",
    "settlement": "setl",
}
STATES = {
    "refund.created": "pending",
    "subscription.charged": "active",
    "subscription.activated": "active",
    "payment.dispute.created": "open",
}

provider = Provider(
    name="razorpay",
    docs=f"{DOCS}/webhooks/",
    # A webhook without a secret is sent without this header, and refused.
    signature=HmacBody(header="X-Razorpay-Signature"),
    parse=parse,
    policy=Policy(
        checked=date(2026, 12, 1),
        respond_within=timedelta(seconds=5),
        retries=None,  # exponential; the steps are unpublished. A 4xx is tried again like a 5xx
        retry_window=timedelta(hours=24),
        log_window=None,  # replays of the last days are made by hand, in the dashboard
        disables=Disables(
            after=timedelta(hours=24),
            how="after 24 hours of failures, with an e-mail; switched on again by hand",
        ),
        sources={
            "respond_within": f"{DOCS}/webhooks/best-practices/",
            "retry_window": f"{DOCS}/webhooks/best-practices/",
            "disables": f"{DOCS}/webhooks/best-practices/",
        },
    ),
    headers=("X-Razorpay-Event-Id",),
    settings=("key_id", "key_secret", "account_id", "webhook_url"),
    required=("key_id", "key_secret"),
    secret_problem=secret_problem,
    livemode=livemode,
    api=ApiSpec("https://api.razorpay.com", basic=("{key_id}", "{key_secret}")),
    fetch=fetch,
    kinds=tuple(PATHS),
    version=version,
    list_changed=list_changed,
    final=FINAL,
    endpoint_health=endpoint_health,
    subscriptions=subscriptions,
    untold={
        "enable": "a webhook that Razorpay has disabled is enabled in its dashboard; its API makes and lists them only."
    },
    authoritative={
        # Also payment.captured, for who does not use orders; both are sent, so only one may decide.
        "fulfil-order": (
            ("order.paid",),
            f"{S2S}/best-practices/webhooks-and-fetch-apis",
        ),
    },
    companions={
        "fulfil-order": ("payment.authorized", "payment.captured", "invoice.paid", "payment_link.paid")
    },
    sample=sample,
    sample_types=(
        "payment.authorized",
        "payment.captured",
        "payment.failed",
        "order.paid",
        "refund.created",
        "refund.processed",
        "subscription.charged",
        "subscription.activated",
        "invoice.paid",
        "payment_link.paid",
        "payment.dispute.created",
        "settlement.processed",
    ),
)
