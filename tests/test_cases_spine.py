"""Failures that people reported with other receivers, where the way from the inbox to the tables is at issue."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import create_engine, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tests.apps import STRIPE, apply, build, deliver, rows
from tests.shop import Shop, truth
from tests.test_processes import deployed, wait_until
from webhooks import Webhooks
from webhooks.errors import RetryLater
from webhooks.extension import state
from webhooks.queue import QUEUE, SLOW_QUEUE, broker_settings
from webhooks.testing import Simulator
from webhooks.testing.simulator import Answer
from workers.beat import SCHEDULE


@pytest.fixture
def stripe() -> Iterator[Simulator]:
    with Simulator("stripe") as simulator:
        yield simulator


@contextmanager
def opened(url: str, simulator: Simulator, folder: Path, **config: Any) -> Iterator[Shop]:
    name = simulator.provider.name
    shop = Shop(url, {name: {**simulator.config, **config.pop("endpoint", {})}}, folder, **config)
    simulator._send = shop.receiver(name)
    try:
        yield shop
    finally:
        shop.close()


# -- order


def test_a46_an_update_that_comes_before_its_create_leaves_the_state_that_the_provider_has(
    database_url: str, stripe: Simulator, tmp_path: Path
) -> None:
    with opened(database_url, stripe, tmp_path) as shop:
        subscription = stripe.create("subscription", status="incomplete")
        stripe.update(subscription, status="active")
        created, updated = stripe.world.log
        for happening in (updated, created):
            assert stripe.send(happening) == 200
            shop.state.applier.drain()
        assert shop.copies()["subscription", subscription[2]]["status"] == "active"
        assert shop.copies() == truth(stripe)


def test_a47_an_old_event_rewinds_nothing_and_an_older_snapshot_is_not_written(
    database_url: str, tmp_path: Path
) -> None:
    with Simulator("github") as github, opened(database_url, github, tmp_path) as shop:
        began = github.world.clock()
        github.world.clock = lambda: began - timedelta(days=3)
        issue = github.create("issue", title="old")
        github.world.clock = lambda: began
        github.update(issue, title="new")
        old, new = github.world.log
        assert github.send(new) == 200
        shop.state.applier.drain()
        stale = github.world.history[issue][0][1]
        assert github.send(old) == 200
        github.api.script = [Answer(200, stale)]  # a replica that lags behind
        shop.state.applier.drain()
        assert shop.copies()["issue", issue[2]]["title"] == "new"
        assert [event.outcome for event in shop.events()] == ["applied", "not_visible_yet"]


def test_a48_of_two_events_in_one_second_the_state_of_the_provider_is_stored(
    database_url: str, stripe: Simulator, tmp_path: Path
) -> None:
    with opened(database_url, stripe, tmp_path) as shop:
        moment = datetime.now(UTC)
        stripe.world.clock = lambda: moment
        customer = stripe.create("customer", title="first")
        stripe.update(customer, title="final")
        first, final = stripe.world.log
        for happening in (final, first):
            assert stripe.send(happening) == 200
            shop.state.applier.drain()
        assert shop.copies() == truth(stripe)
        assert shop.noted() == sorted([first.id, final.id])


# -- the database


def test_a58_a_connection_that_is_cut_in_the_middle_costs_neither_this_event_nor_the_next(
    fresh_postgres: str, stripe: Simulator, tmp_path: Path
) -> None:
    with opened(fresh_postgres, stripe, tmp_path) as shop:
        cut = create_engine(fresh_postgres)
        times: list[int] = []

        def terminate() -> None:
            times.append(1)
            if len(times) == 1:
                pid = shop.db.session.scalar(text("SELECT pg_backend_pid()"))
                with cut.begin() as connection:
                    connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})

        shop.before_commit = terminate
        stripe.create("customer")
        stripe.create("customer")
        stripe.deliver()
        shop.state.applier.drain()
        cut.dispose()
        assert len(times) >= 3  # the first one twice
        assert [(event.state, event.attempts) for event in shop.events()] == [("applied", 1)] * 2
        assert shop.copies() == truth(stripe)
        assert shop.noted() == sorted(happening.id for happening in stripe.world.log)


def bank(url: str, simulator: Simulator, folder: Path) -> tuple[Flask, SQLAlchemy, Any]:
    """Two rows that every event changes, in the order that its object says."""
    db = SQLAlchemy(model_class=type("Base", (DeclarativeBase,), {}))
    webhooks = Webhooks()

    class Account(db.Model):  # type: ignore[name-defined, misc]
        name: Mapped[str] = mapped_column(primary_key=True)
        changes: Mapped[int]

    @webhooks.on("stripe", "customer.created")
    def change(_event: Any, customer: Any) -> None:
        for name in customer["order"]:
            add = text("UPDATE account SET changes = changes + 1 WHERE name = :name")
            db.session.execute(add, {"name": name})
            time.sleep(0.01)

    app = Flask("bank", instance_path=str(folder))
    app.config.update(
        SQLALCHEMY_DATABASE_URI=url,
        WEBHOOKS={"stripe": simulator.config},
        CELERY={"broker_url": "memory://"},
    )
    db.init_app(app)
    webhooks.init_app(app)
    app.register_blueprint(webhooks.blueprint, url_prefix="/webhooks")
    with app.app_context():
        db.create_all()
        db.session.add_all([Account(name="a", changes=0), Account(name="b", changes=0)])
        db.session.commit()
    return app, db, Account


def test_a59_two_workers_that_take_the_same_rows_in_opposite_order_lose_nothing(
    fresh_postgres: str, stripe: Simulator, tmp_path: Path
) -> None:
    app, db, account = bank(fresh_postgres, stripe, tmp_path)
    stripe._send = lambda request: (
        app.test_client()
        .post("/webhooks/stripe", data=request.body, headers=dict(request.headers))
        .status_code
    )
    for number in range(40):
        stripe.create("customer", order="ab" if number % 2 else "ba")
    stripe.deliver()
    parts = state(app)
    with ThreadPoolExecutor(2) as workers:
        for done in [workers.submit(parts.applier.drain, limit=1) for _ in range(2)]:
            done.result()
    with parts.inbox.engine.connect() as connection:
        states = set(connection.execute(select(parts.tables.events.c.state)).scalars())
        changes = dict(connection.execute(select(account.name, account.changes)).all())  # type: ignore[arg-type]
    assert states == {"applied"}
    assert changes == {"a": 40, "b": 40}
    parts.inbox.close_connections()
    with app.app_context():
        db.engine.dispose()


def test_a60_no_transaction_is_open_while_the_provider_is_asked(
    fresh_postgres: str, stripe: Simulator, tmp_path: Path
) -> None:
    with opened(fresh_postgres, stripe, tmp_path) as shop:
        for _ in range(8):
            stripe.create("customer")
        stripe.deliver()
        watch = create_engine(fresh_postgres)
        idle: list[int] = []

        def look(_call: Any, _answer: Any) -> None:
            with watch.connect() as connection:
                query = text(
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                    " AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'"
                    " AND state_change < clock_timestamp() - interval '0.2 s'"
                )
                time.sleep(0.3)
                idle.append(int(connection.scalar(query) or 0))

        stripe.before_reply = look
        shop.state.applier.drain()
        watch.dispose()
        assert len(idle) == 8
        assert set(idle) == {0}
        assert shop.copies() == truth(stripe)


# -- workers


def test_a61_forked_workers_do_not_talk_over_a_connection_that_their_parent_opened(
    fresh_postgres: str, fresh_redis: str, tmp_path: Path
) -> None:
    with deployed(tmp_path, fresh_postgres, fresh_redis, "web") as site:
        wsgi = site.deployment.folder / "wsgi.py"
        wsgi.write_text(
            wsgi.read_text()
            + "from webhooks.extension import state\n"
            + "with state(app).inbox.engine.connect() as connection:\n"
            + "    connection.exec_driver_sql('SELECT 1')\n"
            + "state(app).inbox.missing('stripe', ['evt_none'])\n"
        )
        site.deployment.start("worker")
        for _ in range(4):
            for _ in range(25):
                site.stripe.create("customer")
            site.stripe.deliver()
            time.sleep(0.1)
        site.wait_until_applied()
        assert site.drift() == []
        assert site.states() == {"applied": 100}
        log = site.deployment.log("worker")
        assert not [
            word for word in ("OperationalError", "InterfaceError", "could not be applied") if word in log
        ]


def test_a64_a_task_that_is_given_out_twice_is_done_once_also_where_its_lease_is_too_short(
    database_url: str, stripe: Simulator, tmp_path: Path
) -> None:
    with opened(database_url, stripe, tmp_path, WEBHOOKS_LEASE=0.05) as shop:
        stripe.create("customer")
        stripe.deliver()
        shop.before_commit = lambda: time.sleep(0.3)
        with ThreadPoolExecutor(2) as workers:
            first = workers.submit(shop.state.applier.drain)
            time.sleep(0.15)
            second = workers.submit(shop.state.applier.drain)
            first.result()
            second.result()
        shop.before_commit = lambda: None
        wait_until(lambda: shop.state.applier.drain().events == 0)
        (event,) = shop.events()
        assert event.state == "applied"
        assert shop.noted() == [event.dedup_key]
        assert shop.copies() == truth(stripe)


def test_a66_two_beats_make_one_run_per_interval(
    database_url: str, stripe: Simulator, tmp_path: Path
) -> None:
    with opened(database_url, stripe, tmp_path) as shop:
        with ThreadPoolExecutor(2) as beats:
            for _ in range(3):
                for done in [beats.submit(shop.state.reconciler.recover_all) for _ in range(2)]:
                    done.result()
        with shop.state.inbox.engine.connect() as connection:
            runs = connection.execute(select(shop.state.tables.runs.c.task)).scalars().all()
        assert runs == ["recover"]


def test_a67_a_long_reconcile_does_not_keep_events_waiting(
    database_url: str, stripe: Simulator, tmp_path: Path
) -> None:
    with opened(database_url, stripe, tmp_path) as shop:
        listed, goes_on = threading.Event(), threading.Event()

        def hold(call: Any, _answer: Any) -> None:
            if call.path == "/v1/checkout/sessions":
                listed.set()
                assert goes_on.wait(30)

        stripe.before_reply = hold
        with ThreadPoolExecutor(1) as slow:
            run = slow.submit(shop.state.reconciler.reconcile, shop.state.endpoints["stripe"])
            assert listed.wait(30)
            for _ in range(20):
                stripe.create("customer")
            stripe.deliver()
            shop.state.applier.drain()
            assert [event.state for event in shop.events()] == ["applied"] * 20
            goes_on.set()
            assert run.result() is not None


def test_a67_slow_tasks_have_a_queue_of_their_own_and_nothing_is_fetched_ahead(tmp_path: Path) -> None:
    settings = broker_settings("redis://127.0.0.1/0", tmp_path)
    assert settings["worker_prefetch_multiplier"] == 1
    queues = {name: entry["options"]["queue"] for name, entry in SCHEDULE.items()}
    assert queues["webhooks-sweep"] == QUEUE
    assert queues["webhooks-reconcile"] == queues["webhooks-recover"] == SLOW_QUEUE


def test_a68_an_event_whose_handler_always_fails_ends_as_a_dead_letter_and_holds_nobody(
    database_url: str, stripe: Simulator, tmp_path: Path
) -> None:
    with opened(database_url, stripe, tmp_path, endpoint={"max_attempts": 3}) as shop:

        @shop.webhooks.on("stripe", "customer.created", name="fails")
        def fail(event: Any, customer: Any) -> None:
            if customer.get("title") == "bad":
                raise RetryLater("it is bad", timedelta(0))

        for number in range(41):
            stripe.create("customer", title="bad" if number == 20 else "good")
        stripe.deliver()
        wait_until(lambda: shop.state.applier.drain().events == 0)
        events = shop.events()
        bad = events[20]
        assert (bad.state, bad.outcome, bad.attempts) == ("dead", "handler_failed", 3)
        assert "it is bad" in bad.error
        assert {event.state for event in [*events[:20], *events[21:]]} == {"applied"}
        assert len(shop.noted()) == 40


def test_an_event_that_fails_does_not_hold_the_others_of_its_object(sqlite_url: str) -> None:
    webhooks, seen = Webhooks(), []

    @webhooks.on("stripe", "customer.updated", name="fail")
    def fail(_event: Any, _customer: Any) -> None:
        raise ZeroDivisionError

    webhooks.on("stripe", "customer.created", name="see")(
        lambda event, _customer: seen.append(event.dedup_key)
    )
    with build(sqlite_url, {"stripe": {**STRIPE, "fetch": False}}, webhooks=webhooks) as app:
        for number, type_ in enumerate(["created", "updated", "created"]):
            thing = {"id": "cus_1", "object": "customer"}
            assert (
                deliver(app, "stripe", f"customer.{type_}", id=f"evt_{number}", object=thing).status_code
                == 200
            )
        apply(app)
        assert [(row.state, row.outcome) for row in rows(app, "events")] == [
            ("applied", "applied"),
            ("pending", "handler_failed"),
            ("applied", "applied"),
        ]
    assert set(seen) == {"evt_0", "evt_2"}
