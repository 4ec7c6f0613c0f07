"""The verdict itself: it finds what is planted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from tests.conftest import _available
from tests.faults.catalogue import BROKER, DATABASE, EVERY, KILLS, PROVIDER
from tests.faults.deployment import Deployment
from tests.faults.proxy import Proxy
from webhooks.testing import Simulator

pytestmark = [pytest.mark.postgres, pytest.mark.redis]


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    """Without processes: what they do is done here."""
    with _available():
        made = Deployment(tmp_path)
    with made:
        made.stripe._send = made.shop.receiver("stripe")
        yield made


def test_everything_that_can_be_wrong_is_found(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = deployment
    monkeypatch.setenv("CALLEE_URL", d.callee.url)
    first, second = d.stripe.create("customer", title="new"), d.stripe.create("product", title="new")
    d.stripe.update(first, title="newer")
    d.deliver(threads=1)
    d.shop.state.applier.drain()
    d.shop.state.caller.drain()
    assert not any(d.open().values())
    d.assert_whole()
    created, made, updated = (happening.id for happening in d.stripe.world.log)
    planted = {
        f"DELETE FROM webhook_events WHERE dedup_key = '{created}'": f"lost: {created} customer.created",
        f"UPDATE webhook_events SET dedup_key = 'evt_x' WHERE dedup_key = '{made}'": "invented: evt_x",
        f"INSERT INTO noted (event, type) VALUES ('{made}', '')": f"applied 2 times: {made}",
        f"DELETE FROM noted WHERE event = '{made}'": f"applied 0 times: {made}",
        f"DELETE FROM copy WHERE key = '{second[2]}'": f"stale or missing: {second[1:]}",
        "INSERT INTO copy (kind, key, data) VALUES ('customer', 'cus_x', '{}')": "should be gone: ('customer', 'cus_x')",
        f"UPDATE webhook_objects SET data = '{{}}' WHERE id = '{first[2]}'": f"customer {first[2]}: our copy differs",
        f"UPDATE webhook_events SET state = 'dead' WHERE dedup_key = '{made}'": f"dead applied None: {made}",
        "UPDATE webhook_effects SET state = 'dead' WHERE name = 'once'": f"dead: ('once', '{created}')",
        "UPDATE webhook_effects SET state = 'unknown' WHERE name = 'keyed'": (
            f"unknown although it could be repeated: ('keyed', '{updated}')"
        ),
        "DELETE FROM webhook_effects WHERE name = 'keyed'": f"never promised: ('keyed', '{updated}')",
    }
    with d.superuser() as connection:
        tables = ("webhook_bodies", "webhook_events", "noted", "copy", "webhook_objects", "webhook_effects")
        connection.execute("SET session_replication_role = replica")  # foreign keys are not what is tried
        for table in tables:
            connection.execute(f"CREATE TABLE kept_{table} AS TABLE {table}")
        for statement, finding in planted.items():
            connection.execute(statement.encode())
            assert finding in d.wrongs(), statement
            for table in tables[1:]:
                connection.execute(f"DELETE FROM {table}")
                connection.execute(f"INSERT INTO {table} SELECT * FROM kept_{table}")
            assert d.wrongs() == []
    for call, finding in (("once", "happened 2 times"), ("keyed", None)):
        key = next(key for name, key, _ in d.callee.calls if name == call)
        d.callee.do(call, key, created if call == "once" else updated)
        assert [f"{finding}: ('once', '{created}')"] == d.wrongs() or finding is None
    d.callee.happened.clear()
    assert f"said to be done and is not: ('keyed', '{updated}')" in d.wrongs()


def test_a_wire_can_be_slow_cut_stuck_or_down() -> None:
    with Simulator("stripe") as server, Proxy(int(server.api_url.rpartition(":")[2])) as wire:
        url = f"http://127.0.0.1:{wire.port}/"

        def ask() -> str:
            try:
                return urllib3.request("GET", url, timeout=0.5, retries=False).data.decode()[:8]
            except urllib3.exceptions.HTTPError as error:
                return type(error).__name__

        assert ask() == '{"error"'
        found = {}
        wire.cut_after = 190  # the head, and a piece of the body
        wire.said = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno"
        for mode in ("refuse", "hang", "cut", "say"):
            wire.mode = mode  # type: ignore[assignment]
            wire.drop()
            found[mode] = ask()
        assert found == {
            "refuse": "ProtocolError",
            "hang": "ReadTimeoutError",
            "cut": "ProtocolError",
            "say": "no",
        }
        wire.heal()
        wire.delay = 1.0
        assert ask() == "ReadTimeoutError"
        wire.heal()
        assert ask() == '{"error"'


def test_each_fault_has_one_name() -> None:
    assert len(EVERY) == sum(len(faults) for faults in (KILLS, DATABASE, BROKER, PROVIDER)) > 40
