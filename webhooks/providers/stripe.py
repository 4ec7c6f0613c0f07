"""Stripe: snapshot and thin events, Connect accounts; objects have no version, the change feed is the event log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timedelta
from typing import Any

from .. import jsontext
from ..errors import ApiRefused, NotFetchable, RetryLater, Unreadable
from ..provider import (
    Api,
    ApiSpec,
    Change,
    Disables,
    Envelope,
    Health,
    Json,
    LogEntry,
    ObjectRef,
    Policy,
    Provider,
    Rate,
    Request,
    Sample,
    Subscription,
    Version,
    as_text,
    dig,
    instant,
    listed,
    parts,
    path_segment,
    served,
    turn,
)
from ..signatures import TimestampedHeader

__all__ = ["provider"]

PATHS = {
    "account": "/v1/accounts",
    "charge": "/v1/charges",
    "checkout.session": "/v1/checkout/sessions",
    "coupon": "/v1/coupons",
    "credit_note": "/v1/credit_notes",
    "customer": "/v1/customers",
    "dispute": "/v1/disputes",
    "invoice": "/v1/invoices",
    "invoiceitem": "/v1/invoiceitems",
    "payment_intent": "/v1/payment_intents",
    "payment_link": "/v1/payment_links",
    "payment_method": "/v1/payment_methods",
    "payout": "/v1/payouts",
    "plan": "/v1/plans",
    "price": "/v1/prices",
    "product": "/v1/products",
    "promotion_code": "/v1/promotion_codes",
    "quote": "/v1/quotes",
    "refund": "/v1/refunds",
    "setup_intent": "/v1/setup_intents",
    "subscription": "/v1/subscriptions",
    "subscription_schedule": "/v1/subscription_schedules",
    "tax_rate": "/v1/tax_rates",
    "transfer": "/v1/transfers",
}
"""Kind → where the API lists it and, with an id behind, serves it (stripe-python 16.1.0, `class_url` of each class)."""

EXPAND = {"checkout.session": ["line_items"]}
"""Without it a Checkout session comes without what was bought (https://docs.stripe.com/checkout/fulfillment)."""

LISTED = (
    "checkout.session",
    "customer",
    "subscription",
    "invoice",
    "payment_intent",
    "charge",
    "refund",
    "dispute",
    "payout",
    "product",
    "price",
)
"""Kinds whose list takes `created[gte]` (stripe-python 16.1.0, parameters of the list methods)."""

FINAL = {
    "checkout.session": lambda s: (
        s.get("status") == "expired"
        or (s.get("status") == "complete" and s.get("payment_status") in {"paid", "no_payment_required"})
    ),
    "dispute": lambda d: d.get("status") in {"won", "lost", "warning_closed"},
    "invoice": lambda i: i.get("status") in {"paid", "void"},
    "payment_intent": lambda p: p.get("status") in {"succeeded", "canceled"},
    "payout": lambda p: p.get("status") in {"paid", "failed", "canceled"},
    "refund": lambda r: r.get("status") in {"succeeded", "failed", "canceled"},
    "setup_intent": lambda i: i.get("status") in {"succeeded", "canceled"},
    "subscription": lambda s: s.get("status") in {"canceled", "incomplete_expired"},
    "subscription_schedule": lambda s: s.get("status") in {"completed", "released", "canceled"},
}
"""Kind → whether it is in its last state, as the page of each object's states says (https://docs.stripe.com/api). A payout
or refund that fails after it was paid is rare, and found by the event log or a full sweep. Charges, customers, products and
prices have no last state."""

PAGE = 100
_THIN_PATH = re.compile(r"/v[12](?:/[A-Za-z0-9_\-]+)+", re.ASCII)


def parse(request: Request) -> list[Envelope]:
    event = request.document
    key, type_ = as_text(event.get("id")), event.get("type")
    if not key.strip() or not isinstance(type_, str):
        raise Unreadable("a Stripe event has an id and a type")
    thin = event.get("object") == "v2.core.event"
    snapshot = None if thin else dig(event, "data", "object")
    mode = event.get("livemode")
    return [
        Envelope(
            key,
            type_,
            event,
            object=_related(event) if thin else _contained(snapshot),
            snapshot=snapshot,
            gone=type_.endswith(".deleted")
            and not type_.endswith(("subscription.deleted", "account.deleted")),
            occurred_at=instant(event.get("created")),
            account=as_text(event.get("account")) or as_text(event.get("context")),
            livemode=mode if isinstance(mode, bool) else None,
            correlation=as_text(dig(event, "request", "idempotency_key"))
            or as_text(dig(event, "request", "id")),
        )
    ]


def _contained(snapshot: Json) -> ObjectRef | None:
    kind, id_ = as_text(dig(snapshot, "object")), as_text(dig(snapshot, "id"))
    return ObjectRef(kind, id_) if kind and id_ else None  # previews such as invoice.upcoming have no id


def _related(event: Mapping[str, Any]) -> ObjectRef | None:
    kind, id_ = as_text(dig(event, "related_object", "type")), as_text(dig(event, "related_object", "id"))
    url = as_text(dig(event, "related_object", "url"))
    path = url if _THIN_PATH.fullmatch(url) and url.endswith(f"/{id_}") else ""
    return ObjectRef(kind, id_, path) if kind and id_ else None


def fetch(api: Api, ref: ObjectRef) -> Json | None:
    if ref.kind in PATHS:
        said = api.find(f"{PATHS[ref.kind]}/{path_segment(ref.id)}", **{"expand[]": EXPAND.get(ref.kind)})
    elif ref.path:
        said = api.find(ref.path)
    else:
        raise NotFetchable(f"Stripe: no path is known for {ref.kind}")
    found = served(said, ref.id)
    # Deleted customers, products and the like are still served, as a stub.
    return None if isinstance(found, dict) and found.get("deleted") is True else found


def version(_ref: ObjectRef, data: Json) -> Version | None:
    # Only a few kinds (product, billing.meter …) have it at all.
    return instant(dig(data, "updated"))


def list_changed(api: Api, since: datetime) -> Iterator[Change]:
    """Objects created since. Misses every change to an older object (the lists know no other filter) and every
    deletion; the event log has both for 30 days."""
    for kind, after in parts(api, LISTED):
        params: dict[str, Any] = {"created[gte]": int(since.timestamp())}
        if kind == "subscription":
            params["status"] = "all"  # the default hides canceled ones
        for item in _items(api, PATHS[kind], params, part=kind, after=after):
            ref = _contained(item)
            if ref is not None:
                # A list entry is not expanded as the fetched object is, so it only says that there is something.
                yield Change(ref, None if kind in EXPAND else item, instant(item.get("created")), api.account)


def list_events(api: Api, since: datetime) -> Iterator[LogEntry]:
    """The event log, which reaches back 30 days; newest first. Misses thin events, and those of connected accounts."""
    after = dig(api.place, "cursor")
    for event in _items(api, "/v1/events", {"created[gte]": int(since.timestamp())}, after=after):
        yield _log_entry(event)


def list_events_between(api: Api, since: datetime, until: datetime) -> Iterator[LogEntry]:
    """The event log of a stretch of time, newest first."""
    span = {"created[gte]": int(since.timestamp()), "created[lte]": int(until.timestamp())}
    for event in _items(api, "/v1/events", span, after=dig(api.place, "cursor")):
        yield _log_entry(event)


def _log_entry(event: dict[str, Any]) -> LogEntry:
    request = Request("POST", "", {"Content-Type": "application/json"}, jsontext.dumps(event))
    # How many endpoints, ours or another one of the account, have not taken it yet: no word of ours alone.
    pending = event.get("pending_webhooks")
    return LogEntry(
        as_text(event.get("id")),
        instant(event.get("created")),
        lambda: parse(request),
        delivered=pending == 0 if isinstance(pending, int) else None,
    )


def _items(
    api: Api, path: str, params: dict[str, Any], *, part: str = "", after: str | None = None
) -> Iterator[dict[str, Any]]:
    # By id, newest first: what comes in meanwhile is before the cursor and shifts nothing.
    while True:
        page = api.get(path, limit=PAGE, starting_after=after, **params)
        items = listed(page, "data")
        before, after = after, as_text(items[-1].get("id")) if items else after
        yield from turn(api, items, part, after)
        if not items or not page.get("has_more"):
            return
        if after in {before, ""}:
            raise RetryLater("Stripe's pages go in a circle")


def endpoint_health(api: Api) -> Health:
    wanted = api.settings.get("endpoint_id")
    if not wanted:
        return Health("unknown", "set `endpoint_id` (we_…) to ask Stripe about this endpoint")
    try:
        found = api.find(f"/v1/webhook_endpoints/{path_segment(wanted)}")
    except ApiRefused as refusal:
        return Health("unknown", refusal.reason, refusal.http_status)
    if found is None:
        return Health("missing", f"Stripe has no endpoint {wanted}")
    return Health("enabled" if found.get("status") == "enabled" else "disabled", as_text(found.get("url")))


def subscriptions(api: Api) -> list[Subscription]:
    wanted = api.settings.get("endpoint_id")
    return [
        Subscription(
            as_text(item.get("id")),
            as_text(item.get("url")),
            item.get("status") == "enabled",
            tuple(as_text(type_) for type_ in item.get("enabled_events") or []),
            as_text(item.get("api_version")),
            ours=item.get("id") == wanted if wanted else None,
        )
        for item in _items(api, "/v1/webhook_endpoints", {})
    ]


def enable(api: Api) -> None:
    wanted = api.settings.get("endpoint_id", "")
    if not wanted:
        raise NotFetchable("set `endpoint_id` (we_…) to enable an endpoint")
    api.send("POST", f"/v1/webhook_endpoints/{path_segment(wanted)}", form={"disabled": "false"})


def secret_problem(secret: str) -> str | None:
    if not secret.startswith("whsec_"):
        return "a Stripe signing secret begins with whsec_ (an API key or an endpoint id is something else)"
    return None if len(secret) >= len("whsec_") + 8 else "a Stripe signing secret is longer"


def livemode(settings: Mapping[str, str]) -> bool | None:
    match = re.match(r"(?:sk|rk)_(live|test)_", settings.get("api_key", ""))
    return match and match[1] == "live"


MADE_UP: Mapping[str, Mapping[str, Any]] = {
    "customer": {"email": "ada@example.test", "name": "Ada"},
    "checkout.session": {
        "payment_status": "paid",
        "status": "complete",
        "client_reference_id": "order 42",
        "customer_details": {"email": "ada@example.test"},
    },
    "subscription": {"status": "active", "customer": "cus_made_up"},
    "invoice": {"status": "paid", "customer": "cus_made_up", "amount_paid": 1000, "currency": "eur"},
}
"""What apps read first of these kinds, for samples that are given no object."""


def sample(wanted: Sample) -> Request:
    kind = next(
        (kind for kind in sorted(PATHS, key=len, reverse=True) if f".{wanted.type}.".find(f".{kind}.") >= 0),
        "",
    )
    thing = wanted.object or {
        "id": f"{kind.replace('.', '_')}_{wanted.id}",
        "object": kind,
        "metadata": {},
        **MADE_UP.get(kind, {}),
    }
    event = {
        "id": wanted.id,
        "object": "event",
        "api_version": API_VERSION,
        "created": int(wanted.at.timestamp()),
        "data": {"object": thing},
        "livemode": False,
        "pending_webhooks": 1,
        "request": {"id": None, "idempotency_key": None},
        "type": wanted.type,
    }
    if wanted.account:
        event["account"] = wanted.account
    return Request("POST", "", {"Content-Type": "application/json; charset=utf-8"}, jsontext.dumps(event))


API_VERSION = "2026-10-28.endive"
"""What stripe-python 16.1.0 pins; every fetch says it, so that the shape of our copies does not move by itself."""

provider = Provider(
    name="stripe",
    docs="https://docs.stripe.com/webhooks",
    signature=TimestampedHeader(
        header="Stripe-Signature", time_key="t", signature_key="v1", separator=",", joiner="."
    ),
    parse=parse,
    policy=Policy(
        checked=date(2026, 12, 1),
        respond_within=None,  # "quickly"; no figure is published
        retries=None,  # exponential; the steps are unpublished
        retry_window=timedelta(days=3),
        log_window=timedelta(days=30),
        disables=Disables(how="after days of failures, with an e-mail first; no threshold is published"),
        sources={
            "retry_window": "https://docs.stripe.com/webhooks",
            "log_window": "https://docs.stripe.com/webhooks/process-undelivered-events",
            # Stripe's own page has no sentence on it; a receiver quotes the e-mail.
            "disables": "https://dev.to/edhiblemeer",
        },
    ),
    settings=("api_key", "api_version", "endpoint_id"),
    required=("api_key",),
    defaults={"api_version": API_VERSION},
    secret_problem=secret_problem,
    livemode=livemode,
    api=ApiSpec(
        "https://api.stripe.com",
        {
            "Authorization": "Bearer {api_key}",
            "Stripe-Version": "{api_version}",
            "Stripe-Account": "{account}",
        },
        # stripe-python 16.1.0: what a thin event names under `context` goes into this header.
        rate=Rate(100, timedelta(seconds=1), "https://docs.stripe.com/rate-limits"),  # live; 25 in a sandbox
        under={"/v2/": {"Stripe-Account": "", "Stripe-Context": "{account}"}},
    ),
    fetch=fetch,
    kinds=tuple(PATHS),
    version=version,
    list_changed=list_changed,
    final=FINAL,
    list_events=list_events,
    list_events_between=list_events_between,
    endpoint_health=endpoint_health,
    subscriptions=subscriptions,
    enable=enable,
    authoritative={
        "fulfil-order": (
            ("checkout.session.completed", "checkout.session.async_payment_succeeded"),
            "https://docs.stripe.com/checkout/fulfillment",
        ),
        "refund": (
            ("refund.created", "refund.updated", "refund.failed"),
            "https://docs.stripe.com/refunds",
        ),
    },
    companions={
        "fulfil-order": (
            "checkout.session.async_payment_failed",
            "payment_intent.succeeded",
            "payment_intent.created",
            "charge.succeeded",
            "charge.updated",
        ),
        "refund": ("charge.refunded", "charge.refund.updated"),
    },
    sample=sample,
    sample_types=(
        "checkout.session.completed",
        "customer.created",
        "customer.updated",
        "customer.subscription.created",
        "customer.subscription.updated",
        "invoice.paid",
        "payment_intent.succeeded",
        "charge.refunded",
    ),
)
