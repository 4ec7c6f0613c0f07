"""`flask webhooks …`: every command for programs and for people, its exit code, and what it says about bad input."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import insert, select, update

from webhooks import Event, GiveUp, Webhooks
from webhooks.cli import COMMANDS, cli
from webhooks.provider import Sample
from webhooks.state import State

SECRET = "whsec_test_of_the_command_line"
OLD_SECRET = "whsec_the_one_before_it"
HUB_SECRET = "a secret of github"


@dataclass
class Operator:
    """An app with two endpoints, and somebody who types commands."""

    app: Flask
    db: SQLAlchemy
    webhooks: Webhooks

    @property
    def state(self) -> State:
        found = self.app.extensions["webhooks"]
        assert isinstance(found, State)
        return found

    def run(self, *arguments: str, exit_code: int = 0) -> Result:
        result = self.app.test_cli_runner().invoke(cli, list(arguments))
        assert result.exit_code == exit_code, result.output + repr(result.exception)
        assert SECRET not in result.output
        assert HUB_SECRET not in result.output
        return result

    def json(self, *arguments: str, exit_code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", exit_code=exit_code).stdout)

    def says(self, *arguments: str, exit_code: int = 0) -> str:
        return self.run(*arguments, exit_code=exit_code).stdout

    def fails(self, *arguments: str, exit_code: int = 1) -> str:
        result = self.run(*arguments, exit_code=exit_code)
        assert not result.stdout
        return result.stderr

    def deliver(self, endpoint: str, type_: str, id_: str, *, secret: str | None = None, **thing: Any) -> int:
        """A signed delivery through the door; the answer's HTTP status."""
        of = self.state.endpoints[endpoint]
        assert of.provider.sample is not None
        now = datetime.now(UTC)
        request = of.provider.sample(Sample(type_, id_, now, thing or None))
        request = of.provider.signature.sign(request, secret or of.secrets[0], now)
        answer = self.app.test_client().post(
            f"/webhooks/{endpoint}", data=request.body, headers=dict(request.headers)
        )
        return answer.status_code

    def customer(self, id_: str, event: str, **more: Any) -> None:
        assert self.deliver("stripe", "customer.updated", event, id=id_, object="customer", **more) == 200

    def change(self, event: str, **values: Any) -> None:
        events = self.state.tables.events
        with self.state.inbox.transaction() as connection:
            connection.execute(update(events).where(events.c.dedup_key == event).values(**values))

    def ran(self) -> list[tuple[str, str]]:
        return self.app.config["RAN"]  # type: ignore[no-any-return]


def make(tmp_path: Path, url: str, **stripe: Any) -> Operator:
    app = Flask("shop", instance_path=str(tmp_path))
    app.config.update(
        SQLALCHEMY_DATABASE_URI=url,
        WEBHOOKS={
            "stripe": {"secrets": [SECRET, OLD_SECRET], "fetch": False, **stripe},
            "hub": {"provider": "github", "secrets": HUB_SECRET, "fetch": False, "aliases": ["octo"]},
        },
        RAN=[],
    )
    db, webhooks = SQLAlchemy(), Webhooks()
    db.init_app(app)

    @webhooks.sync("stripe", "customer", name="save_customer")
    def save_customer(event: Event, customer: Any) -> None:
        print("a handler that prints")  # noqa: T201 - must not get into the document
        app.config["RAN"].append(("sync", event.dedup_key))

    @webhooks.on("stripe", "customer.updated", flow="welcome", name="welcome")
    def welcome(event: Event, customer: Any) -> None:
        app.config["RAN"].append(("on", event.dedup_key))

    @webhooks.on("stripe", "charge.refunded", name="refuse")
    def refuse(event: Event, charge: Any) -> None:
        raise GiveUp("refunds are done by hand")

    webhooks.init_app(app)
    app.register_blueprint(webhooks.blueprint, url_prefix="/webhooks")
    with app.app_context():
        db.create_all()
    return Operator(app, db, webhooks)


@pytest.fixture
def make_operator(tmp_path: Path, sqlite_url: str) -> Iterator[Callable[..., Operator]]:
    made: list[Operator] = []

    def make_one(**stripe: Any) -> Operator:
        made.append(make(tmp_path, sqlite_url, **stripe))
        return made[-1]

    yield make_one
    for operator in made:
        close(operator)


@pytest.fixture
def operator(make_operator: Callable[..., Operator]) -> Operator:
    return make_operator()


@pytest.fixture
def everywhere(tmp_path: Path, database_url: str) -> Iterator[Operator]:
    """On SQLite and on PostgreSQL."""
    made = make(tmp_path, database_url)
    yield made
    close(made)


def close(operator: Operator) -> None:
    with operator.app.app_context():
        operator.state.inbox._door._disconnect()
        operator.db.engine.dispose()


