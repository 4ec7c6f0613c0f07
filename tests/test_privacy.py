"""People's data: how long it stays, how it is removed, and how it lies there. A92, A93, A95."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from flask import Flask
from sqlalchemy import event, text

from tests.apps import GITHUB, STRIPE, apply, build, deliver, rows
from tests.test_spool import unreachable
from webhooks import ConfigError, Webhooks
from webhooks.cli import cli
from webhooks.extension import state
from webhooks.inbox.retention import PURGE_BATCH
from webhooks.issues import Finding

CARRIED = {"stripe": {**STRIPE, "fetch": False}}
MAIL = "Zoë.Marker@example.org"
DAY = timedelta(days=1)


def command(app: Flask, *arguments: str, code: int = 0) -> Any:
    found = app.test_cli_runner().invoke(cli, [*arguments, "--json"])
    assert found.exit_code == code, found.output
    return json.loads(found.output)


def set_back(app: Flask, length: timedelta, where: str = "id > 0") -> None:
    tables = state(app).tables
    with state(app).inbox.transaction() as connection:
        connection.execute(
            tables.events.update().where(text(where)).values(received_at=datetime.now(UTC) - length)
        )


# -- how long it stays


def test_old_bodies_go_and_keys_stay(database_url: str) -> None:
    """A92"""
    with build(database_url, {**CARRIED, "github": {**GITHUB, "fetch": False, "keep_bodies": 86400}}) as app:
        for n in range(3):
            deliver(app, "stripe", "customer.updated", id=f"old-{n}")
        deliver(app, "github", "issues.opened", id="old-hub")
        apply(app)
        deliver(app, "stripe", "customer.updated", id="open")
        deliver(app, "stripe", "customer.updated", id="dead", body=b"no json")
        set_back(app, 31 * DAY)
        deliver(app, "stripe", "customer.updated", id="young")
        deliver(app, "github", "issues.opened", id="young-hub")
        state(app).applier.apply_now(
            [row.id for row in rows(app, "events") if row.dedup_key.startswith("young")],
            deadline=time.monotonic() + 60,
        )
        set_back(app, 2 * DAY, "dedup_key LIKE 'young%'")
        assert command(app, "purge")["bodies"] == 5  # `young-hub` too: its endpoint keeps bodies for a day
        kept = {row.event_id for row in rows(app, "bodies")}
        by_id = {row.id: (row.dedup_key[:5], row.state) for row in rows(app, "events")}
        assert {by_id[id_] for id_ in kept} == {
            ("open", "pending"),
            ("sha25", "dead"),
            ("young", "applied"),
        }
        assert len(by_id) == 8
        assert deliver(app, "stripe", "customer.updated", id="old-1").status_code == 200
        assert {row.dedup_key: row.deliveries for row in rows(app, "events")}["old-1"] == 2
        assert apply(app).outcomes == {"applied": 1}  # `open` and nothing else
        assert command(app, "purge")["bodies"] == 1


def test_bodies_go_in_batches_that_are_small_and_found_by_the_key(fresh_postgres: str) -> None:
    """A93: neither the first nor the last batch reads the table; a purge that was cut short goes on."""
    with build(fresh_postgres, CARRIED) as app:
        inbox = state(app).inbox
        many(app, 3 * PURGE_BATCH + 500, old=3 * PURGE_BATCH)
        sizes: list[int] = []
        transaction = inbox.transaction

        @contextmanager
        def watched() -> Iterator[Any]:
            before = count(app)
            with transaction() as connection:
                yield connection
            sizes.append(before - count(app))
            if len(sizes) == 2:
                raise KeyboardInterrupt

        inbox.transaction = watched  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            inbox.purge_bodies(30 * DAY)
        assert count(app) == PURGE_BATCH + 500  # what was done is done
        assert inbox.purge_bodies(30 * DAY) == PURGE_BATCH
        assert count(app) == 500
        assert max(sizes) == PURGE_BATCH <= 5000


def many(app: Flask, number: int, *, old: int) -> None:
    """So many applied events with bodies, the first of them old."""
    with state(app).inbox.engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO webhook_events (endpoint, dedup_key, origin, type, account, received_at, deliveries, "
                "last_delivery_at, state, attempts, due_at) SELECT 'stripe', 'm' || n, 'delivery', 't', '', "
                "now() - CASE WHEN n <= :old THEN interval '40 days' ELSE interval '0' END, 1, now(), 'applied', 1, now() "
                "FROM generate_series(1, :number) n"
            ),
            {"number": number, "old": old},
        )
        connection.execute(
            text(
                "INSERT INTO webhook_bodies (event_id, body) SELECT id, repeat('x', 500)::bytea FROM webhook_events"
            )
        )


def count(app: Flask) -> int:
    with state(app).inbox.engine.connect() as connection:
        return int(connection.scalar(text("SELECT count(*) FROM webhook_bodies")) or 0)


@pytest.mark.slow
def test_no_delivery_is_turned_away_while_half_a_million_bodies_go(fresh_postgres: str) -> None:
    """A93. A delivery that waited longer than the door's patience would be answered 503."""
    with build(fresh_postgres, CARRIED) as app:
        many(app, 500_000, old=500_000)
        gone: list[int] = []
        purge = threading.Thread(target=lambda: gone.append(state(app).inbox.purge_bodies(30 * DAY)))
        purge.start()
        delivered = 0
        while purge.is_alive():
            assert deliver(app, "stripe", "customer.updated", id=f"during-{delivered}").status_code == 200
            delivered += 1
            time.sleep(0.05)
        assert gone == [500_000]
        assert delivered > 10
        assert count(app) == delivered


