"""Svix's API as far as the provider file uses it: an app's endpoints, and what was sent to one of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from ... import jsontext
from ...provider import instant
from ...providers.svix import provider
from .service import MISSING, PlainService, found, iso, window
from .world import Answer, Call, Happening, Key, World

__all__ = ["service"]

APP = "app_simulated"
BASE = f"/api/v1/app/{APP}"


class SvixService(PlainService):
    """One app. Its operational webhooks tell of its endpoints."""

    provider = provider
    settings: ClassVar[dict[str, str]] = {
        "token": "sk_simulated.eu",
        "app_id": APP,
        "endpoint_id": "ep_simulated",
    }
    kinds = ("endpoint",)
    secret = "whsec_c2ltdWxhdGVkIHNpbXVsYXRlZCBzaW11bGF0ZWQh"  # noqa: S105 - a made-up one

    def new(self, world: World, kind: str, id_: str, fields: dict[str, Any]) -> dict[str, Any]:
        at = iso(world.clock())
        return {"id": id_, "url": "https://example.test/", "createdAt": at, "updatedAt": at, **fields}

    def changed(self, world: World, data: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
        return {**data, "updatedAt": iso(world.clock()), **fields}

    def deletable(self, kind: str) -> bool:
        return True

    def carried(self, key: Key, snapshot: dict[str, Any]) -> dict[str, Any]:
        return {"appId": APP, "endpointId": key[2]}

    def answer(self, world: World, call: Call) -> Answer:
        if call.headers.get("Authorization") != f"Bearer {self.settings['token']}":
            return Answer(401, {"code": "authentication_failed"})
        path = call.path.removeprefix(BASE)
        ours = f"/endpoint/{self.settings['endpoint_id']}"
        if path == call.path:
            return MISSING
        if path == "/endpoint":
            others = [_endpoint(other.id, other.url, other.types, disabled=False) for other in world.others]
            shown = [self._ours(world)] if world.others or world.subscribed != ("*",) else []
            return _page(call, [*world.objects("", "endpoint"), *shown, *others])
        if path == ours:
            if call.method == "PATCH":
                world.enabled = world.enabled or jsontext.loads(call.body).get("disabled") is False
            return Answer(200, self._ours(world))
        if path == f"{ours}/msg":
            since = instant(call.one("after"))
            sent = (h for h in reversed(world.logged()) if since is None or h.at >= since)
            return _page(call, map(_message, sent))
        if path in {f"{ours}/recover", f"{ours}/replay-missing"}:
            return self._again(world, call, missing=path.endswith("missing"))
        if path == f"/attempt{ours}":
            newest = [
                {"status": 0 if a.ok else 2, "responseStatusCode": a.http_status} for a in world.attempts
            ]
            return _page(call, newest[::-1])
        thing = found(world, ("", "endpoint", path.removeprefix("/endpoint/")))
        return Answer(200, thing) if thing is not None else MISSING

    def _ours(self, world: World) -> dict[str, Any]:
        id_ = self.settings["endpoint_id"]
        return _endpoint(id_, world.url, world.subscribed, disabled=not world.enabled)

    def _again(self, world: World, call: Call, *, missing: bool) -> Answer:
        since = instant((jsontext.loads(call.body) or {}).get("since"))
        for happening in list(world.log):
            wanted = not happening.attempts if missing else happening.attempts and not happening.delivered
            if wanted and (since is None or happening.at >= since):
                world.again(happening)
        return Answer(202, {"id": "qtask_simulated", "status": "running"})


def _endpoint(id_: str, url: str, types: Iterable[str], *, disabled: bool) -> dict[str, Any]:
    chosen = None if tuple(types) == ("*",) else list(types)
    where = url or "https://example.test/webhooks/svix"
    return {"id": id_, "url": where, "disabled": disabled, "filterTypes": chosen, "channels": None}


def _message(happening: Happening) -> dict[str, Any]:
    return {
        "id": happening.id,
        "eventType": happening.type,
        "timestamp": iso(happening.at),
        "payload": jsontext.loads(happening.request.body),
        "status": 0 if happening.delivered else 2 if happening.attempts else 1,
    }


def _page(call: Call, items: Any) -> Answer:
    offset, size = int(call.one("iterator", "0")), int(call.one("limit", "50"))
    page, more = window(items, offset, size)
    return Answer(200, {"data": page, "iterator": str(offset + size) if more else None, "done": not more})


service = SvixService()
