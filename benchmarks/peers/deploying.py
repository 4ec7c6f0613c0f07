"""Each inbox as its documentation deploys it, on a database of its own, and one measurement of it."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from tests.services import Valkey, free_port

from .. import load
from ..doors import PATH, SECRET
from ..servers import Database
from ..serving import Served, granian, running
from .fixtures import API_KEY, DELIVERED, SERVED, deliveries
from .installing import install_dj_stripe, install_stripe_sync_engine

__all__ = ["MODES", "Bench"]

CONNECTIONS = 32
LONGEST = 60.0
"""Seconds that one measurement may take."""
WITHIN = 900.0
"""Seconds for dj-stripe's migrations, on a loaded machine."""
OPEN = (
    "SELECT count(*) FROM (SELECT FROM webhook_events WHERE state IN ('pending', 'applying') LIMIT 1) AS open"
)
"""Whether there is an open event: asked so that asking costs nothing."""
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Mode:
    """What an inbox is asked to do with an event before it counts."""

    name: str
    applies: bool
    refetches: bool


DOOR = Mode("door", applies=False, refetches=False)
WHOLE = Mode("whole way", applies=True, refetches=False)
REFETCH = Mode("whole way, refetch", applies=True, refetches=True)
MODES = (DOOR, WHOLE, REFETCH)


@dataclass(frozen=True)
class Deployed:
    """One inbox that runs."""

    server: Served
    path: str
    others: tuple[Served, ...] = ()
    open_events: str | None = None
    """The query that gives more than 0 while stored events are not applied; None: its request applies."""

    def cpu(self) -> float:
        return sum(served.cpu() for served in (self.server, *self.others))


@dataclass(frozen=True)
class Peer:
    """How an inbox is deployed, and what of it is measured."""

    deploy: Callable[[Mode, str], AbstractContextManager[Deployed]]
    counts: dict[Mode, int]
    """Events of a measurement, so that each takes some seconds."""
    warm: int
    """Events before it. Node needs thousands."""
    customers: str
    """The query that counts the rows of customers with this balance."""
    known: bool = False
    """Its events are about the customers of the warm-up again, not each about a new one."""
    lacks: dict[Mode, str] = field(default_factory=dict)
    template: str = "template0"
    """The database that its own begins as."""


