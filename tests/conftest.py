"""Fixtures for every test: real servers, fresh databases, Hypothesis profiles.

`DATABASE_URL_TEST` and `REDIS_URL_TEST` name servers to use instead of our own. Where a server cannot be had, the tests that
need it are skipped; where `CI` is set they fail.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import redis
from celery import Celery
from hypothesis import HealthCheck, settings
from psycopg import sql
from sqlalchemy import URL, make_url

from tests.services import Postgres, Unavailable, Valkey

IN_CI = bool(os.environ.get("CI"))

os.environ.pop("COLUMNS", None)  # test runners set it, and tables would be cut to it

# Celery and kombu import parts of themselves when the first message is sent, which here is done by a thread; a test
# runner that looks through the loaded modules at that moment stumbles.
Celery(broker="memory://", set_as_current=False).send_task("nobody.hears")

settings.register_profile(
    "default",
    max_examples=50,
    deadline=None,  # a database answers when it answers
    derandomize=IN_CI,  # the same commit gives the same verdict
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "thorough", settings.get_profile("default"), max_examples=200, stateful_step_count=50
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or "default")

POSTGRES_FIXTURES = {"postgres_url", "fresh_postgres", "own_postgres"}
REDIS_FIXTURES = {"redis_url", "fresh_redis", "own_redis"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a server, so that `-m "not postgres"` leaves them out."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if fixtures & POSTGRES_FIXTURES:
            item.add_marker(pytest.mark.postgres)
        if fixtures & REDIS_FIXTURES:
            item.add_marker(pytest.mark.redis)


@contextmanager
def _available() -> Iterator[None]:
    try:
        yield
    except Unavailable as reason:
        if IN_CI:
            pytest.fail(f"CI needs every server: {reason}")
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The SQLAlchemy URL of a PostgreSQL server that all tests share."""
    if given := os.environ.get("DATABASE_URL_TEST"):
        yield make_url(given).set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
        return
    with _available():
        server = Postgres()
    with server:
        yield server.url()


@pytest.fixture
def fresh_postgres(postgres_url: str) -> Iterator[str]:
    """The SQLAlchemy URL of a new, empty PostgreSQL database, which is dropped after the test."""
    with new_database(postgres_url) as url:
        yield url


@contextmanager
def new_database(postgres_url: str) -> Iterator[str]:
    """A new, empty database on that server, which is dropped at the end."""
    server = make_url(postgres_url)
    name = f"inbox_test_{secrets.token_hex(6)}"
    with _administrator(server) as administrator:
        # The default copies through the write-ahead log, which takes four times as long for so small a template.
        strategy = sql.SQL("STRATEGY FILE_COPY" if administrator.info.server_version >= 150_000 else "")
        administrator.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE template0 {}").format(sql.Identifier(name), strategy)
        )
    yield server.set(database=name).render_as_string(hide_password=False)
    with _administrator(server) as administrator:
        administrator.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def _administrator(server: URL) -> psycopg.Connection[tuple[object, ...]]:
    dsn = server.set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(dsn, autocommit=True)


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A running PostgreSQL server for this test alone: to stop, kill and restart."""
    with _available():
        server = Postgres()
    with server:
        yield server


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The SQLAlchemy URL of a new SQLite file."""
    return f"sqlite:///{tmp_path / 'inbox.sqlite'}"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest) -> str:
    """The SQLAlchemy URL of a new, empty database: the test runs once on SQLite and once on PostgreSQL."""
    name = {"sqlite": "sqlite_url", "postgres": "fresh_postgres"}[request.param]
    url: str = request.getfixturevalue(name)
    return url


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The URL of a Redis-protocol server that all tests share."""
    if given := os.environ.get("REDIS_URL_TEST"):
        yield given
        return
    with _available():
        server = Valkey()
    with server:
        yield server.url()


@pytest.fixture
def fresh_redis(redis_url: str) -> Iterator[str]:
    """The URL of an empty Redis database. What `redis_url` names is flushed before and after the test."""
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
        yield redis_url
        client.flushdb()


@pytest.fixture
def own_redis() -> Iterator[Valkey]:
    """A running Redis-protocol server for this test alone: to stop, kill and restart."""
    with _available():
        server = Valkey()
    with server:
        yield server
