"""Supabase Auth's admin API, as far as the provider file uses it: one user, and the list of all by cursor."""

from __future__ import annotations

from typing import Any, ClassVar

from ...providers.supabase import provider
from .service import MISSING, PlainService, found, window
from .world import Answer, Call, World

__all__ = ["service"]


class SupabaseService(PlainService):
    """A project with its users. Auth calls no hook for a change; the call that the next sign-in makes tells of it."""

    provider = provider
    settings: ClassVar[dict[str, str]] = {"project": "simulated", "service_key": "simulated"}
    kinds = ("user",)
    secret = "v1,whsec_c2ltdWxhdGVkIHNpbXVsYXRlZCBzaW11bGF0ZWQh"  # noqa: S105 - a made-up one

    def id_of(self, kind: str, number: int) -> str:
        return f"00000000-0000-4000-8000-{number:012d}"

    def event_type(self, kind: str, what: str, data: dict[str, Any]) -> str:
        return "after-user-created" if what == "created" else "send-email"

    def answer(self, world: World, call: Call) -> Answer:
        if call.headers.get("Authorization") != f"Bearer {self.settings['service_key']}":
            return Answer(401, {"error_code": "no_authorization"})
        base, _, id_ = call.path.partition("/admin/users")
        if base or not call.path.startswith("/admin/users"):
            return MISSING
        if id_:
            user = found(world, ("", "user", id_.removeprefix("/")))
            return Answer(200, user) if user is not None else MISSING
        offset, size = int(call.one("cursor", "0")), int(call.one("limit", "50"))
        users, more = window(world.objects("", "user"), offset, size)
        cursor = str(offset + size) if more else None
        return Answer(200, {"users": users, "aud": "authenticated", "pagination": {"next_cursor": cursor}})


service = SupabaseService()
