"""A88 over a whole run: what is secret, and what a body holds, turns up nowhere that it does not belong."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.conftest import _available
from tests.faults.deployment import Deployment, wait_until
from webhooks.provider import Request
from webhooks.testing.simulator import Answer

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.redis]

BODY = "MARKER-in-the-body-7f3a"
BODIES = {"webhook_bodies", "webhook_objects", "copy"}
"""Tables that are there to hold what a body holds."""

COMMANDS = (
    "status", "status --json", "events", "events --json", "issues --json", "runs --json", "doctor", "check --json",
    "effects list --json", "providers --json", "unhandled --json", "flows --json", "drift --json", "sweep",
)  # fmt: skip


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    with _available():
        made = Deployment(tmp_path, BREAK_AT=BODY, LOG_LEVEL="DEBUG")
    with made:
        yield made


def queued(d: Deployment) -> str:
    """All that the broker holds, also what is wrapped in Base64."""
    found: list[bytes] = []
    with redis.Redis.from_url(d.valkey.url()) as client:
        for key in client.scan_iter():
            read: Any = {
                b"list": lambda key: client.lrange(key, 0, -1),
                b"set": client.smembers,
                b"hash": lambda key: [*client.hgetall(key).items()],
                b"zset": lambda key: client.zrange(key, 0, -1),
                b"string": lambda key: [client.get(key)],
            }[client.type(key)]
            found += [key, *(repr(value).encode() for value in read(key))]
            if client.type(key) == b"list":
                for message in read(key):
                    found.append(base64.b64decode(json.loads(message)["body"]))
    return b"\n".join(found).decode(errors="replace")


def stored(d: Deployment) -> dict[str, str]:
    """Every row of every table, as text."""
    tables = [row[0] for row in d.ask("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]
    held = {table: "\n".join(row[0] for row in d.ask(f'SELECT t::text FROM "{table}" t')) for table in tables}
    held["webhook_bodies"] += "".join(
        bytes(row[0]).decode() for row in d.ask("SELECT body FROM webhook_bodies")
    )
    return held


def test_no_secret_signature_key_or_body_turns_up_where_it_does_not_belong(deployment: Deployment) -> None:
    d = deployment
    signatures: set[str] = set()
    send = d.stripe._send
    assert send is not None

    def noting(request: Request) -> int | None:
        signatures.update(
            part.partition("=")[2] for part in request.headers["Stripe-Signature"].split(",") if "v1" in part
        )
        return send(request)

    d.stripe._send = noting
    d.start("web", "beat")
    thing = d.stripe.create("product", title=BODY)  # its handler raises, with the whole body in its message
    d.stripe.update(d.stripe.create("customer", title=BODY), title=BODY + "2")
    d.deliver()
    happening = d.stripe.world.log[0]
    good = replace(happening.request, url=d.stripe.world.url)
    wrong = d.stripe.provider.signature.sign(good, "whsec_MARKER_of_somebody_else", d.stripe.world.clock())
    refused = [
        wrong,
        replace(
            wrong, headers={"Stripe-Signature": "t=1,v1=MARKER-broken", "Content-Type": "application/json"}
        ),
        replace(wrong, headers={**wrong.headers, "Content-Encoding": "gzip"}),
    ]
    assert [noting(request) for request in refused] == [401, 401, 415]
    wait_until(lambda: "webhooks.apply" in queued(d), "the bell is rung, and nobody hears it yet")
    broker = queued(d)
    d.stripe.api.script = [Answer(500, {"error": {"message": BODY}})] * 3
    d.callee.delay = 2.0  # longer than the lease of an effect
    d.start("worker")
    failing = "SELECT error FROM webhook_events WHERE error LIKE '%RuntimeError%'"
    wait_until(
        lambda: bool(
            d.do("UPDATE webhook_events SET due_at = now() WHERE state = 'pending'") or d.ask(failing)
        )
    )
    d.stripe.update(thing, silent=True, title="another")
    d.settle()
    broker += queued(d)
    runner = d.shop.app.test_cli_runner()
    event = str(d.ask("SELECT id FROM webhook_events LIMIT 1")[0][0])
    ran = [runner.invoke(args=["webhooks", *command.split()]) for command in (*COMMANDS, f"explain {event}")]
    assert all(done.output and not isinstance(done.exception, Exception) for done in ran), ran
    said = {
        "the broker": broker,
        "the command line": "".join(done.output for done in ran),
        "repr": repr(
            [
                d.shop.state,
                d.shop.state.endpoints,
                [*d.shop.state.endpoints.values()],
                refused,
                d.stripe.world.log,
            ]
        ),
        **{path.name: path.read_text(errors="replace") for path in d.logs()},
    }
    assert "RuntimeError at tests.faults.site" in said["worker.log"], "the handler did raise, and was told of"
    assert "refused a delivery (mismatch)" in said["web.log"]
    secrets = {
        d.stripe.service.secret,
        d.stripe.service.settings["api_key"],
        "whsec_MARKER_of_somebody_else",
        "MARKER-broken",
        d.postgres.password,
        d.valkey.password,
        *signatures,
    }
    tables = stored(d)
    assert BODY in tables["webhook_bodies"]
    for hidden in secrets:
        assert [place for place, text in (said | tables).items() if hidden in text] == [], hidden
    places = [place for place, text in (said | tables).items() if BODY in text]
    assert set(places) <= BODIES, places
