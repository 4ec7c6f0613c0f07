"""The deployment without a server: SQLite, the broker of files, a worker beside the door. `python -m benchmarks embedded`.

Beside it Flask-SQLAlchemy's defaults on SQLite: the usual recipe alone, and with a process beside it that writes a row for
every event, as a worker of the recipe would. Eight connections; what is refused, and how often "database is locked" was why.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import String, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from . import load
from .machine import ROUNDS, Figures, figure
from .serving import Served, deliveries, running, serve

__all__ = ["run"]

SECONDS = 5.0
CONNECTIONS = 8
WARM = 300
MOST = 6_000
"""Deliveries per second: more than any of these takes."""
LOCKED = "database is locked"


def run() -> Figures:
    """Deliveries per second, milliseconds of waiting, and errors per thousand deliveries."""
    samples: dict[str, tuple[str, list[float]]] = {}
    for _ in range(ROUNDS):
        for name, deploy in VARIANTS.items():
            for what, unit, value in _measure(deploy):
                samples.setdefault(f"{name}: {what}", (unit, []))[1].append(value)
    return {name: figure(taken, unit) for name, (unit, taken) in samples.items()}


Deployed = tuple[Served, tuple[Served, ...]]


def _measure(deploy: Callable[[Path], Any]) -> Iterator[tuple[str, str, float]]:
    with tempfile.TemporaryDirectory() as name, deploy(Path(name)) as (server, others):
        folder = Path(name)
        for run, count in (("warm", WARM), ("measured", int(MOST * SECONDS))):
            prepared = load.requests_file(folder, deliveries(run, count))
            result = load.send(server.port, prepared, connections=CONNECTIONS, seconds=SECONDS)
            prepared.unlink()
        failed = result["sent"] - result["done"]
        locked = sum(served.log.read_text(errors="replace").count(LOCKED) for served in (server, *others))
    yield "rate", "deliveries/s", result["done"] / result["seconds"]
    yield "p50", "ms", result["p50"]
    yield "p99", "ms", result["p99"]
    yield "not taken", "per 1,000 deliveries", failed / max(result["sent"], 1) * 1e3
    yield f"“{LOCKED}” in the logs", "times", locked


@contextmanager
def _ours(folder: Path) -> Iterator[Deployed]:
    # The broker of files lies in the instance folder, which both must have.
    given = {"DATABASE_URL": f"sqlite:///{folder / 'inbox.db'}", "INSTANCE": str(folder)}
    worker = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "benchmarks.doors:celery",
        "worker",
        "-c",
        "1",
        "-Q",
        "webhooks",
    ]
    with ExitStack() as stack:
        server = stack.enter_context(serve("ours, front door", threads=CONNECTIONS, **given))
        yield server, (stack.enter_context(running([*worker, "--loglevel", "warning"], given)),)


@contextmanager
def _recipe(folder: Path, *, beside: bool) -> Iterator[Deployed]:
    given = {"DATABASE_URL": f"sqlite:///{folder / 'inbox.db'}"}
    with ExitStack() as stack:
        server = stack.enter_context(serve("usual recipe without its task", threads=CONNECTIONS, **given))
        others = ()
        if beside:
            others = (stack.enter_context(running([sys.executable, "-m", __name__], given)),)
        yield server, others


VARIANTS: dict[str, Callable[[Path], Any]] = {
    "usual recipe alone": lambda folder: _recipe(folder, beside=False),
    "usual recipe, a worker beside it": lambda folder: _recipe(folder, beside=True),
    "ours, a worker beside it": _ours,
}


def work() -> None:
    """The recipe's worker: writes a row for every event that it has not seen, until it is ended."""
    app = Flask("worker")
    app.config["SQLALCHEMY_DATABASE_URI"] = os.environ["DATABASE_URL"]
    db = SQLAlchemy(model_class=type("Base", (DeclarativeBase,), {}))

    class Applied(db.Model):  # type: ignore[name-defined, misc]
        id: Mapped[str] = mapped_column(String(255), primary_key=True)

    db.init_app(app)
    with app.app_context():
        db.create_all()
        while True:
            try:
                unseen = text("SELECT id FROM event WHERE id NOT IN (SELECT id FROM applied) LIMIT 20")
                for key in db.session.scalars(unseen).all():
                    if db.session.scalar(select(Applied).where(Applied.id == key)) is None:
                        db.session.add(Applied(id=key))
                        db.session.commit()
            except OperationalError as error:
                print(error.orig, file=sys.stderr, flush=True)  # the parent counts them
                db.session.rollback()
            db.session.remove()
            time.sleep(0.02)


if __name__ == "__main__":
    work()
