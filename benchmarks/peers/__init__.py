"""Other inboxes for Stripe's webhooks, beside ours: `python -m benchmarks peers`.

Each peer is installed at a pinned version, gets the same signed events from the same client, a database of its own on the
same PostgreSQL, two processes (stripe-sync-engine with one is measured as well), and a warm-up; then all are measured in
turn, round by round.

- *door*: the signature is verified, what came is stored, 200. stripe-sync-engine has no such mode: its request applies.
- *whole way*: until the customer is a row in a table, whether the request does that or a worker.
- *whole way, refetch*: the row is what the API (on loopback, 0 ms) says, not what the delivery said. dj-stripe always does.

CPU is that of an inbox's own processes: not of the client, the API, the broker or PostgreSQL.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

from ..machine import ROUNDS, Figures, figure
from .deploying import MODES, Bench
from .installing import Missing

__all__ = ["run"]

OURS = "ours"
Samples = dict[tuple[str, str, str], tuple[str, list[float]]]
"""Mode, inbox and what → unit and values."""
COMPARED = {"rate": "ratio, more is better", "p99": "ratio, less is better", "CPU": "ratio, less is better"}


def run() -> Figures:
    """Events per second, milliseconds at the door, microseconds of CPU per event; and ours divided by theirs."""
    samples: Samples = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bench = Bench(stack, folder)
        _install(bench)
        for _ in range(ROUNDS):
            for mode, (name, peer) in product(MODES, bench.peers.items()):
                if mode in peer.counts:
                    for what, unit, value in bench.measure(peer, mode):
                        samples.setdefault((mode.name, name, what), (unit, []))[1].append(value)
    figures = {
        f"{mode}, {name}: {what}": figure(taken, unit)
        for (mode, name, what), (unit, taken) in samples.items()
    }
    return figures | _ratios(samples)


def _install(bench: Bench) -> None:
    """Whatever can be installed here; and say what cannot be measured."""
    for install in (bench.install_stripe_sync_engine, bench.install_dj_stripe):
        try:
            install()
        except Missing as reason:
            print(f"left out: {reason}", file=sys.stderr)
    for mode, (name, peer) in product(MODES, bench.peers.items()):
        if mode in peer.lacks:
            print(f"{mode.name}, {name}: {peer.lacks[mode]}", file=sys.stderr)


def _ratios(samples: Samples) -> dict[str, Any]:
    """Round by round: a round's variants ran within the same minutes."""
    found = {}
    for (mode, name, what), (_, theirs) in samples.items():
        if name != OURS and what in COMPARED:
            pairs = zip(samples[mode, OURS, what][1], theirs, strict=True)
            ratios = [mine / other for mine, other in pairs]
            found[f"{mode}, {OURS} / {name}: {what}"] = figure(ratios, COMPARED[what])
    return found
