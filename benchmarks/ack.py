"""How many deliveries the door takes per second, how long a provider waits, and what a delivery costs.

Between two limits of the same run: pgbench with the same INSERT on the same number of connections (what the database can
do), and a server that does nothing (what the server can do). Beside them the usual recipe. PostgreSQL flushes each commit
to its disk; Valkey is the broker. Client, server and database share the machine.

Then, for a door, the open loop: a fixed share of its own saturated rate, so that waiting times are honest.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from tests.services import Valkey

from . import load
from .doors import DOORS
from .machine import ROUNDS, Figures, figure
from .servers import Database
from .serving import Served, deliveries, serve

__all__ = ["run"]

SECONDS = 4.0
WARM = 1.0
CONNECTIONS = (16, 32, 64)
SHARES = (0.25, 0.5, 0.75)
"""Of saturation, for the open loop."""
OPEN = ("usual recipe", "ours, blueprint", "ours, front door")
SOME = ("usual recipe", "ours, blueprint", "ours, front door")
TWO = ", two processes"
"""The same in two processes with half of the threads each: one process of Python uses hardly more than one core."""
EVERY = {32: (*DOORS, *(door + TWO for door in SOME))}
"""All doors are measured at 32 connections; at others, some."""
MOST = {"bare server": 40_000, "Flask alone": 12_000}
"""More deliveries per second than these doors take."""

# What one arrival is written as, without parameters of arrays; the body stands in the statement, which favours pgbench.
SCRIPT = """
\\set n random(1, 9000000000000000000)
WITH recorded AS (
  INSERT INTO webhook_events AS e (endpoint, dedup_key, origin, type, object_kind, object_id, account, livemode, gone,
    occurred_at, deliveries, digest, secret, correlation, state, received_at, last_delivery_at, attempts, due_at)
  VALUES ('stripe', 'evt_' || :n, 'delivery', 'customer.updated', 'customer', 'cus_' || :n, '', false, false,
    now(), 1, '%(digest)s', '0123456789abcdef', '', 'pending', now(), now(), 0, now())
  ON CONFLICT (endpoint, dedup_key) DO UPDATE SET deliveries = e.deliveries + 1, last_delivery_at = now()
  RETURNING id, (xmax = 0) AS new
)
INSERT INTO webhook_bodies (event_id, body, headers)
SELECT id, '%(body)s'::bytea, '%(headers)s'::json FROM recorded WHERE new;
"""


def run() -> Figures:
    """Deliveries per second, microseconds of the server's CPU per delivery, milliseconds of waiting."""
    samples: dict[str, tuple[str, list[float]]] = {}

    def note(name: str, what: str, unit: str, value: float) -> None:
        samples.setdefault(f"{name}: {what}", (unit, []))[1].append(value)

    with Database(durable=True) as database, Valkey() as broker, tempfile.TemporaryDirectory() as folder:
        bench = Bench(database, broker, Path(folder))
        for connections in CONNECTIONS:
            for _ in range(ROUNDS):
                bench.closed_loop(connections, EVERY.get(connections, SOME), note)
        for _ in range(ROUNDS):
            bench.open_loop(32, samples, note)
    return {name: figure(taken, unit) for name, (unit, taken) in samples.items()}


Note = Callable[[str, str, str, float], None]


