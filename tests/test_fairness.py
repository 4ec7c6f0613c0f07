"""Who has little to do need not wait for who has much: claims are shared by accounts, and new events do not wait for old."""

from __future__ import annotations

import secrets
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from flask import Flask
from sqlalchemy import insert

from webhooks.extension import state
from webhooks.inbox import CLAIM_SIZE, Claim, Inbox
from webhooks.inbox.claiming import LANES, NEWEST

from .apps import STRIPE, build

ENDPOINTS = {"stripe": STRIPE, "other": STRIPE}


def put(
    app: Flask, count: int, *, account: str = "", endpoint: str = "stripe", object_: str = "", due_in: int = 0
) -> None:
    """So many open events, each about another object if `object_` names none; the later ones are due later."""
    inbox, now = state(app).inbox, datetime.now(UTC)
    made = [
        {
            "endpoint": endpoint,
            "dedup_key": f"evt_{secrets.token_hex(8)}",
            "origin": "delivery",
            "type": "customer.updated",
            "object_kind": "customer",
            "object_id": object_ or f"cus_{secrets.token_hex(8)}",
            "account": account,
            "gone": False,
            "received_at": now,
            "deliveries": 1,
            "last_delivery_at": now,
            "state": "pending",
            "attempts": 0,
            "due_at": now + timedelta(seconds=due_in, microseconds=number - count),
        }
        for number in range(count)
    ]
    with inbox.transaction() as connection:
        connection.execute(insert(inbox.tables.events), made)


def claim(app: Flask, *endpoints: str) -> Claim:
    found = state(app).inbox.claim(endpoints or tuple(ENDPOINTS))
    assert found is not None
    return found


def shares(found: Claim) -> Counter[str]:
    return Counter(event.account for group in found.groups for event in group.events)


def test_a_claim_is_shared_by_the_accounts_that_have_something_due(database_url: str) -> None:
    with build(database_url, ENDPOINTS) as app:
        put(app, 1000, account="acct_busy")
        put(app, 1, account="acct_quiet")
        put(app, 1, account="acct_quiet", endpoint="other")
        found = claim(app)
        assert found.size <= CLAIM_SIZE
        assert {(group.endpoint, group.account) for group in found.groups} == {
            ("stripe", "acct_busy"),
            ("stripe", "acct_quiet"),
            ("other", "acct_quiet"),
        }
        assert shares(claim(app)) == {"acct_busy": CLAIM_SIZE}  # nobody else is left


def test_one_account_alone_gets_whole_claims_of_its_oldest_and_newest(database_url: str) -> None:
    with build(database_url, ENDPOINTS) as app:
        put(app, 3 * CLAIM_SIZE)
        ids = [event.id for group in claim(app).groups for event in group.events]
        newest = CLAIM_SIZE // NEWEST
        oldest = CLAIM_SIZE - newest
        assert ids == [*range(1, oldest + 1), *range(3 * CLAIM_SIZE - newest + 1, 3 * CLAIM_SIZE + 1)]


def test_a_new_event_does_not_wait_for_a_backlog_of_its_own_account(database_url: str) -> None:
    with build(database_url, ENDPOINTS) as app:
        put(app, 1000)
        claim(app)
        put(app, 1, object_="cus_new")
        assert "cus_new" in {group.object.id for group in claim(app).groups if group.object}


def test_every_event_is_claimed_once_whatever_the_order(database_url: str) -> None:
    with build(database_url, ENDPOINTS) as app:
        for number in range(30):
            put(
                app,
                7 * number % 23 + 1,
                account=f"acct_{number:02}",
                endpoint=("stripe", "other")[number % 2],
            )
        put(app, 250, account="acct_busy")
        expected = sum(7 * number % 23 + 1 for number in range(30)) + 250
        seen: Counter[int] = Counter()
        while (found := state(app).inbox.claim(ENDPOINTS)) is not None:
            assert found.size <= CLAIM_SIZE
            seen.update(event.id for group in found.groups for event in group.events)
        assert len(seen) == expected
        assert set(seen.values()) == {1}


def test_more_accounts_than_a_claim_is_shared_by_come_in_turn(database_url: str) -> None:
    accounts = {f"acct_{number:03}" for number in range(3 * LANES)}
    with build(database_url, ENDPOINTS) as app:
        for account in sorted(accounts):
            put(app, 2 * CLAIM_SIZE // LANES, account=account)
        first = set(shares(claim(app)))
        assert len(first) == LANES
        seen = set(first)
        for _ in range(40):  # the next claim begins behind one of those that this one served
            if seen != accounts:
                seen |= set(shares(claim(app)))
        assert seen == accounts


def test_an_object_s_burst_comes_along_with_it_and_takes_no_other_s_place(database_url: str) -> None:
    with build(database_url, ENDPOINTS) as app:
        put(app, 2000, account="acct_busy", object_="cus_busy")
        put(app, 3, account="acct_busy")
        put(app, 1, account="acct_quiet")
        found = claim(app)
        assert shares(found) == {"acct_busy": 2003, "acct_quiet": 1}
        assert len(found.groups) == 5


def test_what_is_held_or_due_later_or_of_another_endpoint_is_not_claimed(database_url: str) -> None:
    with build(database_url, ENDPOINTS) as app:
        put(app, 5, account="acct_held")
        put(app, 5, account="acct_later", due_in=3600)
        put(app, 5, account="acct_mine", endpoint="other")
        put(app, 1, account="acct_mine")
        state(app).inbox.hold("stripe", "paused", account="acct_held")
        assert shares(claim(app, "stripe")) == {"acct_mine": 1}
        assert state(app).inbox.claim(["stripe"]) is None
        state(app).inbox.release("stripe", "paused")
        assert shares(claim(app, "stripe")) == {"acct_held": 5}


def test_behind_very_many_accounts_that_wait_for_later_the_oldest_are_next(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhooks.inbox.claiming.VISITS", 3)
    with build(database_url, ENDPOINTS) as app:
        for number in range(5):
            put(app, 1, account=f"acct_{number}", due_in=3600)
        put(app, 4, account="acct_last")
        assert shares(claim(app)) == {"acct_last": 4}


def test_events_that_a_claim_has_taken_are_free_for_their_lane_when_they_are_given_back(
    database_url: str,
) -> None:
    with build(database_url, ENDPOINTS) as app:
        put(app, 2, account="acct_1")
        inbox: Inbox = state(app).inbox
        found = claim(app)
        ids = [event.id for group in found.groups for event in group.events]
        assert inbox.claim(ENDPOINTS) is None
        assert inbox.postpone(found.no, ids, None, timedelta(0), counts=False) == 2
        assert shares(claim(app)) == {"acct_1": 2}
