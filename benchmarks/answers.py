"""How long a sign-in waits for its hook: `python -m benchmarks answers`.

Signed calls of `before-user-created` over real HTTP, several at once, each recorded, decided with one read and one
write of the app's own, answered and stored.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.auth_server import AuthServer
from tests.test_answers import Site

from .machine import ROUNDS, Figures, figure
from .servers import Database

__all__ = ["run"]

CALLS, CLIENTS = 1000, 8


def build(site: Site) -> None:
    """A hook that looks something up and notes something down."""

    @site.webhooks.answer("supabase", "before-user-created", on_error="refuse")
    def admit(event: Any) -> None:
        site.db.session.query(site.Row).filter_by(what="banned").first()
        site.db.session.add(site.Row(what=event.dedup_key))


def measure(url: str, calls: int, clients: int) -> dict[str, float]:
    """p50, p95, p99 and the longest, in milliseconds, and calls per second."""
    with tempfile.TemporaryDirectory() as folder:
        site = Site(url, Path(folder), build)
        took: list[float] = []

        def call() -> None:
            auth = AuthServer(site.auth.url)
            for _ in range(calls // clients):
                outcome = auth.invoke("before-user-created")
                assert outcome.allowed, outcome
                took.append(outcome.seconds * 1000)

        site.auth.invoke("before-user-created")
        before = len(site.rows())  # those of the rounds before, too
        threads = [threading.Thread(target=call) for _ in range(clients)]
        started = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - started
        cuts = statistics.quantiles(took, n=100)
        assert len(site.rows()) == len(took) + before
        site.close()
    return {
        "p50": cuts[49],
        "p95": cuts[94],
        "p99": cuts[98],
        "max": max(took),
        "per second": len(took) / seconds,
    }


def run() -> Figures:
    """Milliseconds that a sign-in waits, and calls per second, on PostgreSQL; median of rounds."""
    samples: dict[str, list[float]] = {}
    with Database() as server:
        for _ in range(ROUNDS):
            for name, value in measure(server.url(), CALLS, CLIENTS).items():
                samples.setdefault(name, []).append(value)
    return {
        name: figure(taken, "calls/s" if name == "per second" else "ms") for name, taken in samples.items()
    }