class Bench:
    """The servers of a run."""

    def __init__(self, database: Database, broker: Valkey, folder: Path) -> None:
        self._database, self._broker, self._folder = database, broker, folder
        self._runs = 0

    def closed_loop(self, connections: int, doors: tuple[str, ...], note: Note) -> None:
        """One round: the limit of the database and every door, one after the other."""
        name = f"{connections} connections, pgbench, the same INSERT"
        with self.door("ours, front door", connections):
            pass  # the tables
        rate, p50, p99 = self.pgbench(connections)
        note(name, "rate", "deliveries/s", rate)
        note(name, "p50", "ms", p50)
        note(name, "p99", "ms", p99)
        for door in doors:
            with self.door(door, connections) as served:
                result, cpu = self._measure(served, door, connections, SECONDS, 0)
            name = f"{connections} connections, {door}"
            note(name, "rate", "deliveries/s", result["done"] / result["seconds"])
            note(name, "p50", "ms", result["p50"])
            note(name, "p99", "ms", result["p99"])
            note(name, "CPU", "us per delivery", cpu)

    def open_loop(self, connections: int, samples: Mapping[str, tuple[str, list[float]]], note: Note) -> None:
        """Fixed rates, as shares of what the door took in the closed loop."""
        for door in OPEN:
            taken = samples[f"{connections} connections, {door}: rate"][1]
            for share in SHARES:
                rate = share * sorted(taken)[len(taken) // 2]
                with self.door(door, connections) as served:
                    result, cpu = self._measure(served, door, connections * 4, SECONDS * 2, rate)
                name = f"open loop at {share:.0%}, {door}"
                for key, what in (("p50", "p50"), ("p99", "p99"), ("p999", "p99.9")):
                    note(name, what, "ms", result[key])
                note(name, "CPU", "us per delivery", cpu)

    @contextmanager
    def door(self, door: str, threads: int) -> Iterator[Served]:
        """A door on an empty database."""
        with psycopg.connect(self._database.url().replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
            connection.execute("CHECKPOINT")
        urls = {"DATABASE_URL": self._database.url(), "REDIS_URL": self._broker.url()}
        workers = 2 if door.endswith(TWO) else 1
        with serve(door.removesuffix(TWO), threads=threads // workers, workers=workers, **urls) as served:
            yield served

    def _measure(
        self, served: Served, door: str, connections: int, seconds: float, rate: float
    ) -> tuple[dict[str, Any], float]:
        """After a warm-up; and the server's CPU in microseconds per delivery."""
        most = rate * 1.2 if rate else MOST.get(door, 12_000)
        self._send(served, connections, WARM, 0, int(most * WARM))
        prepared = self._requests(int(most * seconds))
        before = served.cpu()
        try:
            result = load.send(served.port, prepared, connections=connections, seconds=seconds, rate=rate)
        finally:
            prepared.unlink()
        if result["refused"] or result["failed"] or result["sent"] != result["done"]:
            raise RuntimeError(f"{door}: not every delivery was taken: {result}")
        return result, (served.cpu() - before) / result["done"] * 1e6

    def _send(self, served: Served, connections: int, seconds: float, rate: float, count: int) -> None:
        prepared = self._requests(count)
        load.send(served.port, prepared, connections=connections, seconds=seconds, rate=rate)
        prepared.unlink()

    def _requests(self, count: int) -> Path:
        self._runs += 1
        return load.requests_file(self._folder, deliveries(f"{self._runs:04}x", count))

    def pgbench(self, connections: int) -> tuple[float, float, float]:
        """Transactions per second, and the median and the 99th percentile in milliseconds."""
        body = next(deliveries("pgbench", 1)).partition(b"\r\n\r\n")[2]
        script = self._folder / "insert.sql"
        headers = '{"Content-Type": "application/json; charset=utf-8", "User-Agent": "Stripe/1.0"}'
        script.write_text(SCRIPT % {"digest": "0" * 64, "body": "\\x" + body.hex(), "headers": headers})
        log = self._folder / "pgbench"
        arguments = [
            *(self._database.binaries / "pgbench", "-h", "127.0.0.1", "-p", self._database.port),
            *("-U", "postgres", "-n", "-M", "prepared", "-f", script, "-l", "--log-prefix", log),
            *("-c", connections, "-j", 2, "-T", int(SECONDS), "postgres"),
        ]
        ran = subprocess.run(
            [str(each) for each in arguments],
            env=os.environ | {"PGPASSWORD": self._database.password},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        found = re.search(r"tps = ([\d.]+)", ran.stdout)
        assert found is not None, ran.stdout
        times = []
        for part in self._folder.glob("pgbench.*"):
            times += [int(line.split()[2]) / 1000 for line in part.read_text().splitlines()]
            part.unlink()
        times.sort()
        return float(found[1]), times[len(times) // 2], times[int(len(times) * 0.99)]