# -- for programs and for people

COLUMNS = {
    "id", "endpoint", "dedup_key", "origin", "type", "object_kind", "object_id", "account", "occurred_at", "received_at",
    "deliveries", "state", "outcome", "attempts", "error",
}  # fmt: skip


def test_events_as_json_is_a_list_with_the_newest_last(everywhere: Operator) -> None:
    everywhere.customer("cus_1", "evt_1")
    everywhere.customer("cus_1", "evt_1")
    everywhere.deliver("hub", "issues.opened", "guid-2", id=7, number=1)
    first, second = everywhere.json("events")
    assert set(first) >= COLUMNS
    assert (first["dedup_key"], first["deliveries"], first["state"], first["outcome"]) == (
        "evt_1",
        2,
        "pending",
        None,
    )
    assert (first["object_kind"], first["object_id"], first["account"], first["origin"]) == (
        "customer",
        "cus_1",
        "",
        "delivery",
    )
    assert (second["endpoint"], second["type"], second["object_kind"]) == ("hub", "issues.opened", "issue")
    for row in (first, second):
        assert row["received_at"].endswith("Z")
        received = datetime.fromisoformat(row["received_at"])
        assert abs(datetime.now(UTC) - received) < timedelta(minutes=1)


def test_events_can_be_narrowed(everywhere: Operator) -> None:
    everywhere.customer("cus_1", "evt_1")
    everywhere.customer("cus_2", "evt_2")
    everywhere.deliver("hub", "issues.opened", "guid-3", id=7, number=1)
    everywhere.change("evt_1", received_at=datetime.now(UTC) - timedelta(days=2))

    def keys(*options: str) -> list[str]:
        return [row["dedup_key"] for row in everywhere.json("events", *options)]

    assert keys("--endpoint", "stripe") == ["evt_1", "evt_2"]
    assert keys("--endpoint", "octo") == ["guid-3"]
    assert keys("--object", "cus_2") == keys("--object", "customer:cus_2") == ["evt_2"]
    assert keys("--object", "customer") == ["evt_1", "evt_2"]
    assert keys("--type", "customer.*") == ["evt_1", "evt_2"]
    assert keys("--type", "customer") == []
    assert keys("--type", "issues_opened") == []
    assert keys("--since", "-2h") == keys("--since", "1d") == ["evt_2", "guid-3"]
    assert keys("--since", f"{datetime.now(UTC) - timedelta(days=3):%Y-%m-%d}") == [
        "evt_1",
        "evt_2",
        "guid-3",
    ]
    assert keys("--limit", "1") == ["guid-3"]
    assert keys("--limit", "0") == ["evt_1", "evt_2", "guid-3"]
    assert keys("--state", "open") == ["evt_1", "evt_2", "guid-3"]
    assert keys("--state", "dead") == keys("--outcome", "applied") == []


def test_people_get_a_table_of_the_newest_events_and_programs_all(operator: Operator) -> None:
    for number in range(55):
        operator.customer("cus_1", f"evt_{number}")
    assert len(operator.json("events")) == 55
    shown = operator.says("events")
    assert "customer.updated" in shown
    assert sum("customer.updated" in line for line in shown.splitlines()) == 50


def test_show_has_the_body_and_the_kept_headers_but_no_signature(everywhere: Operator) -> None:
    everywhere.deliver("hub", "issues.opened", "guid-1", id=7, number=1)
    found = everywhere.json("show", "guid-1")
    assert found["body"]["issue"]["id"] == 7
    assert found["headers"]["X-GitHub-Event"] == "issues"
    assert "signature" not in json.dumps(found).lower()
    shown = everywhere.says("show", str(found["id"]))
    assert "X-GitHub-Delivery: guid-1" in shown
    assert "signature" not in shown.lower()
    raw = everywhere.run("show", "guid-1", "--raw").stdout_bytes
    assert json.loads(raw)["issue"]["id"] == 7
    assert "one of them" in everywhere.fails("show", "guid-1", "--raw", "--json", exit_code=2)


def test_show_says_when_the_body_has_been_dropped(operator: Operator) -> None:
    operator.customer("cus_1", "evt_1")
    with operator.state.inbox.transaction() as connection:
        connection.execute(operator.state.tables.bodies.delete())
    assert operator.json("show", "evt_1")["body"] is None
    assert "has been dropped" in operator.says("show", "evt_1")
    assert "has been dropped" in operator.fails("show", "evt_1", "--raw")


def test_a_body_that_is_no_json_is_shown_as_it_is(operator: Operator) -> None:
    sign_and_post(operator, b"not json \x1b[31m")
    [row] = operator.json("events")
    assert operator.json("show", str(row["id"]))["body"] == "not json \x1b[31m"
    assert "\x1b" not in operator.says("show", str(row["id"]))


