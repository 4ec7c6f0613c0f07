"""Hours of random faults: `python -m tests.soak [--minutes N] [--seed N]`. Not part of any test run.

The deployment and the faults are those of `tests/faults`; load goes on while they strike. After each round everything must be
delivered, applied once and equal to the provider. Prints a line for each round and a table of figures at the end; exit code 1 if
anything is wrong. The seed decides load and faults; threads and processes do as they like.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.faults.catalogue import EVERY, pick
from tests.faults.deployment import Deployment

LONGEST = 24 * 60
"""Minutes."""

PATIENCE = 120.0
"""Seconds after each round until all must have settled."""


class Soak:
    """One run and its figures."""

    def __init__(self, deployment: Deployment, chance: random.Random, console: Console) -> None:
        self.d, self.chance, self.console = deployment, chance, console
        self.faults: Counter[str] = Counter()
        self.loads: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.unknown = self.rounds = 0
        self.slowest = self.peak = 0.0

    def round(self) -> None:
        """Load, a fault in the middle of it, then quiet until everything is settled, and the verdict."""
        fault = pick(self.chance)
        load = self.chance.choice(["steady", "steady", "bursts"])
        self.faults[fault] += 1
        self.loads[load] += 1
        self.rounds += 1
        before, started = len(self.d.stripe.world.log), time.monotonic()
        with self.d.steady(0.05 if load == "steady" else 0.3):
            time.sleep(self.chance.uniform(0.5, 3))
            with EVERY[fault](self.d):
                if load == "bursts":
                    self.d.traffic(self.chance.randrange(50, 300), threads=32)
                time.sleep(self.chance.uniform(0.2, 3))
            time.sleep(self.chance.uniform(0.5, 2))
        loaded = time.monotonic() - started
        events = len(self.d.stripe.world.log) - before
        self.peak = max(self.peak, events / loaded)
        self.d.settle(patience=PATIENCE)
        settled = time.monotonic() - started - loaded
        self.slowest = max(self.slowest, settled)
        self.judge(fault)
        self.d.stripe.calls.clear()  # kept for tests that count
        self.console.print(
            f"{self.rounds:4}  {load:7} {events:5} events in {loaded:5.1f} s, settled after {settled:4.1f} s  {fault}",
            highlight=False,
        )

    def judge(self, fault: str) -> None:
        found = self.d.wrongs()
        if unknown := self.d.unknown():
            if "unknown_effect" not in self.d.check():
                found.append("an effect is unknown and nobody is told")
            self.unknown += unknown
            self.d.settle_unknown()
            self.d.settle(patience=PATIENCE)
            found += self.d.wrongs()
        for line in found:
            self.console.print(f"WRONG after {fault}: {line}", style="bold red", highlight=False)
        self.wrong += found

    def figures(self, seconds: float, memory: dict[str, int]) -> Table:
        counts, log = self.d.stripe.counts, self.d.stripe.world.log
        lost = sum(line.startswith("lost") for line in self.wrong)
        twice = sum(number > 1 for number in self.d.callee.happened.values())
        rows = self.d.ask(
            "SELECT sum(deliveries), count(*) FILTER (WHERE deliveries > 1) FROM webhook_events"
        )[0]
        table = Table("figure", "value", title="soak", title_justify="left")
        for name, value in {
            "minutes": f"{seconds / 60:.1f}",
            "rounds with one fault each": self.rounds,
            **{f"rounds of {name} load": number for name, number in sorted(self.loads.items())},
            "events": len(log),
            "events per second, faults and waiting included": f"{len(log) / seconds:.0f}",
            "events per second, busiest round": f"{self.peak:.0f}",
            "deliveries": counts.deliveries,
            "deliveries sent twice by the provider, or again although answered": counts.duplicates,
            "deliveries out of order": counts.reordered,
            "deliveries that failed": counts.failed,
            "deliveries recorded": rows[0],
            "events delivered more than once": rows[1],
            "fetches of the API": counts.api_calls,
            "effects done": sum(self.d.callee.happened.values()),
            "effects called again under their key": len(self.d.callee.calls)
            - sum(self.d.callee.happened.values()),
            "effects unknown, told of and settled": self.unknown,
            "longest time until settled": f"{self.slowest:.1f} s",
            "events lost": lost,
            "effects that happened twice": twice,
            "anything else wrong": len(self.wrong) - lost - twice,
        }.items():
            table.add_row(name, f"{value:,}" if isinstance(value, int) else str(value))
        for name, end in self.d.memory().items():
            table.add_row(f"memory of {name}, start and end", f"{memory.get(name, 0):,} kB, {end:,} kB")
        for name, number in sorted(self.faults.items()):
            table.add_row(name, f"{number} times")
        return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument(
        "--front-door", action="store_true", help="let the front door answer instead of the blueprint"
    )
    said = parser.parse_args()
    if not 0 < said.minutes <= LONGEST:
        parser.error(f"--minutes must be more than 0 and at most {LONGEST}")
    logging.disable(logging.WARNING)
    console = Console(width=120)
    console.print(f"seed {said.seed}, {said.minutes:g} minutes")
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        environment = {"FRONT_DOOR": "1"} if said.front_door else {}
        with Deployment(Path(folder), seed=said.seed, **environment) as deployment:
            soak = Soak(deployment, random.Random(said.seed), console)
            deployment.start("web", "worker", "worker2", "beat")
            faults = deployment.stripe.delivery
            faults.duplicates, faults.reordered, faults.unanswered = 0.05, 0.1, 0.05
            deployment.traffic(100)
            deployment.settle()
            memory, started = deployment.memory(), time.monotonic()
            try:
                while time.monotonic() - started < said.minutes * 60:
                    soak.round()
            except (AssertionError, KeyboardInterrupt) as error:
                soak.wrong.append(f"ended early: {type(error).__name__} {error}"[:2000])
                console.print(soak.wrong[-1], style="bold red", highlight=False)
            console.print(soak.figures(time.monotonic() - started, memory))
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
