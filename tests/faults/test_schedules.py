"""Beats, clocks and leases: what decides when something is done, and must never decide what."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import _available
from tests.faults.deployment import Deployment, wait_until
from tests.faults.site import LEASE

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.redis]

SHADOW = """
CREATE SCHEMA shadow;
CREATE TABLE shadow.step (seconds double precision);
INSERT INTO shadow.step VALUES (0);
CREATE FUNCTION shadow.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
  'SELECT pg_catalog.clock_timestamp() + make_interval(secs => (SELECT seconds FROM shadow.step))';
CREATE FUNCTION shadow.now() RETURNS timestamptz LANGUAGE sql STABLE AS
  'SELECT pg_catalog.now() + make_interval(secs => (SELECT seconds FROM shadow.step))';
ALTER DATABASE postgres SET search_path = shadow, pg_catalog, public;
"""
"""Found before the server's own: every clock that our statements ask is wrong by `seconds`."""


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    with _available():
        made = Deployment(tmp_path, WRONG_CLOCK="1")
    with made:
        yield made


def test_two_beats_and_two_workers_do_everything_once(deployment: Deployment) -> None:
    deployment.start("web", "worker", "worker2", "beat", "beat2")
    with deployment.steady():
        time.sleep(5)
    deployment.settle()
    deployment.assert_whole()


def test_without_beat_deliveries_are_applied_and_people_are_told(deployment: Deployment) -> None:
    deployment.start("web", "worker", "beat")
    wait_until(lambda: bool(deployment.ask("SELECT 1 FROM webhook_marks WHERE name = 'beat'")))
    deployment.processes.kill("beat")
    deployment.traffic(20)
    wait_until(lambda: not any(deployment.open().values()), "the doorbell alone must do")
    deployment.do("UPDATE webhook_marks SET at = at - interval '6 minutes' WHERE name = 'beat'")
    deployment.assert_whole("beat_silent")
    deployment.start("beat")
    wait_until(lambda: not deployment.check(), "beat is heard again, and the issue closes by itself")
    deployment.assert_whole()


def test_without_a_worker_everything_is_recorded_and_people_are_told(deployment: Deployment) -> None:
    deployment.start("web", "beat")
    deployment.traffic(20)
    assert deployment.open()["events"] == 20
    assert deployment.stripe.counts.failed == 0
    assert not deployment.check()
    deployment.do("UPDATE webhook_events SET due_at = due_at - interval '11 minutes'")
    assert set(deployment.check()) == {"backlog"}
    deployment.start("worker")
    deployment.settle()
    wait_until(lambda: not deployment.check(), "it closes when it has been good more than once")
    deployment.assert_whole()


def test_a_lease_that_is_shorter_than_the_work_doubles_nothing(deployment: Deployment) -> None:
    deployment.stripe.api.latency = LEASE.total_seconds() * 1.5
    deployment.callee.delay = LEASE.total_seconds() * 1.5
    deployment.start("web", "worker", "worker2", "beat")
    deployment.traffic(6)
    wait_until(lambda: deployment.open()["events"] == 0, "each claim is longer than the one before")
    deployment.callee.delay = 0
    deployment.settle()
    # A call that outlives its lease may have happened: `once` is never called again, and is done or told of.
    deployment.assert_whole()


@pytest.mark.parametrize("steps", [(3600, 0), (-3600, 0), (86_400, -86_400, 0)])
def test_the_clock_of_the_database_may_be_stepped(steps: tuple[int, ...], deployment: Deployment) -> None:
    """By functions that stand before the server's own in the search path. What reads the clock past our statements (its log,
    vacuum, the time-outs of the server) is not covered."""
    deployment.do(*SHADOW.strip().split(";\n"))
    deployment.start("web", "worker", "beat")
    deployment.traffic(10)
    seen = set()
    for step in steps:
        deployment.do(f"UPDATE shadow.step SET seconds = {step}")
        deployment.traffic(15)
        time.sleep(1)
        seen |= set(deployment.check())
        deployment.settle()
        deployment.traffic(5)
    deployment.settle()
    assert "clock_skew" in seen
    deployment.assert_whole()
    apart = deployment.ask("SELECT max(received_at) - min(received_at) AS apart FROM webhook_events")[0].apart
    assert apart.total_seconds() > 3000, "the events were recorded by the stepped clock"


@pytest.mark.parametrize("seconds", [3600, -3600])
def test_the_clock_of_our_processes_may_be_stepped(seconds: int, deployment: Deployment) -> None:
    """As far as `datetime.now` of our own modules goes; the clocks of Celery, the broker and `time.monotonic` stay right. While it
    is wrong deliveries look old or too new and are refused, people are told why, and when it is right again nothing is missing."""
    deployment.start("web", "worker", "beat")
    deployment.traffic(10)
    (deployment.folder / "clock").write_text(str(seconds))
    deployment.traffic(15)
    assert deployment.stripe.counts.failed >= 15
    assert "clock_skew" in deployment.check()
    (deployment.folder / "clock").write_text("0")
    deployment.traffic(10)
    deployment.settle()
    deployment.do("UPDATE webhook_rejections SET received_at = received_at - interval '61 minutes'")
    deployment.assert_whole()