def sign_and_post(operator: Operator, body: bytes) -> None:
    from webhooks.provider import Request

    of = operator.state.endpoints["stripe"]
    request = of.provider.signature.sign(Request("POST", "", {}, body), SECRET, datetime.now(UTC))
    answer = operator.app.test_client().post("/webhooks/stripe", data=body, headers=dict(request.headers))
    assert answer.status_code == 200


def test_objects_are_listed_with_how_fresh_they_are(everywhere: Operator) -> None:
    everywhere.customer("cus_1", "evt_1", email="a@example.com")
    everywhere.customer("cus_2", "evt_2")
    everywhere.run("work", "--until-empty")
    [row] = everywhere.json("objects", "--id", "cus_1")
    assert set(row) >= {
        "endpoint",
        "account",
        "kind",
        "id",
        "claim_no",
        "as_of",
        "version",
        "deleted_at",
        "data",
    }
    assert (row["endpoint"], row["kind"], row["deleted_at"]) == ("stripe", "customer", None)
    assert row["data"]["email"] == "a@example.com"
    assert row["as_of"].endswith("Z")
    assert len(everywhere.json("objects", "--endpoint", "stripe", "--kind", "customer")) == 2
    assert everywhere.json("objects", "--kind", "invoice") == []
    assert "cus_2" in everywhere.says("objects")
    assert "no copy" in everywhere.says("objects", "--kind", "invoice")


def test_work_applies_without_a_broker_and_says_what_it_did(everywhere: Operator, tmp_path: Path) -> None:
    everywhere.customer("cus_1", "evt_1")
    everywhere.customer("cus_1", "evt_2")
    everywhere.deliver("stripe", "charge.refunded", "evt_3")
    done = everywhere.json("work", "--until-empty")
    assert (done["events"], done["open"]) == (3, 0)
    assert done["outcomes"]["gave_up"] == 1
    assert ("sync", "evt_1") in everywhere.ran()
    [dead] = everywhere.json("events", "--state", "dead")
    assert dead["error"] == "GiveUp: refunds are done by hand"
    assert "0 events in 0 claims" in everywhere.says("work", "--until-empty")


def test_work_waits_for_what_was_postponed_for_a_moment_and_not_for_what_was_postponed_for_long(
    operator: Operator,
) -> None:
    operator.customer("cus_1", "evt_1")
    operator.customer("cus_2", "evt_2")
    operator.change("evt_1", due_at=datetime.now(UTC) + timedelta(seconds=1))
    operator.change("evt_2", due_at=datetime.now(UTC) + timedelta(minutes=10))
    done = operator.json("work", "--until-empty", "--wait", "5")
    assert (done["events"], done["open"]) == (1, 1)


def test_work_does_not_wait_for_a_paused_endpoint(everywhere: Operator) -> None:
    everywhere.customer("cus_1", "evt_1")
    everywhere.run("pause", "stripe")
    done = everywhere.json("work", "--until-empty")
    assert (done["events"], done["open"]) == (0, 1)
    assert everywhere.state.inbox.next_due(everywhere.state.endpoints) is None
    assert everywhere.state.inbox.next_due(["hub"]) is None


def test_a_held_event_is_next_due_when_its_hold_ends(everywhere: Operator) -> None:
    everywhere.customer("cus_1", "evt_1")
    everywhere.state.inbox.hold("stripe", "rate_limited", until=timedelta(seconds=100))
    wait = everywhere.state.inbox.next_due(everywhere.state.endpoints)
    assert wait is not None
    assert timedelta(seconds=90) < wait <= timedelta(seconds=100)
    assert everywhere.json("work", "--until-empty", "--wait", "1")["events"] == 0


def test_sweep_rings_for_what_is_due(operator: Operator) -> None:
    assert operator.json("sweep") == {"due": 0, "effects": 0}
    operator.customer("cus_1", "evt_1")
    assert operator.json("sweep") == {"due": 1, "effects": 0}
    assert "1 events are due" in operator.says("sweep")


def test_a_dead_event_is_redriven_with_all_its_attempts(everywhere: Operator) -> None:
    everywhere.deliver("stripe", "charge.refunded", "evt_1")
    everywhere.customer("cus_1", "evt_2")
    everywhere.run("work", "--until-empty")
    one, two = everywhere.json("redrive", "evt_1", "evt_2")
    assert one["redriven"]
    assert not two["redriven"]
    assert "not dead" in two["reason"]
    [row] = everywhere.json("events", "--state", "pending")
    assert (row["dedup_key"], row["attempts"]) == ("evt_1", 0)


