"""A whole deployment that can be broken part by part, traffic for it, and the verdict on what is left."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch
from urllib.parse import urlsplit

import psutil
import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from tests.faults import site as app_of_all
from tests.faults.proxy import Proxy
from tests.services import Postgres, Valkey
from tests.shop import truth
from webhooks.testing import Simulator
from webhooks.testing.demo.processes import Deployment as Processes

__all__ = ["ROOT", "Callee", "Deployment", "wait_until"]

ROOT = Path(__file__).parents[2]

PATIENCE = 60.0
"""Seconds; a bound for what hangs, not a measure of speed."""

HURRY = (
    "UPDATE webhook_events SET due_at = clock_timestamp() WHERE state = 'pending' AND due_at > clock_timestamp()",
    "UPDATE webhook_effects SET due_at = clock_timestamp() WHERE state = 'recorded' AND due_at > clock_timestamp()",
    "DELETE FROM webhook_holds WHERE until IS NOT NULL",
)
"""What waits for minutes is due now: the waiting itself is tested elsewhere."""


class Callee:
    """Whom effects call. It does `keyed` once per key and `once` as often as it is asked, and remembers everything."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str]] = []
        """Effect, idempotency key, event."""
        self.happened: Counter[tuple[str, str]] = Counter()
        """Effect and event → how often it really happened."""
        self._keys: set[str] = set()
        self._lock = threading.Lock()
        self.delay = 0.0
        callee = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                callee.do(self.path.strip("/"), self.headers["Idempotency-Key"], self.headers["X-Event"])
                time.sleep(callee.delay)
                try:
                    self.send_response(200)
                    self.send_header("Content-Length", "2")
                    self.end_headers()
                    self.wfile.write(b"ok")
                except OSError:
                    return  # who asked is gone

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def do(self, name: str, key: str, event: str) -> None:
        with self._lock:
            self.calls.append((name, key, event))
            if name == "once" or key not in self._keys:
                self.happened[name, event] += 1
            self._keys.add(key)

    def __enter__(self) -> Self:
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


class _Processes(Processes):
    """Web, workers and beats that run our app. A name is a kind with a number after it: `worker2`."""

    def __enter__(self) -> Self:
        super().__enter__()
        (self.folder / "wsgi.py").write_text("from tests.faults.site import app, celery\n")
        (self.folder / "kill").mkdir(exist_ok=True)
        return self

    def _command(self, name: str) -> Sequence[str]:
        kind = name.rstrip("0123456789")
        command = [*super()._command(kind)]
        if kind == "worker":
            command += ["--hostname", f"{name}@%h"]
        level = self.environment.get("LOG_LEVEL", "WARNING")
        command = [level if word == "WARNING" else word for word in command]
        if kind == "beat":
            command[-1] = str(self.folder / f"{name}-schedule")
        return command


