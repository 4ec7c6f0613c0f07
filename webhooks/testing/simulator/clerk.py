"""Clerk's API as far as the provider file uses it: users and organizations by id, and their lists by offset."""

from __future__ import annotations

from typing import Any, ClassVar

from ...providers.clerk import PATHS, SCANNED, provider
from .service import PlainService, found, window
from .world import Answer, Call, World

__all__ = ["service"]

NOT_FOUND = Answer(404, {"errors": [{"code": "resource_not_found", "message": "simulated"}]})
KINDS = {path: kind for kind, path in PATHS.items()} | {path: kind for kind, path in SCANNED.items()}


class ClerkService(PlainService):
    """One instance. Times are Unix milliseconds."""

    provider = provider
    settings: ClassVar[dict[str, str]] = {"api_key": "sk_test_simulated"}
    kinds = ("user", "organization")
    secret = "whsec_c2ltdWxhdGVkIHNpbXVsYXRlZCBzaW11bGF0ZWQh"  # noqa: S105 - a made-up one

    def new(self, world: World, kind: str, id_: str, fields: dict[str, Any]) -> dict[str, Any]:
        at = int(world.clock().timestamp() * 1000)
        return {"id": id_, "object": kind, "created_at": at, "updated_at": at, **fields}

    def changed(self, world: World, data: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
        return {**data, "updated_at": int(world.clock().timestamp() * 1000), **fields}

    def answer(self, world: World, call: Call) -> Answer:
        if call.headers.get("Authorization") != f"Bearer {self.settings['api_key']}":
            return Answer(401, {"errors": [{"code": "authentication_invalid", "message": "simulated"}]})
        if call.path in KINDS:
            return self._list(world, call, KINDS[call.path])
        base, _, id_ = call.path.rpartition("/")
        thing = found(world, ("", KINDS[base], id_)) if base in KINDS else None
        return Answer(200, thing) if thing is not None else NOT_FOUND

    def _list(self, world: World, call: Call, kind: str) -> Answer:
        order = call.one("order_by", "-created_at")
        items = sorted(
            world.objects("", kind),
            key=lambda item: (item[order.lstrip("+-")], item["id"]),
            reverse=order.startswith("-"),
        )
        page, _ = window(items, int(call.one("offset", "0")), int(call.one("limit", "10")))
        return Answer(200, page if kind == "user" else {"data": page, "total_count": len(items)})


service = ClerkService()
