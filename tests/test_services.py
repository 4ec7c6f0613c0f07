"""The servers that other tests stand on are real, and do what fault tests ask of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import redis
from sqlalchemy import Connection, create_engine, make_url, text
from sqlalchemy.exc import OperationalError

from tests.services import Postgres, Valkey

ROOT = Path(__file__).parent.parent


def scalar(url: str, statement: str) -> object:
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            result = connection.execute(text(statement))
            return result.scalar() if result.returns_rows else None
    finally:
        engine.dispose()


def test_postgres_is_a_real_server_with_room_for_many_connections(postgres_url: str) -> None:
    assert str(scalar(postgres_url, "SELECT version()")).startswith("PostgreSQL ")
    assert int(str(scalar(postgres_url, "SHOW max_connections"))) >= Postgres.MAX_CONNECTIONS


def test_a_locked_row_is_skipped(fresh_postgres: str) -> None:
    engine = create_engine(fresh_postgres)

    def claim(connection: Connection) -> list[int]:
        rows = connection.execute(text("SELECT id FROM job ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED"))
        return list(rows.scalars())

    with engine.begin() as setup:
        setup.execute(text("CREATE TABLE job AS SELECT generate_series(1, 2) AS id"))
    with engine.begin() as first, engine.begin() as second, engine.begin() as third:
        assert [claim(first), claim(second), claim(third)] == [[1], [2], []]
    engine.dispose()


def test_a_fresh_database_is_empty_and_gone_after_its_test(
    pytester: pytest.Pytester, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL_TEST", postgres_url)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest("from tests.conftest import *")
    pytester.makepyfile(
        """
        from sqlalchemy import create_engine, text
        import pytest

        @pytest.mark.parametrize("round", [1, 2])
        def test_it(fresh_postgres, round):
            engine = create_engine(fresh_postgres)
            with engine.begin() as connection:
                connection.execute(text("CREATE TABLE only_once (id int)"))
            engine.connect()  # left open, as a careless test does
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:webhooks")
    result.assert_outcomes(passed=2)
    left = scalar(postgres_url, "SELECT count(*) FROM pg_database WHERE datname LIKE 'inbox_test_%'")
    assert left == 0


def test_both_databases_come_under_one_name(database_url: str) -> None:
    assert scalar(database_url, "SELECT 1") == 1
    assert make_url(database_url).drivername in {"sqlite", "postgresql+psycopg"}


def test_postgres_keeps_what_was_committed_when_it_is_killed(own_postgres: Postgres) -> None:
    url = own_postgres.url()
    scalar(url, "CREATE TABLE kept AS SELECT generate_series(1, 1000) AS id")
    engine = create_engine(url)
    connection = engine.connect()
    connection.execute(text("INSERT INTO kept VALUES (1001)"))  # not committed
    children = psutil.Process(own_postgres.pid).children(recursive=True)

    own_postgres.kill()
    assert own_postgres.pid is None
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    with pytest.raises(OperationalError):
        connection.execute(text("SELECT 1"))
    connection.close()
    engine.dispose()

    own_postgres.start()
    assert scalar(url, "SELECT count(*) FROM kept") == 1000
    own_postgres.restart()
    assert scalar(url, "SELECT count(*) FROM kept") == 1000


def test_redis_answers(fresh_redis: str) -> None:
    with redis.Redis.from_url(fresh_redis) as client:
        assert client.ping()
        assert client.dbsize() == 0
        client.set("left by a test", "1")


@pytest.mark.parametrize(("durable", "after"), [(False, None), (True, b"1")])
@pytest.mark.usefixtures("redis_url")
def test_a_durable_redis_keeps_its_data_when_it_is_killed(durable: bool, after: bytes | None) -> None:
    with Valkey(durable=durable) as server:
        for end in (server.kill, server.stop):
            with redis.Redis.from_url(server.url()) as client:
                client.set("key", "1")
            end()
            with pytest.raises(redis.ConnectionError), redis.Redis.from_url(server.url()) as client:
                client.ping()
            server.start()
            with redis.Redis.from_url(server.url()) as client:
                assert client.get("key") == after


@pytest.mark.usefixtures("postgres_url", "redis_url")
def test_servers_end_with_the_test_run_even_if_that_is_killed() -> None:
    program = """
from tests.services import Postgres, Valkey
servers = [Postgres(), Valkey()]
for server in servers:
    server.start()
    print(server.pid, server.directory, flush=True)
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    started = [line.split() for line in killed.stdout.splitlines()]
    assert len(started) == 2, killed.stderr

    def ended(pid: str, directory: str) -> bool:
        gone = not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE
        return gone and not os.path.exists(directory)  # noqa: PTH110

    deadline = time.monotonic() + 30
    while not all(ended(*server) for server in started):
        assert time.monotonic() < deadline, f"still there: {started}"
        time.sleep(0.1)
