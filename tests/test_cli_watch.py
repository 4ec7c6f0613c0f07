"""`flask webhooks drift, audit, check --fix, doctor, issues, test-alert, simulate-outage`, as an operator runs them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.outage import Beside, beside
from webhooks.cli import cli
from webhooks.issues import Issue
from webhooks.testing.simulator import Answer


@pytest.fixture
def stripe(sqlite_url: str, tmp_path: Path) -> Iterator[Beside]:
    with beside(sqlite_url, tmp_path, "stripe") as made:
        yield made


def run(made: Beside, *arguments: str, exit_code: int = 0) -> Result:
    result = made.shop.app.test_cli_runner().invoke(cli, list(arguments))
    assert result.exit_code == exit_code, result.output + repr(result.exception)
    return result


def ask(made: Beside, *arguments: str, exit_code: int = 0) -> Any:
    return json.loads(run(made, *arguments, "--json", exit_code=exit_code).stdout)


def test_drift_reports_each_cause_with_what_to_do(stripe: Beside) -> None:
    key = stripe.provider.create("customer", email="v0")
    stripe.live()
    assert "No drift in 0 runs" in run(stripe, "drift").stdout
    stripe.provider.update(key, silent=True, email="v1")
    stripe.reconcile()
    said = ask(stripe, "drift")
    assert said["causes"] == {"never_delivered": 1}
    [one] = said["objects"]
    assert (one["kind"], one["id"], one["cause"], one["fields"]) == (
        "customer",
        key[2],
        "never_delivered",
        ["email"],
    )
    shown = run(stripe, "drift").stdout
    assert "1 never delivered: No event of the change has reached us" in shown
    assert "v1" not in shown
    assert "(1 never delivered)" in run(stripe, "status").stdout
    assert "never_delivered" in run(stripe, "runs").stdout


def test_audit_prints_what_the_sample_supports(stripe: Beside) -> None:
    keys = [stripe.provider.create("customer", email=f"{n}@example.test") for n in range(5)]
    stripe.live()
    assert "stripe: all copies: 5 of 5 equal, and these are all: no drift" in run(stripe, "audit").stdout
    stripe.provider.update(keys[0], silent=True, email="other@example.test")
    [row] = ask(stripe, "audit", "--no-heal", exit_code=1)
    assert (row["missed"], row["healed"]) == (1, 0)
    assert "stripe, last audit of all copies" in run(stripe, "drift").stdout


def test_a_full_reconcile_is_alone(stripe: Beside) -> None:
    key = stripe.provider.create("customer", email="v0")
    stripe.live()
    stripe.provider.delete(key, silent=True)
    [row] = ask(stripe, "reconcile", "--full")
    assert (row["task"], row["missed"]) == ("full_sweep", 1)
    assert "give it alone" in run(stripe, "reconcile", "--full", "--dry-run", exit_code=2).output


def test_check_changes_nothing_unless_asked_and_then_catches_up_at_once(stripe: Beside) -> None:
    stripe.provider.world.enabled = False
    lost = stripe.provider.create("customer", email="ada@example.test")
    run(stripe, "check", exit_code=1)
    assert not stripe.provider.world.enabled
    said = ask(stripe, "check", "--fix", "--endpoint", "stripe", exit_code=0)
    assert stripe.provider.world.enabled
    [fixed] = said["fixed"]
    assert fixed.startswith("stripe: enabled, recovered (1 of")
    assert fixed.endswith("reconciled (0 of 1)")
    stripe.work()
    assert ("customer", lost[2]) in stripe.shop.copies()
    assert ask(stripe, "issues") == []


def test_check_says_what_it_could_not_ask_and_never_that_all_is_well(stripe: Beside) -> None:
    assert "All is well" in run(stripe, "check").stdout
    stripe.provider.api.script = [Answer(503, {})]
    shown = run(stripe, "check", exit_code=1).stdout
    assert "All is well" not in shown
    assert "- stripe, no_answer: see its detail, then `flask webhooks check --endpoint stripe` again" in shown
    stripe.provider.api.script = [Answer(503, {})]
    said = ask(stripe, "check", exit_code=1)
    [bad] = [finding for finding in said["findings"] if not finding["good"]]
    assert not said["good"]
    assert (bad["kind"], bad["evidence"]) == ("no_answer", {"error": "RetryLater"})
    assert "could not be asked" in bad["detail"]


def test_check_names_what_it_was_not_told_how_to_ask(sqlite_url: str, tmp_path: Path) -> None:
    with beside(sqlite_url, tmp_path, "stripe", endpoint_id="") as made:
        made.provider.world.url = "https://example.test/hooks/whose"
        shown = run(made, "check").stdout
    assert "Nothing is wrong with what could be looked at." in shown
    assert "- stripe, no_answer: set `endpoint_id`" in shown


def test_doctor_probes_our_own_door_and_records_nothing_of_it(stripe: Beside) -> None:
    findings = {f["kind"]: f for f in ask(stripe, "doctor", exit_code=0)["findings"]}
    assert findings["probe"]["good"]
    assert "was taken" in findings["probe"]["detail"]
    assert findings["beat"]["state"] == "unknown"
    assert "not heard yet: start `celery beat`" in findings["beat"]["detail"]
    assert "- (all), beat: not heard yet" in run(stripe, "doctor").stdout
    stripe.shop.state.watch.alive()
    assert "heard last at" in {f["kind"]: f for f in ask(stripe, "doctor")["findings"]}["beat"]["detail"]
    assert stripe.shop.events() == []
    # A delivery of the provider's that somebody marks as a probe is recorded all the same.
    stripe.provider.create("customer", email="ada@example.test")
    request = stripe.provider.world.log[-1].request.with_headers({"Webhook-Inbox-Probe": "0" * 64})
    assert stripe.receive(request) == 200
    assert len(stripe.shop.events()) == 1


def test_a_probe_tells_when_the_way_to_the_door_changes_what_is_sent(stripe: Beside) -> None:
    @stripe.shop.app.before_request
    def redirect() -> Any:
        return "moved", 308, {"Location": "/elsewhere"}

    findings = {f["kind"]: f for f in ask(stripe, "doctor", exit_code=1)["findings"]}
    assert "got 308" in findings["probe"]["detail"]


def test_an_issue_can_be_closed_by_hand(stripe: Beside) -> None:
    stripe.provider.world.enabled = False
    run(stripe, "check", exit_code=1)
    [issue] = ask(stripe, "issues")
    assert ask(stripe, "issues", "--close", str(issue["id"])) == []
    assert "no open issue" in run(stripe, "issues", "--close", str(issue["id"]), exit_code=1).output


def test_test_alert_tells_everybody_twice(stripe: Beside) -> None:
    heard: list[Issue] = []
    stripe.shop.webhooks.on_issue(heard.append)
    run(stripe, "test-alert")
    assert [(issue.kind, issue.state) for issue in heard] == [("test", "open"), ("test", "closed")]


def test_simulate_outage_says_what_the_policy_says(stripe: Beside) -> None:
    shown = run(stripe, "simulate-outage", "--provider", "stripe", "--minutes", "60").stdout
    assert "stripe tries every event again: nothing is lost." in shown
    assert "the log of stripe reaches back 30 d" in shown
    said = ask(stripe, "simulate-outage", "--provider", "github", "--minutes", "60")
    assert (said["retried"], said["lost_from"], said["recovered"]) == (False, 3600.0, True)
    assert (
        "nobody"
        in run(stripe, "simulate-outage", "--provider", "nobody", "--minutes", "1", exit_code=1).output
    )
