"""A worker with a backlog: how fast it drains, and who waits meanwhile. `python -m benchmarks backlog`.

- *drain*: of so many open events, each about another object, one worker applies some thousand; statistics are those of the
  empty table, as after an outage.
- *lag*: the worker goes on, while new events come at a steady rate; how old each was when it was applied. One that still
  waits at the end counts with its age then, so a lag near the length of the measurement means "not at all".
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import psycopg

from webhooks.inbox import Recorded
from webhooks.state import State

from .filling import arrivals, fill_open, inbox
from .machine import ROUNDS, Figures, figure
from .servers import Database

__all__ = ["run"]

SIZES = (1_000, 100_000, 1_000_000)
DRAINED = 5_000
SECONDS = 8.0
"""How long new events come and a worker works, for the lag."""
EVERY = 0.05
"""Seconds between two new events: twenty a second."""
BUSY, BURST = "acct_busy", 50_000
HELD = 100_000
ONE_CLAIM = timedelta(0)
OTHERS = tuple(f"acct_{number:02}" for number in range(20))
"""With one new event every EVERY seconds, each sends one a second."""

Rows = psycopg.Connection[Any]


def run() -> Figures:
    """Events per second, and seconds of lag."""
    samples: dict[str, tuple[str, list[float]]] = {}

    def note(name: str, unit: str, value: float) -> None:
        samples.setdefault(name, (unit, []))[1].append(value)

    with ExitStack() as stack:
        server = stack.enter_context(Database())
        inboxes = {size: stack.enter_context(inbox(server)) for size in SIZES}
        for size, (_, rows) in inboxes.items():
            fill_open(rows, size)
        burst, held = stack.enter_context(inbox(server)), stack.enter_context(inbox(server))
        held[0].inbox.hold("stripe", "paused", account=BUSY)
        fill_open(held[1], HELD, account=BUSY)
        for _ in range(ROUNDS):
            for size, (parts, rows) in inboxes.items():
                _fill_up(rows, size)
                note(f"{size:,} open: drain", "events/s", _drain(parts, min(DRAINED, size)))
            for size, (parts, rows) in inboxes.items():
                _fill_up(rows, size)
                _note_lag(f"{size:,} open", parts, rows, ("",), note)
            _fill_up(burst[1], BURST, account=BUSY)
            _note_lag(f"{BURST:,} open of one account", *burst, OTHERS, note)
            _note_lag(f"{HELD:,} open of an account on hold", *held, OTHERS, note)
    figures = {name: figure(taken, unit) for name, (unit, taken) in samples.items()}
    smallest = samples[f"{SIZES[0]:,} open: drain"][1]
    for size in SIZES[1:]:
        pairs = zip(samples[f"{size:,} open: drain"][1], smallest, strict=True)
        ratios = [mine / least for mine, least in pairs]
        figures[f"{size:,} open / {SIZES[0]:,}: drain"] = figure(ratios, "ratio, more is better")
    return figures


def _fill_up(rows: Rows, size: int, *, account: str = "") -> None:
    """As many open events as there are to be."""
    count = "SELECT count(*) FROM webhook_events WHERE state = 'pending' AND account = %s"
    found = rows.execute(count, [account]).fetchone()
    assert found is not None
    if found[0] < size:
        fill_open(rows, size - found[0], account=account)


def _drain(parts: State, events: int) -> float:
    started, done = time.perf_counter(), 0
    while done < events:
        applied = parts.applier.drain(shift=ONE_CLAIM).events
        assert applied, "nothing is due"
        done += applied
    return done / (time.perf_counter() - started)


def _note_lag(name: str, parts: State, rows: Rows, accounts: Sequence[str], note: Any) -> None:
    lags, applied = _lags(parts, rows, accounts)
    note(f"{name}: lag of new events, p50", "s", statistics.median(lags))
    note(f"{name}: lag of new events, worst", "s", lags[-1])
    note(f"{name}: new events that were applied", "share", applied)


def _lags(parts: State, rows: Rows, accounts: Sequence[str]) -> tuple[list[float], float]:
    """The lags of the new events, in order, and the share of them that was applied in time."""
    stop = threading.Event()
    first: list[Recorded] = []

    def feed() -> None:
        number = 0
        while not stop.wait(EVERY):
            first.extend(parts.inbox.record(arrivals(1, account=accounts[number % len(accounts)])))
            number += 1

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        ends = time.monotonic() + SECONDS
        while time.monotonic() < ends:
            if not parts.applier.drain(shift=ONE_CLAIM).events:
                time.sleep(EVERY / 5)
    finally:
        stop.set()
        feeder.join()
    found = rows.execute(
        "SELECT extract(epoch FROM coalesce(finished_at, clock_timestamp()) - received_at)::float, finished_at IS NOT NULL"
        " FROM webhook_events WHERE id = ANY(%s) ORDER BY 1",
        [[one.id for one in first]],
    ).fetchall()
    return [lag for lag, _ in found], sum(done for _, done in found) / len(found)
