"""The usual recipe's worker, for `celery -A benchmarks.recipe:celery worker`: a message per event, a transaction per event.

What most tutorials do: the task looks whether the event was seen, fetches the object if it fetches, and writes both.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import psutil
import urllib3
from celery import Celery
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import JSON, DateTime, Engine, String, func, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from webhooks import jsontext

__all__ = ["Recipe", "rate"]

PATIENCE = 120.0


class Recipe:
    """The app, its tables and its task; `url` "" does not fetch."""

    def __init__(self, database: str, broker: str, url: str, key: str) -> None:
        self.app = Flask("recipe")
        self.app.config["SQLALCHEMY_DATABASE_URI"] = database
        self.db = db = SQLAlchemy(model_class=type("Base", (DeclarativeBase,), {}))
        self.celery = Celery("recipe", broker=broker, set_as_current=False)
        self.celery.conf.update(task_ignore_result=True, worker_prefetch_multiplier=4)
        self._pool, self._url, self._key = urllib3.PoolManager(maxsize=64), url, key

        class Seen(db.Model):  # type: ignore[name-defined, misc]
            id: Mapped[str] = mapped_column(String(64), primary_key=True)
            at: Mapped[datetime] = mapped_column(
                DateTime(timezone=True), server_default=func.clock_timestamp()
            )

        class Copy(db.Model):  # type: ignore[name-defined, misc]
            id: Mapped[str] = mapped_column(String(64), primary_key=True)
            data: Mapped[Any] = mapped_column(JSON)

        db.init_app(self.app)
        self._seen, self._copy = Seen, Copy

        @self.celery.task(name="recipe.apply")
        def apply(event_id: str, body: str) -> None:
            self._apply(event_id, body)

        self.task = apply

    def _apply(self, event_id: str, body: str) -> None:
        with self.app.app_context():
            session = self.db.session
            if session.get(self._seen, event_id) is not None:
                return
            customer = jsontext.loads(body.encode())["data"]["object"]
            if self._url:
                headers = {"Authorization": f"Bearer {self._key}"}
                answer = self._pool.request(
                    "GET", f"{self._url}/v1/customers/{customer['id']}", headers=headers
                )
                customer = jsontext.loads(answer.data)
            row = session.get(self._copy, customer["id"])
            if row is None:
                session.add(self._copy(id=customer["id"], data=customer))
            else:
                row.data = customer
            session.add(self._seen(id=event_id))
            session.commit()


def rate(
    database: str, broker: str, url: str, key: str, deliveries: Iterable[tuple[str, bytes]], *, threads: int
) -> tuple[float, float]:
    """Events per second of one Celery worker process, from its first to its last, and its CPU in microseconds per event."""
    recipe = Recipe(database, broker, url, key)
    with recipe.app.app_context():
        recipe.db.drop_all()
        recipe.db.create_all()
        engine = recipe.db.engine
    count = 0
    for event_id, body in deliveries:
        recipe.task.delay(event_id, body.decode())
        count += 1
    environment = {"RECIPE_DATABASE": database, "RECIPE_BROKER": broker, "RECIPE_URL": url, "RECIPE_KEY": key}
    pool = ["-P", "threads", "-c", str(threads)] if threads > 1 else ["-P", "prefork", "-c", "1"]
    worker = subprocess.Popen(
        [
            *(sys.executable, "-m", "celery", "--quiet", "-A", "benchmarks.recipe:celery", "worker"),
            *(*pool, "--without-mingle", "--without-gossip", "--without-heartbeat"),
        ],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        seconds, cpu = _wait(engine, count, worker.pid)
    finally:
        worker.terminate()
        worker.wait(30)
        engine.dispose()
    return (count - 1) / seconds, cpu / count * 1e6


def _wait(engine: Engine, count: int, pid: int) -> tuple[float, float]:
    deadline = time.monotonic() + PATIENCE
    started: float | None = None
    while time.monotonic() < deadline:
        time.sleep(0.1)
        with engine.connect() as connection:
            done, seconds = connection.execute(
                text("SELECT count(*), extract(epoch FROM max(at) - min(at)) FROM seen")
            ).one()
        if done and started is None:
            started = _cpu(pid)
        if done == count:
            return float(seconds), _cpu(pid) - (started or 0.0)
    sys.exit("the usual recipe's worker did not come to an end")


def _cpu(pid: int) -> float:
    worker = psutil.Process(pid)
    return sum(sum(process.cpu_times()[:2]) for process in [worker, *worker.children(recursive=True)])


def __getattr__(name: str) -> Any:
    """`benchmarks.recipe:celery`, made when a worker asks for it."""
    if name != "celery":
        raise AttributeError(name)
    names = ("RECIPE_DATABASE", "RECIPE_BROKER", "RECIPE_URL", "RECIPE_KEY")
    return Recipe(*(os.environ[each] for each in names)).celery
