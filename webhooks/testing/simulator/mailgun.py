"""Mailgun's API as far as the provider file uses it: the event log. A message is what its events say."""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime
from typing import Any, ClassVar

from ... import jsontext
from ...providers.mailgun import HOOKS, provider
from .service import MISSING, PlainService, window
from .world import Answer, Call, Happening, Key, World

__all__ = ["service"]

DOMAIN, RECIPIENT = "simulated.test", "sam@example.test"
URL = "https://example.test/webhooks/mailgun"
NAMES = {type_: name for name, type_ in HOOKS.items()}
LATER = ("delivered", "opened", "clicked")


class MailgunService(PlainService):
    """One domain, and messages to one person."""

    provider = provider
    settings: ClassVar[dict[str, str]] = {
        "api_key": "simulated",
        "domain": DOMAIN,
        "endpoint_url": URL,
    }
    kinds = ("message",)
    secret = "simulated signing key of mailgun"  # noqa: S105 - a made-up one

    def new(self, world: World, kind: str, id_: str, fields: dict[str, Any]) -> dict[str, Any]:
        return _message(id_.partition(" ")[0], [_event(world, id_, "accepted", 0)])

    def id_of(self, kind: str, number: int) -> str:
        return f"{number:08d}@{DOMAIN} {RECIPIENT}"

    def changed(self, world: World, data: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
        events, message = data["events"], data["message-id"]
        name = LATER[min(len(events), len(LATER)) - 1]
        return _message(message, [_event(world, message, name, len(events)), *events])

    def event_type(self, kind: str, what: str, data: dict[str, Any]) -> str:
        return str(data["events"][0]["event"])

    def carried(self, key: Key, snapshot: dict[str, Any]) -> dict[str, Any]:
        newest: dict[str, Any] = snapshot["events"][0]
        return newest

    def signed_at(self, happening: Happening, now: datetime) -> datetime:
        return happening.at  # a retry carries the time of the first attempt

    def answer(self, world: World, call: Call) -> Answer:
        if call.path == f"/v3/domains/{DOMAIN}/webhooks":
            hooks: dict[str, dict[str, list[str]]] = {}
            types = ("accepted", *LATER) if world.subscribed == ("*",) else world.subscribed
            for url, each in [(URL, types if world.enabled else ())] + [
                (o.url, o.types) for o in world.others if o.id == DOMAIN
            ]:
                for type_ in each:
                    hooks.setdefault(NAMES.get(type_, type_), {"urls": []})["urls"].append(url)
            return Answer(200, {"webhooks": hooks})
        if call.path == "/v1/webhooks":
            account = [
                {
                    "webhook_id": other.id,
                    "url": other.url,
                    "event_types": [NAMES.get(t, t) for t in other.types],
                }
                for other in world.others
                if other.id != DOMAIN
            ]
            return Answer(200, {"webhooks": account})
        base, _, token = call.path.partition("/events")
        if base != f"/v3/{DOMAIN}":
            return MISSING
        query = {name: values[0] for name, values in call.query.items()}
        if token:
            query = jsontext.loads(base64.urlsafe_b64decode(token.removeprefix("/")))
        events = [
            event
            for item in world.objects("", "message")
            for event in item["events"]
            if _wanted(event, query)
        ]
        events.sort(key=lambda event: event["timestamp"], reverse=query.get("ascending") != "yes")
        offset, size = int(query.get("offset", 0)), int(query.get("limit", 100))
        following = jsontext.dumps({**query, "offset": offset + size})
        url = f"https://api.mailgun.net{base}/events/{base64.urlsafe_b64encode(following).decode()}"
        return Answer(200, {"items": window(events, offset, size)[0], "paging": {"next": url}})


def _wanted(event: dict[str, Any], query: dict[str, Any]) -> bool:
    return (
        event["timestamp"] >= float(query.get("begin", 0))
        and query.get("message-id") in {None, event["message"]["headers"]["message-id"]}
        and query.get("recipient") in {None, event["recipient"]}
    )


def _event(world: World, id_: str, name: str, number: int) -> dict[str, Any]:
    message = id_.partition(" ")[0]
    return {
        "event": name,
        "id": hashlib.sha256(f"{message} {number}".encode()).hexdigest()[:22],
        "timestamp": round(world.clock().timestamp(), 6),
        "domain": {"name": DOMAIN},
        "recipient": RECIPIENT,
        "message": {"headers": {"message-id": message, "to": RECIPIENT}},
    }


def _message(message: str, events: list[dict[str, Any]]) -> dict[str, Any]:
    """Newest first, as the log lists them."""
    return {
        "message-id": message,
        "recipient": RECIPIENT,
        "state": "accepted" if len(events) == 1 else "delivered",
        "types": sorted({event["event"] for event in events}),
        "updated": events[0]["timestamp"],
        "events": events,
    }


service = MailgunService()
