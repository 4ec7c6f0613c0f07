"""An inbox of any size, filled by the database itself, for benchmarks of what size costs."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count as count_from
from typing import Any

import psycopg
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from psycopg import sql

from tests.services import Postgres
from webhooks import Webhooks, jsontext, providers
from webhooks.extension import state
from webhooks.inbox import Arrival, arrival
from webhooks.provider import Request
from webhooks.state import State

__all__ = ["analyse", "arrivals", "fill_finished", "fill_open", "inbox"]

# Keys look like a provider's, so that neighbours in time are none in the index.
EVENTS = """
INSERT INTO webhook_events (endpoint, dedup_key, origin, type, object_kind, object_id, account, livemode, gone, occurred_at,
  received_at, deliveries, last_delivery_at, secret, correlation, state, outcome, attempts, due_at, finished_at)
SELECT 'stripe', 'evt_' || md5('%(run)s' || n), 'delivery', 'customer.updated', 'customer', 'cus_' || md5('%(run)s' || %(object)s),
  %(account)s, false, false, at, at, 1, at, '0123456789abcdef', '', '%(state)s', %(outcome)s, %(attempts)s, at, %(finished)s
FROM (SELECT n, clock_timestamp() - (%(count)s - n + 1) * interval '%(apart)s' AS at
  FROM generate_series(1, %(count)s) AS n) AS numbered
"""
BODIES = """
INSERT INTO webhook_bodies (event_id, body, headers)
SELECT id, convert_to('{"id": "' || dedup_key || '", "object": "event", "type": "customer.updated", "livemode": false, "created": '
  || floor(extract(epoch FROM occurred_at)) || ', "data": {"object": {"id": "' || object_id
  || '", "object": "customer", "email": "ada@example.test"}}}', 'UTF8'), '{"Content-Type": "application/json"}'
FROM (SELECT * FROM webhook_events ORDER BY id DESC LIMIT %(count)s) AS last
"""
OBJECTS = """
INSERT INTO webhook_objects (endpoint, account, kind, id, claim_no, as_of, checked_at)
SELECT DISTINCT endpoint, account, object_kind, object_id, 0, now(), now() FROM webhook_events
"""


@contextmanager
def inbox(server: Postgres, **endpoint: Any) -> Iterator[tuple[State, psycopg.Connection[Any]]]:
    """A Stripe endpoint that fetches nothing, on a database of its own, and a connection to look into it."""
    name = f"inbox_{secrets.token_hex(4)}"
    dsn = server.url().replace("+psycopg", "")
    with psycopg.connect(dsn, autocommit=True) as administrator:
        administrator.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    app = Flask("benchmark", instance_path=tempfile.mkdtemp())
    app.config.update(
        SQLALCHEMY_DATABASE_URI=server.url(name),
        CELERY={"broker_url": "memory://"},
        WEBHOOKS={"stripe": {"secrets": ["whsec_benchmark_secret"], "fetch": False} | endpoint},
    )
    db, _ = SQLAlchemy(app), Webhooks(app)
    with app.app_context():
        db.create_all()
    parts = state(app)
    try:
        with psycopg.connect(server.url(name).replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")
            yield parts, connection
    finally:
        parts.inbox.close_connections()
        with app.app_context():
            db.engine.dispose()
        with psycopg.connect(dsn, autocommit=True) as administrator:
            administrator.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def fill_finished(
    connection: psycopg.Connection[Any], count: int, *, bodies: int, per_object: int = 10
) -> None:
    """So many applied events, ten to an object, bodies of the last ones, and the objects."""
    values = {
        "run": "old",
        "object": f"(n / {per_object})",
        "account": "''",
        "state": "applied",
        "outcome": "'applied'",
        "attempts": 1,
        "finished": "at",
        "count": count,
        "apart": "1 second",
    }
    connection.execute(EVENTS % values)
    connection.execute(BODIES % {"count": min(bodies, count)})
    connection.execute(OBJECTS)
    analyse(connection)


def fill_open(
    connection: psycopg.Connection[Any], count: int, *, account: str = "", apart: str = "1 millisecond"
) -> None:
    """So many events that are due, each about another object, so far apart and the last one just now."""
    values = {
        "run": secrets.token_hex(4),
        "object": "n",
        "account": f"'{account}'",
        "state": "pending",
        "outcome": "NULL",
        "attempts": 0,
        "finished": "NULL",
        "count": count,
        "apart": apart,
    }
    connection.execute(EVENTS % values)
    connection.execute(BODIES % {"count": count})


def analyse(connection: psycopg.Connection[Any]) -> None:
    """What autovacuum does sooner or later."""
    connection.execute("VACUUM (ANALYZE) webhook_events, webhook_bodies, webhook_objects")


_after_all = count_from(1)


def arrivals(count: int, *, account: str = "", in_order: bool = False) -> list[Arrival]:
    """So many new events, each about another object, as the door hands them to the inbox; their ids random, or each behind
    all that were before."""
    stripe = providers.get("stripe")
    made = []
    for _ in range(count):
        key = f"z{next(_after_all):023}" if in_order else secrets.token_hex(12)
        event = {
            "id": f"evt_{key}",
            "object": "event",
            "type": "customer.updated",
            "livemode": False,
            "created": int(datetime.now(UTC).timestamp()),
            "data": {"object": {"id": f"cus_{key}", "object": "customer", "email": "ada@example.test"}},
        }
        if account:
            event["account"] = account
        request = Request("POST", "", {"Content-Type": "application/json"}, jsontext.dumps(event))
        made.append(arrival("stripe", stripe, stripe.parse(request)[0], request))
    return made