class Deployment:
    """Web, workers, beat, database, broker, provider, callee: each can be stopped, killed and started again."""

    def __init__(
        self,
        folder: Path,
        *,
        seed: int = 0,
        durable: bool = False,
        max_connections: int = 60,
        **environment: str,
    ) -> None:
        self.folder, self.seed = folder, seed
        self.chance = random.Random(seed)
        self.postgres, self.valkey = Postgres(durable=durable), Valkey()
        self.postgres.MAX_CONNECTIONS = max_connections  # type: ignore[misc] # this server's own
        self.stripe = Simulator("stripe", seed=seed)
        self.callee = Callee()
        self._environment = environment
        self._keys: list[Any] = []
        self.afterwards: list[Callable[[Deployment], None]] = []
        """What must still be done, once all has settled, to mend what a fault has left."""
        self.whole = False
        """Whether it was found whole last time."""

    # -- life

    def __enter__(self) -> Self:
        self.postgres.start()
        self.valkey.start()
        self.stripe.start()
        self.callee.__enter__()
        self.api = Proxy(urlsplit(self.stripe.api_url).port or 0).__enter__()
        self.wire = Proxy(self.valkey.port).__enter__()
        broker = self.valkey.url().replace(f":{self.valkey.port}/", f":{self.wire.port}/")
        endpoint = {
            **self.stripe.config,
            "api_base_url": f"http://127.0.0.1:{self.api.port}",
            "max_attempts": 50,
        }
        # Short enough that a test need not wait for what is long in real life.
        self.database = self.postgres.url() + "?connect_timeout=2"
        self.processes = _Processes(
            self.folder, {"stripe": endpoint}, database=self.database, broker=broker
        ).__enter__()
        ours = {"CALLEE_URL": self.callee.url, "PYTHONPATH": os.pathsep.join([str(self.folder), str(ROOT)])}
        self.processes.environment |= ours | self._environment
        self.engine = create_engine(self.database, poolclass=NullPool)
        with patch.dict(os.environ, self.processes.environment):
            # Whoever looks must not stumble over a connection that a fault has ended.
            self.shop = app_of_all.make(create=True, SQLALCHEMY_ENGINE_OPTIONS={"poolclass": NullPool})
        self.stripe.send_to(f"{self.processes.url}/webhooks/stripe", timeout=10)
        return self

    def __exit__(self, *_: object) -> None:
        self.processes.stop()
        self.shop.close()
        self.engine.dispose()
        self.api.__exit__()
        self.wire.__exit__()
        self.callee.__exit__()
        self.stripe.stop()
        self.postgres.close()
        self.valkey.close()

    def start(self, *names: str) -> None:
        """Start processes; when this returns the web server answers."""
        for name in names:
            self.processes.start(name)
        if "web" in names:
            self.processes.wait_for_web()

    def revive(self) -> list[str]:
        """Start again what has ended by itself, as an init system does; return its names."""
        ended = [name for name, process in self.processes.processes.items() if process.poll() is not None]
        for name in ended:
            self.processes.kill(name)  # and what it left behind
        self.start(*ended)
        return ended

    def kill_at(self, step: str) -> Path:
        """End, with SIGKILL, the first process that reaches this step; the file is gone when that has happened."""
        path = self.folder / "kill" / step
        path.touch()
        return path

    # -- traffic

    def change(self) -> None:
        """Something happens at the provider."""
        alive = [key for key in self._keys if self.stripe.world.get(key) is not None]
        dice = self.chance.random()
        if dice < 0.4 or not alive:
            kind = self.chance.choice(["customer", "product"])
            self._keys = [*self._keys[-200:], self.stripe.create(kind, title="new")]
            return
        with suppress(LookupError):  # another thread has deleted it meanwhile
            if dice < 0.9:
                self.stripe.update(self.chance.choice(alive), title=f"changed {self.chance.random()}")
            else:
                self.stripe.delete(self.chance.choice(alive))

    def deliver(self, *, threads: int = 8) -> None:
        """The provider sends what waits, each once, at the same time."""
        with self.stripe.world.lock:
            due, self.stripe._due = self.stripe._due, []
        self.stripe._shuffle(due)
        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(self.stripe._deliver, each) for each in due]:
                done.result()

    def traffic(self, changes: int = 20, *, threads: int = 8) -> None:
        """So many changes, and a delivery of each."""
        for _ in range(changes):
            self.change()
        self.deliver(threads=threads)

    @contextmanager
    def steady(self, pause: float = 0.02) -> Iterator[None]:
        """Changes and deliveries all the time, as long as this is open."""
        over = threading.Event()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                while not over.wait(pause):
                    self.traffic(self.chance.randrange(1, 5), threads=4)
            except BaseException as error:  # noqa: BLE001 - raised where the test can see it
                failed.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(60)
        if failed:
            raise failed[0]

    # -- what there is

    def ask(self, query: str, **values: Any) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.execute(text(query), values))

    def do(self, *statements: str) -> None:
        with self.engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    def superuser(self) -> psycopg.Connection[Any]:
        """A connection past everything, in autocommit."""
        return psycopg.connect(self.postgres.url().replace("+psycopg", ""), autocommit=True)

    def open(self) -> dict[str, int]:
        """What is not finished, by kind."""
        return {
            "deliveries": self.stripe.waiting,
            "events": self._count("webhook_events", "state IN ('pending', 'applying')"),
            "effects": self._count("webhook_effects", "state IN ('recorded', 'started')"),
        }

    def _count(self, table: str, condition: str) -> int:
        return int(self.ask(f"SELECT count(*) FROM {table} WHERE {condition}")[0][0])

    def settle(self, *, patience: float = PATIENCE, hurry: bool = True) -> None:
        """Wait until everything is delivered and applied, with processes and servers that run."""
        ends = time.monotonic() + patience
        left: Mapping[str, Any] = {}
        while True:
            self.revive()
            undelivered = {id(due.happening) for due in self.stripe._due}
            for happening in self.stripe.world.log:
                # Stripe tries for three days; here that is a loop.
                if not happening.delivered and id(happening) not in undelivered:
                    self.stripe.world.again(happening)
            self.deliver()
            try:
                if hurry:
                    self.do(*HURRY)
                left = self.open()
            except DBAPIError as error:
                left = {"database": type(error.orig).__name__}
            if not any(left.values()):
                break
            assert time.monotonic() < ends, f"never settled: {left}\n{self.said()}"
            time.sleep(0.25)
        while self.afterwards:
            self.afterwards.pop()(self)

    def said(self) -> str:
        """The ends of the logs."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in self.logs()
        )

    def logs(self) -> list[Path]:
        return sorted(self.folder.glob("*.log"))

    def memory(self) -> dict[str, int]:
        """Resident kilobytes of each process and its children."""
        found = {}
        for name, process in self.processes.processes.items():
            total = 0
            try:
                root = psutil.Process(process.pid)
                for each in [root, *root.children(recursive=True)]:
                    total += each.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            found[name] = total // 1024
        return found

    # -- the verdict

    def check(self) -> dict[str, str]:
        """Run a check, as beat does every 15 minutes; the open issues and what they say."""
        self.shop.state.watch.check()
        rows = self.ask("SELECT kind, evidence FROM webhook_issues WHERE state = 'open' ORDER BY id")
        return {kind: json.dumps(evidence) for kind, evidence in rows}

    def wrongs(self) -> list[str]:
        """Everything that is not as promised; call it when all has settled."""
        log = {happening.id: happening for happening in self.stripe.world.log}
        rows = self.ask(
            "SELECT dedup_key, type, state, outcome, error, deliveries FROM webhook_events WHERE origin = 'delivery'"
        )
        keys = Counter(row.dedup_key for row in rows)
        found = [f"lost: {key} {log[key].type}" for key in log if not keys[key]]
        found += [f"invented: {key}" for key in keys if key not in log]
        found += [f"recorded {number} times: {key}" for key, number in keys.items() if number != 1]
        found += [
            f"{row.state} {row.outcome} {row.error}: {row.dedup_key}"
            for row in rows
            if row.state != "applied"
        ]
        noted = Counter(self.shop.noted())
        found += [f"applied {noted[key]} times: {key}" for key in log if noted[key] != 1]
        copies, right = self.shop.copies(), truth(self.stripe)
        found += [f"stale or missing: {key}" for key in right if copies.get(key) != right[key]]
        found += [f"should be gone: {key}" for key in copies if key not in right]
        found += self.stripe.drift(self.shop.objects())
        return found + self._wrong_effects(log)

    def _wrong_effects(self, log: Mapping[str, Any]) -> list[str]:
        wanted = {"customer.updated": "keyed", "customer.created": "once"}
        promised = {(wanted[h.type], h.id) for h in log.values() if h.type in wanted}
        rows = self.ask("SELECT name, arguments ->> 'event' AS event, state FROM webhook_effects")
        states = {(row.name, row.event): row.state for row in rows}
        found = [f"never promised: {each}" for each in promised - set(states)]
        found += [f"nobody asked for it: {each}" for each in set(states) - promised]
        for each, number in self.callee.happened.items():
            if number > 1:
                found.append(f"happened {number} times: {each}")
        for each, state in states.items():
            if state not in {"done", "unknown"}:
                found.append(f"{state}: {each}")
            if state == "done" and self.callee.happened[each] == 0:
                found.append(f"said to be done and is not: {each}")
            if state == "unknown" and each[0] == "keyed":
                found.append(f"unknown although it could be repeated: {each}")
        return found

    def unknown(self) -> int:
        return self._count("webhook_effects", "state = 'unknown'")

    def settle_unknown(self) -> None:
        """What a person does with them: look whether it happened, and say so."""
        query = "SELECT idempotency_key AS key, name, arguments ->> 'event' AS event FROM webhook_effects WHERE state = 'unknown'"
        for row in self.ask(query):
            assert self.shop.state.outbox.settle(
                row.key, done=bool(self.callee.happened[row.name, row.event])
            )

    def assert_whole(self, *issues: str) -> None:
        """Every signed and acknowledged event was applied exactly once, the database is the provider's, nothing was done twice,
        and these issues are open and no others. An effect of which nobody can know is told of, and settled as people do it."""
        __tracebackhide__ = True
        wrong = self.wrongs()
        assert not wrong, "\n".join([f"{len(wrong)} wrong:", *wrong[:20], self.said()])
        unknown = self.unknown()
        expected = {*issues, *(["unknown_effect"] if unknown else [])}
        found = self.check()
        assert set(found) == expected, f"{found}"
        if unknown:
            self.settle_unknown()
            self.settle()
            assert set(self.check()) == set(issues)
            assert not self.wrongs()
        self.whole = True


def wait_until(
    true: Callable[[], bool], what: str = "this never came about", *, patience: float = PATIENCE
) -> None:
    ends = time.monotonic() + patience
    while not true():
        assert time.monotonic() < ends, what
        time.sleep(0.1)
