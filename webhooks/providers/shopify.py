"""Shopify: signs the body and nothing else; topic, shop, id and time are unsigned headers: the API decides.

No event log and no redelivery: what was not delivered is only found by listing the objects that changed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
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
    parts,
    path_segment,
    served,
    turn,
)
from ..signatures import HmacBody

__all__ = ["provider"]

API_VERSION = "2026-10"
"""The stable version when this was checked; every fetch says it, so that the shape of our copies stays."""

STAMPS = "legacyResourceId createdAt updatedAt"
STATES = "displayFinancialStatus displayFulfillmentStatus"
MONEY = "{ shopMoney { amount currencyCode } }"

OBJECTS: Mapping[str, tuple[str, str, str]] = {
    "order": (
        "order",
        "Order",
        f"{STAMPS} name cancelledAt test {STATES} currentTotalPriceSet {MONEY}",
    ),
    "product": ("product", "Product", f"{STAMPS} title handle status"),
    "customer": ("customer", "Customer", f"{STAMPS} state"),
    "refund": ("refund", "Refund", f"{STAMPS} order {{ id }} totalRefundedSet {MONEY}"),
    "fulfillment_order": (
        "fulfillmentOrder",
        "FulfillmentOrder",
        "createdAt updatedAt status requestStatus orderId",
    ),
    "inventory_item": ("inventoryItem", "InventoryItem", f"{STAMPS} sku tracked"),
    "draft_order": ("draftOrder", "DraftOrder", f"{STAMPS} name status"),
}
"""Kind → (the query's field, the type in its global id, what is asked for unless `<kind>_fields` says else).

Nothing that needs Shopify's approval for protected customer data: one such field makes the whole query fail.
"""

RESOURCES: Mapping[str, str] = {
    "collections": "collection",
    "customers": "customer",
    "draft_orders": "draft_order",
    "fulfillment_orders": "fulfillment_order",
    "fulfillments": "fulfillment",
    "inventory_items": "inventory_item",
    "inventory_levels": "inventory_level",
    "order_transactions": "order_transaction",
    "orders": "order",
    "products": "product",
    "refunds": "refund",
}
"""What a topic begins with → kind; any other word is a kind of its own."""

LISTS: Mapping[str, str] = {
    "order": "orders",
    "product": "products",
    "customer": "customers",
    "draft_order": "draftOrders",
    "fulfillment_order": "fulfillmentOrders",
}
"""Kinds whose list can be sorted and filtered by the time of their last change."""

HIDDEN_AFTER_60_DAYS = ("order", "refund", "fulfillment_order")
"""Without the scope read_all_orders an older order is answered with null, exactly as one that does not exist
(https://shopify.dev/docs/api/admin-graphql/latest/objects/Order)."""

COMPLIANCE = ("customers/data_request", "customers/redact", "shop/redact")
"""About people and not about objects; the app has no token any more when the last two come."""

LIST_LAG = timedelta(minutes=10)
"""Lists are served from a search index that follows the data with a delay; how long is not published."""

PAGE = 100
TOPIC = re.compile(r"[A-Z][A-Z_]*", re.ASCII)
SHOP = re.compile(r"[a-z0-9][a-z0-9-]*\.myshopify\.com", re.ASCII)
NAMES = ("Topic", "Shop-Domain", "Webhook-Id", "Event-Id", "Triggered-At", "Action", "API-Version")
WEBHOOKS, EVENTS = "X-Shopify-", "Shopify-"


@dataclass(frozen=True, kw_only=True)
class ShopifySignature:
    """Base64 HMAC of the body under the app's client secret; Events have it in a header without `X-`."""

    signs_body: bool = True
    signs_time: bool = False
    signs_id: bool = False

    def verify(self, request: Request, secrets: Sequence[str], now: datetime | float) -> str:
        return _SCHEMES[_family(request, "Hmac-Sha256")].verify(request, secrets, now)

    def sign(self, request: Request, secret: str, now: datetime | float) -> Request:
        return _SCHEMES[_family(request, "Topic")].sign(request, secret, now)


_SCHEMES = {
    prefix: HmacBody(header=f"{prefix}Hmac-Sha256", encoding="base64") for prefix in (WEBHOOKS, EVENTS)
}


def _family(request: Request, name: str) -> str:
    # An Events delivery may carry both families; then the older one counts, whole.
    headers = request.headers
    return EVENTS if headers.get(EVENTS + name) and not headers.get(WEBHOOKS + name) else WEBHOOKS


def parse(request: Request) -> list[Envelope]:
    body = request.document
    family = _family(request, "Topic")
    topic, shop, key, event, at, action = (request.headers.get(family + n, "").strip() for n in NAMES[:6])
    # A shop becomes the host that our token is sent to.
    shop = shop.lower() if SHOP.fullmatch(shop.lower()) else ""
    topic = "/".join(filter(None, (topic, action)))  # Events have it in two headers
    type_, ref, snapshot, gone = _read_event(body) if _is_event(body) else _read_webhook(topic, body, shop)
    test = body.get("test")
    return [
        Envelope(
            # Not the event id: that is shared by all topics and subscriptions of one action in the shop.
            key or body_key(request.body),
            type_,
            body,
            object=ref,
            snapshot=snapshot,
            gone=gone,
            occurred_at=instant(at) or instant(body.get("updated_at")),
            account=shop,
            livemode=not test if isinstance(test, bool) else None,  # orders only
            correlation=event,
        )
    ]


_Reading = tuple[str, ObjectRef | None, Json, bool]


def _read_webhook(topic: str, body: Mapping[str, Any], shop: str) -> _Reading:
    # The topic is not signed: a captured delivery can be sent again under another one. So a type is only an
    # occasion to look; what the object is says the API.
    if topic in COMPLIANCE:
        return topic, None, None, False
    if topic == "app/uninstalled":
        return topic, ObjectRef("installation", shop) if shop else None, None, True
    if not topic:
        raise Unreadable("a Shopify webhook names its topic in a header")
    resource, _, action = topic.partition("/")
    kind = RESOURCES.get(resource) or _snake(resource)
    snapshot = body if "id" in body or not isinstance(body.get(kind), dict) else body[kind]
    id_ = _id(snapshot.get("id")) or _id(snapshot.get("admin_graphql_api_id"))
    if kind == "inventory_level":
        parts = [as_text(body.get("inventory_item_id")), as_text(body.get("location_id"))]
        id_ = "/".join(parts) if all(parts) else ""
    return topic, ObjectRef(kind, id_) if kind and id_ else None, snapshot, action == "delete"


def _is_event(body: Mapping[str, Any]) -> bool:
    return all(isinstance(body.get(key), str) and body[key].strip() for key in ("topic", "action", "handle"))


def _read_event(body: Mapping[str, Any]) -> _Reading:
    # https://shopify.dev/docs/apps/build/events/delivery-structure: here topic and action are signed as well.
    topic, action = body["topic"], body["action"]
    name = topic[0].lower() + topic[1:]
    id_ = _id(dig(body, "query_variables", f"{name}Id"))
    ref = ObjectRef(_snake(topic), id_) if id_ else None
    return f"{topic}/{action}", ref, dig(body, "data", name), action == "delete"


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _id(value: Any) -> str:
    return as_text(value).rpartition("/")[2].partition("?")[0]  # gid://shopify/Order/1 → 1


def fetch(api: Api, ref: ObjectRef) -> Json | None:
    if ref.kind not in OBJECTS or not (ref.id.isascii() and ref.id.isdigit()):
        raise NotFetchable(f"Shopify: no query is known for {ref.kind}")
    root, type_, _ = OBJECTS[ref.kind]
    query = f"query($id: ID!) {{ {root}(id: $id) {{ {_fields(api, ref.kind)} }} }}"
    gid = f"gid://shopify/{type_}/{ref.id}"
    said = api.graphql(_path(api), query, id=gid)
    is_none = isinstance(said, dict) and root in said and said[root] is None
    found = None if is_none else served(said, gid, root)
    if found is None and ref.kind in HIDDEN_AFTER_60_DAYS and api.settings.get("read_all_orders") != "yes":
        raise NotFetchable(f"Shopify shows no such {ref.kind}: deleted, or of an order older than 60 days")
    return found


def _fields(api: Api, kind: str) -> str:
    return "id " + (api.settings.get(f"{kind}_fields") or OBJECTS[kind][2])


def _path(api: Api) -> str:
    if not SHOP.fullmatch(api.account or api.settings.get("shop", "")):
        raise NotFetchable("Shopify: set `shop` (name.myshopify.com)")
    return f"/admin/api/{path_segment(api.settings.get('api_version') or API_VERSION)}/graphql.json"


def version(_ref: ObjectRef, data: Json) -> Version | None:
    # The API writes UTC, a delivery the shop's own offset; not every change inside an object moves it.
    return instant(dig(data, "updatedAt")) or instant(dig(data, "updated_at"))


def list_changed(api: Api, since: datetime) -> Iterator[Change]:
    """Objects of the kinds in `listed` that changed since. Misses deletions, orders older than 60 days (but
    for read_all_orders) and kinds that have no such list (refunds: their order changes with them)."""
    start = (since - LIST_LAG).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    names = [name.strip() for name in (api.settings.get("listed") or LISTED).split(",")]
    for kind, after in parts(api, names):
        if kind not in LISTS:
            raise NotFetchable(f"`listed` may hold {', '.join(LISTS)}, not {kind!r}")
        for item in _nodes(
            api,
            LISTS[kind],
            _fields(api, kind),
            f"updated_at:>='{start}'",
            "UPDATED_AT",
            part=kind,
            after=after,
        ):
            ref = ObjectRef(kind, _id(item.get("id")))
            yield Change(
                ref, item, instant(item.get("updatedAt")), api.account or api.settings.get("shop", "")
            )


def _nodes(
    api: Api,
    root: str,
    fields: str,
    filter_: str = "",
    sort: str = "",
    *,
    part: str = "",
    after: str | None = None,
) -> Iterator[dict[str, Any]]:
    # By cursor and in order of change: what changes meanwhile moves behind the cursor and is read there.
    by = f", sortKey: {sort}" if sort else ""
    narrowed = (", $filter: String", ", query: $filter") if filter_ else ("", "")
    query = (
        f"query($after: String{narrowed[0]}) {{ {root}(first: {PAGE}, after: $after{narrowed[1]}{by})"
        f" {{ nodes {{ {fields} }} pageInfo {{ hasNextPage endCursor }} }} }}"
    )
    while True:
        page = dig(
            api.graphql(_path(api), query, after=after, **({"filter": filter_} if filter_ else {})), root
        )
        before, after = after, dig(page, "pageInfo", "endCursor")
        nodes = [node for node in dig(page, "nodes") or [] if isinstance(node, dict)]
        yield from turn(api, nodes, part, after or before)
        if not dig(page, "pageInfo", "hasNextPage") or not after or after == before:
            return


def endpoint_health(api: Api) -> Health:
    """Whether the subscriptions that were made with the API are still there; Shopify removes those that fail.

    Those of the app's configuration file never show here, and none has a state.
    """
    wanted = _wanted(api)
    url = api.settings.get("webhook_url", "")
    if not wanted or not url:
        return Health("unknown", "set `webhook_url` and the `topics` that were subscribed with the API")
    try:
        found = {as_text(node.get("topic")) for node in _ours(api, url)}
    except NotFetchable as reason:
        return Health("unknown", str(reason))
    except ApiRefused as refusal:
        return Health("unknown", refusal.reason, refusal.http_status)
    missing = sorted(topic for name, topic in wanted.items() if name not in found)
    return Health("missing", f"no subscription for {', '.join(missing)}") if missing else Health("enabled")


def subscriptions(api: Api) -> list[Subscription]:
    """One for each topic that was subscribed with the API. Those of the app's configuration file never show, so a topic
    that is missing may come all the same. The topics are shown in capitals, in which `/` and `_` are one sign."""
    url = api.settings.get("webhook_url")
    return [
        Subscription(
            _id(node.get("id")),
            as_text(node.get("uri")),
            types=(as_text(node.get("topic")).lower().replace("_", "?"),),
            api_version=as_text(dig(node, "apiVersion", "handle")),
            ours=node.get("uri") == url if url else None,
        )
        for node in _nodes(api, "webhookSubscriptions", "id topic uri apiVersion { handle }")
    ]


def enable(api: Api) -> None:
    """Subscribe again to those of `topics` that Shopify has removed, without a filter and with every field."""
    url = api.settings.get("webhook_url", "")
    topics = sorted(_wanted(api).keys() - {as_text(node.get("topic")) for node in _ours(api, url)})
    if not url or not topics:
        raise NotFetchable("set `webhook_url` and the `topics` that were subscribed with the API")
    for topic in topics:
        # The names of the arguments' types are not among the facts, so that they stand in the query itself.
        query = (
            f"mutation {{ webhookSubscriptionCreate(topic: {topic}, webhookSubscription: {{uri: {json.dumps(url)}}})"
            " { webhookSubscription { id } userErrors { message } } }"
        )
        refused = dig(api.graphql(_path(api), query), "webhookSubscriptionCreate", "userErrors")
        if refused:
            raise ApiRefused(f"Shopify does not subscribe {topic}", 200, refused)


def _wanted(api: Api) -> dict[str, str]:
    """The `topics`: as the API spells them → as they were given."""
    given = (topic.strip() for topic in api.settings.get("topics", "").split(","))
    spelled = {topic.upper().replace("/", "_"): topic for topic in given}
    return {name: topic for name, topic in spelled.items() if TOPIC.fullmatch(name)}


def _ours(api: Api, url: str) -> Iterator[dict[str, Any]]:
    return (node for node in _nodes(api, "webhookSubscriptions", "id topic uri") if node.get("uri") == url)


def secret_problem(secret: str) -> str | None:
    if re.match(r"shp(at|ca|pa|ua|tka)_", secret):
        return "this is an access token; deliveries are signed with the app's client secret"
    return None if len(secret) >= 16 else "a Shopify client secret is longer"


def sample(wanted: Sample) -> Request:
    resource, _, action = wanted.type.partition("/")
    digest = hashlib.sha256(wanted.id.encode()).digest()
    id_ = int.from_bytes(digest[:7])  # like real ones: more than a float can hold
    now = wanted.at.astimezone(UTC)
    shop = wanted.account or "acme-widgets.myshopify.com"
    body: dict[str, Any] = {"id": id_, "updated_at": now.strftime("%Y-%m-%dT%H:%M:%S+00:00")}
    if wanted.type in COMPLIANCE:
        body = {"shop_id": id_, "shop_domain": shop, "customer": {"id": id_}}
    elif resource == "inventory_levels":
        body = {"inventory_item_id": id_, "location_id": 1, "available": 3, "updated_at": body["updated_at"]}
    elif action == "delete":
        body = {"id": id_}
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "Shopify-Captain-Hook",
        "X-Shopify-Topic": wanted.type,
        "X-Shopify-Shop-Domain": shop,
        "X-Shopify-API-Version": API_VERSION,
        "X-Shopify-Webhook-Id": wanted.id,
        "X-Shopify-Event-Id": digest.hex()[:32],
        "X-Shopify-Triggered-At": now.strftime("%Y-%m-%dT%H:%M:%S.%f000Z"),
    }
    return Request("POST", "", headers, jsontext.dumps(wanted.object or body))


LISTED = "order,product"
"""What list_changed lists by default; the other lists need scopes that few apps have."""

provider = Provider(
    name="shopify",
    docs="https://shopify.dev/docs/apps/build/webhooks",
    signature=ShopifySignature(),
    parse=parse,
    policy=Policy(
        checked=date(2026, 12, 1),
        respond_within=timedelta(seconds=5),  # of which one second to connect
        retries=None,  # eight, exponential; the steps are unpublished
        retry_window=timedelta(hours=4),  # since September 2024; "19 times in 48 hours" is the older rule
        log_window=None,  # the dashboard's log has no API
        disables=Disables(
            after_failures=8,
            how="the subscription is deleted if it was made with the Admin API; nothing is sent after that",
        ),
        sources={
            "respond_within": "https://shopify.dev/docs/apps/build/webhooks/verify-deliveries",
            "retry_window": "https://shopify.dev/docs/apps/build/webhooks/verify-deliveries",
            "disables": "https://shopify.dev/docs/apps/build/webhooks/verify-deliveries",
        },
    ),
    headers=tuple(prefix + name for prefix in (WEBHOOKS, EVENTS) for name in NAMES),
    settings=(
        "shop",
        "access_token",
        "api_version",
        "listed",
        "read_all_orders",
        "webhook_url",
        "topics",
        *(f"{kind}_fields" for kind in OBJECTS),
    ),
    required=("access_token",),
    defaults={"api_version": API_VERSION, "listed": LISTED},
    secret_problem=secret_problem,
    api=ApiSpec("https://{account|shop}", {"X-Shopify-Access-Token": "{access_token}"}),
    fetch=fetch,
    kinds=tuple(OBJECTS),
    version=version,
    list_changed=list_changed,
    endpoint_health=endpoint_health,
    subscriptions=subscriptions,
    lists_all=False,
    enable=enable,
    authoritative={"order-paid": (("orders/paid",), "https://shopify.dev/docs/api/webhooks/latest")},
    companions={
        "order-paid": (
            "orders/create",
            "orders/updated",
            "order_transactions/create",
            "inventory_levels/update",
        )
    },
    sample=sample,
    sample_types=(
        "orders/create",
        "orders/paid",
        "orders/updated",
        "orders/cancelled",
        "refunds/create",
        "products/update",
        "products/delete",
        "customers/update",
        "inventory_levels/update",
        "app/uninstalled",
        "customers/redact",
    ),
)
