"""An older state never replaces a newer one, and an equal one is not older."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from flask import Flask

from tests.apps import STRIPE, apply, build, deliver, post, rows
from webhooks import Webhooks
from webhooks.apply import Applied
from webhooks.apply.fetching import Fetched
from webhooks.extension import state
from webhooks.testing import Simulator
from webhooks.testing.simulator import Answer


def test_of_two_claims_that_mirror_an_object_the_later_one_stays_whoever_writes_last(
    database_url: str,
) -> None:
    with build(database_url, {"stripe": STRIPE}) as app:
        parts = state(app)

        def thing(title: str) -> dict[str, Any]:
            return {"id": "cus_1", "object": "customer", "title": title}

        claims = []
        for title in ("old", "new"):
            assert deliver(app, "stripe", "customer.updated", object=thing(title)).status_code == 200
            claims.append(parts.inbox.claim(parts.endpoints))
        for claim, title in zip(reversed(claims), ("new", "old"), strict=True):
            assert claim is not None
            plain: list[Any] = []
            prepared = parts.applier._prepare(claim)
            (group,) = prepared.asked
            parts.applier._put(prepared, group, Fetched(asked=True, data=thing(title)), plain, Applied())
            assert len(plain) == 1, "nothing about it needs a transaction of its own"
            parts.applier._mirror(claim, plain, Applied())
        (copy,) = rows(app, "objects")
        assert copy.data["title"] == "new"
        assert [(row.state, row.outcome) for row in rows(app, "events")] == [
            ("applied", "stale"),
            ("applied", "applied"),
        ]


@pytest.mark.parametrize("handled", [True, False])
def test_where_nothing_is_fetched_the_later_of_two_events_of_one_second_stays(
    sqlite_url: str, handled: bool
) -> None:
    webhooks, moment, seen = Webhooks(), datetime.now(UTC).replace(microsecond=0), []
    if handled:
        webhooks.sync("stripe", "customer", name="see")(
            lambda _event, customer: seen.append(customer["title"])
        )
    with build(sqlite_url, {"stripe": {**STRIPE, "fetch": False}}, webhooks=webhooks) as app:
        for at, title in ((moment, "first"), (moment, "second"), (moment - timedelta(seconds=1), "older")):
            thing = {"id": "cus_1", "object": "customer", "title": title}
            assert deliver(app, "stripe", "customer.updated", object=thing, at=at).status_code == 200
            apply(app)
        assert [row.data["title"] for row in rows(app, "objects")] == ["second"]
        assert [row.outcome for row in rows(app, "events")] == ["applied", "applied", "stale"]
    assert seen == (["first", "second"] if handled else [])


@pytest.mark.parametrize("handled", [True, False])
def test_an_api_that_shows_less_than_the_event_says_is_asked_again(sqlite_url: str, handled: bool) -> None:
    webhooks, seen = Webhooks(), []
    if handled:
        webhooks.sync("github", "issue", name="see")(lambda _event, issue: seen.append(issue["title"]))
    with (
        Simulator("github") as github,
        build(sqlite_url, {"github": github.config}, webhooks=webhooks) as app,
    ):
        now = github.world.clock()
        github.world.clock = lambda: now - timedelta(hours=1)
        issue = github.create("issue", title="old")
        github.world.clock = lambda: now
        github.update(issue, title="new")
        github._send = lambda request: post(app, "/webhooks/github", request).status_code
        assert github.send(github.world.log[1]) == 200
        github.api.script = [Answer(200, github.world.history[issue][0][1])]
        apply(app)
        assert rows(app, "objects") == []
        assert [(row.state, row.outcome) for row in rows(app, "events")] == [("pending", "not_visible_yet")]
    assert seen == []


def write_as_shown(app: Flask, thing: dict[str, Any] | None) -> None:
    """Claim what is due of one object and write it as if the API had shown this."""
    parts = state(app)
    claim = parts.inbox.claim(parts.endpoints)
    assert claim is not None
    parts.applier._write(claim, claim.groups[0], Fetched(asked=True, data=thing), Applied())


def test_what_was_deleted_is_not_written_again_by_an_api_that_lags(database_url: str) -> None:
    """Its event says that it is gone; for half a minute the API is not believed that it is still there."""
    with build(database_url, {"stripe": STRIPE}) as app:
        thing = {"id": "cus_1", "object": "customer"}
        for type_, at in (("customer.updated", -60), ("customer.deleted", 0)):
            moment = datetime.now(UTC) + timedelta(seconds=at)
            assert deliver(app, "stripe", type_, object=thing, at=moment).status_code == 200
        write_as_shown(app, thing)
        assert [(row.state, row.outcome) for row in rows(app, "events")] == [
            ("applied", "applied"),
            ("pending", "not_visible_yet"),
        ]
        parts = state(app)
        with parts.inbox.transaction() as connection:
            events = parts.tables.events
            connection.execute(
                events.update().where(events.c.state == "pending").values(due_at=parts.inbox.moment())
            )
        write_as_shown(app, None)
        assert [row.outcome for row in rows(app, "events")] == ["applied", "object_gone"]
        assert [row.deleted_at is not None for row in rows(app, "objects")] == [True]


def test_what_came_back_after_it_was_deleted_is_written(database_url: str) -> None:
    with build(database_url, {"stripe": STRIPE}) as app:
        thing = {"id": "cus_1", "object": "customer"}
        for type_, at in (("customer.deleted", -5), ("customer.created", 0)):
            moment = datetime.now(UTC) + timedelta(seconds=at)
            assert deliver(app, "stripe", type_, object=thing, at=moment).status_code == 200
        write_as_shown(app, thing)
        assert [row.state for row in rows(app, "events")] == ["applied", "applied"]
        assert [row.deleted_at for row in rows(app, "objects")] == [None]


def test_long_after_a_deletion_the_api_is_taken_at_its_word(database_url: str) -> None:
    with build(database_url, {"stripe": STRIPE}) as app:
        thing = {"id": "cus_1", "object": "customer"}
        moment = datetime.now(UTC) - timedelta(minutes=5)
        assert deliver(app, "stripe", "customer.deleted", object=thing, at=moment).status_code == 200
        write_as_shown(app, thing)
        assert [row.state for row in rows(app, "events")] == ["applied"]
        assert [row.deleted_at for row in rows(app, "objects")] == [None]
