"""Stripe's API as far as the provider file and the official SDK use it: retrieve, list, events, webhook endpoints."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, ClassVar

from ... import jsontext
from ...provider import Request, Sample
from ...providers.stripe import PATHS, sample
from .world import Answer, Call, Happening, Key, World

__all__ = ["service"]

KINDS = {path: kind for kind, path in PATHS.items()}
PREFIX = {"subscription": "customer.subscription", "dispute": "charge.dispute"}
"""Kinds whose events are named otherwise than they are."""

DELETABLE = {"customer", "product", "coupon", "plan"}


class StripeService:
    """A Stripe account, and as many connected accounts as are named."""

    settings: ClassVar[dict[str, str]] = {"api_key": "sk_test_simulated", "endpoint_id": "we_simulated"}
    kinds = ("customer", "product", "subscription", "checkout.session")
    secret = "whsec_simulated_0123456789abcdef"  # noqa: S105 - a made-up one
    account = ""

    def new(self, world: World, kind: str, id_: str, fields: dict[str, Any]) -> dict[str, Any]:
        """The first state of an object."""
        return {
            "id": id_,
            "object": kind,
            "created": int(world.clock().timestamp()),
            "livemode": False,
            "metadata": {},
            **fields,
        }

    def id_of(self, kind: str, number: int) -> str:
        return f"{kind.replace('.', '_')[:4]}_sim{number:08d}"

    def changed(self, world: World, data: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
        """Its next state. Like most kinds it has no field that says when it changed."""
        return {**data, **fields}

    def event_type(self, kind: str, what: str, data: dict[str, Any]) -> str:
        return f"{PREFIX.get(kind, kind)}.{what}"

    def signed_at(self, happening: Happening, now: datetime) -> datetime:
        return now

    def deletable(self, kind: str) -> bool:
        return kind in DELETABLE

    def request(
        self, happening_id: str, type_: str, at: datetime, key: Key, snapshot: dict[str, Any]
    ) -> Request:
        """The delivery of one event, unsigned."""
        body = (
            {**snapshot, "deleted": True} if type_.endswith(".deleted") and key[1] in DELETABLE else snapshot
        )
        return sample(Sample(type_, happening_id, at, body, key[0]))

    def answer(self, world: World, call: Call) -> Answer:
        if call.headers.get("Authorization") != f"Bearer {self.settings['api_key']}":
            return _error(401, "invalid_request_error", "api_key_invalid")
        account = call.headers.get("Stripe-Account", "")
        if call.path == "/v1/events":
            return self._page(
                call,
                (_event(h) for h in reversed(world.logged()) if h.account == account),
                "/v1/events",
            )
        if call.path.startswith("/v1/webhook_endpoints"):
            return self._endpoint(world, call)
        base, _, id_ = call.path.rpartition("/")
        if call.path in KINDS:
            items = list(world.objects(account, KINDS[call.path]))[::-1]
            return self._page(call, items, call.path)
        if base in KINDS:
            return self._retrieve(world, (account, KINDS[base], id_))
        if base == "/v1/events":
            found = next((h for h in world.log if h.id == id_ and h.account == account), None)
            return Answer(200, _event(found)) if found else _missing()
        return _error(404, "invalid_request_error", None)

    def _retrieve(self, world: World, key: Key) -> Answer:
        known, data = world.shown(key)
        if not known:
            return _missing()
        if data is None:
            return Answer(200, {"id": key[2], "object": key[1], "deleted": True})
        return Answer(200, data)

    def _endpoint(self, world: World, call: Call) -> Answer:
        endpoint = {
            "id": self.settings["endpoint_id"],
            "object": "webhook_endpoint",
            "status": "enabled" if world.enabled else "disabled",
            "enabled_events": ["*"],
            "url": "https://example.test/webhooks/stripe",
        }
        if call.method == "POST" and call.path.endswith("/" + str(endpoint["id"])):
            if b"disabled=false" in call.body:
                world.enabled = True
            return Answer(200, {**endpoint, "status": "enabled" if world.enabled else "disabled"})
        if call.path == "/v1/webhook_endpoints":
            others = [
                {
                    **endpoint,
                    "id": f"we_{other.id}",
                    "url": other.url,
                    "status": "enabled",
                    "enabled_events": list(other.types),
                }
                for other in world.others
            ]
            endpoint = {
                **endpoint,
                "enabled_events": list(world.subscribed),
                "url": world.url or endpoint["url"],
            }
            page = {"object": "list", "data": [endpoint, *others], "has_more": False, "url": call.path}
            return Answer(200, page)
        return Answer(200, endpoint) if call.path.endswith("/" + endpoint["id"]) else _missing()  # type: ignore[operator]

    def _page(self, call: Call, items: Iterable[dict[str, Any]], url: str) -> Answer:
        """Newest first, as Stripe lists; `starting_after` names the last one that the caller has."""
        since, until = call.one("created[gte]", "0"), call.one("created[lte]", "99999999999")
        found = [item for item in items if int(since) <= item["created"] <= int(until)]
        after = call.one("starting_after")
        if after:
            position = next((n for n, item in enumerate(found) if item["id"] == after), None)
            if position is None:
                return _error(400, "invalid_request_error", "resource_missing")
            found = found[position + 1 :]
        limit = min(int(call.one("limit", "10")), 100)
        return Answer(
            200, {"object": "list", "url": url, "data": found[:limit], "has_more": len(found) > limit}
        )


def _event(happening: Happening) -> dict[str, Any]:
    event: dict[str, Any] = jsontext.loads(happening.request.body)
    return {**event, "pending_webhooks": 0 if happening.delivered else 1}


def _missing() -> Answer:
    return _error(404, "invalid_request_error", "resource_missing")


def _error(status: int, type_: str, code: str | None) -> Answer:
    return Answer(status, {"error": {"type": type_, "code": code, "message": "simulated"}})


service = StripeService()