class Bench:
    """The servers and peers of a run."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._folder = folder
        self._database = stack.enter_context(Database(durable=True))
        self._broker = stack.enter_context(Valkey())
        api = stack.enter_context(granian("benchmarks.peers.fixtures:api", threads=32))
        self._environment = {
            "STRIPE_API": f"http://127.0.0.1:{api.port}",
            "API_KEY": API_KEY,
            "SECRET": SECRET,
            "REDIS_URL": self._broker.url(),
            "CONNECTIONS": str(CONNECTIONS),
        }
        self._packages = self._python = folder
        self._endpoint = str(uuid.uuid4())
        self.peers = {
            "ours": Peer(
                self._ours,
                counts={DOOR: 16_000, WHOLE: 10_000, REFETCH: 4_000},
                warm=1_000,
                customers="SELECT count(*) FROM webhook_objects WHERE data->>'balance' = %s",
            )
        }

    def install_stripe_sync_engine(self) -> None:
        """Raises Missing."""
        folder = self._folder / "node"
        folder.mkdir()
        self._packages = install_stripe_sync_engine(folder)
        for processes in (1, 2):
            self.peers[f"stripe-sync-engine, {processes} process{'es' if processes > 1 else ''}"] = Peer(
                partial(self._stripe_sync_engine, processes),
                counts={DOOR: 6_000, WHOLE: 6_000, REFETCH: 3_000},
                warm=6_000,
                customers="SELECT count(*) FROM stripe.customers WHERE balance::text = %s",
                lacks={DOOR: "it stores no event; its request applies, and that is what is measured"},
            )

    def install_dj_stripe(self) -> None:
        """Raises Missing."""
        folder = self._folder / "django"
        folder.mkdir()
        self._python = install_dj_stripe(folder)
        self._prepare_dj_stripe("dj_stripe")
        self.peers["dj-stripe"] = Peer(
            self._dj_stripe,
            counts={DOOR: 400, REFETCH: 120},
            warm=100,
            customers="SELECT count(*) FROM djstripe_customer WHERE stripe_data->>'balance' = %s",
            template="dj_stripe",
            known=True,  # in its favour: a customer that it does not know it fetches twice
            lacks={WHOLE: "it has no such mode; its handlers ask the API whatever the delivery says"},
        )

    def measure(
        self,
        peer: Peer,
        mode: Mode,
        watch: Callable[[Deployed], AbstractContextManager[Any]] = lambda _deployed: nullcontext(),
    ) -> Iterator[tuple[str, str, float]]:
        """One round of one peer on an empty database: what, unit, value. `watch` is entered while it is measured."""
        count, first = peer.counts[mode], peer.warm
        customers = range(first) if peer.known else range(first, first + count)
        with (
            self._empty_database(peer.template) as url,
            peer.deploy(mode, url) as deployed,
            psycopg.connect(url, autocommit=True) as rows,
            self._prepared("w", deployed, first, range(first)) as warming,
        ):
            self._send(deployed, warming, first)
            self._drain(rows, deployed, mode)
            # Made now, when the warm-up is over: some peers write nothing that is not newer by a second.
            with self._prepared("m", deployed, count, customers) as prepared, watch(deployed):
                started, before = time.monotonic(), deployed.cpu()
                result = self._send(deployed, prepared, count)
                self._drain(rows, deployed, mode)
                seconds, cpu = time.monotonic() - started, deployed.cpu() - before
            if mode.applies:
                self._require_customers(rows, peer, mode)
        drained = deployed.open_events is not None and mode.applies
        # Without a worker the client's own clock is the finer one.
        yield "rate", "events/s", count / (seconds if drained else result["seconds"])
        yield "p50", "ms at the door", result["p50"]
        yield "p99", "ms at the door", result["p99"]
        yield "CPU", "us per event", cpu / count * 1e6

    @contextmanager
    def _prepared(self, run: str, deployed: Deployed, count: int, customers: range) -> Iterator[Path]:
        """Requests that were never sent before, in a file."""
        events = deliveries(f"{run}{secrets.token_hex(4)}", count, path=deployed.path, customers=customers)
        prepared = load.requests_file(self._folder, events)
        try:
            yield prepared
        finally:
            prepared.unlink()

    def _send(self, deployed: Deployed, prepared: Path, count: int) -> dict[str, Any]:
        result = load.send(deployed.server.port, prepared, connections=CONNECTIONS, seconds=LONGEST)
        if result["done"] != count:
            log = deployed.server.log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"not every event was taken: {result}\n{log}")
        return result

    def _drain(self, rows: psycopg.Connection[Any], deployed: Deployed, mode: Mode) -> None:
        deadline = time.monotonic() + LONGEST
        while deployed.open_events is not None and mode.applies and _number(rows, deployed.open_events):
            if time.monotonic() > deadline:
                raise RuntimeError(f"events are still open: {deployed.others[0].log.read_text()[-2000:]}")
            time.sleep(0.02)

    def _require_customers(self, rows: psycopg.Connection[Any], peer: Peer, mode: Mode) -> None:
        expected = peer.warm if peer.known else peer.warm + peer.counts[mode]
        found = _number(rows, peer.customers, str(SERVED if mode.refetches else DELIVERED))
        if found != expected:
            raise RuntimeError(f"{found} customers were written as they should be, instead of {expected}")

    @contextmanager
    def _empty_database(self, template: str) -> Iterator[str]:
        name = f"peer_{secrets.token_hex(4)}"
        made = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        self._administer(made.format(sql.Identifier(name), sql.Identifier(template)))
        self._administer("CHECKPOINT")
        try:
            yield self._url(name)
        finally:
            self._administer(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    # -- the deployments

    @contextmanager
    def _ours(self, mode: Mode, url: str) -> Iterator[Deployed]:
        given = self._environment | {
            "DATABASE_URL": url.replace("postgresql:", "postgresql+psycopg:"),
            "FETCH": "yes" if mode.refetches else "no",
        }
        worker = [sys.executable, "-m", "celery", "-A", "benchmarks.peers.own:celery", "worker", "-c", "1"]
        worker += ["-Q", "webhooks", "--loglevel", "warning", "--without-gossip", "--without-mingle"]
        with ExitStack() as stack:
            server = stack.enter_context(granian("benchmarks.peers.own:app", threads=CONNECTIONS, **given))
            others = (stack.enter_context(running(worker, given)),) if mode.applies else ()
            yield Deployed(server, PATH, others, OPEN)

    @contextmanager
    def _stripe_sync_engine(self, processes: int, mode: Mode, url: str) -> Iterator[Deployed]:
        port = free_port()
        given = self._environment | {
            "DATABASE_URL": url,
            "NODE_ENV": "production",
            "PACKAGES": str(self._packages),
            "PORT": str(port),
            "PROCESSES": str(processes),
            "REFETCH": "yes" if mode.refetches else "no",
        }
        command = [shutil.which("node") or "node", str(HERE / "stripe_sync_engine.mjs")]
        with running(command, given, port=port) as server:
            yield Deployed(server, "/webhooks")

    @contextmanager
    def _dj_stripe(self, mode: Mode, url: str) -> Iterator[Deployed]:
        port = free_port()
        given = self._dj_environment(url) | ({} if mode.applies else {"STORE_ONLY": "yes"})
        command = [str(self._python), "-m", "granian", "--interface", "wsgi", "--host", "127.0.0.1"]
        command += [
            "--port",
            str(port),
            "--workers",
            "2",
            "--blocking-threads",
            str(CONNECTIONS // 2),
            "--no-ws",
        ]
        with running(
            [*command, "--log-level", "warning", "dj_stripe_project:app"], given, port=port
        ) as server:
            yield Deployed(server, f"/stripe/webhook/{self._endpoint}/")

    def _dj_environment(self, url: str) -> dict[str, str]:
        return self._environment | {"DATABASE_URL": url, "ENDPOINT": self._endpoint, "PYTHONPATH": str(HERE)}

    def _prepare_dj_stripe(self, template: str) -> None:
        """Its tables and its endpoint, once: its migrations take longer than a measurement."""
        self._administer(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(template)))
        prepared = subprocess.run(
            [self._python, str(HERE / "dj_stripe_project.py")],
            env=os.environ | self._dj_environment(self._url(template)),
            capture_output=True,
            text=True,
            timeout=WITHIN,
            check=False,
        )
        if prepared.returncode:
            raise RuntimeError(f"dj-stripe could not be set up: {prepared.stderr[-2000:]}")

    def _url(self, database: str) -> str:
        return self._database.url(database).replace("+psycopg", "")

    def _administer(self, statement: sql.Composed | LiteralString) -> None:
        with psycopg.connect(self._url("postgres"), autocommit=True) as administrator:
            administrator.execute(statement)


def _number(rows: psycopg.Connection[Any], query: str, *values: str) -> int:
    return int(rows.execute(query, values).fetchone()[0])  # type: ignore[arg-type, index]
