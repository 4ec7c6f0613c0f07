"""`flask webhooks …` against a provider: what is found, what a dry run shows, and how the loops end."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from werkzeug.serving import make_server

from webhooks import Webhooks
from webhooks.cli import cli
from webhooks.state import State
from webhooks.testing.simulator import Simulator

PROGRAM = """
import os
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from webhooks import Webhooks

app = Flask("shop", instance_path=os.environ["FOLDER"])
app.config["SQLALCHEMY_DATABASE_URI"] = os.environ["DATABASE"]
app.config["WEBHOOKS"] = {"stripe": {"secrets": "whsec_in_a_process", "fetch": False}}
db = SQLAlchemy(app)
webhooks = Webhooks(app)
app.register_blueprint(webhooks.blueprint, url_prefix="/webhooks")
with app.app_context():
    db.create_all()
"""


class Shop:
    """An app that mirrors a simulated Stripe."""

    def __init__(self, folder: Path, url: str, stripe: Simulator) -> None:
        self.app = Flask("shop", instance_path=str(folder))
        self.app.config.update(SQLALCHEMY_DATABASE_URI=url, WEBHOOKS={"stripe": stripe.config})
        self.db = SQLAlchemy(self.app)
        self.app.register_blueprint(Webhooks(self.app).blueprint, url_prefix="/webhooks")
        with self.app.app_context():
            self.db.create_all()
        state = self.app.extensions["webhooks"]
        assert isinstance(state, State)
        self.state = state
        stripe._send = self.receive

    def receive(self, request: Any) -> int:
        client = self.app.test_client()
        return client.post("/webhooks/stripe", data=request.body, headers=dict(request.headers)).status_code

    def run(self, *arguments: str, exit_code: int = 0) -> Result:
        result = self.app.test_cli_runner().invoke(cli, list(arguments))
        assert result.exit_code == exit_code, result.output + repr(result.exception)
        return result

    def json(self, *arguments: str, exit_code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", exit_code=exit_code).stdout)


@pytest.fixture
def stripe(simulator: Callable[[str], Simulator]) -> Simulator:
    return simulator("stripe")


@pytest.fixture
def shop(tmp_path: Path, database_url: str, stripe: Simulator) -> Iterator[Shop]:
    made = Shop(tmp_path, database_url, stripe)
    yield made
    with made.app.app_context():
        made.state.inbox._door._disconnect()
        made.db.engine.dispose()


def test_recover_brings_what_was_lost_and_its_run_says_so(shop: Shop, stripe: Simulator) -> None:
    stripe.delivery.lost = 1.0
    customer = stripe.create("customer", email="ada@example.test")
    [run] = shop.json("recover")
    assert (run["task"], run["missed"], run["healed"], run["error"], run["skipped"]) == (
        "recover",
        1,
        1,
        None,
        None,
    )
    shop.run("work", "--until-empty")
    [row] = shop.json("objects")
    assert (row["id"], row["data"]["email"]) == (customer[2], "ada@example.test")
    assert [row["origin"] for row in shop.json("events")] == ["recover"]
    told = shop.run("explain", "1").stdout
    assert "Recover found it in the provider's own log" in told
    assert "No secret matched, because none was needed" in told
    assert "The fetch of that claim wrote our copy" in told
    assert "recover" in shop.run("runs").stdout


def test_a_dry_run_prints_the_difference_and_mends_nothing(shop: Shop, stripe: Simulator) -> None:
    customer = stripe.create("customer", email="ada@example.test")
    stripe.deliver()
    shop.run("work", "--until-empty")
    stripe.update(customer, silent=True, email="lovelace@example.test")
    [run] = shop.json("reconcile", "stripe", "--dry-run", "--since", "-2h")
    assert (run["missed"], run["healed"]) == (1, 0)
    [drift] = run["drifts"]
    assert (drift["kind"], drift["id"]) == ("customer", customer[2])
    email = {"path": "email", "ours": "ada@example.test", "theirs": "lovelace@example.test"}
    assert email in drift["differences"]
    shown = shop.run("reconcile", "--dry-run", "--since", "-2h").stdout
    assert "email: ours 'ada@example.test', theirs 'lovelace@example.test'" in shown
    assert len(shop.json("events")) == 1
    [run] = shop.json("reconcile", "--since", "-2h")
    assert (run["missed"], run["healed"]) == (1, 1)
    shop.run("work", "--until-empty")
    assert shop.json("objects")[0]["data"]["email"] == "lovelace@example.test"
    [_, heal] = shop.json("events")
    assert (heal["origin"], heal["outcome"]) == ("reconcile", "healed")
    assert "reconcile found" in shop.run("explain", str(heal["id"])).stdout


def test_explain_names_the_events_that_one_fetch_covered(shop: Shop, stripe: Simulator) -> None:
    customer = stripe.create("customer")
    stripe.update(customer, email="ada@example.test")
    stripe.deliver()
    shop.run("work", "--until-empty")
    assert len(stripe.calls) == 1
    first, second = (shop.json("explain", str(number)) for number in (1, 2))
    assert (first["outcome"]["name"], second["outcome"]["name"]) == ("covered", "applied")
    assert first["claim"]["with"] == [2]
    assert "The same claim covered 1 more" in " ".join(second["sentences"])
    assert first["object"]["fetched"]


def test_explain_says_that_the_object_is_gone(shop: Shop, stripe: Simulator) -> None:
    customer = stripe.create("customer")
    stripe.delete(customer)
    stripe.deliver()
    shop.run("work", "--until-empty")
    told = shop.run("explain", "2").stdout
    assert "the copy is marked deleted since" in told


def test_send_posts_to_a_server(shop: Shop) -> None:
    server = make_server("127.0.0.1", 0, shop.app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        [row] = shop.json(
            "send", "stripe", "customer.updated", "--url", f"http://127.0.0.1:{server.port}/webhooks/stripe"
        )
        [refused] = shop.json(
            "send",
            "stripe",
            "customer.updated",
            "--url",
            f"http://127.0.0.1:{server.port}/webhooks/nobody",
            exit_code=1,
        )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert (row["http_status"], refused["http_status"]) == (200, 404)
    assert len(shop.json("events")) == 1


# -- processes


class Process:
    """An app in a file: commands that go on run in a process of their own, the others here."""

    def __init__(self, folder: Path, url: str) -> None:
        (folder / "shop.py").write_text(PROGRAM)
        here = str(Path(__file__).parent.parent)
        own = {"FOLDER": str(folder), "DATABASE": url}
        self.environment = {**os.environ, **own, "PYTHONPATH": f"{here}:{folder}"}
        self.folder = folder
        with pytest.MonkeyPatch.context() as patch:
            for name, value in own.items():
                patch.setenv(name, value)
            self.app: Flask = runpy.run_path(str(folder / "shop.py"))["app"]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "flask", "--app", "shop", "webhooks", *arguments],
            cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *arguments: str) -> Any:
        result = self.app.test_cli_runner().invoke(cli, [*arguments, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def close(self) -> None:
        state = self.app.extensions["webhooks"]
        state.inbox._door._disconnect()
        state.inbox.engine.dispose()


@pytest.fixture
def process(tmp_path: Path, sqlite_url: str) -> Iterator[Process]:
    made = Process(tmp_path, sqlite_url)
    yield made
    made.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_work_applies_what_comes_until_it_is_told_to_end(process: Process, number: int) -> None:
    worker = process.start("work", "--json")
    try:
        process.run("send", "stripe", "customer.updated", "--id", "evt_1")
        ends = time.monotonic() + 30
        while process.run("events")[0]["state"] != "applied" and time.monotonic() < ends:
            time.sleep(0.1)
        worker.send_signal(number)
        out, error = worker.communicate(timeout=30)
    finally:
        worker.kill()
        worker.wait()
    assert worker.returncode == 0, error
    assert json.loads(out)["events"] == 1


def test_tail_follows_an_event_from_pending_to_applied_and_closes_its_list(process: Process) -> None:
    process.run("send", "stripe", "customer.updated", "--id", "evt_1")
    follower = process.start("tail", "--json", "--interval", "0.05")
    giving_up = threading.Timer(60, follower.kill)
    giving_up.start()
    assert follower.stdout is not None
    try:
        begun = follower.stdout.readline() + follower.stdout.readline()
        process.run("work", "--until-empty")
        while '"applied"' not in begun:  # however often it looked in between
            line = follower.stdout.readline()
            assert line, "it ended before it had shown the end"
            begun += line
        follower.send_signal(signal.SIGINT)
        rest, error = follower.communicate(timeout=30)
    finally:
        giving_up.cancel()
        follower.kill()
        follower.wait()
    assert follower.returncode == 0, error
    states = [row["state"] for row in json.loads(begun + rest)]
    # Whether it looked at the moment of the claim is chance.
    assert [state for state in states if state != "applying"] == ["pending", "applied"]


def test_help_lists_every_command() -> None:
    out = CliRunner().invoke(cli, ["--help"]).stdout
    for name in ("status", "explain", "reconcile", "demo"):
        assert f"\n  {name} " in out
