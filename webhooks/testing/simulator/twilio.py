"""Twilio's API as far as the provider file uses it: messages and calls, the alerts, the number."""

from __future__ import annotations

import re
from datetime import UTC
from email.utils import format_datetime
from typing import Any, ClassVar

from ...providers.twilio import PATHS, provider
from .service import MISSING, PlainService, found, iso, window
from .world import Answer, Attempt, Call, Key, World

__all__ = ["service"]

STATES = {
    "message": ("queued", "sent", "delivered", "read"),
    "call": ("queued", "ringing", "in-progress", "completed"),
}
KINDS = {path: kind for kind, path in PATHS.items()}
ACCOUNT = "AC" + "0123456789abcdef" * 2
URL = "https://example.test/webhooks/twilio"
"""Where it believes to deliver to; its alerts name it."""


class TwilioService(PlainService):
    """One account. A change is the next state, and the last one stays: nothing else makes a callback."""

    provider = provider
    settings: ClassVar[dict[str, str]] = {
        "account_sid": ACCOUNT,
        "auth_token": "simulated",
        "webhook_url": URL,
        "phone_number_sid": "PN" + "0" * 32,
    }
    kinds = ("message", "call")
    secret = "fedcba9876543210" * 2
    account = ACCOUNT

    def new(self, world: World, kind: str, id_: str, fields: dict[str, Any]) -> dict[str, Any]:
        at = format_datetime(world.clock().astimezone(UTC))
        return {"sid": id_, "status": STATES[kind][0], "date_created": at, "date_updated": at, **fields}

    def id_of(self, kind: str, number: int) -> str:
        return f"{'SM' if kind == 'message' else 'CA'}{number:032x}"

    def changed(self, world: World, data: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
        states = STATES["call" if data["sid"].startswith("CA") else "message"]
        place = states.index(data["status"]) + 1
        if place == len(states):
            return data
        return {
            **data,
            "status": states[place],
            "date_updated": format_datetime(world.clock().astimezone(UTC)),
        }

    def event_type(self, kind: str, what: str, data: dict[str, Any]) -> str:
        return f"{kind}.{data['status']}"

    def carried(self, key: Key, snapshot: dict[str, Any]) -> dict[str, Any]:
        name = "Message" if key[1] == "message" else "Call"
        return {f"{name}Sid": key[2], f"{name}Status": snapshot["status"]}

    def answer(self, world: World, call: Call) -> Answer:
        if not call.headers.get("Authorization", "").startswith("Basic "):
            return Answer(401, {"code": 20003, "message": "simulated"})
        if call.path == "/v1/Alerts":
            return Answer(200, {"alerts": [_alert(a) for a in world.attempted() if not a.ok], "meta": {}})
        if call.path.startswith("/v1/Alerts/"):
            alert = next((a for a in world.attempts if _alert(a)["sid"] == call.path[11:]), None)
            return Answer(200, {**_alert(alert), **_sent(alert)}) if alert is not None else MISSING
        if "/IncomingPhoneNumbers/" in call.path:
            return Answer(200, {"sms_url": URL if world.enabled else "https://example.test/elsewhere"})
        match = re.fullmatch(rf"/2010-04-01/Accounts/{ACCOUNT}/(Messages|Calls)(?:/(\w+))?\.json", call.path)
        if match is None:
            return MISSING
        kind = KINDS[match[1]]
        if match[2]:
            thing = found(world, (ACCOUNT, kind, match[2]))
            return Answer(200, thing) if thing is not None else MISSING
        page, more = window(
            reversed(list(world.objects(ACCOUNT, kind))), int(call.one("Page", "0")) * 1000, 1000
        )
        following = f"{call.path}?Page={int(call.one('Page', '0')) + 1}" if more else None
        return Answer(200, {match[1].lower(): page, "next_page_uri": following})


def _alert(attempt: Attempt) -> dict[str, Any]:
    return {"sid": f"NO{attempt.id:032x}", "error_code": "11200", "date_generated": iso(attempt.at)}


def _sent(attempt: Attempt) -> dict[str, Any]:
    return {"request_url": URL, "request_variables": attempt.happening.request.body.decode()}


service = TwilioService()