# -- how it is removed


def everything(app: Flask) -> str:
    """All that all our tables hold, bodies opened, as one text."""
    tables = state(app).tables
    told = []
    for name in tables.__dataclass_fields__:
        for row in rows(app, name):
            values = dict(row._mapping)
            if values.get("body"):
                body = state(app).inbox.sealer.open(bytes(values.pop("body")), values["sealed"])
                told.append(body.decode("utf-8", "replace"))
            told.append(json.dumps(values, default=str, ensure_ascii=False))
    return "\n".join(told)


@pytest.mark.parametrize("keys", [None, [Fernet.generate_key().decode()]], ids=["plain", "sealed"])
def test_after_an_erasure_nothing_holds_their_data_and_what_comes_again_is_known(
    database_url: str, keys: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A95"""
    webhooks = Webhooks()

    @webhooks.effect(idempotent=True)
    def mail(_key: str, *, to: str) -> Any:
        if to.startswith("fail"):
            raise ValueError(to)
        return {"sent to": to}

    @webhooks.on("stripe", "customer.*")
    def promise(event: Any, customer: Any) -> None:
        mail.later(to=customer["email"])
        if event.type == "customer.created":
            mail.later(to=customer["email"], per="later")

    config = {"stripe": {**CARRIED["stripe"], "keep_refused": 86400, "mirror": "all"}}
    with build(database_url, config, webhooks=webhooks, WEBHOOKS_BODY_KEYS=keys) as app:
        theirs = {"id": "cus_T", "object": "customer", "email": MAIL, "name": "Zoë"}
        other = {"id": "cus_O", "object": "customer", "email": "other@example.org"}
        invoice = {"id": "in_1", "object": "invoice", "customer": "cus_T", "customer_email": MAIL.upper()}
        deliver(app, "stripe", "customer.created", id="evt_1", object=theirs)
        deliver(app, "stripe", "customer.updated", id="evt_2", object=other)
        deliver(app, "stripe", "invoice.paid", id="evt_3", object=invoice)
        apply(app)
        state(app).caller.drain()
        deliver(app, "stripe", "customer.updated", id="evt_4", object={**theirs, "name": "open"})
        deliver(app, "stripe", "customer.updated", id="evt_5", object=theirs, secret="whsec_a_wrong_secret")
        state(app).issues.enter(
            [Finding("stripe", "drift", good=False, detail=f"customer of {MAIL} differs")]
        )
        before = everything(app).casefold()
        assert before.count(MAIL.casefold()) > 8

        dry = command(app, "erase", "--object", "customer:cus_T", "--match", MAIL, "--dry-run")
        assert everything(app).casefold() == before
        done = command(app, "erase", "--object", "customer:cus_T", "--match", MAIL)
        assert done["rows"] == dry["rows"]
        assert done["rows"] == {
            "bodies": 3,
            "errors": 0,
            "objects": 2,
            "effects": 2,
            "rejections": 1,
            "issues": 1,
            "runs": 0,
            "spool": 0,
        }
        assert (done["never_applied"], done["in_keys"], done["sealed"]) == (1, 0, 0)
        after = everything(app).casefold()
        assert MAIL.casefold() not in after
        assert "zoë" not in after
        assert "other@example.org" in after
        # What comes again is recognised, although nothing but its key is there.
        for id_ in ("evt_1", "evt_3", "evt_4"):
            assert deliver(app, "stripe", "customer.created", id=id_, object=theirs).status_code == 200
        apply(app)
        found = {row.dedup_key: row for row in rows(app, "events")}
        assert {key: found[key].deliveries for key in found} == {
            "evt_1": 2,
            "evt_2": 1,
            "evt_3": 2,
            "evt_4": 2,
        }
        assert found["evt_4"].state == "ignored"
        assert MAIL.casefold() not in everything(app).casefold()
        assert MAIL.casefold() not in caplog.text.casefold().replace(
            f"drift: customer of {MAIL}".casefold(), ""
        )
        assert command(app, "erase", "--object", "customer:cus_T", "--match", MAIL)["rows"] == dict.fromkeys(
            done["rows"], 0
        )


def test_an_erasure_leaves_no_bytes_in_a_sqlite_file(sqlite_url: str) -> None:
    with build(sqlite_url, CARRIED) as app:
        deliver(
            app,
            "stripe",
            "customer.updated",
            object={"id": "cus_T", "object": "customer", "email": "secretmail"},
        )
        apply(app)
        command(app, "erase", "--match", "secretmail")
        state(app).inbox.close_connections()
        with state(app).inbox.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        assert b"secretmail" not in Path(sqlite_url.removeprefix("sqlite:///")).read_bytes()


@pytest.mark.parametrize(
    "written", [b'{"mail": "zo\\u00eb@x.org"}', b"mail=zo%C3%AB%40x.org", '"ZOË@X.ORG"'.encode()]
)
def test_however_it_is_written_it_is_found(sqlite_url: str, written: bytes) -> None:
    with build(sqlite_url, CARRIED) as app:
        deliver(app, "stripe", "customer.updated", body=written)
        assert command(app, "erase", "--match", "zoë@x.org")["rows"]["bodies"] == 1
        assert rows(app, "bodies") == []


def test_one_endpoint_alone(sqlite_url: str) -> None:
    with build(sqlite_url, {**CARRIED, "other": {**STRIPE, "fetch": False}}) as app:
        for endpoint in ("stripe", "other"):
            deliver(
                app, endpoint, "customer.updated", object={"id": "c", "object": "customer", "x": "findme"}
            )
        assert command(app, "erase", "--match", "findme", "--endpoint", "other")["rows"]["bodies"] == 1
        (left,) = rows(app, "bodies")
        assert left.event_id == rows(app, "events")[0].id


def test_what_is_in_the_spool_is_erased_too(sqlite_url: str, tmp_path: Path) -> None:
    with unreachable(tmp_path) as dead:
        for id_, about in (("1", "findme"), ("2", "other")):
            deliver(dead, "github", "issues.opened", id=id_, object={"id": 7, "title": about})
        path = tmp_path / "webhooks-spool.sqlite"
    with build(sqlite_url, {"github": {**GITHUB, "fetch": False}}, WEBHOOKS_SPOOL=str(path)) as app:
        assert command(app, "erase", "--match", "findme")["rows"]["spool"] == 1
        left = b"".join(one.read_bytes() for one in tmp_path.glob("webhooks-spool.sqlite*"))
        assert b"findme" not in left
        assert b"other" in left
        assert state(app).drain_spool() == 2
        assert [(row.dedup_key, row.state) for row in rows(app, "events")] == [
            ("1", "ignored"),
            ("2", "pending"),
        ]
        assert "findme" not in everything(app)


@pytest.mark.parametrize(
    "wrong", [[], ["--object", "customer"], ["--object", ":x"], ["--match", "abc"], ["--match", "   a"]]
)
def test_an_erasure_that_says_too_little_is_refused(sqlite_url: str, wrong: list[str]) -> None:
    with build(sqlite_url, CARRIED) as app:
        found = app.test_cli_runner().invoke(cli, ["erase", *wrong])
        assert found.exit_code == 2


# -- how it lies there

OLD_KEY, NEW_KEY = Fernet.generate_key().decode(), Fernet.generate_key().decode()
HANDED = {"id": "cus_1", "object": "customer", "email": "marker@example.org"}


def stored(app: Flask) -> bytes:
    return b"\n".join(bytes(row.body) for row in [*rows(app, "bodies"), *rows(app, "rejections")] if row.body)


def test_bodies_are_sealed_and_applied_as_before(database_url: str) -> None:
    webhooks, seen = Webhooks(), []
    webhooks.on("stripe", "customer.updated", name="see")(
        lambda event, thing: seen.append((event.data["id"], thing))
    )
    with build(database_url, CARRIED, webhooks=webhooks, WEBHOOKS_BODY_KEYS=[NEW_KEY]) as app:
        deliver(app, "stripe", "customer.updated", id="evt_1", object=HANDED)
        assert b"marker" not in stored(app)
        apply(app)
        assert seen == [("evt_1", HANDED)]
        shown = app.test_cli_runner().invoke(cli, ["show", "evt_1"])
        assert "marker@example.org" in shown.output


def test_keys_are_renewed_and_bodies_follow(database_url: str) -> None:
    refused = {"stripe": {**CARRIED["stripe"], "keep_refused": 86400}}
    with build(database_url, refused) as app:
        deliver(app, "stripe", "customer.updated", id="plain", object=HANDED)
    with build(database_url, refused, WEBHOOKS_BODY_KEYS=OLD_KEY) as app:
        deliver(app, "stripe", "customer.updated", id="old", object=HANDED)
        deliver(app, "stripe", "customer.updated", id="refused", object=HANDED, secret="whsec_of_somebody")
    with build(database_url, refused, WEBHOOKS_BODY_KEYS=[NEW_KEY, OLD_KEY]) as app:
        deliver(app, "stripe", "customer.updated", id="new", object=HANDED)
        assert command(app, "reencrypt")["bodies"] == 3
        assert command(app, "reencrypt")["bodies"] == 0
        assert b"marker" not in stored(app)
    with build(database_url, refused, WEBHOOKS_BODY_KEYS=[NEW_KEY]) as app:
        apply(app)
        assert {row.state for row in rows(app, "events")} == {"applied"}
        assert everything(app).count("marker@example.org") >= 4
        assert command(app, "reencrypt", "--plain")["bodies"] == 4
        assert {row.sealed for row in [*rows(app, "bodies"), *rows(app, "rejections")]} == {None}
    with build(database_url, refused) as app:
        assert stored(app).count(b"marker@example.org") == 4
        assert "WEBHOOKS_BODY_KEYS is not set" in app.test_cli_runner().invoke(cli, ["reencrypt"]).output


def test_a_body_whose_key_is_not_there_waits_for_it(sqlite_url: str) -> None:
    with build(sqlite_url, CARRIED, WEBHOOKS_BODY_KEYS=[OLD_KEY]) as app:
        deliver(app, "stripe", "customer.updated", id="sealed", object=HANDED)
    with build(sqlite_url, CARRIED, WEBHOOKS_BODY_KEYS=[NEW_KEY]) as app:
        deliver(app, "stripe", "customer.updated", id="fine", object={**HANDED, "id": "cus_2"})
        apply(app)
        found = {row.dedup_key: row for row in rows(app, "events")}
        assert (found["fine"].state, found["sealed"].state, found["sealed"].attempts) == (
            "applied",
            "pending",
            0,
        )
        assert "not among WEBHOOKS_BODY_KEYS" in found["sealed"].error
        assert command(app, "erase", "--match", "marker@example.org", code=1)["sealed"] == 1
    with build(sqlite_url, CARRIED, WEBHOOKS_BODY_KEYS=[NEW_KEY, OLD_KEY]) as app:
        with state(app).inbox.transaction() as connection:
            connection.execute(text("UPDATE webhook_events SET due_at = received_at"))
        apply(app)
        assert {row.state for row in rows(app, "events")} == {"applied"}


def test_a_body_that_looks_sealed_is_taken_as_it_came(sqlite_url: str) -> None:
    """Whether it is sealed says a column, never what it looks like."""
    looks = Fernet(OLD_KEY.encode()).encrypt(b"a trap")
    with build(sqlite_url, CARRIED) as app:
        deliver(app, "stripe", "customer.updated", body=looks)
    with build(sqlite_url, CARRIED, WEBHOOKS_BODY_KEYS=[OLD_KEY]) as app:
        (row,) = rows(app, "events")
        assert state(app).inbox.bodies([row.id])[row.id][0] == looks


def test_without_a_key_nothing_is_written_in_the_clear(sqlite_url: str) -> None:
    def no_key() -> str:
        raise OSError

    with build(sqlite_url, {**CARRIED, "github": GITHUB}, WEBHOOKS_BODY_KEYS=[no_key]) as app:
        assert deliver(app, "stripe", "customer.updated").status_code == 503
        assert deliver(app, "github", "issues.opened").status_code == 503
        assert (rows(app, "events"), rows(app, "bodies")) == ([], [])


def test_the_spool_is_sealed_as_well(sqlite_url: str, tmp_path: Path) -> None:
    with unreachable(tmp_path, WEBHOOKS_BODY_KEYS=[OLD_KEY]) as dead:
        assert (
            deliver(dead, "github", "issues.opened", object={"id": 7, "title": "marker"}).status_code == 200
        )
        path = tmp_path / "webhooks-spool.sqlite"
        assert b"marker" not in b"".join(one.read_bytes() for one in tmp_path.glob("webhooks-spool*"))
    with build(sqlite_url, {"github": GITHUB}, WEBHOOKS_SPOOL=str(path), WEBHOOKS_BODY_KEYS=[OLD_KEY]) as app:
        assert state(app).drain_spool() == 1
        assert "marker" in everything(app)


@pytest.mark.parametrize("wrong", ["short", "", [], [7], ["x" * 44], [{"file": "/nowhere/at/all"}]])
def test_a_key_that_is_none_stops_the_start(sqlite_url: str, wrong: Any) -> None:
    with (
        pytest.raises(ConfigError, match="WEBHOOKS_BODY_KEYS"),
        build(sqlite_url, CARRIED, WEBHOOKS_BODY_KEYS=wrong),
    ):
        pass


def test_where_a_batch_begins_is_found_by_the_key_and_not_by_reading_the_table(fresh_postgres: str) -> None:
    """A93: the statement that the purge really sends, half-way through a table."""
    with build(fresh_postgres, CARRIED) as app:
        inbox = state(app).inbox
        many(app, 20_000, old=20_000)
        with inbox.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").execute(text("VACUUM ANALYZE"))
        sent: list[tuple[str, Any]] = []

        def keep(_c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
            if statement.startswith("SELECT webhook_bodies.event_id") and len(sent) < 11:
                sent.append((statement, parameters))

        event.listen(inbox.engine, "before_cursor_execute", keep)
        assert inbox.purge_bodies(60 * DAY) == 0
        assert inbox.purge_bodies(41 * DAY) == 0
        statement, parameters = sent[0]
        with inbox.engine.connect() as connection:
            told = connection.exec_driver_sql(
                "EXPLAIN " + statement, {**parameters, **half(parameters)}
            ).scalars()
            plan = "\n".join(told)
        assert "Index" in plan
        assert "Sort" not in plan
        assert "Seq Scan on webhook_bodies" not in plan


def half(parameters: dict[str, Any]) -> dict[str, Any]:
    """As if the batch before had ended in the middle of the table."""
    return {name: 10_000 for name, value in parameters.items() if value == 0}