def test_redrive_all_takes_the_dead_of_an_endpoint_or_outcome(operator: Operator) -> None:
    operator.deliver("stripe", "charge.refunded", "evt_1")
    operator.deliver("stripe", "charge.refunded", "evt_2")
    operator.run("work", "--until-empty")
    assert operator.json("redrive", "--all", "--endpoint", "hub") == []
    assert operator.json("redrive", "--all", "--outcome", "unreadable") == []
    assert len(operator.json("redrive", "--all", "--outcome", "gave_up")) == 2
    assert "No event is dead" in operator.says("redrive", "--all")
    assert "EVENTS or --all" in operator.fails("redrive", exit_code=2)


def test_an_unreadable_event_stays_dead_as_long_as_it_cannot_be_read(everywhere: Operator) -> None:
    sign_and_post(everywhere, b"not json")
    [row] = everywhere.json("redrive", "--all", exit_code=1)
    assert row["dead"]
    assert "still cannot be read" in row["reason"]
    assert len(everywhere.json("events", "--state", "dead", "--outcome", "unreadable")) == 1


def test_an_unreadable_event_that_can_be_read_now_learns_what_it_is(everywhere: Operator) -> None:
    everywhere.customer("cus_1", "evt_1")
    unlearn(everywhere, "evt_1")
    [row] = everywhere.json("redrive", "--all")
    assert (row["redriven"], row["type"]) == (True, "customer.updated")
    everywhere.run("work", "--until-empty")
    everywhere.customer("cus_1", "evt_1")
    [event] = everywhere.json("events")
    assert (event["dedup_key"], event["object_id"], event["state"], event["deliveries"]) == (
        "evt_1",
        "cus_1",
        "applied",
        2,
    )
    assert everywhere.ran().count(("on", "evt_1")) == 1


def test_an_unreadable_event_that_came_again_readable_is_closed(everywhere: Operator) -> None:
    everywhere.customer("cus_1", "evt_1")
    unlearn(everywhere, "evt_1")
    everywhere.customer("cus_1", "evt_1")
    [row] = everywhere.json("redrive", "--all")
    assert not row["redriven"]
    assert "is the same event as" in row["reason"]
    assert everywhere.json("events", "--state", "dead") == []
    assert len(everywhere.json("events", "--state", "pending")) == 1


def unlearn(operator: Operator, event: str) -> None:
    """As if nobody had been able to read it."""
    operator.change(
        event,
        dedup_key="sha256:" + "0" * 64,
        type="",
        object_kind=None,
        object_id=None,
        state="dead",
        outcome="unreadable",
    )


def test_replay_applies_again_and_its_dry_run_only_says_so(everywhere: Operator) -> None:
    everywhere.customer("cus_1", "evt_1")
    everywhere.run("work", "--until-empty")
    everywhere.ran().clear()
    [row] = everywhere.json("replay", "evt_1", "--dry-run")
    assert (row["replayed"], row["would_replay"]) == (False, True)
    assert row["handlers"] == ["sync:save_customer", "on:welcome"]
    assert "welcome, which is decided once" in row["reason"]
    assert everywhere.json("work", "--until-empty")["events"] == 0
    [row] = everywhere.json("replay", "evt_1", "--handler", "save_customer")
    assert row["replayed"]
    assert row["handlers"] == ["sync:save_customer"]
    everywhere.run("work", "--until-empty")
    assert everywhere.ran() == [("sync", "evt_1")]
    assert "save_customer" in everywhere.says("replay", "evt_1")
    [row] = everywhere.json("replay", "evt_1")
    assert not row["replayed"]
    assert "applied anyway" in row["reason"]


def test_pause_and_resume(everywhere: Operator) -> None:
    assert everywhere.json("pause", "octo") == {"endpoint": "hub", "paused": True}
    everywhere.deliver("hub", "issues.opened", "guid-1", id=7, number=1)
    [_, hub] = everywhere.json("status")["endpoints"]
    assert [hold["reason"] for hold in hub["holds"]] == ["paused"]
    assert "flask webhooks resume hub" in everywhere.says("status")
    assert "flask webhooks resume hub" in everywhere.says("explain", "guid-1")
    assert everywhere.json("resume", "hub") == {
        "endpoint": "hub",
        "paused": False,
        "released": True,
        "due": 1,
    }
    assert "was not paused" in everywhere.says("resume", "hub")


def test_purge_says_what_it_dropped(everywhere: Operator) -> None:
    everywhere.customer("cus_1", "evt_1")
    everywhere.run("work", "--until-empty")
    everywhere.change("evt_1", received_at=datetime.now(UTC) - timedelta(days=40))
    names = ("events", "claims", "listed", "nonces", "rejections", "refused_bodies", "issues", "effects")
    nothing = dict.fromkeys(names, 0)
    assert everywhere.json("purge") == {"bodies": 1, **nothing}
    assert "0 bodies dropped" in everywhere.says("purge")


