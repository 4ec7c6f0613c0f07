"""Models and migrations say the same, on both databases; a host's own migrations make our tables, once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import flask_migrate
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Column, Connection, Engine, Integer, MetaData, Table, create_engine, inspect, text

from tests.apps import STRIPE, apply, build, deliver, rows
from webhooks import Webhooks
from webhooks.models import tables

ROOT = Path(__file__).parent.parent
VERSIONS = ROOT / "migrations" / "versions"
GET_ENGINE = "ignore:'get_engine' is deprecated:DeprecationWarning"
"""Flask-Migrate's own env.py asks for the engine in two ways, the older one first."""


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    engine = create_engine(url)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def proposals(url: str) -> list[Any]:
    """What Alembic would change to make the database what the models say."""
    metadata = MetaData()
    tables(metadata)
    with connected(url) as connection:
        options = {"compare_type": True, "compare_server_default": True}
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))


def schema(engine: Engine) -> dict[str, Any]:
    """Our tables with all that Alembic does not compare: conditions of indexes, keys, and whether numbers come back."""
    found: dict[str, Any] = {}
    looked = inspect(engine)
    for name in looked.get_table_names():
        if not name.startswith("webhook_"):
            continue
        with engine.connect() as connection:
            if engine.dialect.name == "sqlite":
                master = "SELECT sql FROM sqlite_master WHERE tbl_name = :name AND type = :type AND sql IS NOT NULL"
                indexes = set(connection.scalars(text(master), {"name": name, "type": "index"}))
                (made,) = connection.scalars(text(master), {"name": name, "type": "table"})
                extra: Any = "AUTOINCREMENT" in made
            else:
                by_name = "SELECT indexdef FROM pg_indexes WHERE tablename = :name"
                indexes = set(connection.scalars(text(by_name), {"name": name}))
                extra = [column["name"] for column in looked.get_columns(name) if column["autoincrement"]]
        found[name] = {
            "columns": {
                c["name"]: (str(c["type"]), c["nullable"], c["default"]) for c in looked.get_columns(name)
            },
            "key": looked.get_pk_constraint(name),
            "unique": sorted(map(str, looked.get_unique_constraints(name))),
            "indexes": {re.sub(r"\s+", " ", index) for index in indexes},
            "counts": extra,
        }
    return found


def schema_of(url: str) -> dict[str, Any]:
    engine = create_engine(url)
    try:
        return schema(engine)
    finally:
        engine.dispose()


@pytest.fixture
def modelled(database_url: str) -> dict[str, Any]:
    """The schema that the models make by themselves. The database is empty again afterwards."""
    metadata = MetaData()
    tables(metadata)
    engine = create_engine(database_url)
    metadata.create_all(engine)
    found = schema(engine)
    metadata.drop_all(engine)
    engine.dispose()
    return found


def flask(url: str, folder: Path, *arguments: str) -> None:
    """`flask …` of the reference deployment, as an operator runs it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLASK_")}
    environment |= {"DATABASE_URL": url, "FLASK_INSTANCE_PATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "flask", "--app", "wsgi", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(
    not VERSIONS.is_dir(), reason="the history of the reference deployment has no revision yet"
)
def test_the_history_of_the_reference_deployment_makes_what_the_models_say(
    database_url: str, modelled: dict[str, Any], tmp_path: Path
) -> None:
    flask(database_url, tmp_path, "db", "upgrade")
    assert proposals(database_url) == []
    assert schema_of(database_url) == modelled
    flask(database_url, tmp_path, "db", "upgrade")  # a second time changes nothing
    assert schema_of(database_url) == modelled


class Host:
    """Somebody's app with a table of its own and a migration history of its own."""

    def __init__(self, url: str, folder: Path) -> None:
        self.folder = folder
        self.app = Flask("host", instance_path=str(folder))
        self.app.config.from_mapping(
            SQLALCHEMY_DATABASE_URI=url, WEBHOOKS={"stripe": STRIPE}, CELERY={"broker_url": "memory://"}
        )
        self.db = SQLAlchemy(self.app)
        Table("orders", self.db.metadata, Column("id", Integer, primary_key=True))
        flask_migrate.Migrate(self.app, self.db, directory=str(folder / "migrations"))
        Webhooks(self.app)

    def migrate(self) -> list[Path]:
        """`flask db migrate`; returns the revisions that there are now."""
        with self.app.app_context():
            flask_migrate.migrate()
        return sorted((self.folder / "migrations" / "versions").glob("*.py"))


