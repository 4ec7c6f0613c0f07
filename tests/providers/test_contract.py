"""The shipped contract suite, run for every provider that there is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.providers.worlds import ACCOUNT_SID, WORLDS
from webhooks import providers
from webhooks.provider import Json, ObjectRef, Provider
from webhooks.testing.contract import Call, ProviderContract

VECTORS = Path(__file__).parents[3] / "shared" / "vectors"
"""Kept beside the repository, and not everywhere; without it only the test that reads it is skipped."""


def _nothing_at_paddle(call: Call) -> Json:
    return {"data": []} if call.path == "/adjustments" else None


def _nothing_at_slack(call: Call) -> Json:
    if call.path == "/api/conversations.history":
        return {"ok": True, "messages": []}
    errors = {
        "/api/conversations.info": "channel_not_found",
        "/api/conversations.replies": "thread_not_found",
        "/api/files.info": "file_deleted",
        "/api/team.info": "team_not_found",
        "/api/users.info": "user_not_found",
    }
    return {"ok": False, "error": errors[call.path]}


GONE: Mapping[str, Callable[[Call], Json]] = {"paddle": _nothing_at_paddle, "slack": _nothing_at_slack}
"""Where "no such thing" is not a 404."""

SETTINGS: Mapping[str, Mapping[str, str]] = {
    "paddle": {"api_key": "pdl_live_apikey_x", "notification_setting_id": "ntfset_01"},
    "razorpay": {
        "key_id": "rzp_test_x",
        "key_secret": "x",
        "account_id": "acc_KettleAndCo01",
        "webhook_url": "https://hooks.example.test/webhooks/razorpay",
    },
    "shopify": {
        "shop": "kettle-and-co.myshopify.com",
        "access_token": "shpat_x",
        "read_all_orders": "yes",
        "webhook_url": "https://hooks.example.test/webhooks/shopify",
        "topics": "orders/paid",
    },
    "slack": {"token": "xoxb-x", "fetch_messages": "yes"},
    "twilio": {
        "account_sid": ACCOUNT_SID,
        "auth_token": "x",
        "webhook_url": "https://hooks.example.test/webhooks/twilio",
        "phone_number_sid": f"PN{'0' * 32}",
    },
}

NEVER_GONE: Mapping[str, tuple[str, ...]] = {"slack": ("channel", "team")}
"""Slack says `channel_not_found` also of a channel that our token may not see."""

REFS: Mapping[str, tuple[ObjectRef, ...]] = {
    "slack": (ObjectRef("message", "C0KITCHEN:1772600767.000200"),),
    "twilio": (ObjectRef("message", f"SM{'0' * 32}"), ObjectRef("call", f"CA{'0' * 32}")),
}


def _suite(name: str, provider: Provider) -> type[ProviderContract]:
    members: dict[str, Any] = {
        "provider": provider,
        "settings": SETTINGS.get(name, {}),
        "refs": REFS.get(name, ()),
        "never_gone": NEVER_GONE.get(name, ()),
        "vectors": VECTORS / f"{name}.json",
    }
    if name in GONE:
        members["gone"] = lambda _self, call: GONE[name](call)
    if name in WORLDS:
        members["world"] = lambda _self: WORLDS[name]()
    return type(f"Test{name.title().replace('-', '')}", (ProviderContract,), members)


for _name in providers.names():
    _class = _suite(_name, providers.get(_name))
    globals()[_class.__name__] = _class
