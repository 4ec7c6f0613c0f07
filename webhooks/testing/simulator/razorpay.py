"""Razorpay's API as far as the provider file uses it: objects by id, lists by creation, the webhooks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from ...providers.razorpay import PATHS, provider
from .service import PlainService, found, window
from .world import Answer, Call, World

__all__ = ["service"]

KINDS = {path: kind for kind, path in PATHS.items()}
UNKNOWN = Answer(
    400, {"error": {"code": "BAD_REQUEST_ERROR", "description": "The id provided does not exist"}}
)
STATES = {"payment": ("authorized", "captured"), "order": ("created", "attempted", "paid")}
URL = "https://example.test/webhooks/razorpay"


class RazorpayService(PlainService):
    """One merchant in test mode. A state only goes forward; what else changes stands in `notes`."""

    provider = provider
    settings: ClassVar[dict[str, str]] = {
        "key_id": "rzp_test_simulated",
        "key_secret": "simulated",
        "account_id": "acc_simulated00001",
        "webhook_url": URL,
    }
    kinds = ("payment", "order")
    secret = "simulated razorpay secret"  # noqa: S105 - a made-up one
    account = settings["account_id"]

    def new(self, world: World, kind: str, id_: str, fields: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": id_,
            "entity": kind,
            "amount": 49900,
            "currency": "INR",
            "status": STATES[kind][0],
            "notes": dict(fields),
            "created_at": int(world.clock().timestamp()),
        }

    def changed(self, world: World, data: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
        states = STATES[data["entity"]]
        following = states[min(states.index(data["status"]) + 1, len(states) - 1)]
        return {**data, "status": following, "notes": {**data["notes"], **fields}}

    def event_type(self, kind: str, what: str, data: dict[str, Any]) -> str:
        return f"{kind}.{data['status']}"

    def answer(self, world: World, call: Call) -> Answer:
        if not call.headers.get("Authorization", "").startswith("Basic "):
            return Answer(401, {"error": {"code": "BAD_REQUEST_ERROR", "description": "simulated"}})
        if call.path == "/v1/webhooks":
            ours = _webhook("hook_simulated", URL, world.subscribed, active=world.enabled)
            others = [_webhook(other.id, other.url, other.types, active=True) for other in world.others]
            return _collection([ours, *others])
        if call.path in KINDS:
            return self._list(world, call, KINDS[call.path])
        base, _, id_ = call.path.rpartition("/")
        thing = found(world, (self.account, KINDS[base], id_)) if base in KINDS else None
        return Answer(200, thing) if thing is not None else UNKNOWN

    def _list(self, world: World, call: Call, kind: str) -> Answer:
        since = int(call.one("from", "0"))
        items = [item for item in world.objects(self.account, kind) if item["created_at"] >= since]
        return _collection(window(items[::-1], int(call.one("skip", "0")), int(call.one("count", "10")))[0])


def _webhook(id_: str, url: str, types: Iterable[str], *, active: bool) -> dict[str, Any]:
    events = list(provider.sample_types if tuple(types) == ("*",) else types)  # Razorpay knows no wildcard
    state = {"active": active, "disabled_at": 0 if active else 1_700_000_000, "secret_exists": True}
    return {"id": id_, "url": url, "events": events, **state}


def _collection(items: list[dict[str, Any]]) -> Answer:
    return Answer(200, {"entity": "collection", "count": len(items), "items": items})


service = RazorpayService()
