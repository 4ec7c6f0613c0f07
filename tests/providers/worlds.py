"""A few objects and events at each provider whose listings are tested: small pages, and something new in between."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from urllib.parse import urlencode

from webhooks.provider import Json, instant
from webhooks.testing.contract import Call, World

__all__ = ["WORLDS"]

SINCE = datetime(2026, 3, 4, 5, 0, tzinfo=UTC)
ACCOUNT_SID = "AC" + "0123456789abcdef" * 2


def _at(minutes: float) -> datetime:
    return SINCE + timedelta(minutes=minutes)


def _iso(minutes: float) -> str:
    return _at(minutes).isoformat().replace("+00:00", "Z")


def paddle() -> World:
    def transaction(number: int, minutes: float) -> dict[str, Any]:
        return {"id": f"txn_01kettle{number:020}", "status": "completed", "updated_at": _iso(minutes)}

    def event(number: int, minutes: float) -> dict[str, Any]:
        data = {"id": f"ctm_01kettle{number:020}"}
        id_ = f"evt_01kettle{number:020}"
        return {"event_id": id_, "event_type": "customer.updated", "occurred_at": _iso(minutes), "data": data}

    # Five at one instant: more than a page, so that time alone is no cursor.
    transactions = [
        transaction(0, -5),
        *(transaction(n, 1) for n in range(1, 6)),
        transaction(6, 2),
        transaction(7, 3),
    ]
    events = [event(0, -9), event(1, -8), event(2, -7), *(event(n, n) for n in range(3, 10))]

    def script(call: Call) -> Json:
        if call.path == "/transactions":
            assert call.params["order_by"] == "updated_at[ASC]"
            since = instant(call.params["updated_at[GTE]"]) or SINCE
            ordered = sorted(transactions, key=lambda item: (item["updated_at"], item["id"]))
            found = [item for item in ordered if (instant(item["updated_at"]) or since) >= since]
            return _page(found, "id", call.params.get("after"))
        assert call.params["order_by"] == "id[DESC]"
        return _page(
            sorted(events, key=lambda item: item["event_id"], reverse=True),
            "event_id",
            call.params.get("after"),
        )

    def _page(items: list[dict[str, Any]], key: str, after: str | None) -> Json:
        start = next((n + 1 for n, item in enumerate(items) if item[key] == after), 0)
        return {
            "data": items[start : start + 3],
            "meta": {
                "pagination": {"has_more": len(items) > start + 3, "next": "https://evil.example/?after=x"}
            },
        }

    new = count(90)

    def happen() -> None:
        number = next(new)
        transactions[1]["updated_at"] = _iso(number)
        transactions.append(transaction(number, number))
        events.append(event(number, number))

    return World(
        script,
        SINCE,
        changed=[("transaction", item["id"]) for item in transactions[1:]],
        events=[item["event_id"] for item in events[3:]],
        happen=happen,
    )


def razorpay() -> World:
    def payment(number: int) -> dict[str, Any]:
        return {
            "id": f"pay_Kettle{number:07}",
            "status": "captured",
            "created_at": int(_at(number / 100).timestamp()),
        }

    payments = [payment(number) for number in range(250)]

    def script(call: Call) -> Json:
        assert call.params["from"] == int((SINCE - timedelta(minutes=15)).timestamp())
        found = payments if call.path == "/v1/payments" else []
        newest = sorted(found, key=lambda item: item["created_at"], reverse=True)
        items = newest[call.params["skip"] : call.params["skip"] + call.params["count"]]
        return {"entity": "collection", "count": len(items), "items": items}

    new = count(900)
    return World(
        script,
        SINCE,
        {"account_id": "acc_KettleAndCo01"},
        changed=[("payment", item["id"]) for item in payments],
        happen=lambda: payments.append(payment(next(new))),
    )


def shopify() -> World:
    def node(kind: str, number: int, minutes: float) -> dict[str, Any]:
        return {
            "id": f"gid://shopify/{kind}/{number}",
            "updatedAt": _iso(minutes),
            "legacyResourceId": str(number),
        }

    nodes = {
        "orders": [node("Order", number, number) for number in range(1, 6)],
        "products": [node("Product", number, number) for number in range(11, 14)],
    }

    def script(call: Call) -> Json:
        assert call.path == "/admin/api/2026-10/graphql.json"
        assert call.params["filter"] == "updated_at:>='2026-03-04T04:50:00Z'"
        match = re.search(r"\{ (\w+)\(first: \d+, after: \$after.*sortKey: UPDATED_AT\)", call.json)
        assert match
        ordered = sorted(nodes[match[1]], key=lambda item: item["updatedAt"])
        # A cursor is a place in the order, not a number of items.
        rest = [item for item in ordered if item["updatedAt"] > call.params.get("after", "")]
        page = {"hasNextPage": len(rest) > 2, "endCursor": rest[:2][-1]["updatedAt"] if rest else None}
        return {match[1]: {"nodes": rest[:2], "pageInfo": page}}

    new = count(30)

    def happen() -> None:
        number = next(new)
        nodes["orders"][0]["updatedAt"] = _iso(number)
        nodes["orders"].append(node("Order", number, number + 0.5))

    return World(
        script,
        SINCE,
        {"shop": "kettle-and-co.myshopify.com", "access_token": "shpat_x", "listed": "order,product"},
        changed=[*(("order", str(n)) for n in range(1, 6)), *(("product", str(n)) for n in range(11, 14))],
        happen=happen,
    )


def slack() -> World:
    def user(number: int, minutes: float) -> dict[str, Any]:
        return {"id": f"U0KETTLE{number}", "deleted": False, "updated": int(_at(minutes).timestamp())}

    users = [user(0, -60), *(user(n, n) for n in range(1, 6))]
    channels = [{"id": "C0KITCHEN"}, {"id": "C0STILL", "updated": int(_at(-90).timestamp() * 1000)}]
    messages = [{"type": "message", "text": "tea?", "ts": f"{_at(n).timestamp():.6f}"} for n in range(5)]

    def script(call: Call) -> Json:
        place, items = {
            "/api/users.list": ("members", users),
            "/api/conversations.list": ("channels", channels),
            "/api/conversations.history": ("messages", messages[::-1]),
            "/api/auth.test": ("none", []),
        }[call.path]
        # A cursor names an item, so that one more in front moves nothing.
        start = next((n for n, item in enumerate(items) if repr(item) == call.params.get("cursor")), 0)
        more = items[start + 2 : start + 3]
        return {
            "ok": True,
            "team_id": "T0KETTLE",
            place: items[start : start + 2],
            "response_metadata": {"next_cursor": repr(more[0]) if more else ""},
        }

    new = count(20)

    def happen() -> None:
        number = next(new)
        users.insert(0, user(number, number))
        messages.append({"type": "message", "text": "more?", "ts": f"{_at(number).timestamp():.6f}"})

    return World(
        script,
        SINCE,
        {"token": "xoxb-x", "fetch_messages": "yes", "channels": "C0KITCHEN"},
        changed=[
            *(("user", item["id"]) for item in users[1:]),
            ("channel", "C0KITCHEN"),
            *(("message", f"C0KITCHEN:{item['ts']}") for item in messages),
        ],
        happen=happen,
    )


def twilio() -> World:
    def item(kind: str, number: int, minutes: float) -> dict[str, Any]:
        return {
            "sid": f"{kind}{number:032}",
            "status": "delivered",
            "date_updated": f"{_at(minutes):%a, %d %b %Y %T} +0000",
        }

    def alert(number: int, url: str, code: str = "11200") -> dict[str, Any]:
        sid = f"SM{number:032}"
        sent = {
            "AccountSid": ACCOUNT_SID,
            "MessageSid": sid,
            "MessageStatus": "delivered",
            "To": "+15005550009",
        }
        return {
            "sid": f"NO{number:032}",
            "error_code": code,
            "request_url": url,
            "request_variables": urlencode(sent),
            "date_generated": _iso(number),
        }

    ours = "https://hooks.example.test/webhooks/twilio"
    things = {"messages": [item("SM", n, n) for n in range(5)], "calls": [item("CA", n, n) for n in range(3)]}
    alerts = [
        *(alert(n, ours) for n in range(1, 6)),
        alert(6, "https://else.example.test/"),
        alert(7, ours, "30003"),
    ]

    def script(call: Call) -> Json:
        if call.path.startswith("/v1/Alerts/"):
            return next((found for found in alerts if call.path.endswith(found["sid"])), None)
        if call.path == "/v1/Alerts":
            shown = [
                {name: found[name] for name in ("sid", "error_code", "date_generated")} for found in alerts
            ]
            items, following = _page(shown, call)
            return {"alerts": items, "meta": {"key": "alerts", "next_page_url": following}}
        place = call.path.rpartition("/")[2].removesuffix(".json").lower()
        assert call.params[{"messages": "DateSent>", "calls": "StartTime>"}[place]] == "2026-03-04T05:00:00Z"
        items, following = _page(things[place][::-1], call)
        return {place: items, "next_page_uri": following}

    def _page(items: list[dict[str, Any]], call: Call) -> tuple[list[dict[str, Any]], str | None]:
        # A token names the item that begins the next page.
        start = next((n for n, found in enumerate(items) if found["sid"] == call.params.get("PageToken")), 0)
        more = items[start + 2 : start + 3]
        query = urlencode({**call.params, "PageToken": more[0]["sid"]}) if more else ""
        return items[start : start + 2], f"https://evil.example{call.path}?{query}" if more else None

    new = count(20)

    def happen() -> None:
        number = next(new)
        things["messages"].append(item("SM", number, number))
        alerts.append(alert(number, ours))

    return World(
        script,
        SINCE,
        {"account_sid": ACCOUNT_SID, "auth_token": "x", "webhook_url": ours},
        changed=[
            *(("message", found["sid"]) for found in things["messages"]),
            *(("call", found["sid"]) for found in things["calls"]),
        ],
        events=[f"SM{number:032}:delivered" for number in range(1, 6)],
        happen=happen,
    )


WORLDS: dict[str, Callable[[], World]] = {
    "paddle": paddle,
    "razorpay": razorpay,
    "shopify": shopify,
    "slack": slack,
    "twilio": twilio,
}