def test_status_has_every_endpoint_with_its_numbers(everywhere: Operator) -> None:
    everywhere.deliver("stripe", "charge.refunded", "evt_1")
    everywhere.run("work", "--until-empty")
    everywhere.customer("cus_1", "evt_2")
    everywhere.change("evt_2", due_at=datetime.now(UTC) - timedelta(hours=3))
    everywhere.run("check", exit_code=1)
    stripe, hub = everywhere.json("status")["endpoints"]
    assert (stripe["endpoint"], stripe["provider"], stripe["pending"], stripe["dead"]) == (
        "stripe",
        "stripe",
        1,
        1,
    )
    assert stripe["due"] == 1
    assert 3 * 3600 <= stripe["lag"] < 3 * 3600 + 60
    assert stripe["last_delivery_at"].endswith("Z")
    assert {issue["kind"] for issue in stripe["issues"]} == {"dead_letters", "backlog"}
    assert (hub["pending"], hub["lag"], hub["last_delivery_at"], hub["runs"]) == (0, None, None, {})
    shown = everywhere.says("status")
    assert "3 h" in shown
    assert "dead_letters" in shown


def test_status_names_events_of_an_endpoint_that_is_not_configured_any_more(operator: Operator) -> None:
    operator.customer("cus_1", "evt_1")
    operator.change("evt_1", endpoint="shop-of-last-year")
    assert operator.json("status")["endpoints"][-1]["provider"] is None
    assert "shop-of-last-year: is not in WEBHOOKS any more" in operator.says("status")
    assert "is not in WEBHOOKS" in operator.json("replay", "evt_1")[0]["reason"]
    assert operator.json("explain", "evt_1")["secrets"][0]["position"] is None


def test_unhandled_counts_the_types_that_nobody_wants(everywhere: Operator) -> None:
    everywhere.customer("cus_1", "evt_1")
    everywhere.deliver("stripe", "invoice.paid", "evt_2")
    everywhere.deliver("stripe", "invoice.paid", "evt_3")
    [row] = everywhere.json("unhandled")
    assert (row["endpoint"], row["type"], row["events"]) == ("stripe", "invoice.paid", 2)
    assert "stripe: 2 events that nobody wants" in everywhere.says("unhandled")
    assert everywhere.json("unhandled", "--endpoint", "hub") == []


def test_check_is_good_until_something_is_not_and_then_says_what_to_do(everywhere: Operator) -> None:
    assert everywhere.json("check")["good"]
    assert "All is well" in everywhere.says("check")
    assert everywhere.json("issues") == []
    everywhere.deliver("stripe", "charge.refunded", "evt_1")
    everywhere.run("work", "--until-empty")
    found = everywhere.json("check", exit_code=1)
    [bad] = [row for row in found["findings"] if not row["good"]]
    assert (bad["endpoint"], bad["kind"]) == ("stripe", "dead_letters")
    assert "redrive --all --endpoint stripe" in bad["todo"]
    assert "redrive --all --endpoint stripe" in everywhere.says("check", exit_code=1)
    [issue] = everywhere.json("issues")
    assert (issue["kind"], issue["state"], issue["closed_at"]) == ("dead_letters", "open", None)
    assert "dead_letters" in everywhere.says("issues")
    everywhere.change("evt_1", state="ignored")
    everywhere.run("check")
    assert everywhere.json("issues") == []
    assert [row["state"] for row in everywhere.json("issues", "--all")] == ["closed"]
    assert "No issue is open" in everywhere.says("issues")


def test_doctor_looks_at_the_set_up_too(everywhere: Operator) -> None:
    found = {row["kind"]: row for row in everywhere.json("doctor")["findings"]}
    assert set(found) >= {"tables", "broker", "blueprint", "configuration", "backlog"}
    assert all(row["good"] for row in found.values())
    assert found["blueprint"]["detail"] == "deliveries come to /webhooks/<endpoint>"


def test_doctor_names_the_tables_and_columns_that_are_missing(operator: Operator) -> None:
    with operator.app.app_context():
        operator.db.drop_all()
    [bad] = [row for row in operator.json("doctor", exit_code=1)["findings"] if not row["good"]]
    assert bad["kind"] == "tables"
    assert "webhook_events" in bad["detail"]
    assert "flask db upgrade" in bad["todo"]
    assert "db.create_all()" in bad["todo"]
    assert "db.create_all()" in operator.fails("events")
    assert "flask db upgrade" in operator.fails("events")


def test_doctor_says_when_the_broker_is_away(operator: Operator) -> None:
    operator.app.config["CELERY"] = {"broker_url": "redis://:a-password@127.0.0.1:1/0"}
    output = operator.says("doctor", exit_code=1)
    assert "the broker cannot be reached" in output
    assert "a-password" not in output


