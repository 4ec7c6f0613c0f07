"""Paddle's API as far as the provider file uses it: objects by id, transactions by change, events, notifications."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from ... import jsontext
from ...provider import instant
from ...providers.paddle import PATHS, provider
from .service import PlainService, found, window
from .world import Answer, Attempt, Call, World

__all__ = ["service"]

KINDS = {path: kind for kind, path in PATHS.items()}
NOT_FOUND = Answer(404, {"error": {"type": "request_error", "code": "not_found", "detail": "simulated"}})
DESTINATION = "ntfset_simulated"


class PaddleService(PlainService):
    """One seller with one destination."""

    provider = provider
    settings: ClassVar[dict[str, str]] = {
        "api_key": "pdl_sdbx_apikey_simulated",
        "notification_setting_id": DESTINATION,
    }
    kinds = ("transaction", "subscription", "customer")
    secret = "pdl_ntfset_simulated_0123456789"  # noqa: S105 - a made-up one

    def answer(self, world: World, call: Call) -> Answer:
        if call.headers.get("Authorization") != f"Bearer {self.settings['api_key']}":
            return Answer(403, {"error": {"type": "request_error", "code": "authentication_malformed"}})
        base, _, id_ = call.path.rpartition("/")
        if call.path == "/transactions":
            return self._transactions(world, call)
        if call.path == "/events":
            return _page(call, [jsontext.loads(h.request.body) for h in reversed(world.logged())], "event_id")
        if call.path == "/notifications":
            status = call.one("status")
            attempts = [_notification(a) for a in reversed(world.attempted()) if not a.ok]
            return _page(call, attempts if status == "failed" else [], "id")
        if call.path == f"/notification-settings/{DESTINATION}":
            if call.method == "PATCH":
                world.enabled = world.enabled or jsontext.loads(call.body).get("active") is True
            return Answer(
                200, {"data": _destination(DESTINATION, world.url, world.subscribed, active=world.enabled)}
            )
        if call.path == "/notification-settings":
            others = [_destination(other.id, other.url, other.types, active=True) for other in world.others]
            ours = _destination(DESTINATION, world.url, world.subscribed, active=world.enabled)
            return _page(call, [ours, *others], "id")
        if base.startswith("/notifications/") and id_ == "replay":
            return self._replay(world, base.rpartition("/")[2])
        thing = found(world, ("", KINDS[base], id_)) if base in KINDS else None
        return Answer(200, {"data": thing}) if thing is not None else NOT_FOUND

    def _transactions(self, world: World, call: Call) -> Answer:
        since = instant(call.one("updated_at[GTE]"))
        items = sorted(world.objects("", "transaction"), key=lambda item: (item["updated_at"], item["id"]))
        return _page(
            call, [i for i in items if since is None or (instant(i["updated_at"]) or since) >= since], "id"
        )

    def _replay(self, world: World, id_: str) -> Answer:
        attempt = next((a for a in world.attempts if _notification(a)["id"] == id_), None)
        if attempt is None:
            return NOT_FOUND
        world.again(attempt.happening)
        return Answer(202, {"data": {"notification_id": f"{id_}_again"}})


def _destination(id_: str, url: str, types: Iterable[str], *, active: bool) -> dict[str, Any]:
    names = types if tuple(types) != ("*",) else provider.sample_types  # Paddle knows no wildcard
    return {
        "id": id_,
        "type": "url",
        "destination": url or "https://example.test/webhooks/paddle",
        "active": active,
        "api_version": 1,
        "subscribed_events": [{"name": name, "available_versions": [1]} for name in names],
        "traffic_source": "platform",
    }


def _notification(attempt: Attempt) -> dict[str, Any]:
    return {
        "id": f"ntf_sim{attempt.id:08d}",
        "type": attempt.happening.type,
        "status": "delivered" if attempt.ok else "failed",
        "origin": "event",
        "payload": jsontext.loads(attempt.happening.request.body),
        "replayed_at": None,
    }


def _page(call: Call, items: list[dict[str, Any]], id_: str) -> Answer:
    after, size = call.one("after"), int(call.one("per_page", "50"))
    start = next((n + 1 for n, item in enumerate(items) if item[id_] == after), 0)
    page, more = window(items, start, size)
    return Answer(200, {"data": page, "meta": {"pagination": {"per_page": size, "has_more": more}}})


service = PaddleService()
