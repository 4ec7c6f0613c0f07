"""Paddle Billing: signs time and body; its log of 90 days holds every event, whether subscribed to or not."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from .. import jsontext
from ..errors import ApiRefused, NotFetchable, Unreadable
from ..provider import (
    Api,
    ApiSpec,
    Change,
    Envelope,
    Health,
    Json,
    LogEntry,
    ObjectRef,
    Policy,
    Provider,
    Rate,
    Redelivery,
    Request,
    Sample,
    Subscription,
    Version,
    as_text,
    body_key,
    dig,
    instant,
    listed,
    path_segment,
    served,
    turn,
)
from ..signatures import TimestampedHeader

__all__ = ["provider"]

PATHS: Mapping[str, str] = {
    "transaction": "/transactions",
    "subscription": "/subscriptions",
    "customer": "/customers",
    "product": "/products",
    "price": "/prices",
    "discount": "/discounts",
    "discount_group": "/discount-groups",
    "report": "/reports",
    "client_token": "/client-tokens",
}
"""Kind → where the API serves it with an id behind (paddle-python-sdk 1.16.1, the clients in `Resources`)."""

OF_A_CUSTOMER: Mapping[str, str] = {
    "address": "addresses",
    "business": "businesses",
    "payment_method": "payment-methods",
}
"""Kind → its place under /customers/{id}; which customer says only the event."""

PAGE = 200
TRANSACTIONS_PAGE = 30
_ID = re.compile(r"[a-z]+_[0-9a-z]{20,40}", re.ASCII)


def parse(request: Request) -> list[Envelope]:
    event = request.document
    type_, data = event.get("event_type"), event.get("data")
    if not isinstance(type_, str) or not type_.strip():
        raise Unreadable("a Paddle event has an event_type")
    # Not notification_id: a replay has another one, and each destination its own.
    key = as_text(event.get("event_id")).strip()
    kind, id_ = type_.partition(".")[0].strip(), as_text(dig(data, "id"))
    simulated = any(
        as_text(event.get(name)).startswith("ntfsimevt_") for name in ("event_id", "notification_id")
    )
    return [
        Envelope(
            key or body_key(request.body),
            type_,
            event,
            object=ObjectRef(kind, id_, _path(kind, id_, as_text(dig(data, "customer_id"))))
            if kind and id_
            else None,
            snapshot=data if isinstance(data, dict) else None,
            gone=type_.endswith(".deleted"),  # payment methods; everything else is archived
            occurred_at=instant(event.get("occurred_at")),
            # Sandbox and live are two accounts, told apart by their secret; a simulation is neither's truth.
            livemode=False if simulated else None,
        )
    ]


def _path(kind: str, id_: str, customer: str) -> str:
    if kind not in OF_A_CUSTOMER or not _ID.fullmatch(id_) or not _ID.fullmatch(customer):
        return ""
    return f"/customers/{customer}/{OF_A_CUSTOMER[kind]}/{id_}"


def fetch(api: Api, ref: ObjectRef) -> Json | None:
    if ref.kind == "adjustment":
        # There is no request for a single one.
        found = listed(api.get("/adjustments", id=ref.id), "data")
        return next((item for item in found if dig(item, "id") == ref.id), None)
    if ref.kind in PATHS:
        return served(api.find(f"{PATHS[ref.kind]}/{path_segment(ref.id)}"), ref.id, "data")
    if ref.kind in OF_A_CUSTOMER and ref.path:
        return served(api.find(ref.path), ref.id, "data")
    raise NotFetchable(f"Paddle: no path is known for {ref.kind}")


def version(_ref: ObjectRef, data: Json) -> Version | None:
    # An instant and not the text: trailing zeros of the fraction are cut, so texts do not sort.
    return instant(dig(data, "updated_at"))


def list_changed(api: Api, since: datetime) -> Iterator[Change]:
    """Transactions that changed since. Misses every other kind, whose lists have no such filter; the event
    log has them all for 90 days."""
    seen: set[tuple[str, Any]] = set()
    begin = since.astimezone(UTC).isoformat().replace("+00:00", "Z")
    cursor, after = as_text(dig(api.place, "cursor")) or begin, None
    while True:
        # By time and not by page: what changes meanwhile moves to the end, and is read there.
        page = api.get(
            "/transactions",
            **{"updated_at[GTE]": cursor, "order_by": "updated_at[ASC]", "per_page": TRANSACTIONS_PAGE},
            after=after,
        )
        items = _data(page)
        # What was read at the last instant of a page comes again; what changed once more is another entry.
        entries = [(as_text(item.get("id")), item.get("updated_at")) for item in items]
        new = [(item, entry) for item, entry in zip(items, entries, strict=True) if entry not in seen]
        before, last = after, as_text(items[-1].get("updated_at")) if items else ""
        for item, entry in turn(api, new, "transaction", last or cursor):
            yield Change(ObjectRef("transaction", entry[0]), item, instant(item.get("updated_at")))
        seen.update(entries)
        after = as_text(items[-1].get("id")) if items and instant(last) == instant(cursor) else None
        if not items or not dig(page, "meta", "pagination", "has_more") or (after and after == before):
            return
        cursor = last  # with `after` where there is more than a page at one instant


def list_events(api: Api, since: datetime) -> Iterator[LogEntry]:
    """The event log, which reaches back 90 days; newest first. Misses nothing within that time; also holds
    events that this destination is not subscribed to. Entries hold the whole event."""
    for page in _pages(api, "/events", after=dig(api.place, "cursor")):
        recent = [event for event in page if (instant(event.get("occurred_at")) or since) >= since]
        entries = [_log_entry(event) for event in recent if as_text(event.get("event_id")).strip()]
        yield from turn(api, entries, "", page[-1].get("event_id"))
        if not recent:
            return


def _log_entry(event: dict[str, Any]) -> LogEntry:
    request = Request("POST", "", {"Content-Type": "application/json"}, jsontext.dumps(event))
    key = as_text(event.get("event_id")).strip()
    return LogEntry(key, instant(event.get("occurred_at")), lambda: parse(request))


def _pages(
    api: Api, path: str, id_: str = "event_id", *, after: str | None = None, **params: Any
) -> Iterator[list[dict[str, Any]]]:
    # By id, of which newer ones sort higher: what comes in meanwhile is before the cursor and shifts nothing.
    while True:
        page = api.get(path, order_by="id[DESC]", per_page=PAGE, after=after, **params)
        items = _data(page)
        if items:
            yield items
        before, after = after, items[-1].get(id_) if items else None
        if not after or after == before or not dig(page, "meta", "pagination", "has_more"):
            return


def _data(page: Json) -> list[dict[str, Any]]:
    return [item for item in dig(page, "data") or [] if isinstance(item, dict)]


def redeliver(api: Api, since: datetime) -> Iterator[Redelivery]:
    """Ask for a new attempt of each notification to this destination that failed and was not replayed."""
    destination = api.settings.get("notification_setting_id")
    if not destination:
        raise NotFetchable(
            "set `notification_setting_id` (ntfset_…), or other destinations would be replayed too"
        )
    start = since.astimezone(UTC).isoformat().replace("+00:00", "Z")
    wanted = {"status": "failed", "notification_setting_id": destination, "from": start}
    # Read to the end first: a replay makes a new notification, and the list would move.
    failed = [item for page in _pages(api, "/notifications", "id", **wanted) for item in page]
    for item in failed:
        if item.get("origin") == "event" and not item.get("replayed_at"):
            answer = api.post(f"/notifications/{path_segment(as_text(item.get('id')))}/replay")
            new = as_text(dig(answer, "data", "notification_id"))
            yield Redelivery(new, as_text(dig(item, "payload", "event_id")), as_text(item.get("type")))


def endpoint_health(api: Api) -> Health:
    wanted = api.settings.get("notification_setting_id")
    if not wanted:
        return Health(
            "unknown", "set `notification_setting_id` (ntfset_…) to ask Paddle about this destination"
        )
    try:
        found = dig(api.find(f"/notification-settings/{path_segment(wanted)}"), "data")
        if not isinstance(found, dict):
            return Health("missing", f"Paddle has no destination {wanted}")
        if found.get("active") is not True:
            return Health("disabled", "the destination is not active")
        waiting = api.get("/notifications", status="needs_retry", notification_setting_id=wanted, per_page=1)
    except ApiRefused as refusal:
        return Health("unknown", refusal.reason, refusal.http_status)
    return (
        Health("failing", "deliveries are waiting for another attempt")
        if _data(waiting)
        else Health("enabled")
    )


def subscriptions(api: Api) -> list[Subscription]:
    """Every destination that is a URL and gets real events; those for simulations alone are not among them."""
    wanted = api.settings.get("notification_setting_id")
    return [
        Subscription(
            as_text(item.get("id")),
            as_text(item.get("destination")),
            item.get("active") is True,
            tuple(as_text(dig(event, "name")) for event in item.get("subscribed_events") or []),
            as_text(item.get("api_version")),
            ours=item.get("id") == wanted if wanted else None,
        )
        for page in _pages(api, "/notification-settings", "id")
        for item in page
        if item.get("type") == "url" and item.get("traffic_source") != "simulation"
    ]


def enable(api: Api) -> None:
    wanted = api.settings.get("notification_setting_id", "")
    if not wanted:
        raise NotFetchable("set `notification_setting_id` (ntfset_…) to make a destination active")
    # paddle-python-sdk 1.16.1, NotificationSettingsClient.update
    api.send("PATCH", f"/notification-settings/{path_segment(wanted)}", {"active": True})


def secret_problem(secret: str) -> str | None:
    if secret.startswith("pdl_ntf"):
        return None
    return "a Paddle secret key begins with pdl_ntfset_ (an API key or a destination's id is something else)"


def livemode(settings: Mapping[str, str]) -> bool | None:
    match = re.match(r"pdl_(live|sdbx)_apikey_", settings.get("api_key", ""))
    return match and match[1] == "live"


def sample(wanted: Sample) -> Request:
    kind, _, action = wanted.type.partition(".")
    digest = hashlib.sha256(wanted.id.encode()).hexdigest()
    at = wanted.at.astimezone(UTC).isoformat().replace("+00:00", "Z")
    thing = {"id": f"{PREFIXES.get(kind, kind[:3])}_01{digest[:24]}", "status": STATUSES.get(action, action)}
    thing |= {"customer_id": f"ctm_01{digest[24:48]}", "created_at": at, "updated_at": at}
    body = {
        "data": wanted.object or thing,
        "event_id": wanted.id,
        "event_type": wanted.type,
        "occurred_at": at,
        "notification_id": f"ntf_01{digest[:24]}",
    }
    headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "Paddle"}
    return Request("POST", "", headers, jsontext.dumps(body))


PREFIXES = {"subscription": "sub", "transaction": "txn", "customer": "ctm", "payment_method": "paymtd"}
STATUSES = {"created": "active", "updated": "active", "deleted": "active", "payment_failed": "past_due"}

provider = Provider(
    name="paddle",
    docs="https://developer.paddle.com/webhooks/about/how-webhooks-work",
    # Paddle's own libraries allow five seconds, which a slow network uses up; the event id stops replays.
    signature=TimestampedHeader(
        header="Paddle-Signature", time_key="ts", signature_key="h1", separator=";", joiner=":"
    ),
    parse=parse,
    policy=Policy(
        checked=date(2026, 12, 1),
        respond_within=timedelta(seconds=5),
        retries=None,  # 60 with growing pauses, 20 of them in the first hour; sandbox: 3 in 15 minutes
        retry_window=timedelta(days=3),
        log_window=timedelta(days=90),
        disables=None,  # the documentation does not say that it ever does
        sources={
            "respond_within": "https://developer.paddle.com/webhooks/about/respond-to-webhooks",
            "retry_window": "https://developer.paddle.com/webhooks/about/respond-to-webhooks",
            "log_window": "https://developer.paddle.com/changelog/2024/event-notification-retention-changes",
        },
    ),
    settings=("api_key", "notification_setting_id"),
    required=("api_key",),
    secret_problem=secret_problem,
    livemode=livemode,
    # For the sandbox set the endpoint's `api_base_url` to https://sandbox-api.paddle.com.
    api=ApiSpec(
        "https://api.paddle.com",
        {"Authorization": "Bearer {api_key}", "Paddle-Version": "1"},
        # Of one IP address; who goes over it is shut out for a minute.
        rate=Rate(
            240, timedelta(minutes=1), "https://developer.paddle.com/api-reference/about/rate-limiting"
        ),
    ),
    fetch=fetch,
    kinds=("adjustment", *PATHS, *OF_A_CUSTOMER),
    version=version,
    list_changed=list_changed,
    list_events=list_events,
    redeliver=redeliver,
    endpoint_health=endpoint_health,
    subscriptions=subscriptions,
    enable=enable,
    authoritative={
        # transaction.paid comes first, before fees, invoice and subscription are settled.
        "fulfil-order": (
            ("transaction.completed",),
            "https://developer.paddle.com/webhooks/about/how-webhooks-work",
        ),
    },
    companions={"fulfil-order": ("transaction.paid", "transaction.updated", "transaction.billed")},
    sample=sample,
    sample_types=(
        "transaction.completed",
        "transaction.paid",
        "transaction.payment_failed",
        "subscription.created",
        "subscription.updated",
        "subscription.canceled",
        "customer.created",
        "customer.updated",
        "adjustment.created",
        "payment_method.deleted",
    ),
)
