"""What an event costs as the inbox grows: `python -m benchmarks growth`.

An inbox of its own for each size, full of finished events; then, in turn, new events are recorded and applied and old ones
delivered again. Commits do not wait for the disk, which would hide what grows. BENCHMARK_LARGE=1 adds 10 million rows (about
7 GB, and a quarter of an hour to fill).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import psycopg

from webhooks.inbox import Arrival
from webhooks.state import State

from .filling import arrivals, fill_finished, inbox
from .machine import ROUNDS, Figures, figure
from .servers import Database

__all__ = ["run"]

SIZES = (10_000, 100_000, 1_000_000)
LARGE = 10_000_000
EVENTS = 1_000
"""Per measurement: few beside the smallest inbox."""
BATCH = 32
"""Arrivals in a statement of the door, as with as many connections."""
BODIES = 10_000
"""Old bodies are dropped long before old events are, and so many are kept here."""


def run() -> Figures:
    """Microseconds per event, and how many times that of the smallest inbox."""
    sizes = (*SIZES, LARGE) if os.environ.get("BENCHMARK_LARGE") == "1" else SIZES
    samples: dict[tuple[str, int], list[float]] = {}
    with ExitStack() as stack:
        server = stack.enter_context(Database())
        inboxes = {}
        for size in sizes:
            inboxes[size] = parts, rows = stack.enter_context(inbox(server))
            fill_finished(rows, size, bodies=BODIES)
            for measure in STEPS.values():
                measure(parts, rows)  # connects, prepares, and reads what a database in use has read before
        for _ in range(ROUNDS):
            for name, measure in STEPS.items():
                for size, (parts, rows) in inboxes.items():
                    samples.setdefault((name, size), []).append(measure(parts, rows))
    figures: dict[str, Any] = {}
    for (name, size), taken in samples.items():
        figures[f"{name}, {size:,} rows"] = figure(taken, "us per event")
        ratios = [mine / least for mine, least in zip(taken, samples[name, sizes[0]], strict=True)]
        if size != sizes[0]:
            figures[f"{name}, {size:,} rows / {sizes[0]:,}"] = figure(ratios, "ratio, less is better")
    return figures


def _record(parts: State, _: psycopg.Connection[Any]) -> float:
    return _recorded(parts, arrivals(EVENTS), new=True)


def _record_in_order(parts: State, _: psycopg.Connection[Any]) -> float:
    # All of them go to the same few pages of each index, which every cache has.
    cost = _recorded(parts, arrivals(EVENTS, in_order=True), new=True)
    assert parts.applier.drain().events == EVENTS
    return cost


def _apply(parts: State, _: psycopg.Connection[Any]) -> float:
    started = time.perf_counter()
    done = parts.applier.drain()
    assert done.events == EVENTS, done  # what _record left
    return (time.perf_counter() - started) / EVENTS * 1e6


def _deliver_again(parts: State, rows: psycopg.Connection[Any]) -> float:
    # Any of the old ones: where they lie in the index no cache knows.
    last = rows.execute("SELECT max(id) FROM webhook_events").fetchone()
    assert last is not None
    keys = rows.execute(
        "SELECT dedup_key FROM webhook_events WHERE id IN "
        "(SELECT 1 + floor(random() * %s)::bigint FROM generate_series(1, %s)) LIMIT %s",
        [last[0], EVENTS + 100, EVENTS],
    ).fetchall()
    found = [replace(one, dedup_key=key) for one, (key,) in zip(arrivals(len(keys)), keys, strict=True)]
    return _recorded(parts, found, new=False)


def _recorded(parts: State, found: list[Arrival], *, new: bool) -> float:
    started = time.perf_counter()
    results = [parts.inbox.record(found[start : start + BATCH]) for start in range(0, len(found), BATCH)]
    seconds = time.perf_counter() - started
    assert all(one.new == new for result in results for one in result)
    return seconds / len(found) * 1e6


STEPS: dict[str, Callable[[State, psycopg.Connection[Any]], float]] = {
    "record": _record,
    "claim and apply": _apply,
    "deliver again": _deliver_again,
    "record, ids in order": _record_in_order,
}
