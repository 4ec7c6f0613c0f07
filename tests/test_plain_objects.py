"""Objects that only `sync` handlers are for: on PostgreSQL guard, ledger and outcomes are one statement, on SQLite three.
What comes of it is the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import String, event, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from webhooks import Webhooks
from webhooks.apply import Applied
from webhooks.apply.fetching import Fetched
from webhooks.extension import state
from webhooks.inbox import Claim

from .apps import STRIPE, build, deliver, rows


@dataclass
class Host:
    """An app that copies customers' names, twice."""

    app: Flask
    db: SQLAlchemy
    copy: Any
    fails: bool = False
    seen: list[str | None] = field(default_factory=list)

    def deliver(self, key: str, *, name: str = "as delivered", at: datetime | None = None) -> None:
        thing = {"id": "cus_1", "object": "customer", "name": name}
        answer = deliver(self.app, "stripe", "customer.updated", id=key, object=thing, at=at)
        assert answer.status_code == 200

    def claim(self) -> Claim:
        found = state(self.app).inbox.claim(state(self.app).endpoints)
        assert found is not None
        return found

    def write(self, claim: Claim, name: str) -> dict[str, int]:
        """Write what that claim fetched; the outcomes."""
        done = Applied()
        data = {"id": "cus_1", "object": "customer", "name": name}
        state(self.app).applier._write(claim, claim.groups[0], Fetched(asked=True, data=data), done)
        return done.outcomes

    def stored(self) -> tuple[str | None, str | None]:
        """The name in the host's table, and in ours."""
        ours = rows(self.app, "objects")
        with state(self.app).inbox.engine.connect() as connection:
            name = connection.execute(select(self.copy.name)).scalar_one_or_none()
        return name, ours[0].data["name"] if ours else None

    def standing(self) -> list[tuple[str, str, str | None]]:
        return [(row.dedup_key, row.state, row.outcome) for row in rows(self.app, "events")]

    def ledger(self) -> list[tuple[int, str]]:
        return [(row.event_id, row.handler.partition(":")[0]) for row in rows(self.app, "processed_events")]


@contextmanager
def opened(database_url: str, **endpoint: Any) -> Iterator[Host]:
    app, webhooks = Flask("tests.plain"), Webhooks()
    db = SQLAlchemy(model_class=type("Base", (DeclarativeBase,), {}))

    class Copy(db.Model):  # type: ignore[name-defined, misc]
        __tablename__ = "plain_copy"
        id: Mapped[str] = mapped_column(String(64), primary_key=True)
        name: Mapped[str] = mapped_column(String(64))

    host = Host(app, db, Copy)

    @webhooks.sync("stripe", "customer")
    def save(_event: Any, customer: Any) -> None:
        host.seen.append(customer["name"])
        db.session.merge(Copy(id=customer["id"], name=customer["name"]))
        db.session.flush()
        if host.fails:
            raise ValueError("the app is broken")

    @webhooks.sync("stripe", "customer", name="second")
    def again(_event: Any, _customer: Any) -> None:
        """So that there are two ledger rows per event."""

    endpoints = {"stripe": STRIPE | endpoint}
    with build(database_url, endpoints, webhooks=webhooks, db=db, app=app, WEBHOOKS_LEASE=0.001):
        yield host


@pytest.fixture
def host(database_url: str) -> Iterator[Host]:
    with opened(database_url) as made:
        yield made


@pytest.fixture
def carried(database_url: str) -> Iterator[Host]:
    with opened(database_url, fetch=False) as made:
        yield made


def test_all_events_of_a_claim_get_their_outcome_and_every_handler_its_ledger_rows(host: Host) -> None:
    for number in range(3):
        host.deliver(f"evt_{number}")
    assert host.write(host.claim(), "as fetched") == {"covered": 2, "applied": 1}
    assert host.standing() == [
        ("evt_0", "applied", "covered"),
        ("evt_1", "applied", "covered"),
        ("evt_2", "applied", "applied"),
    ]
    assert host.stored() == ("as fetched", "as fetched")
    assert host.seen == ["as fetched"]
    assert len(set(host.ledger())) == len(rows(host.app, "processed_events")) / 2 == 3


def test_an_older_copy_is_stale_and_its_handlers_do_not_run(host: Host) -> None:
    """Both claims still hold their events: only the guard decides."""
    host.deliver("evt_early")
    early = host.claim()
    inbox = state(host.app).inbox
    with inbox.transaction() as connection:  # its lease is long
        connection.execute(inbox.tables.events.update().values(due_at=inbox.moment(timedelta(hours=1))))
    host.deliver("evt_late")
    late = host.claim()
    assert [each.dedup_key for each in late.groups[0].events] == ["evt_late"]
    assert host.write(late, "newer") == {"applied": 1}
    assert host.write(early, "older") == {"stale": 1}
    assert host.standing() == [("evt_early", "applied", "stale"), ("evt_late", "applied", "applied")]
    assert host.stored() == ("newer", "newer")
    assert host.seen == ["newer"]
    assert {row.event_id for row in rows(host.app, "processed_events")} == {2}


def test_a_worker_that_slept_past_its_lease_leaves_nothing_behind(host: Host) -> None:
    host.deliver("evt_1")
    slept, other = host.claim(), None
    while other is None:
        other = state(host.app).inbox.claim(state(host.app).endpoints)
    assert host.write(slept, "of the one who slept") == {}
    assert host.standing() == [("evt_1", "applying", None)]
    assert (host.stored(), host.ledger()) == ((None, None), [])
    assert host.write(other, "of the other") == {"applied": 1}
    assert host.stored() == ("of the other", "of the other")


def test_a_handler_that_fails_takes_everything_back(host: Host) -> None:
    host.deliver("evt_1")
    host.fails = True
    assert host.write(host.claim(), "as fetched") == {"handler_failed": 1}
    assert host.standing() == [("evt_1", "pending", "handler_failed")]
    assert (host.stored(), host.ledger()) == ((None, None), [])


def test_where_nothing_is_fetched_the_events_own_time_decides(carried: Host) -> None:
    noon = datetime(2026, 12, 1, 12, tzinfo=UTC)
    for key, seconds in (("evt_noon", 0), ("evt_before", -60), ("evt_same", 0), ("evt_after", 60)):
        carried.deliver(key, name=key, at=noon + timedelta(seconds=seconds))
        state(carried.app).applier.drain()
    assert carried.standing() == [
        ("evt_noon", "applied", "applied"),
        ("evt_before", "applied", "stale"),
        ("evt_same", "applied", "applied"),  # equal times are not stale
        ("evt_after", "applied", "applied"),
    ]
    assert carried.seen == ["evt_noon", "evt_same", "evt_after"]
    assert carried.stored() == ("evt_after", "evt_after")


def test_on_postgresql_one_statement_of_ours_is_enough(fresh_postgres: str) -> None:
    with opened(fresh_postgres) as host:
        host.deliver("evt_1")
        claim = host.claim()
        asked: list[str] = []
        engine = state(host.app).inbox.engine
        event.listen(engine, "before_cursor_execute", lambda *said: asked.append(str(said[2])))
        assert host.write(claim, "as fetched") == {"applied": 1}
        assert len([statement for statement in asked if "webhook_" in statement]) == 1
