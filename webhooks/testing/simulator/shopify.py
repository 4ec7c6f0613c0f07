"""Shopify's GraphQL Admin API as far as the provider file uses it: one node, lists by change, the subscriptions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, ClassVar

from ... import jsontext
from ...provider import instant
from ...providers.shopify import LISTS, OBJECTS, provider
from .service import PlainService, found, iso, window
from .world import Answer, Call, Key, World

__all__ = ["service"]

ROOTS = {field: kind for kind, (field, _, _) in OBJECTS.items()}
LISTED = {root: kind for kind, root in LISTS.items()}
TOPICS = {"order": ("orders", "updated"), "product": ("products", "update")}
NAMES = {"order": "name", "product": "title"}
"""Kind → the field that people call it by."""


class ShopifyService(PlainService):
    """One shop. The API shows a node, a delivery carries the older REST form of it."""

    provider = provider
    settings: ClassVar[dict[str, str]] = {
        "shop": "simulated.myshopify.com",
        "access_token": "shpat_simulated",
        "read_all_orders": "yes",
        "webhook_url": "https://example.test/webhooks/shopify",
        "topics": "orders/updated",
    }
    kinds = ("order", "product")
    secret = "simulated shopify secret"  # noqa: S105 - a made-up one
    account = settings["shop"]

    def new(self, world: World, kind: str, id_: str, fields: dict[str, Any]) -> dict[str, Any]:
        at = iso(world.clock())
        node = {"id": f"gid://shopify/{OBJECTS[kind][1]}/{id_}", "legacyResourceId": id_}
        return {**node, "createdAt": at, "updatedAt": at, **_named(kind, fields)}

    def id_of(self, kind: str, number: int) -> str:
        return str(9_007_199_254_700_000 + number)  # beyond what a float holds

    def changed(self, world: World, data: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
        kind = "order" if "/Order/" in data["id"] else "product"
        return {**data, "updatedAt": iso(world.clock()), **_named(kind, fields)}

    def event_type(self, kind: str, what: str, data: dict[str, Any]) -> str:
        resource, updated = TOPICS[kind]
        return f"{resource}/{ {'created': 'create', 'updated': updated, 'deleted': 'delete'}[what] }"

    def carried(self, key: Key, snapshot: dict[str, Any]) -> dict[str, Any]:
        rest = {"id": int(key[2]), "admin_graphql_api_id": snapshot["id"]}
        return {**rest, "updated_at": snapshot["updatedAt"], "name": snapshot.get(NAMES[key[1]])}

    def answer(self, world: World, call: Call) -> Answer:
        if call.headers.get("X-Shopify-Access-Token") != self.settings["access_token"]:
            return Answer(401, {"errors": "[API] Invalid API key or access token"})
        asked = jsontext.loads(call.body) if call.path.endswith("/graphql.json") else {}
        match = re.search(r"\{ (\w+)\(", asked.get("query", ""))
        root, variables = match[1] if match else "", asked.get("variables") or {}
        if root in ROOTS:
            id_ = variables["id"].rpartition("/")[2]
            return _data(root, found(world, (self.account, ROOTS[root], id_)))
        if root in LISTED:
            since = instant(variables.get("filter", "").partition("'")[2].rstrip("'"))
            return self._list(world, root, since, variables.get("after"))
        if root == "webhookSubscriptions":
            info = {"hasNextPage": False, "endCursor": None}
            return _data(root, {"nodes": list(self._subscriptions(world)), "pageInfo": info})
        if root == "webhookSubscriptionCreate":
            world.enabled = True
            return _data(
                root, {"webhookSubscription": {"id": "gid://shopify/WebhookSubscription/9"}, "userErrors": []}
            )
        return Answer(404, {"errors": "Not Found"})

    def _subscriptions(self, world: World) -> Iterator[dict[str, Any]]:
        """One for each topic. One that failed too often is removed, and never shown as disabled."""
        version = world.api_version or provider.defaults["api_version"]
        topics = self.settings["topics"].split(",") if world.subscribed == ("*",) else world.subscribed
        ours = [("ours", self.settings["webhook_url"], topics if world.enabled else ())]
        for name, uri, each in ours + [(other.id, other.url, other.types) for other in world.others]:
            for topic in each:
                id_ = f"gid://shopify/WebhookSubscription/{name}-{topic.replace('/', '-')}"
                spelled = topic.upper().replace("/", "_")
                yield {"id": id_, "topic": spelled, "uri": uri, "apiVersion": {"handle": version}}

    def _list(self, world: World, root: str, since: datetime | None, after: str | None) -> Answer:
        items = [
            i
            for i in world.objects(self.account, LISTED[root])
            if since is None or (instant(i["updatedAt"]) or since) >= since
        ]
        # A cursor is a place in the order and not a number of items.
        places = sorted((f"{item['updatedAt']} {item['id']}", item) for item in items)
        page, more = window([p for p in places if after is None or p[0] > after], 0, 100)
        info = {"hasNextPage": more, "endCursor": page[-1][0] if page else None}
        return _data(root, {"nodes": [item for _, item in page], "pageInfo": info})


def _named(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {NAMES[kind] if name == "title" else name: value for name, value in fields.items()}


def _data(root: str, value: Any) -> Answer:
    return Answer(200, {"data": {root: value}})


service = ShopifyService()
