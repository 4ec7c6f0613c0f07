"""Slack's Web API as far as the provider file uses it: users and channels. Every answer is HTTP 200."""

from __future__ import annotations

from typing import Any, ClassVar

from ...providers.slack import provider
from .service import PlainService, found, window
from .world import Answer, Call, Key, World

__all__ = ["service"]

LISTS = {"users.list": ("user", "members"), "conversations.list": ("channel", "channels")}
ONE = {"users.info": "user", "conversations.info": "channel"}
TYPES = {
    ("user", "created"): "team_join",
    ("user", "updated"): "user_change",
    ("channel", "created"): "channel_created",
    ("channel", "updated"): "channel_rename",
}


class SlackService(PlainService):
    """One workspace."""

    provider = provider
    settings: ClassVar[dict[str, str]] = {"token": "xoxb-simulated"}
    kinds = ("user", "channel")
    secret = "0123456789abcdef0123456789abcdef"  # noqa: S105 - a made-up one
    account = "T0SIMULATED"

    def new(self, world: World, kind: str, id_: str, fields: dict[str, Any]) -> dict[str, Any]:
        return {"id": id_, "name": id_.lower(), **_age(world, kind), **fields}

    def id_of(self, kind: str, number: int) -> str:
        return f"{kind[0].upper()}0SIM{number:06d}"

    def changed(self, world: World, data: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
        return {**data, **_age(world, "channel" if data["id"].startswith("C") else "user"), **fields}

    def event_type(self, kind: str, what: str, data: dict[str, Any]) -> str:
        return TYPES[kind, what]

    def carried(self, key: Key, snapshot: dict[str, Any]) -> dict[str, Any]:
        return {key[1]: snapshot}

    def answer(self, world: World, call: Call) -> Answer:
        method = call.path.removeprefix("/api/")
        if call.headers.get("Authorization") != f"Bearer {self.settings['token']}":
            return Answer(200, {"ok": False, "error": "invalid_auth"})
        if method == "auth.test":
            return Answer(200, {"ok": True, "team_id": self.account, "user_id": "U0SIMBOT"})
        if method in LISTS:
            return self._list(world, call, *LISTS[method])
        if method not in ONE:
            return Answer(200, {"ok": False, "error": "unknown_method"})
        kind = ONE[method]
        thing = found(world, (self.account, kind, call.one(kind)))
        if thing is None:
            return Answer(200, {"ok": False, "error": f"{kind}_not_found"})
        return Answer(200, {"ok": True, kind: thing})

    def _list(self, world: World, call: Call, kind: str, place: str) -> Answer:
        offset, size = int(call.one("cursor") or "0"), int(call.one("limit", "100"))
        page, more = window(world.objects(self.account, kind), offset, size)
        following = {"next_cursor": str(offset + size) if more else ""}
        return Answer(200, {"ok": True, place: page, "response_metadata": following})


def _age(world: World, kind: str) -> dict[str, Any]:
    """A user's change is in seconds, a channel's in milliseconds."""
    seconds = world.clock().timestamp()
    return {"updated": int(seconds * 1000) if kind == "channel" else int(seconds)}


service = SlackService()
