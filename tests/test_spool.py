"""While the database is away, or says nothing: who is told to come again, what is kept on this host, and that the door
waits for nobody."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from flask import Flask
from sqlalchemy import make_url, text
from werkzeug.test import TestResponse

from tests import apps
from tests.apps import GITHUB, STRIPE, build, deliver, post, rows, signed
from tests.services import Postgres
from webhooks import Webhooks
from webhooks.cli import cli
from webhooks.endpoints import Endpoint
from webhooks.extension import state
from webhooks.inbox.spool import Spool
from webhooks.issues import KINDS

ROOT = Path(__file__).parent.parent
NOBODY = "postgresql+psycopg://someone:secret@127.0.0.1:9/nothing"
BOTH = {"stripe": STRIPE, "github": GITHUB}
MAILGUN = {
    "provider": "mailgun",
    "secrets": ["key-0123456789abcdef0123456789abcdef"],
    "fetch": False,
    "spool": "always",
}


@pytest.fixture(params=["blueprint", "front door"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    apps.front_door = request.param == "front door"
    yield
    apps.front_door = False


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same limits, only shorter."""
    monkeypatch.setattr("webhooks.receiving.PATIENCE", timedelta(seconds=0.5))
    monkeypatch.setattr("webhooks.inbox.door.REST", timedelta(seconds=0.5))
    monkeypatch.setattr("webhooks.inbox.spool.AGAIN", timedelta(seconds=0.2))
    monkeypatch.setattr("webhooks.inbox.spool.LOOK", timedelta(0))


@contextmanager
def away(made: Flask) -> Iterator[None]:
    """The tables are gone for a while, which is what a database that is away comes to, and costs no server."""
    with state(made).inbox.engine.begin() as connection:
        connection.execute(text("ALTER TABLE webhook_events RENAME TO away"))
    yield
    with state(made).inbox.engine.begin() as connection:
        connection.execute(text("ALTER TABLE away RENAME TO webhook_events"))


@contextmanager
def unreachable(folder: Path, **config: Any) -> Iterator[Flask]:
    """An app whose database nobody answers for, in a folder of its own; its tables were never made."""
    from flask_sqlalchemy import SQLAlchemy

    app = Flask("tests.unreachable", instance_path=str(folder))
    app.config.from_mapping(SQLALCHEMY_DATABASE_URI=NOBODY, WEBHOOKS=BOTH, CELERY={"broker_url": "memory://"})
    app.config.from_mapping(config)
    SQLAlchemy(app)
    webhooks = Webhooks(app)
    app.register_blueprint(webhooks.blueprint, url_prefix="/webhooks")
    yield app


def spool_of(app: Flask) -> Spool:
    spool = state(app).spool
    assert spool is not None
    return spool


def eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def in_time(send: Callable[[], TestResponse]) -> TestResponse:
    """The answer, which must come while a provider still waits for it: all of them allow at least ten seconds here."""
    found: list[TestResponse] = []
    thread = threading.Thread(target=lambda: found.append(send()), daemon=True)
    thread.start()
    thread.join(8)
    assert found, "no answer"
    return found[0]


def keys(app: Flask) -> list[str]:
    return sorted(row.dedup_key for row in rows(app, "events"))


# -- the whole way


def test_what_comes_while_the_database_is_down_is_kept_where_nobody_would_send_it_again(
    own_postgres: Postgres, way: None, hasty: None
) -> None:
    """A91: the database is killed; GitHub never tries again and Stripe does. Afterwards each event is there once."""
    with build(own_postgres.url(), BOTH) as app:
        assert deliver(app, "github", "issues.opened", id="before").status_code == 200
        own_postgres.kill()
        down = datetime.now(UTC)
        told = deliver(app, "stripe", "customer.updated", id="evt_1")
        kept = [deliver(app, "github", "issues.opened", id=f"down-{n}") for n in range(3)]
        twice = deliver(app, "github", "issues.opened", id="down-0")
        refused = deliver(app, "github", "issues.opened", id="forged", secret="of somebody else")
        assert (told.status_code, told.headers["Retry-After"]) == (503, "30")
        assert [(one.status_code, one.get_data()) for one in [*kept, twice]] == [(200, b"")] * 4
        assert refused.status_code == 401
        held = spool_of(app).state()
        assert (held.rows, held.failed, held.trouble) == (4, 0, "")
        assert held.oldest is not None
        assert held.oldest >= down
        own_postgres.start()
        up = datetime.now(UTC)
        state(app).inbox.engine.dispose()  # the app's own connections were cut
        eventually(lambda: spool_of(app).state().rows == 0)  # by itself: no delivery, no worker and no beat
        assert deliver(app, "stripe", "customer.updated", id="evt_1").status_code == 200
        found = {row.dedup_key: row for row in rows(app, "events")}
        assert sorted(found) == ["before", "down-0", "down-1", "down-2", "evt_1"]
        assert {key: row.deliveries for key, row in found.items()} == dict.fromkeys(found, 1) | {"down-0": 2}
        assert all(down <= found[f"down-{n}"].received_at <= up for n in range(3))
        assert len(rows(app, "bodies")) == 5
        assert deliver(app, "github", "issues.opened", id="down-1").status_code == 200
        assert {row.dedup_key: row.deliveries for row in rows(app, "events")}["down-1"] == 2


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.apps import deliver
from tests.test_spool import unreachable

