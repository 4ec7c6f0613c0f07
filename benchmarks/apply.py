"""How many events a worker applies per second: ours beside the usual recipe, on PostgreSQL, interleaved.

The recipe is what most tutorials do, without its broker, which is in its favour: one transaction of Flask-SQLAlchemy per
event that marks the event as seen, fetches the object where it fetches, and writes it.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import urllib3
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import JSON, String, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tests.services import Postgres
from webhooks import Webhooks, jsontext, providers
from webhooks.extension import state
from webhooks.inbox import arrival
from webhooks.provider import Request, Sample

from .machine import ROUNDS, Figures, figure

__all__ = ["run"]

KEY = "sk_test_benchmark"


@dataclass(frozen=True)
class Case:
    """One comparison: so many events about so many objects, fetched from an API that takes so long, or not fetched."""

    name: str
    events: int
    objects: int
    latency: float | None


CASES = (
    Case("no fetch, 1 event per object", 2000, 2000, None),
    Case("fetch 0 ms, 1 event per object", 600, 600, 0.0),
    Case("fetch 0 ms, 10 events per object", 1000, 100, 0.0),
    Case("fetch 100 ms, 1 event per object", 320, 320, 0.1),
    Case("fetch 100 ms, 10 events per object", 640, 64, 0.1),
)


def run() -> Figures:
    """Events per second of one worker process, median of rounds."""
    samples: dict[str, list[float]] = {}
    with Postgres() as server:
        for case in CASES:
            with _api(case.latency) as url:
                for _ in range(ROUNDS):
                    for variant, measure in VARIANTS.items():
                        rate = measure(server, case, url)
                        samples.setdefault(f"{case.name}: {variant}", []).append(rate)
    return {name: figure(taken, "events/s") for name, taken in samples.items()}


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


def _app(server: Postgres, **config: Any) -> tuple[Flask, SQLAlchemy]:
    app = Flask("benchmark", instance_path=tempfile.mkdtemp())
    app.config.update(SQLALCHEMY_DATABASE_URI=server.url(), CELERY={"broker_url": "memory://"}, **config)
    return app, SQLAlchemy(model_class=type("Base", (DeclarativeBase,), {}))


def _ours(server: Postgres, case: Case, url: str, *, handler: bool) -> float:
    endpoint = {"secrets": ["whsec_benchmark_secret"], "api_key": KEY, "fetch": case.latency is not None}
    app, db = _app(server, WEBHOOKS={"stripe": {**endpoint, "api_base_url": url or "http://127.0.0.1:9"}})
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
    started = time.perf_counter()
    done = parts.applier.drain()
    seconds = time.perf_counter() - started
    assert done.events == case.events
    parts.inbox.close_connections()
    with app.app_context():
        db.engine.dispose()
    return case.events / seconds


_made: dict[str, list[tuple[str, bytes]]] = {}


def _cached(case: Case) -> list[tuple[str, bytes]]:
    return _made.setdefault(case.name, _deliveries(case))


def _copy(db: SQLAlchemy) -> Any:
    class Copy(db.Model):  # type: ignore[name-defined, misc]
        id: Mapped[str] = mapped_column(String(64), primary_key=True)
        data: Mapped[Any] = mapped_column(JSON)

    return Copy


def _recipe(server: Postgres, case: Case, url: str) -> float:
    app, db = _app(server)

    class Seen(db.Model):  # type: ignore[name-defined, misc]
        id: Mapped[str] = mapped_column(String(64), primary_key=True)

    copy = _copy(db)
    db.init_app(app)
    pool = urllib3.PoolManager()

    def task(event_id: str, body: bytes) -> None:
        with app.app_context():
            if db.session.get(Seen, event_id) is not None:
                return
            customer = jsontext.loads(body)["data"]["object"]
            if case.latency is not None:
                answer = pool.request(
                    "GET", f"{url}/v1/customers/{customer['id']}", headers={"Authorization": f"Bearer {KEY}"}
                )
                customer = jsontext.loads(answer.data)
            row = db.session.get(copy, customer["id"])
            if row is None:
                db.session.add(copy(id=customer["id"], data=customer))
            else:
                row.data = customer
            db.session.add(Seen(id=event_id))
            db.session.commit()

    with app.app_context():
        db.drop_all()
        db.create_all()
    deliveries = _cached(case)
    started = time.perf_counter()
    with ThreadPoolExecutor(16 if case.latency else 1) as threads:  # as many as ours has requests in flight
        list(threads.map(lambda delivery: task(*delivery), deliveries))
    seconds = time.perf_counter() - started
    with app.app_context():
        db.session.execute(text("SELECT 1"))
        db.session.remove()
        db.engine.dispose()
    return case.events / seconds


VARIANTS: dict[str, Callable[[Postgres, Case, str], float]] = {
    "usual recipe": _recipe,
    "ours, mirror": lambda server, case, url: _ours(server, case, url, handler=False),
    "ours, with a handler": lambda server, case, url: _ours(server, case, url, handler=True),
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
