"""A handler or a fetch that hangs is stopped, becomes a dead letter and holds nobody else. A65, A68."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import make_url, text

from tests.apps import STRIPE, apply, build, deliver, rows
from webhooks import Webhooks
from webhooks.errors import ConfigError
from webhooks.extension import state

SOON = timedelta(seconds=0.3)
CARRIED = {"stripe": {**STRIPE, "fetch": False}}


@contextmanager
def app_with(url: str, hang: Any, **options: Any) -> Iterator[Flask]:
    """`hang(db, event)` runs for events whose object is called `slow`."""
    webhooks, db = Webhooks(), SQLAlchemy()

    @webhooks.on("stripe", "customer.*", time_limit=SOON)
    def watch(event: Any, _customer: Any) -> None:
        if event.object.id == "slow" and event.type == "customer.updated":
            hang(db, event)

    with build(url, {"stripe": {**CARRIED["stripe"], **options}}, webhooks=webhooks, db=db) as app:
        yield app


def outcomes(app: Flask) -> dict[str, tuple[str, str | None]]:
    return {row.dedup_key: (row.state, row.outcome) for row in rows(app, "events")}


def sleep(_db: Any, _event: Any) -> None:
    time.sleep(3600)


def spin(_db: Any, _event: Any) -> None:
    while True:
        pass


def swallow(_db: Any, _event: Any) -> None:
    while True:
        try:
            time.sleep(3600)
        except Exception:  # noqa: BLE001 - as some people write it
            continue


@pytest.mark.parametrize("hang", [sleep, spin, swallow])
def test_a_handler_that_hangs_is_stopped_and_others_go_on(sqlite_url: str, hang: Any) -> None:
    with app_with(sqlite_url, hang, max_attempts=2) as app:
        for n, (type_, thing) in enumerate(
            [("updated", "fine"), ("updated", "slow"), ("created", "slow"), ("updated", "well")]
        ):
            deliver(
                app, "stripe", f"customer.{type_}", id=f"evt_{n}", object={"id": thing, "object": "customer"}
            )
        apply(app)
        found = outcomes(app)
        assert found.pop("evt_1") == ("pending", "handler_failed")
        assert {state_ for state_, _ in found.values()} == {"applied"}
        again(app)
        assert outcomes(app)["evt_1"] == ("dead", "handler_failed")
        (row,) = [row for row in rows(app, "events") if row.state == "dead"]
        assert row.error == "TimeLimit: tests.test_limits.app_with.<locals>.watch took longer than 0.3 s"
        assert row.attempts == 2
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def again(app: Flask) -> None:
    """What was postponed is due now."""
    with state(app).inbox.engine.begin() as connection:
        connection.execute(text("UPDATE webhook_events SET due_at = received_at WHERE state = 'pending'"))
    apply(app)


def test_a_sync_handler_that_hangs_costs_one_stop_for_all_events_of_its_object(sqlite_url: str) -> None:
    webhooks, calls = Webhooks(), []

    @webhooks.sync("stripe", "customer", time_limit=SOON)
    def copy(event: Any, _customer: Any) -> None:
        calls.append(event.dedup_key)
        time.sleep(3600)

    with build(sqlite_url, CARRIED, webhooks=webhooks) as app:
        for n in range(5):
            deliver(
                app, "stripe", "customer.updated", id=f"evt_{n}", object={"id": "c", "object": "customer"}
            )
        apply(app)
        assert len(calls) == 1
        assert set(outcomes(app).values()) == {("pending", "handler_failed")}


def lock(db: Any, _event: Any) -> None:
    db.session.execute(text("LOCK TABLE theirs IN ACCESS EXCLUSIVE MODE"))


@pytest.mark.parametrize("where", ["main thread", "another thread"])
def test_a_handler_that_waits_for_a_lock_is_stopped_and_lets_go_of_its_own(
    fresh_postgres: str, where: str
) -> None:
    """The backend must not go on waiting with the object's row locked: nobody else could write the object."""
    dsn = make_url(fresh_postgres).set(drivername="postgresql").render_as_string(hide_password=False)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with app_with(fresh_postgres, lock) as app, psycopg.connect(dsn, autocommit=True) as other:
        other.execute("CREATE TABLE theirs (id integer)")
        other.execute("BEGIN")
        other.execute("LOCK TABLE theirs IN ACCESS EXCLUSIVE MODE")
        deliver(app, "stripe", "customer.updated", id="evt_1", object={"id": "slow", "object": "customer"})
        if where == "main thread":
            apply(app)
        else:
            thread = threading.Thread(target=apply, args=(app,), daemon=True)
            thread.start()
            thread.join(30)
            assert not thread.is_alive()
        assert outcomes(app) == {"evt_1": ("pending", "handler_failed")}
        with psycopg.connect(dsn, autocommit=True) as third:
            deadline = time.monotonic() + 10
            while third.execute(waiting).fetchone() != (0,):
                assert time.monotonic() < deadline
                time.sleep(0.02)
        other.execute("ROLLBACK")
        again(app)
        assert outcomes(app) == {"evt_1": ("applied", "applied")}


def test_what_a_stopped_handler_wrote_is_not_there(database_url: str) -> None:
    def write(db: Any, event: Any) -> None:
        db.session.execute(text("UPDATE webhook_marks SET endpoint = 'written'"))
        time.sleep(3600)

    with app_with(database_url, write) as app:
        state(app).watch.alive()
        deliver(app, "stripe", "customer.updated", id="evt_1", object={"id": "slow", "object": "customer"})
        apply(app)
        assert outcomes(app) == {"evt_1": ("pending", "handler_failed")}
        assert {row.endpoint for row in rows(app, "marks")} == {"(all)"}
        assert rows(app, "processed_events") == []


def test_an_alarm_of_the_apps_own_is_given_back(sqlite_url: str) -> None:
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    signal.setitimer(signal.ITIMER_REAL, 3600)
    try:
        with app_with(sqlite_url, sleep) as app:
            deliver(
                app, "stripe", "customer.updated", id="evt_1", object={"id": "slow", "object": "customer"}
            )
            apply(app)
        assert 3000 < signal.getitimer(signal.ITIMER_REAL)[0] < 3600
        signal.raise_signal(signal.SIGALRM)
        assert rung == [1]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_an_effect_that_hangs_is_stopped(sqlite_url: str) -> None:
    webhooks = Webhooks()

    @webhooks.effect(idempotent=True)
    def call(_key: str) -> None:
        time.sleep(3600)

    @webhooks.on("stripe", "customer.updated")
    def promise(_event: Any, _customer: Any) -> None:
        call.later()

    with build(sqlite_url, CARRIED, webhooks=webhooks, WEBHOOKS_EFFECT_LEASE=0.5) as app:
        deliver(app, "stripe", "customer.updated")
        apply(app)
        state(app).caller.drain()
        (row,) = rows(app, "effects")
        assert row.state == "recorded"
        assert (
            row.error
            == "TimeLimit: tests.test_limits.test_an_effect_that_hangs_is_stopped.<locals>.call took longer than 0.45 s"
        )


def test_a_time_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="time_limit"):
        Webhooks().on("stripe", "customer.updated", time_limit=timedelta(0))(lambda _event, _thing: None)