def test_doctor_says_when_no_url_takes_deliveries_and_migrations_are_behind(
    tmp_path: Path, sqlite_url: str
) -> None:
    from flask_migrate import Migrate

    app = Flask("bare", instance_path=str(tmp_path))
    app.config.update(
        SQLALCHEMY_DATABASE_URI=sqlite_url,
        WEBHOOKS={"stripe": {"secrets": SECRET, "fetch": False, "public_url": "http://shop.example"}},
    )
    db = SQLAlchemy()
    db.init_app(app)
    folder = tmp_path / "migrations"
    (folder / "versions").mkdir(parents=True)
    (folder / "versions" / "one.py").write_text("revision = 'aaa'\ndown_revision = None\n")
    Migrate(app, db, directory=str(folder))
    webhooks = Webhooks(app)
    with app.app_context():
        db.create_all()
    operator = Operator(app, db, webhooks)
    bad = {row["kind"]: row for row in operator.json("doctor", exit_code=1)["findings"] if not row["good"]}
    assert set(bad) == {"blueprint", "migrations", "configuration"}
    assert bad["migrations"]["detail"] == "the database is at nothing, the newest is aaa"
    assert "not https" in bad["configuration"]["detail"]
    assert "register_blueprint" in operator.fails("send", "stripe", "customer.updated")
    close(operator)


def test_providers_need_no_app_and_hide_nothing_that_is_unknown() -> None:
    from click.testing import CliRunner

    rows = json.loads(CliRunner().invoke(cli, ["providers", "--json"]).stdout)
    stripe = next(row for row in rows if row["name"] == "stripe")
    assert (stripe["respond_within"], stripe["retry_window"]) == (None, 3 * 86400)
    assert stripe["signs"] == {"body": True, "time": True, "id": True}
    shown = CliRunner().invoke(cli, ["providers"]).stdout
    assert "unknown" in shown
    assert "never" in shown
    one = CliRunner().invoke(cli, ["providers", "github"]).stdout
    assert "dedup guard: id and body" in one
    assert json.loads(CliRunner().invoke(cli, ["providers", "github", "--json"]).stdout)["retries"] == []
    unknown = CliRunner().invoke(cli, ["providers", "nobody"])
    assert unknown.exit_code == 1
    assert "there are" in unknown.stderr
    assert "github" in unknown.stderr


def test_send_delivers_a_signed_sample_to_the_app_itself(everywhere: Operator) -> None:
    [row] = everywhere.json("send", "stripe", "customer.updated")
    assert row["http_status"] == 200
    assert "200" in everywhere.says("send", "github", "issues.opened", "--count", "2")
    assert [row["endpoint"] for row in everywhere.json("events")] == ["stripe", "hub", "hub"]


def test_send_with_an_id_delivers_the_same_event_again(operator: Operator) -> None:
    rows = operator.json("send", "stripe", "customer.updated", "--id", "evt_7", "--count", "3")
    assert [row["dedup_keys"] for row in rows] == [["evt_7"]] * 3
    [event] = operator.json("events")
    assert (event["dedup_key"], event["deliveries"]) == ("evt_7", 3)


def test_send_says_to_whom_it_could_send(operator: Operator) -> None:
    assert "stripe (stripe), hub (github)" in operator.fails("send", "nobody", "x")
    assert "is of github, not of stripe" in operator.fails("send", "stripe", "x", "--endpoint", "hub")
    assert "cannot be reached" in operator.fails(
        "send", "stripe", "customer.updated", "--url", "http://127.0.0.1:1/x"
    )
    assert "begins with http" in operator.fails("send", "stripe", "x", "--url", "ftp://x", exit_code=2)


def test_tail_begins_with_the_last_events_and_writes_one_list(everywhere: Operator) -> None:
    everywhere.customer("cus_1", "evt_1")
    everywhere.customer("cus_2", "evt_2")
    rows = everywhere.json("tail", "--limit", "2")
    assert [row["dedup_key"] for row in rows] == ["evt_1", "evt_2"]
    assert "customer cus_2  pending" in everywhere.says("tail", "--lines", "1", "--limit", "1")


# -- recover and reconcile


def test_recover_and_reconcile_say_why_a_run_was_skipped(operator: Operator) -> None:
    for task in ("recover", "reconcile"):
        stripe, hub = operator.json(task)
        assert stripe["error"] is None
        assert stripe["skipped"]
        assert hub["skipped"]
    assert "without the setting api_key" in operator.says("recover", "stripe", "--since", "-2h")
    assert operator.json("runs") == []
    assert "no run yet" in operator.says("runs")


def test_a_run_with_an_error_ends_with_exit_code_1(make_operator: Callable[..., Operator]) -> None:
    operator = make_operator(fetch=True, api_key="sk_test_1", api_base_url="http://127.0.0.1:1")
    [row] = operator.json("recover", "stripe", exit_code=1)
    assert "RetryLater" in row["error"]
    assert row["since"].endswith("Z")
    operator.run("reconcile", "stripe", exit_code=1)
    assert [row["task"] for row in operator.json("runs")] == ["recover", "reconcile"]
    assert [row["task"] for row in operator.json("runs", "--task", "recover", "--endpoint", "stripe")] == [
        "recover"
    ]
    assert "RetryLater" in operator.says("runs")
    assert operator.json("status")["endpoints"][0]["runs"]["recover"]["error"].startswith("RetryLater")


