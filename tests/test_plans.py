"""A backlog changes no plan: what is asked of the inbox all the time walks indexes, also with statistics of an empty table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from flask import Flask
from sqlalchemy import event

from webhooks.extension import state
from webhooks.inbox.door import _row
from webhooks.inbox.rows import Arrival
from webhooks.inbox.sql import ARRIVAL, RECORD_POSTGRESQL
from webhooks.provider import ObjectRef

from .apps import STRIPE, build

pytestmark = pytest.mark.slow

BACKLOG = 200_000
FILL = f"""
INSERT INTO webhook_events (endpoint, dedup_key, origin, type, object_kind, object_id, account, gone, received_at,
  deliveries, last_delivery_at, state, attempts, due_at)
SELECT 'stripe', 'evt_' || md5(n::text), 'delivery', 'customer.updated', 'customer', 'cus_' || n, 'acct_' || n % 3, false,
  now(), 1, now(), 'pending', 0, now() - n * interval '1 millisecond' FROM generate_series(1, {BACKLOG}) AS n
"""
BODIES = "INSERT INTO webhook_bodies (event_id, body, headers) SELECT id, '{}', '{}' FROM webhook_events"
LARGE = {"webhook_events", "webhook_bodies"}

Plan = dict[str, Any]


@pytest.fixture
def app(fresh_postgres: str) -> Iterator[Flask]:
    with build(fresh_postgres, {"stripe": STRIPE}) as app:
        with _connection(app) as rows:
            for table in LARGE:
                rows.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
                rows.execute(f"ANALYZE {table}")
            rows.execute(FILL)
            rows.execute(BODIES)
        yield app


def _connection(app: Flask) -> psycopg.Connection[Any]:
    url = state(app).inbox.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(url, autocommit=True)


def plans(app: Flask, ask: Callable[[], object]) -> list[Plan]:
    """The plans of all statements that this sends to the database."""
    sent: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        sent.append((statement, parameters))

    engine = state(app).inbox.engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        ask()
    finally:
        event.remove(engine, "before_cursor_execute", note)
    assert sent
    with _connection(app) as rows:
        return [explained(rows, statement, parameters) for statement, parameters in sent]


def explained(rows: psycopg.Connection[Any], statement: str, parameters: Any) -> Plan:
    found = rows.execute(f"EXPLAIN (FORMAT JSON) {statement}", parameters).fetchone()
    assert found is not None
    return found[0][0]["Plan"]  # type: ignore[no-any-return]


def nodes(plan: Plan) -> Iterator[Plan]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def assert_walks_indexes(plan: Plan) -> None:
    for node in nodes(plan):
        reads = {below["Relation Name"] for below in nodes(node) if "Relation Name" in below}
        assert not (node["Node Type"] == "Seq Scan" and node["Relation Name"] in LARGE), node
        # Sorting what a CTE of a claim's size holds is fine; sorting a table's rows is not.
        assert not ("Sort" in node["Node Type"] and reads & LARGE), node


def test_a_claim_walks_indexes(app: Flask) -> None:
    found = plans(app, lambda: state(app).inbox.claim(["stripe"]))
    assert len(found) == 2  # what a dead worker left, and what is due
    for plan in found:
        assert_walks_indexes(plan)
    used = {node.get("Index Name") for plan in found for node in nodes(plan)}
    assert {"ix_webhook_events_due", "ix_webhook_events_lanes", "ix_webhook_events_object"} <= used


def test_what_is_due_next_is_found_by_one_look_per_account(app: Flask) -> None:
    inbox = state(app).inbox
    inbox.hold("stripe", "rate_limited", account="acct_1", until=timedelta(hours=1))
    with _connection(app) as rows:
        rows.execute(
            "UPDATE webhook_events SET due_at = now() + interval '1 minute' WHERE account <> 'acct_1'"
        )
    wait = inbox.next_due(["stripe"])
    assert wait is not None
    assert timedelta(seconds=50) < wait <= timedelta(seconds=60)
    (plan,) = plans(app, lambda: inbox.next_due(["stripe"]))
    assert_walks_indexes(plan)
    used = {node["Index Name"] for node in nodes(plan) if node.get("Relation Name") == "webhook_events"}
    assert "ix_webhook_events_lanes" in used
    assert "ix_webhook_events_due" not in used


def test_a_claim_walks_indexes_with_statistics_of_one_account(app: Flask) -> None:
    with _connection(app) as rows:
        rows.execute("UPDATE webhook_events SET account = ''")
        rows.execute("ANALYZE webhook_events")
        rows.execute("UPDATE webhook_events SET account = 'acct_busy' WHERE id > 5")
    for plan in plans(app, lambda: state(app).inbox.claim(["stripe"])):
        assert_walks_indexes(plan)
        lanes = [node for node in nodes(plan) if node.get("Index Name") == "ix_webhook_events_lanes"]
        due = [node for node in nodes(plan) if node.get("Index Name") == "ix_webhook_events_due"]
        assert bool(lanes) != bool(due)


def test_where_a_table_was_just_filled_an_object_s_events_are_not_looked_for_by_their_endpoint(
    fresh_postgres: str,
) -> None:
    """To a planner that takes the table for empty all indexes that begin with the endpoint are as good; read by that of the
    dedup keys, each object of a claim would cost a walk over all events of its endpoint."""
    with build(fresh_postgres, {"stripe": STRIPE}) as app:
        with _connection(app) as rows:
            rows.execute("ALTER TABLE webhook_events SET (autovacuum_enabled = off)")
            rows.execute(FILL.replace(str(BACKLOG), "3000"))
        used = {
            node.get("Index Name")
            for plan in plans(app, lambda: state(app).inbox.claim(["stripe"]))
            for node in nodes(plan)
        }
        assert "ix_webhook_events_object" in used
        assert "uq_webhook_events_endpoint_dedup_key" not in used


def test_a_claim_of_events_by_id_walks_indexes(app: Flask) -> None:
    for plan in plans(app, lambda: state(app).inbox.claim(["stripe"], only=[1, 2, 3])):
        assert_walks_indexes(plan)


def test_the_door_s_statement_walks_indexes(app: Flask) -> None:
    arrivals = [
        Arrival("stripe", f"evt_{n}", object=ObjectRef("customer", f"cus_{n}"), body=b"{}") for n in range(32)
    ]
    rows_of = [_row(arrival, 1) for arrival in arrivals]
    with _connection(app) as connection, connection.cursor() as cursor:
        cursor.execute(
            f"EXPLAIN (FORMAT JSON) {RECORD_POSTGRESQL}",
            [[row[name] for row in rows_of] for name in ARRIVAL],
            binary=True,
        )
        found = cursor.fetchone()
    assert found is not None
    assert_walks_indexes(found[0][0]["Plan"])


def test_what_a_sweep_asks_walks_indexes(app: Flask) -> None:
    inbox = state(app).inbox
    for ask in (lambda: inbox.due(["stripe"]), lambda: inbox.next_due(["stripe"])):
        for plan in plans(app, ask):
            assert_walks_indexes(plan)


def test_purging_walks_indexes(app: Flask) -> None:
    inbox = state(app).inbox
    for purge in (inbox.purge_bodies, inbox.purge_events):
        for plan in plans(app, lambda purge=purge: purge(timedelta(days=1))):
            assert_walks_indexes(plan)


def test_a_claim_on_sqlite_searches_indexes(sqlite_url: str) -> None:
    sent: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        sent.append((statement, parameters))

    with build(sqlite_url, {"stripe": STRIPE}) as app:
        engine = state(app).inbox.engine
        event.listen(engine, "before_cursor_execute", note)
        assert state(app).inbox.claim(["stripe"]) is None
        event.remove(engine, "before_cursor_execute", note)
        with engine.connect() as connection:
            steps = [
                row[3]
                for statement, parameters in sent
                if "webhook_events AS e SET" in statement
                for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            ]
    read = [step for step in steps if re.match(r"(SCAN|SEARCH) [efmno] ", step)]
    assert len(read) > 10
    assert [
        step for step in read if step.startswith("SCAN") and "USING" not in step and step != "SCAN e"
    ] == []
    lanes = [
        step.partition("ix_webhook_events_lanes ")[2] for step in read if "ix_webhook_events_lanes" in step
    ]
    assert lanes == ["((endpoint,account)>(?,?))"] * 2 + ["(endpoint=? AND account=? AND due_at<?)"] * 2
