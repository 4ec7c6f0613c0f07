"""When the next event is due: the same as looking at every event and every hold would say, whatever they are."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import delete, insert, update

from webhooks.extension import state

from .apps import GITHUB, STRIPE, build
from .test_fairness import put

ENDPOINTS = ("github", "stripe")
ACCOUNTS = ("", "acct_1", "acct_2")
CASES = 200


def some(chance: random.Random, now: datetime) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Events and holds of every kind; whole minutes apart, so that what a test takes does not matter."""

    def minutes(least: int) -> timedelta:
        return timedelta(minutes=chance.randint(least, 6) or 7)

    events = [
        {
            "endpoint": chance.choice(ENDPOINTS),
            "account": chance.choice(ACCOUNTS),
            "state": chance.choice(("pending", "pending", "applying", "applied", "dead")),
            "due_at": now + minutes(-1),
        }
        for _ in range(chance.randint(0, 3))
    ]
    keys = {(chance.choice(ENDPOINTS), chance.choice(ACCOUNTS), chance.choice("ab")) for _ in range(3)}
    holds = [
        {
            "endpoint": endpoint,
            "account": account,
            "reason": reason,
            "since": now,
            "until": chance.choice((None, now + minutes(-5), now + minutes(-5))),
        }
        for endpoint, account, reason in sorted(keys)[: chance.randint(0, 3)]
    ]
    return events, holds


def expected(
    events: list[dict[str, Any]], holds: list[dict[str, Any]], asked: set[str], now: datetime
) -> datetime | None:
    pending = [event for event in events if event["state"] == "pending" and event["endpoint"] in asked]
    active = [hold for hold in holds if hold["until"] is None or hold["until"] > now]

    def holding(hold: dict[str, Any], event: dict[str, Any]) -> bool:
        return hold["endpoint"] == event["endpoint"] and hold["account"] in {"", event["account"]}

    free = [event["due_at"] for event in pending if not any(holding(hold, event) for hold in active)]
    ends = [
        hold["until"] for hold in active if hold["until"] and any(holding(hold, event) for event in pending)
    ]
    return min([*free, *ends], default=None)


def test_it_is_what_looking_at_all_of_them_says(database_url: str) -> None:
    endpoints = {"github": GITHUB, "stripe": STRIPE}
    with build(database_url, endpoints) as app:
        inbox, seen = state(app).inbox, set()
        tables = inbox.tables
        for seed in range(CASES):
            chance, now = random.Random(seed), datetime.now(UTC)
            events, holds = some(chance, now)
            asked = set(chance.sample(ENDPOINTS, chance.randint(1, 2)))
            with inbox.transaction() as connection:
                connection.execute(delete(tables.events))
                connection.execute(delete(tables.holds))
            for number, event in enumerate(events):
                put(app, 1, account=event["account"], endpoint=event["endpoint"], object_=f"cus_{number}")
                with inbox.transaction() as connection:
                    row = tables.events.c.object_id == f"cus_{number}"
                    values = {"state": event["state"], "due_at": event["due_at"]}
                    connection.execute(update(tables.events).where(row).values(values))
            with inbox.transaction() as connection:
                if holds:
                    connection.execute(insert(tables.holds), holds)
            wait, first = inbox.next_due(sorted(asked)), expected(events, holds, asked, now)
            seen.add(first is None)
            assert (wait is None) == (first is None), seed
            if wait is not None and first is not None:
                assert abs(wait - max(first - now, timedelta(0))) < timedelta(seconds=30), seed
        assert seen == {True, False}
        assert inbox.next_due([]) is None