def test_a_run_that_is_under_way_is_not_begun_twice(make_operator: Callable[..., Operator]) -> None:
    operator = make_operator(fetch=True, api_key="sk_test_1", api_base_url="http://127.0.0.1:1")
    runs, now = operator.state.tables.runs, datetime.now(UTC)
    with operator.state.inbox.transaction() as connection:
        connection.execute(
            insert(runs).values(
                endpoint="stripe",
                task="recover",
                started_at=now,
                expires_at=now + timedelta(hours=1),
                seen=0,
                missed=0,
                healed=0,
            )
        )
    assert operator.json("recover", "stripe")[0]["skipped"] == "another run of it is under way"


# -- explain


def test_explain_tells_the_whole_path(everywhere: Operator) -> None:
    everywhere.customer("cus_1", "evt_1")
    everywhere.customer("cus_1", "evt_2")
    everywhere.customer("cus_1", "evt_2")
    everywhere.run("work", "--until-empty")
    with everywhere.state.inbox.transaction() as connection:
        now = datetime.now(UTC)
        [one, two] = connection.scalars(
            select(everywhere.state.tables.events.c.id).order_by(everywhere.state.tables.events.c.id)
        )
        connection.execute(
            insert(everywhere.state.tables.effects).values(
                idempotency_key="key-1", event_id=one, name="send_receipt", arguments={}, state="done", attempts=1,
                endpoint="stripe", handler="on:welcome", looks=0, call_no=1,
                due_at=now, recorded_at=now,
            )
        )  # fmt: skip
    found = everywhere.json("explain", "evt_1")
    assert found["event"]["dedup_key"] == "evt_1"
    assert found["secrets"][0] | {"fingerprint": ""} == {"fingerprint": "", "position": 1, "configured": 2}
    assert found["deliveries"]["count"] == 1
    assert found["claim"]["no"] == found["object"]["copy"]["claim_no"]
    assert found["claim"]["with"] == [two]
    assert found["object"]["copy_is"] == "same_claim"
    assert {entry["handler"] for entry in found["ledger"] if entry["at"]} == {
        "sync:save_customer",
        "on:welcome",
    }
    assert [(flow["flow"], flow["key"]) for flow in found["flows"]] == [("welcome", "cus_1")]
    assert [effect["state"] for effect in found["effects"]] == ["done"]
    assert found["outcome"]["name"] == "applied"
    assert found["error"] is None
    told = everywhere.says("explain", "evt_1")
    for part in (
        "about the customer cus_1",
        "delivered once",
        "number 1 of 2 in the configuration (the current one)",
        f"with claim {found['claim']['no']}",
        "it still stands",
        "The handler on:welcome has applied it",
        "decided the flow welcome for cus_1",
        "the effect send_receipt",
        "outcome applied: ",
    ):
        assert part in told
    assert everywhere.json("explain", str(one))["event"] == found["event"]
    assert len(found["sentences"]) == len(told.splitlines())
    second = everywhere.says("explain", "evt_2")
    assert "delivered 2 times" in second
    assert "flow_already_decided" in second


def test_explain_says_that_an_old_secret_signed_and_that_a_later_fetch_wrote(everywhere: Operator) -> None:
    everywhere.deliver(
        "stripe", "customer.updated", "evt_1", secret=OLD_SECRET, id="cus_1", object="customer"
    )
    everywhere.run("work", "--until-empty")
    everywhere.customer("cus_1", "evt_2")
    everywhere.run("work", "--until-empty")
    told = everywhere.says("explain", "evt_1")
    assert "number 2 of 2 in the configuration (not the current one)" in told
    assert "Our copy of the object is newer" in told
    assert everywhere.json("explain", "evt_1")["object"]["copy_is"] == "newer"


def test_explain_says_when_its_endpoint_is_not_configured_any_more(operator: Operator) -> None:
    operator.customer("cus_1", "evt_1")
    del operator.state.endpoints._endpoints["stripe"]
    del operator.state.endpoints._at["stripe"]
    told = operator.says("explain", "evt_1")
    assert "There is no endpoint stripe in WEBHOOKS any more: its events are kept" in told
    assert "No handler of the app is for it" not in told
    assert "Nothing is fetched" not in told
    assert "not in the configuration any more" not in told
    assert operator.json("explain", "evt_1", "--endpoint", "stripe")["endpoint_known"] is False
    assert "there is no endpoint 'nobody'; there are hub" in operator.fails(
        "explain", "evt_1", "--endpoint", "nobody"
    )


