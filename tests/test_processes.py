"""The whole way on real processes: web server, Celery worker, beat, PostgreSQL, a Redis-protocol broker, a provider."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import func, select

from tests.services import Valkey
from webhooks import Webhooks, providers
from webhooks.extension import state
from webhooks.state import State
from webhooks.testing import Simulator
from webhooks.testing.demo.processes import Deployment

PATIENCE = 60.0
"""Seconds; a bound for a test that hangs, not a measure of speed."""


class Site:
    """A deployment with a simulated Stripe, and a look into its database."""

    def __init__(self, deployment: Deployment, stripe: Simulator, parts: State) -> None:
        self.deployment, self.stripe, self.parts = deployment, stripe, parts

    def open_events(self) -> int:
        events = self.parts.tables.events
        with self.parts.inbox.engine.connect() as connection:
            still = (
                select(func.count()).select_from(events).where(events.c.state.in_(["pending", "applying"]))
            )
            return int(connection.scalar(still) or 0)

    def wait_until_applied(self) -> None:
        wait_until(lambda: self.open_events() == 0)

    def drift(self) -> list[str]:
        with self.parts.inbox.engine.connect() as connection:
            return self.stripe.drift(connection.execute(select(self.parts.tables.objects)).all())

    def states(self) -> dict[str, int]:
        events = self.parts.tables.events
        with self.parts.inbox.engine.connect() as connection:
            return dict(
                connection.execute(select(events.c.state, func.count()).group_by(events.c.state)).all()
            )  # type: ignore[arg-type]


def wait_until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < ends, "this never came about"
        time.sleep(0.2)


@contextmanager
def deployed(folder: Path, database: str, broker: str | None, *names: str) -> Iterator[Site]:
    with Simulator("stripe") as stripe:
        config = {"stripe": stripe.config}
        app = Flask("looking", instance_path=str(folder))
        app.config.update(
            SQLALCHEMY_DATABASE_URI=database, WEBHOOKS=config, CELERY={"broker_url": broker or "memory://"}
        )
        db = SQLAlchemy(app)
        Webhooks(app)
        with app.app_context():
            db.create_all()
        with Deployment(folder, config, database=database, broker=broker) as deployment:
            for name in names:
                deployment.start(name)
            if "web" in names:
                deployment.wait_for_web()
            stripe.send_to(f"{deployment.url}/webhooks/stripe")
            yield Site(deployment, stripe, state(app))
        state(app).inbox.close_connections()
        with app.app_context():
            db.engine.dispose()


def deliver_changes(stripe: Simulator, number: int) -> None:
    customers = [stripe.create("customer") for _ in range(number)]
    for customer in customers:
        stripe.update(customer, title="changed")
    stripe.deliver()


def test_deliveries_reach_the_database_through_the_broker_and_beat_recovers_what_was_lost(
    fresh_postgres: str, fresh_redis: str, tmp_path: Path
) -> None:
    with deployed(tmp_path, fresh_postgres, fresh_redis, "web", "worker", "beat") as site:
        deliver_changes(site.stripe, 5)
        site.wait_until_applied()
        assert site.drift() == []
        assert site.states() == {"applied": 10}
        with redis.Redis.from_url(fresh_redis) as client:
            # A doorbell carries no payload, no secret, no id.
            assert not any(b"customer" in value for value in client.lrange("webhooks", 0, -1))


def test_a_broker_that_is_away_fails_no_delivery_and_the_sweep_finds_every_event(
    fresh_postgres: str, own_redis: Valkey, tmp_path: Path
) -> None:
    """A63: stop Redis, deliver, start Redis."""
    with deployed(tmp_path, fresh_postgres, own_redis.url(), "web", "worker") as site:
        deliver_changes(site.stripe, 1)
        site.wait_until_applied()
        own_redis.stop()
        deliver_changes(site.stripe, 5)
        assert site.stripe.counts.failed == 0
        assert site.open_events() == 10
        own_redis.start()
        wait_until(lambda: ring_the_sweep(own_redis.url(), tmp_path) or site.open_events() == 0)
        assert site.drift() == []
        assert site.states() == {"applied": 12}


def test_a_broker_that_forgets_everything_loses_nothing(
    fresh_postgres: str, own_redis: Valkey, tmp_path: Path
) -> None:
    with deployed(tmp_path, fresh_postgres, own_redis.url(), "web") as site:
        deliver_changes(site.stripe, 5)
        wait_until(lambda: bool(queued(own_redis.url())))
        with redis.Redis.from_url(own_redis.url()) as client:
            client.flushall()
        site.deployment.start("worker")
        wait_until(lambda: ring_the_sweep(own_redis.url(), tmp_path) or site.open_events() == 0)
        assert site.drift() == []
        assert site.states() == {"applied": 10}


def test_a_burst_costs_a_handful_of_messages(fresh_postgres: str, fresh_redis: str, tmp_path: Path) -> None:
    with deployed(tmp_path, fresh_postgres, fresh_redis, "web") as site:
        deliver_changes(site.stripe, 100)
        wait_until(lambda: queued(fresh_redis) > 0)
        assert site.open_events() == 200
        assert queued(fresh_redis) < 100


def queued(url: str) -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.llen("webhooks"))  # type: ignore[arg-type]


def ring_the_sweep(url: str, folder: Path) -> bool:
    """What beat does every 30 seconds."""
    code = (
        "import sys\nfrom celery import Celery\nfrom webhooks import queue\n"
        "Celery(broker=sys.argv[1]).send_task(queue.SWEEP, queue=queue.QUEUE, ignore_result=True)"
    )
    subprocess.run([sys.executable, "-c", code, url], cwd=folder, timeout=30, check=False)
    time.sleep(1)
    return False


def test_the_demo_ends_with_a_database_that_equals_the_provider(tmp_path: Path) -> None:
    """On SQLite and the broker of files, as `make run` does it."""
    command = [sys.executable, "-m", "flask", "--app", "wsgi", "webhooks", "demo", "--seconds", "4", "--json"]
    environment = {"FLASK_INSTANCE_PATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    root = Path(__file__).parent.parent
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    figures: dict[str, Any] = json.loads(done.stdout)
    assert figures["drift"] == 0
    assert figures["lost"] > 0
    assert figures["duplicates"] > 0
    assert figures["reordered"] > 0
    assert figures["recorded"] == figures["applied"] == figures["changes"]
    assert figures["deliveries"] > 0
    assert figures["api_calls"] > 0


@pytest.mark.parametrize("provider", ["stripe", "github"])
def test_the_demo_can_be_asked_for_one_provider(provider: str, tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "flask", "--app", "wsgi", "webhooks", "demo"),
        *("--seconds", "2", "--provider", provider, "--seed", "3", "--json", "--keep"),
    ]
    environment = {"FLASK_INSTANCE_PATH": str(tmp_path), "PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    root = Path(__file__).parent.parent
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert json.loads(done.stdout)["drift"] == 0
    assert done.returncode == 0
    # What is kept runs as it is, from its own folder and without any setting.
    [kept] = tmp_path.glob("webhooks-demo-*")
    assert f"look into it: cd {kept} && flask --app wsgi webhooks status" in done.stderr

    def flask(*arguments: str) -> Any:
        said = subprocess.run(
            [sys.executable, "-m", "flask", "--app", "wsgi", "webhooks", *arguments, "--json"],
            cwd=kept,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert said.returncode == 0, said.stderr
        return json.loads(said.stdout)

    before = len(flask("events"))
    assert before == json.loads(done.stdout)["recorded"]
    flask("send", provider, providers.get(provider).sample_types[0])
    assert flask("work", "--until-empty")["events"] == 1
    assert len(flask("events")) == before + 1
