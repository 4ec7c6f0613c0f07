"""Every provider can be simulated: whatever goes wrong on the way, the copy ends as the provider has it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from flask import Flask

from tests.apps import apply, build, post, rows
from webhooks import providers
from webhooks.extension import state
from webhooks.provider import Request
from webhooks.testing import Simulator
from webhooks.testing.demo.story import APART, Story

ROOT = Path(__file__).parent.parent
CHANGES = 60


@pytest.mark.parametrize("name", providers.names())
def test_a_simulated_provider_and_our_copy_end_the_same(name: str, sqlite_url: str) -> None:
    """Duplicated, out of order, unanswered, and lost where something lost can be found again."""
    with Simulator(name, seed=7) as simulator, build(sqlite_url, {name: simulator.config}) as app:
        simulator.world.url = f"http://localhost/webhooks/{name}"
        simulator._send = lambda request: post(app, f"/webhooks/{name}", request).status_code
        story = Story({name: simulator}, state(app))
        story.misbehave()
        for number in range(CHANGES):
            time.sleep(APART)
            story.change_once(name, simulator)
            if number % 10 == 9:
                simulator.deliver()
                apply(app)
        story.end()
        story.settle(lambda: work(app), within=20)
        figures = story.figures()
        assert story.differences() == []
        assert (figures.dead, figures.waiting) == (0, 0)
        assert figures.changes == CHANGES
        assert figures.duplicates > 0
        assert figures.reordered > 0
        can_heal = simulator.provider.list_events or simulator.provider.list_changed
        assert (figures.lost > 0) == (can_heal is not None)
        assert {row.endpoint for row in rows(app, "events")} == {name}


def work(app: Flask) -> None:
    apply(app)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(providers.names()) - {"stripe", "github"}))
def test_the_demo_of_a_provider_ends_without_drift(name: str, tmp_path: Path) -> None:
    """The same on real processes."""
    command = [
        *(sys.executable, "-m", "flask", "--app", "wsgi", "webhooks", "demo"),
        *("--seconds", "3", "--provider", name, "--json"),
    ]
    environment = {"FLASK_INSTANCE_PATH": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    figures = json.loads(done.stdout or "{}")
    assert figures.get("drift") == 0, done.stderr + done.stdout
    assert done.returncode == 0
    assert figures["recorded"] > 0


def test_what_a_simulator_sends_is_signed_for_the_url_that_it_calls() -> None:
    sent: list[Request] = []
    simulator = Simulator("twilio", send=lambda request: sent.append(request) or 200)  # type: ignore[func-returns-value]
    simulator.world.url = "https://hooks.example.test/webhooks/twilio"
    simulator.create("message")
    simulator.deliver()
    provider = providers.get("twilio")
    assert provider.signature.verify(sent[0], [simulator.service.secret], 0) == simulator.service.secret


def test_a_lost_change_that_left_the_version_as_it_was_is_found_by_the_content(sqlite_url: str) -> None:
    """Slack's users have a clock of seconds, Twilio's messages a rank that several states share."""
    with Simulator("slack") as simulator, build(sqlite_url, {"slack": simulator.config}) as app:
        simulator._send = lambda request: post(app, "/webhooks/slack", request).status_code
        user = simulator.create("user", title="first")
        simulator.deliver()
        apply(app)
        simulator.update(user, silent=True, title="second", updated=simulator.world.truth()[user]["updated"])  # type: ignore[index]
        run = state(app).reconciler.reconcile(state(app).endpoints["slack"])
        assert run is not None
        assert (run.missed, run.healed) == (1, 1)
        apply(app)
        assert simulator.drift(rows(app, "objects")) == []


@pytest.mark.parametrize(
    "name", [name for name in providers.names() if providers.get(name).endpoint_health is not None]
)
def test_a80_an_endpoint_that_is_switched_off_or_removed_is_seen_by_asking(
    name: str, sqlite_url: str
) -> None:
    """Only Slack tells nobody but the app's owner."""
    with Simulator(name) as simulator, build(sqlite_url, {name: simulator.config}) as app:
        parts = state(app)
        ask = simulator.provider.endpoint_health
        assert ask is not None
        api = parts.apis.of(parts.endpoints[name])
        known = name != "slack"
        assert ask(api).state == ("enabled" if known else "unknown")
        simulator.world.enabled = False
        assert (ask(api).state in {"disabled", "missing"}) == known