def test_work_says_what_it_waits_for(operator: Operator) -> None:
    operator.customer("cus_1", "evt_1")
    operator.change("evt_1", due_at=datetime.now(UTC) + timedelta(seconds=2))
    done = operator.run("work", "--until-empty", "--json")
    assert done.stderr.startswith("Waiting for 1 that are due within 1 min, the next in 1.")
    assert done.stderr.count("Waiting for") == 1
    assert json.loads(done.stdout)["events"] == 1
    operator.change("evt_1", due_at=datetime.now(UTC))
    assert "Waiting" not in operator.run("work", "--until-empty").output


def test_explain_says_what_to_do_about_a_dead_event(operator: Operator) -> None:
    operator.deliver("stripe", "charge.refunded", "evt_1")
    pending = operator.says("explain", "evt_1")
    assert "No worker has claimed it" in pending
    assert "It is due" in pending
    operator.run("work", "--until-empty")
    told = operator.says("explain", "evt_1")
    assert "GiveUp: refunds are done by hand" in told
    assert "flask webhooks redrive 1" in told


# -- bad input


def test_an_unknown_endpoint_names_those_that_there_are(operator: Operator) -> None:
    for command in (
        ["events", "--endpoint", "x"],
        ["pause", "x"],
        ["recover", "x"],
        ["objects", "--endpoint", "x"],
        ["tail", "--endpoint", "x"],
    ):
        assert "there are stripe, hub" in operator.fails(*command)


def test_an_unknown_event_says_where_to_find_one(operator: Operator) -> None:
    for command in ("explain", "show", "redrive", "replay"):
        assert "flask webhooks events" in operator.fails(command, "evt_nowhere")
        assert "flask webhooks events" in operator.fails(command, "99999", "--json")


def test_a_dedup_key_of_two_endpoints_needs_the_endpoint(operator: Operator) -> None:
    operator.customer("cus_1", "same")
    operator.deliver("hub", "issues.opened", "same", id=7, number=1)
    assert "1 (stripe), 2 (hub)" in operator.fails("explain", "same")
    assert operator.json("explain", "same", "--endpoint", "hub")["event"]["id"] == 2


def test_an_unknown_handler_names_those_that_there_are(operator: Operator) -> None:
    operator.customer("cus_1", "evt_1")
    assert "refuse, save_customer, welcome" in operator.fails("replay", "evt_1", "--handler", "x")


def test_a_time_that_is_none_shows_how_to_write_one(operator: Operator) -> None:
    assert "-2h" in operator.fails("events", "--since", "yesterday", exit_code=2)
    assert "beginning of time" in operator.fails("events", "--since", "999999999w", exit_code=2)


def test_an_app_without_an_inbox_is_told_to_make_one() -> None:
    result = Flask("bare").test_cli_runner().invoke(cli, ["status", "--json"])
    assert result.exit_code == 1
    assert not result.stdout
    assert "call webhooks.init_app(app) first" in result.stderr


def test_a_handler_that_is_for_nothing_is_named(operator: Operator) -> None:
    operator.webhooks.on("nobody", "x")(lambda event, thing: None)
    assert "there is no endpoint or provider 'nobody'" in operator.fails("status")


def test_a_database_that_is_away_is_no_traceback(tmp_path: Path) -> None:
    operator = Operator(*bare(tmp_path, "postgresql+psycopg://user:a-password@127.0.0.1:1/none"))
    said = operator.fails("status")
    assert "the database does not answer" in said
    assert "a-password" not in said


def bare(tmp_path: Path, url: str) -> tuple[Flask, SQLAlchemy, Webhooks]:
    app, db = Flask("bare", instance_path=str(tmp_path)), SQLAlchemy()
    app.config.update(SQLALCHEMY_DATABASE_URI=url, WEBHOOKS={"stripe": {"secrets": SECRET, "fetch": False}})
    db.init_app(app)
    return app, db, Webhooks(app)


# -- the whole


def test_every_command_has_json_and_a_help_text_of_sentences(operator: Operator) -> None:
    groups = {"effects": ("list", "show", "settle", "redrive")}
    commands = [[name] for name in sorted(set(COMMANDS) - {"demo"} - set(groups))]
    commands += [[group, name] for group, names in groups.items() for name in names]
    for words in commands:
        text = operator.says(*words, "--help")
        assert "--json" in text
        assert ". " in text or ".\n" in text


def test_text_of_others_cannot_move_the_cursor(operator: Operator) -> None:
    operator.deliver("stripe", "customer.\x1b[2Jupdated", "evt_1", id="[red]cus[/red]", object="customer")
    shown = operator.says("events") + operator.says("explain", "1") + operator.says("tail", "--limit", "1")
    assert "\x1b" not in shown
    assert "[red]cus[/red]" in shown