@pytest.fixture
def host(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    # Flask-Migrate's env.py sets up logging for a process of its own, and would silence everybody else's here.
    monkeypatch.setattr("logging.config.fileConfig", lambda *_, **__: None)
    made = Host(database_url, tmp_path)
    with made.app.app_context():
        flask_migrate.init()
    yield made
    with made.app.app_context():
        made.db.engine.dispose()


@pytest.mark.filterwarnings(GET_ENGINE)
def test_a_hosts_generated_migration_makes_our_tables_and_the_next_one_nothing(
    host: Host, database_url: str, modelled: dict[str, Any]
) -> None:
    (first,) = host.migrate()
    with host.app.app_context():
        flask_migrate.upgrade()
    assert schema_of(database_url) == modelled
    assert host.migrate() == [first]
    assert "webhooks" not in first.read_text().replace("webhook_", "")  # it needs nothing of ours to run
    with host.app.app_context():
        flask_migrate.downgrade(revision="base")
    assert schema_of(database_url) == {}


@pytest.mark.filterwarnings(GET_ENGINE)
def test_what_a_generated_migration_has_made_works(host: Host, database_url: str) -> None:
    host.migrate()
    with host.app.app_context():
        flask_migrate.upgrade()
    with build(database_url, {"stripe": {**STRIPE, "fetch": False}}) as app:
        assert deliver(app, "stripe", "customer.updated").status_code == 200
        apply(app)
        assert [row.outcome for row in rows(app, "events")] == ["applied"]


def test_a_change_of_the_models_is_noticed(database_url: str) -> None:
    """What the comparison above rests on."""
    metadata = MetaData()
    found = tables(metadata)
    engine = create_engine(database_url)
    metadata.create_all(engine)
    assert proposals(database_url) == []
    before = schema(engine)
    with engine.begin() as connection:
        connection.execute(text("DROP INDEX ix_webhook_events_due"))
        connection.execute(text("CREATE INDEX ix_webhook_events_due ON webhook_events (due_at)"))
    assert schema(engine) != before
    with engine.begin() as connection:
        connection.execute(text("DROP INDEX ix_webhook_events_due"))
    (index,) = [index for index in found.events.indexes if index.name == "ix_webhook_events_due"]
    index.create(engine)
    assert schema(engine) == before
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE webhook_runs ADD COLUMN more INTEGER"))
    assert [change[0] for change in proposals(database_url)] == ["remove_column"]
    engine.dispose()


def test_claim_numbers_never_come_twice(database_url: str) -> None:
    """The fence rests on it: not even when the newest rows were deleted."""
    metadata = MetaData()
    found = tables(metadata)
    engine = create_engine(database_url)
    metadata.create_all(engine)
    drawn = []
    for _ in range(3):
        with engine.begin() as connection:
            made = connection.execute(
                found.claims.insert().values(worker="w", claimed_at=text("CURRENT_TIMESTAMP"))
            )
            drawn.append(made.inserted_primary_key[0])
            connection.execute(found.claims.delete())
    assert drawn == sorted(set(drawn))
    engine.dispose()


def test_downgrading_refuses_to_lose_which_bodies_are_sealed(database_url: str, tmp_path: Path) -> None:
    flask(database_url, tmp_path, "db", "upgrade")
    with connected(database_url) as connection:
        connection.execute(
            text("INSERT INTO webhook_bodies (event_id, body, sealed) VALUES (1, :body, 'a key')"),
            {"body": b"x"},
        )
        connection.commit()
    with pytest.raises(AssertionError, match="reencrypt --plain"):
        flask(database_url, tmp_path, "db", "downgrade", "0001")
    with connected(database_url) as connection:
        connection.execute(text("UPDATE webhook_bodies SET sealed = NULL"))
        connection.commit()
    flask(database_url, tmp_path, "db", "downgrade", "0001")
    flask(database_url, tmp_path, "db", "upgrade")
    assert proposals(database_url) == []
    with connected(database_url) as connection:
        assert [bytes(row[0]) for row in connection.execute(text("SELECT body FROM webhook_bodies"))] == [
            b"x"
        ]


@pytest.mark.slow
def test_an_upgrade_of_a_million_rows_holds_up_no_delivery(fresh_postgres: str, tmp_path: Path) -> None:
    """A94: from the first revision, with a reader that holds the table for a while, and inserts all the time."""
    flask(fresh_postgres, tmp_path, "db", "upgrade", "0001")
    engine = create_engine(fresh_postgres)
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO webhook_bodies (event_id, body) SELECT n, 'x' FROM generate_series(1, 1000000) n"
            )
        )
    waits: list[float] = []
    over = threading.Event()

    def insert() -> None:
        number = 2_000_000
        while not over.is_set():
            number += 1
            started = time.monotonic()
            with engine.begin() as connection:
                connection.execute(
                    text(f"INSERT INTO webhook_bodies (event_id, body) VALUES ({number}, 'x')")
                )
            waits.append(time.monotonic() - started)
            time.sleep(0.01)

    inserting = threading.Thread(target=insert)
    inserting.start()
    try:
        with engine.begin() as reader:
            reader.execute(text("SELECT count(*) FROM webhook_bodies"))
            upgrading = threading.Thread(target=flask, args=(fresh_postgres, tmp_path, "db", "upgrade"))
            upgrading.start()
            time.sleep(6)  # the upgrade waits for the reader; nobody waits for the upgrade
            assert upgrading.is_alive()
        upgrading.join(60)
        assert not upgrading.is_alive()
    finally:
        over.set()
        inserting.join()
        engine.dispose()
    assert proposals(fresh_postgres) == []
    assert len(waits) > 100
    assert max(waits) < 2.0
