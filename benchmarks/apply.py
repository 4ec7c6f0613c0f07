"""How many events a worker process applies per second, and what each costs it: ours beside the usual recipe, on PostgreSQL
and Valkey, interleaved.

The recipe (`benchmarks.recipe`) is what most tutorials do: a Celery message per event, and one transaction of
Flask-SQLAlchemy that marks the event as seen, fetches the object where it fetches, and writes it. Where fetches take
time, it runs on 16 threads.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import JSON, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tests.services import Valkey
from webhooks import Webhooks, providers
from webhooks.extension import state
from webhooks.inbox import arrival
from webhooks.provider import Request, Sample

from . import recipe
from .machine import ROUNDS, Figures, figure
from .servers import Database

__all__ = ["run"]

KEY = "sk_test_benchmark"


@dataclass(frozen=True)
class Case:
    """One comparison: so many events about so many objects, fetched from an API that takes so long, or not fetched."""

    name: str
    events: int
    objects: int
    latency: float | None
    recipe: int
    """Events that the recipe is given: a rate needs no more, and it is slow."""


# As many as keep a worker busy for some seconds: what learning the API's pace costs at first must not be what is measured.
CASES = (
    Case("no fetch, 1 event per object", 9000, 9000, None, 2000),
    Case("fetch 0 ms, 1 event per object", 3000, 3000, 0.0, 800),
    Case("fetch 0 ms, 10 events per object", 12000, 1200, 0.0, 800),
    Case("fetch 100 ms, 1 event per object", 3000, 3000, 0.1, 600),
    Case("fetch 100 ms, 10 events per object", 30000, 3000, 0.1, 600),
)


def run() -> Figures:
    """Events per second of one worker process, and its CPU per event; medians of rounds."""
    rates: dict[str, list[float]] = {}
    costs: dict[str, list[float]] = {}
    with Database(durable=True) as database, Valkey() as broker:
        servers = Servers(database, broker)
        for case in CASES:
            with _api(case.latency) as url:
                for _ in range(ROUNDS):
                    for variant, measure in VARIANTS.items():
                        rate, cpu = measure(servers, case, url)
                        rates.setdefault(f"{case.name}: {variant}, rate", []).append(rate)
                        costs.setdefault(f"{case.name}: {variant}, CPU", []).append(cpu)
    figures = {name: figure(taken, "events/s") for name, taken in rates.items()}
    return figures | {name: figure(taken, "us per event") for name, taken in costs.items()}


@dataclass(frozen=True)
class Servers:
    """What all variants run on."""

    database: Database
    broker: Valkey


def _deliveries(case: Case) -> list[tuple[str, bytes]]:
    stripe = providers.get("stripe")
    assert stripe.sample is not None
    now = datetime.now(UTC)
    made = []
    for number in range(case.events):
        customer = _customer(f"cus_{number % case.objects}")
        made.append(
            (f"evt_{number}", stripe.sample(Sample("customer.updated", f"evt_{number}", now, customer)).body)
        )
    return made


def _customer(id_: str) -> dict[str, Any]:
    return {
        "id": id_,
        "object": "customer",
        "email": "ada@example.test",
        "metadata": {"filler": "text " * 300},
    }


def _app(servers: Servers, **config: Any) -> tuple[Flask, SQLAlchemy]:
    app = Flask("benchmark", instance_path=tempfile.mkdtemp())
    app.config.update(
        SQLALCHEMY_DATABASE_URI=servers.database.url(), CELERY={"broker_url": "memory://"}, **config
    )
    return app, SQLAlchemy(model_class=type("Base", (DeclarativeBase,), {}))


def _ours(servers: Servers, case: Case, url: str, *, handler: bool) -> tuple[float, float]:
    endpoint = {"secrets": ["whsec_benchmark_secret"], "api_key": KEY, "fetch": case.latency is not None}
    app, db = _app(servers, WEBHOOKS={"stripe": {**endpoint, "api_base_url": url or "http://127.0.0.1:9"}})
    webhooks = Webhooks()
    copy = _copy(db)
    if handler:

        @webhooks.sync("stripe", "customer")
        def save(event: Any, customer: Any) -> None:
            db.session.merge(copy(id=event.object.id, data=customer))

    db.init_app(app)
    webhooks.init_app(app)
    with app.app_context():
        db.drop_all()
        db.create_all()
    parts, stripe = state(app), providers.get("stripe")
    for number in range(0, case.events, 64):
        batch = []
        for _, body in _cached(case)[number : number + 64]:
            request = Request("POST", "", {"Content-Type": "application/json"}, body)
            batch.append(arrival("stripe", stripe, stripe.parse(request)[0], request))
        parts.inbox.record(batch)
    started, cpu = time.perf_counter(), time.process_time()
    done = parts.applier.drain()
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    assert done.events == case.events
    parts.inbox.close_connections()
    with app.app_context():
        db.engine.dispose()
    return case.events / seconds, cpu / case.events * 1e6


_made: dict[str, list[tuple[str, bytes]]] = {}


def _cached(case: Case) -> list[tuple[str, bytes]]:
    return _made.setdefault(case.name, _deliveries(case))


def _copy(db: SQLAlchemy) -> Any:
    class Copy(db.Model):  # type: ignore[name-defined, misc]
        id: Mapped[str] = mapped_column(String(64), primary_key=True)
        data: Mapped[Any] = mapped_column(JSON)

    return Copy


def _recipe(servers: Servers, case: Case, url: str) -> tuple[float, float]:
    threads = 16 if case.latency else 1
    return recipe.rate(
        servers.database.url(), servers.broker.url(), url, KEY, _cached(case)[: case.recipe], threads=threads
    )


VARIANTS: dict[str, Callable[[Servers, Case, str], tuple[float, float]]] = {
    "usual recipe": _recipe,
    "ours, mirror": lambda servers, case, url: _ours(servers, case, url, handler=False),
    "ours, with a handler": lambda servers, case, url: _ours(servers, case, url, handler=True),
}


@contextmanager
def _api(latency: float | None) -> Iterator[str]:
    """The provider's API in a process of its own: it must not share our interpreter."""
    if latency is None:
        yield ""
        return
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(latency, theirs), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def _serve(latency: float, pipe: Any) -> None:
    from webhooks.testing.simulator.server import ApiServer, pause  # noqa: PLC0415 - in the other process
    from webhooks.testing.simulator.world import Answer, Call  # noqa: PLC0415

    def answer(call: Call) -> Answer:
        pause(latency)
        return Answer(200, _customer(call.path.rpartition("/")[2]))

    server = ApiServer(answer)
    server.start()
    pipe.send(server.url)
    while True:
        time.sleep(60)
