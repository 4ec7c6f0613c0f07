"""Comparing a provider's listing with our copies: time and memory as the number of objects grows, on PostgreSQL.

The provider's own time is left out: the listing is made up as it is read. Each measurement is a process of its own, so that
its largest memory is its own. The baseline reads our rows into a dictionary.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, text

from webhooks import Webhooks, jsontext
from webhooks.extension import state
from webhooks.provider import Change, ObjectRef
from webhooks.reconcile.listing import Listing
from webhooks.state import State

from .machine import Figures, figure
from .servers import Database

__all__ = ["run"]

SIZES = (10_000, 100_000, 1_000_000)
DIFFERENT = 10
"""Objects that differ: they must be found, whatever the size."""

FILL = """
INSERT INTO webhook_objects (endpoint, account, kind, id, claim_no, as_of, digest, checked_at)
SELECT 'stripe', '', 'customer', 'cus_' || n, 0, now(), :digest, now() FROM generate_series(1, :size) AS n
"""
CUSTOMER = {"object": "customer", "email": "ada@example.test"}
OTHER = {"object": "customer", "email": "changed@example.test"}


def run() -> Figures:
    """Seconds, and the growth of memory in MB over the same with no objects."""
    figures: dict[str, Any] = {}
    with Database() as server:
        for name, compare in (("listing in the database", _listed), ("dictionary", _dictionary)):
            for size in SIZES:
                seconds, growth = _apart(server.url(), size, compare)
                figures[f"{name}, {size:,} objects, time"] = figure([seconds], "s")
                figures[f"{name}, {size:,} objects, memory"] = figure([growth], "MB more")
    return figures


def _apart(url: str, size: int, compare: Callable[[State, int], int]) -> tuple[float, float]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_measure, args=(url, size, compare, theirs))
    process.start()
    seconds, growth = ours.recv()
    process.join()
    return seconds, growth


def _measure(url: str, size: int, compare: Callable[[State, int], int], pipe: Any) -> None:
    app = Flask("benchmark", instance_path=tempfile.mkdtemp())
    app.config.update(
        SQLALCHEMY_DATABASE_URI=url,
        CELERY={"broker_url": "memory://"},
        WEBHOOKS={"stripe": {"secrets": ["whsec_benchmark_secret"], "api_key": "sk_test_benchmark"}},
    )
    db, _ = SQLAlchemy(app), Webhooks(app)
    with app.app_context():
        db.drop_all()
        db.create_all()
        db.session.execute(text(FILL), {"size": size, "digest": jsontext.digest(CUSTOMER)})
        db.session.commit()
        db.session.execute(text("ANALYZE webhook_objects"))
        db.session.commit()
        db.session.remove()
    parts = state(app)
    compare(parts, 0)  # whatever is loaded for the first time
    before = _memory()
    started = time.perf_counter()
    found = compare(parts, size)
    seconds = time.perf_counter() - started
    if found != DIFFERENT:
        sys.exit(f"{found} differences instead of {DIFFERENT}")
    pipe.send((seconds, _memory() - before))


def _memory() -> float:
    """The largest so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _changes(size: int) -> Iterator[Change]:
    now = datetime.now(UTC)
    for number in range(1, size + 1):
        data = OTHER if number <= DIFFERENT else CUSTOMER
        yield Change(ObjectRef("customer", f"cus_{number}"), dict(data), now)


def _listed(parts: State, size: int) -> int:
    with Listing.of(parts.inbox, parts.endpoints["stripe"]) as listing:
        for _ in listing.read(_changes(size)):
            pass
        return sum(len(candidates) for candidates in listing.differing(100))


def _dictionary(parts: State, size: int) -> int:
    o = parts.tables.objects.c
    with parts.inbox.engine.connect() as connection:
        query = select(o.account, o.kind, o.id, o.digest).where(o.endpoint == "stripe")
        ours = {tuple(row[:3]): row[3] for row in connection.execute(query)} if size else {}
    listed = ((("", c.object.kind, c.object.id), jsontext.digest(c.data)) for c in _changes(size))
    return sum(ours.get(key) != digest for key, digest in listed)