with unreachable(Path(sys.argv[1])) as app:
    answer = deliver(app, "github", "issues.opened", id="the-one")
    assert answer.status_code == 200, answer.status_code
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_is_killed_after_its_answer_leaves_what_another_one_drains(
    sqlite_url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "instance"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(folder)], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    with build(sqlite_url, BOTH, WEBHOOKS_SPOOL=str(folder / "webhooks-spool.sqlite")) as app:
        assert spool_of(app).state().rows == 1
        assert (state(app).drain_spool(), state(app).drain_spool()) == (1, 0)
        assert keys(app) == ["the-one"]
        assert (folder / "webhooks-spool.sqlite").stat().st_mode & 0o077 == 0


def test_a_new_process_drains_after_its_first_delivery(sqlite_url: str, tmp_path: Path) -> None:
    with unreachable(tmp_path) as dead:
        assert deliver(dead, "github", "issues.opened", id="old").status_code == 200
        path = spool_of(dead).path
    with build(sqlite_url, BOTH, WEBHOOKS_SPOOL=str(path)) as app:
        assert deliver(app, "github", "issues.opened", id="new").status_code == 200
        eventually(lambda: keys(app) == ["new", "old"])


def test_two_who_drain_at_once_do_not_count_a_delivery_twice(sqlite_url: str, tmp_path: Path) -> None:
    with unreachable(tmp_path) as dead:
        for n in range(20):
            assert deliver(dead, "github", "issues.opened", id=f"{n:02}").status_code == 200
        path = spool_of(dead).path
    with build(sqlite_url, BOTH, WEBHOOKS_SPOOL=str(path)) as app:
        drained: list[int] = []
        threads = [
            threading.Thread(target=lambda: drained.append(state(app).drain_spool())) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        state(app).drain_spool()
        assert [row.deliveries for row in rows(app, "events")] == [1] * 20


def test_what_is_answered_is_on_disk(tmp_path: Path) -> None:
    """A commit returns when the log is flushed (synchronous = FULL), not when it is handed to the system."""
    with unreachable(tmp_path) as app:
        assert deliver(app, "github", "issues.opened").status_code == 200
        with spool_of(app)._open() as file:
            assert file.execute("PRAGMA synchronous").fetchone() == (2,)
            assert file.execute("PRAGMA journal_mode").fetchone() == ("wal",)


# -- its bounds


@pytest.mark.parametrize("limit", [{"WEBHOOKS_SPOOL_MAX_ROWS": 2}, {"WEBHOOKS_SPOOL_MAX_BYTES": 10_000}])
def test_a_full_spool_is_an_honest_503(tmp_path: Path, way: None, limit: dict[str, int]) -> None:
    with unreachable(tmp_path, **limit) as app:
        answers = [
            deliver(app, "github", "issues.opened", id=f"{n}", object={"id": n, "body": "x" * 4000})
            for n in range(5)
        ]
        codes = [answer.status_code for answer in answers]
        assert codes[:1] == [200]
        assert codes[-1] == 503
        assert answers[-1].headers["Retry-After"] == "30"
        assert spool_of(app).state().rows == codes.count(200) < 3


def test_a_spool_that_cannot_be_written_is_an_honest_503(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with unreachable(tmp_path, WEBHOOKS_SPOOL=str(tmp_path / "file" / "spool")) as app:
        assert deliver(app, "github", "issues.opened").status_code == 503


@pytest.mark.parametrize(
    "how", [{"WEBHOOKS_SPOOL": False}, {"WEBHOOKS": {"github": {**GITHUB, "spool": "never"}}}]
)
def test_it_can_be_switched_off(tmp_path: Path, how: dict[str, Any]) -> None:
    with unreachable(tmp_path, **how) as app:
        assert deliver(app, "github", "issues.opened").status_code == 503
    assert not (tmp_path / "webhooks-spool.sqlite").exists()


def test_an_endpoint_of_any_provider_can_be_kept(tmp_path: Path) -> None:
    with unreachable(tmp_path, WEBHOOKS={"stripe": {**STRIPE, "spool": "always"}}) as app:
        assert deliver(app, "stripe", "customer.updated").status_code == 200
        assert spool_of(app).state().rows == 1


# -- what must not be broken by it


def test_a_delivery_that_cannot_be_recorded_does_not_hold_the_others(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unreachable(tmp_path) as dead:
        for key in ("1", "bad", "2"):
            assert deliver(dead, "github", "issues.opened", id=key).status_code == 200
        path = spool_of(dead).path
    with build(sqlite_url, BOTH, WEBHOOKS_SPOOL=str(path)) as app:
        inbox = state(app).inbox
        record = inbox.record

        def picky(arrivals: Any, *rest: Any) -> Any:
            if arrivals[0].dedup_key == "bad":
                raise ValueError("no row for this")
            return record(arrivals, *rest)

        monkeypatch.setattr(inbox, "record", picky)
        assert state(app).drain_spool() == 2
        assert keys(app) == ["1", "2"]
        assert (spool_of(app).state().rows, spool_of(app).state().failed) == (1, 1)
        monkeypatch.setattr("webhooks.watch.rows.HELD", timedelta(0))
        found = [finding for finding in state(app).watch.check() if finding.kind == "spool"]
        assert [(one.good, one.kind in KINDS) for one in found] == [(False, True)]
        monkeypatch.setattr(inbox, "record", record)
        assert state(app).drain_spool() == 1
        assert [one.good for one in state(app).watch.check() if one.kind == "spool"] == [True]
        assert keys(app) == ["1", "2", "bad"]


def test_a_token_is_good_for_one_event_also_by_way_of_the_spool(sqlite_url: str, tmp_path: Path) -> None:
    """A85: what Mailgun signs is a token; whether it was used before can only be asked when the database is back."""
    with unreachable(tmp_path, WEBHOOKS={"mailgun": MAILGUN}) as dead:
        endpoint: Endpoint = state(dead).endpoints["mailgun"]
        good = signed(endpoint.provider, endpoint.secrets[0], "delivered", id="the-event")
        forged = type(good)(
            good.method, good.url, good.headers, good.body.replace(b"the-event", b"another-1")
        )
        assert post(dead, "/webhooks/mailgun", good).status_code == 200
        assert post(dead, "/webhooks/mailgun", forged).status_code == 200
        assert post(dead, "/webhooks/mailgun", good).status_code == 200
        path = spool_of(dead).path
    with build(sqlite_url, {"mailgun": MAILGUN}, WEBHOOKS_SPOOL=str(path)) as app:
        assert state(app).drain_spool() == 3
        assert [(row.dedup_key, row.deliveries) for row in rows(app, "events")] == [
            (row.dedup_key, 2) for row in rows(app, "events") if row.dedup_key.endswith("the-event")
        ]


def test_an_answer_is_decided_and_never_put_off(tmp_path: Path) -> None:
    webhooks = Webhooks()

    @webhooks.answer("supabase", "send-sms", on_error="allow")
    def decide(event: Any) -> None:
        return None

    from flask_sqlalchemy import SQLAlchemy

    app = Flask("tests.answering", instance_path=str(tmp_path))
    app.config.from_mapping(
        SQLALCHEMY_DATABASE_URI=NOBODY,
        WEBHOOKS={
            "supabase": {
                "secrets": ["v1,whsec_" + "c2VjcmV0LW9mLTMyLWJ5dGVzLWZvci10ZXN0cyEh"],
                "fetch": False,
            }
        },
        CELERY={"broker_url": "memory://"},
    )
    SQLAlchemy(app)
    webhooks.init_app(app)
    app.register_blueprint(webhooks.blueprint, url_prefix="/webhooks")
    assert deliver(app, "supabase", "send-sms").status_code == 200
    assert spool_of(app).state().rows == 0


def test_status_says_what_is_held_and_nothing_of_what_has_gone(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhooks.inbox.spool.AGAIN", timedelta(hours=1))
    with build(sqlite_url, BOTH) as app:
        runner = app.test_cli_runner()
        with away(app):
            assert deliver(app, "github", "issues.opened").status_code == 200
        assert "1 deliveries" in runner.invoke(cli, ["status"]).output
        assert runner.invoke(cli, ["sweep"]).exit_code == 0
        shown = runner.invoke(cli, ["status", "--json"]).output
        assert '"rows": 0' in shown
        assert len(rows(app, "events")) == 1


def test_status_says_what_is_held_also_while_the_database_is_away(tmp_path: Path) -> None:
    with unreachable(tmp_path) as app:
        assert deliver(app, "github", "issues.opened").status_code == 200
        shown = app.test_cli_runner().invoke(cli, ["status"])
        assert shown.exit_code == 1
        assert "1 deliveries" in shown.output
        assert "the database does not answer" in shown.output


def test_wrong_settings_of_the_spool_are_named(sqlite_url: str) -> None:
    from webhooks.errors import ConfigError

    for wrong in (
        {"WEBHOOKS_SPOOL": 7},
        {"WEBHOOKS_SPOOL": " "},
        {"WEBHOOKS_SPOOL_MAX_ROWS": 0},
        {"WEBHOOKS_SPOOL_MAX_BYTES": "many"},
        {"WEBHOOKS_SPOOL_MAX_ROWS": True},
    ):
        with pytest.raises(ConfigError, match=next(iter(wrong))), build(sqlite_url, BOTH, **wrong):
            pass


# -- a database that is there and does not answer


def test_a_server_that_takes_connections_and_says_nothing_is_not_waited_for(
    tmp_path: Path, way: None
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql+psycopg://someone:secret@127.0.0.1:{silent.getsockname()[1]}/nothing"
        with unreachable(tmp_path, SQLALCHEMY_DATABASE_URI=url) as app:
            assert in_time(lambda: deliver(app, "stripe", "customer.updated")).status_code == 503
            assert in_time(lambda: deliver(app, "github", "issues.opened")).status_code == 200


def test_a_locked_table_is_not_waited_for_and_the_database_is_told_so(
    fresh_postgres: str, hasty: None
) -> None:
    dsn = make_url(fresh_postgres).set(drivername="postgresql").render_as_string(hide_password=False)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with build(fresh_postgres, BOTH) as app, psycopg.connect(dsn) as other:
        assert deliver(app, "stripe", "customer.updated", id="evt_1").status_code == 200
        other.execute("LOCK TABLE webhook_events IN ACCESS EXCLUSIVE MODE")
        assert in_time(lambda: deliver(app, "stripe", "customer.updated", id="evt_2")).status_code == 503
        assert in_time(lambda: deliver(app, "github", "issues.opened", id="kept")).status_code == 200
        with psycopg.connect(dsn, autocommit=True) as third:
            eventually(lambda: third.execute(waiting).fetchone() == (0,))
        other.rollback()
        eventually(lambda: deliver(app, "stripe", "customer.updated", id="evt_2").status_code == 200)
        eventually(lambda: keys(app) == ["evt_1", "evt_2", "kept"])


def test_a_server_that_falls_silent_costs_one_thread_and_not_all(fresh_postgres: str, hasty: None) -> None:
    """Its process is stopped: the connection stays, and nothing comes back."""
    with build(fresh_postgres, BOTH) as app:
        assert deliver(app, "stripe", "customer.updated", id="evt_1").status_code == 200
        connection: Any = state(app).inbox._door._connection
        backend = connection.driver_connection.info.backend_pid
        os.kill(backend, signal.SIGSTOP)
        try:
            found: list[int] = []
            threads = [
                threading.Thread(
                    target=lambda n=n: found.append(
                        deliver(app, "stripe", "customer.updated", id=f"stopped-{n}").status_code
                    ),
                    daemon=True,
                )
                for n in range(8)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(8)
            assert found == [503] * 8
        finally:
            os.kill(backend, signal.SIGCONT)
        eventually(lambda: deliver(app, "stripe", "customer.updated", id="evt_2").status_code == 200)


def test_the_doors_limits_are_not_the_apps(fresh_postgres: str) -> None:
    """Neither a time limit nor a lock on the pool: what the app does may take as long as it takes."""
    one = {"pool_size": 1, "max_overflow": 0}
    with (
        build(fresh_postgres, BOTH, SQLALCHEMY_ENGINE_OPTIONS=one) as app,
        state(app).inbox.engine.connect() as connection,
    ):
        assert in_time(lambda: deliver(app, "stripe", "customer.updated", id="evt_1")).status_code == 200
        assert connection.scalar(text("SHOW statement_timeout")) == "0"
        assert connection.scalar(text("SHOW lock_timeout")) == "0"


def test_a_locked_sqlite_file_is_not_waited_for(sqlite_url: str, hasty: None) -> None:
    import sqlite3

    with build(sqlite_url, BOTH) as app:
        assert deliver(app, "stripe", "customer.updated", id="evt_1").status_code == 200
        other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
        other.execute("BEGIN IMMEDIATE")
        assert in_time(lambda: deliver(app, "stripe", "customer.updated", id="evt_2")).status_code == 503
        assert in_time(lambda: deliver(app, "github", "issues.opened", id="kept")).status_code == 200
        other.rollback()
        other.close()
        assert deliver(app, "stripe", "customer.updated", id="evt_2").status_code == 200
        eventually(lambda: keys(app) == ["evt_1", "evt_2", "kept"])
