"""The door: what is recorded, what is refused, and what a stranger learns from the answer. A… are cases of failure that
people reported with other receivers."""

from __future__ import annotations

import gzip
import hashlib
import hmac
import io
import json
import logging
import sqlite3
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from flask import Flask
from sqlalchemy import create_engine, text
from werkzeug.test import TestResponse

from tests import apps
from tests.apps import GITHUB, STRIPE, apply, build, deliver, post, rows, signed
from tests.conftest import new_database
from webhooks import Webhooks, providers
from webhooks.extension import state
from webhooks.inbox import Inbox
from webhooks.keyring import Keyring
from webhooks.provider import Request
from webhooks.queue import Bell
from webhooks.signatures import fingerprint

STRIPE_SECRET, GITHUB_SECRET = STRIPE["secrets"][0], GITHUB["secrets"][0]
CUSTOMER = {"id": "cus_1", "object": "customer"}


@pytest.fixture(scope="module", params=["blueprint", "front door"], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test of the door runs through Flask's blueprint and through the front door before it."""
    apps.front_door = request.param == "front door"
    yield
    apps.front_door = False


BOTH = {"stripe": {**STRIPE, "fetch": False}, "github": {**GITHUB, "fetch": False}}
"""Nothing is fetched, so that what the deliveries carry is applied."""


@contextmanager
def on_sqlite(folders: pytest.TempPathFactory) -> Iterator[Flask]:
    with build(f"sqlite:///{folders.mktemp('door') / 'inbox.sqlite'}", BOTH) as made:
        yield made


@pytest.fixture(scope="module")
def sqlite_app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flask]:
    with on_sqlite(tmp_path_factory) as made:
        yield made


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def shared_app(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flask]:
    if request.param == "sqlite":
        with on_sqlite(tmp_path_factory) as made:
            yield made
    else:
        with new_database(request.getfixturevalue("postgres_url")) as url, build(url, BOTH) as made:
            yield made


@pytest.fixture
def app(shared_app: Flask) -> Flask:
    """Both endpoints, on both databases, with empty tables: an app for each test would take most of the time."""
    return emptied(shared_app)


@pytest.fixture
def light(sqlite_app: Flask) -> Flask:
    """The same on SQLite alone: for what has nothing to do with the database."""
    return emptied(sqlite_app)


def emptied(app: Flask) -> Flask:
    tables = state(app).tables
    with state(app).inbox.transaction() as connection:
        for table in (tables.events, tables.bodies, tables.objects, tables.processed_events):
            connection.execute(table.delete())
    return app


def bodies(app: Flask) -> list[bytes]:
    return [bytes(row.body) for row in rows(app, "bodies")]


def stripe_body(**fields: Any) -> bytes:
    event = {"id": "evt_T01", "object": "event", "type": "customer.updated", "data": {"object": CUSTOMER}}
    return json.dumps({**event, **fields}).encode()


def stripe_header(body: bytes, at: float, *secrets: str, before: str = "", after: str = "") -> str:
    """Written anew after Stripe's documentation, so that our signing and our verifying cannot be wrong together."""
    signatures = [
        hmac.new(secret.encode(), str(int(at)).encode() + b"." + body, "sha256").hexdigest()
        for secret in secrets
    ]
    return f"t={int(at)}{before}" + "".join(f",v1={signature}" for signature in signatures) + after


def github_header(body: bytes, secret: str = GITHUB_SECRET) -> str:
    return "sha256=" + hmac.new(secret.encode(), body, "sha256").hexdigest()


def send_stripe(app: Flask, body: bytes, header: str | None = None, **headers: str) -> TestResponse:
    header = stripe_header(body, time.time(), STRIPE_SECRET) if header is None else header
    return app.test_client().post(
        "/webhooks/stripe", data=body, headers={"Stripe-Signature": header, **headers}
    )


def send_github(
    app: Flask,
    body: bytes,
    event: str = "issues",
    guid: str = "72d3162e-cc78-11e3-81ab-4c9367dc0958",
    **more: str,
) -> TestResponse:
    headers = {
        "Content-Type": "application/json",
        "X-GitHub-Event": event,
        "X-GitHub-Delivery": guid,
        "X-Hub-Signature-256": github_header(body),
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    return app.test_client().post("/webhooks/github", data=body, headers=headers)


def assert_refused(app: Flask, answer: TestResponse, status: int = 401, word: str = "unauthorized") -> None:
    """A fixed short answer, nothing recorded, nowhere to go."""
    assert (answer.status_code, answer.get_data(as_text=True)) == (status, f"{word}\n")
    assert answer.content_type == "text/plain; charset=utf-8"
    assert "Location" not in answer.headers
    assert rows(app, "events") == []
    assert bodies(app) == []


def assert_recorded(answer: TestResponse) -> None:
    assert (answer.status_code, answer.get_data()) == (200, b"")
    assert "Location" not in answer.headers


# -- the body, byte by byte


def test_the_bytes_as_they_came_are_verified_and_stored(app: Flask) -> None:
    """A01"""
    body = (
        rb'{ "id" : "evt_T01",  "type":"customer.updated","data":{"object":{"id":"cus_T01","object":"customer",'
        rb'"u":"a\/b \u00e9","n":1.0}} }'
    )
    assert_recorded(send_stripe(app, body))
    apply(app)
    assert bodies(app) == [body]
    (event,) = rows(app, "events")
    assert (event.dedup_key, event.type, event.object_kind, event.object_id) == (
        "evt_T01",
        "customer.updated",
        "customer",
        "cus_T01",
    )
    (copy,) = rows(app, "objects")
    assert copy.data == {"id": "cus_T01", "object": "customer", "u": "a/b é", "n": 1.0}


def test_a_github_form_is_verified_as_a_form_and_read_as_json(light: Flask) -> None:
    """A02"""
    body = b"payload=" + quote('{"action":"opened","number":7,"pull_request":{"id":9,"number":7}}').encode()
    assert_recorded(
        send_github(light, body, "pull_request", Content_Type="application/x-www-form-urlencoded")
    )
    apply(light)
    (event,) = rows(light, "events")
    assert (event.type, event.object_kind, event.object_id) == ("pull_request.opened", "pull_request", "9")
    assert bodies(light) == [body]
    assert rows(light, "objects")[0].data == {"id": 9, "number": 7}


def test_a_hook_of_the_host_may_read_the_form_first(sqlite_url: str) -> None:
    """A03"""
    seen: list[str] = []
    with build(sqlite_url, BOTH) as app:

        @app.before_request
        def read_everything() -> None:
            from flask import request

            seen.append(request.form["payload"])

        body = b"payload=" + quote('{"action":"opened","issue":{"id":9,"number":7}}').encode()
        assert_recorded(send_github(app, body, Content_Type="application/x-www-form-urlencoded"))
        # No hook of the host's runs for what the front door takes.
        assert seen == ([] if apps.front_door else ['{"action":"opened","issue":{"id":9,"number":7}}'])
        assert bodies(app) == [body]


def test_emoji_and_accents_are_no_reason_to_refuse(light: Flask) -> None:
    """A04"""
    body = b'{"action":"created","comment":{"id":5,"body":"done \xf0\x9f\x98\x8a caf\xc3\xa9"}}'
    assert_recorded(send_github(light, body, "issue_comment"))
    apply(light)
    assert rows(light, "objects")[0].data == {"id": 5, "body": "done 😊 café"}


def test_a_byte_order_mark_is_signed_stored_and_skipped(light: Flask) -> None:
    """A06"""
    body = b"\xef\xbb\xbf" + stripe_body()
    assert_recorded(send_stripe(light, body))
    assert [row.type for row in rows(light, "events")] == ["customer.updated"]
    assert bodies(light) == [body]


def test_one_byte_more_is_refused_and_can_be_told_from_a_wrong_secret(
    light: Flask, caplog: pytest.LogCaptureFixture
) -> None:
    """A08"""
    body = stripe_body()
    header = stripe_header(body, time.time(), STRIPE_SECRET)
    assert_refused(light, send_stripe(light, body + b"\n", header, **{"Content-Type": "application/json"}))
    (said,) = [record.getMessage() for record in caplog.records if record.name.startswith("webhooks")]
    assert f"{len(body) + 1} bytes" in said
    assert hashlib.sha256(body + b"\n").hexdigest() in said
    assert "'application/json'" in said
    assert "mismatch" in said
    assert said.startswith("stripe: ")
    for hidden in (STRIPE_SECRET, header, header.rpartition("=")[2], "cus_1", "evt_T01"):
        assert hidden not in said


# -- signatures and secrets


@pytest.mark.parametrize("good_first", [True, False], ids=["good one first", "good one last"])
def test_one_right_signature_of_several_is_enough(light: Flask, good_first: bool) -> None:
    """A10 (as far as Stripe has it), A11"""
    body, now = stripe_body(), time.time()
    wrong = ",v1=" + "0" * 64
    header = stripe_header(
        body, now, STRIPE_SECRET, before="" if good_first else wrong, after=wrong if good_first else ""
    )
    assert header.count("v1=") == 2
    assert_recorded(send_stripe(light, body, header))
    assert len(rows(light, "events")) == 1


def test_a_weaker_scheme_beside_is_never_enough(light: Flask) -> None:
    """A10, A83"""
    body, now = stripe_body(), time.time()
    good = stripe_header(body, now, STRIPE_SECRET)
    assert_refused(light, send_stripe(light, body, good.replace("v1=", "v0=")))
    assert_refused(light, send_stripe(light, body, good.replace("v1=", "v2=")))
    sha1 = "sha1=" + hmac.new(GITHUB_SECRET.encode(), body, "sha1").hexdigest()
    assert_refused(light, send_github(light, body, X_Hub_Signature_256=sha1))
    assert_refused(light, send_github(light, body, X_Hub_Signature_256="", X_Hub_Signature=sha1))


def test_each_endpoint_has_its_own_secrets_and_says_which_one_matched(database_url: str) -> None:
    """A12"""
    mine, connect, old = "whsec_of_the_account", "whsec_of_connect_new", "whsec_of_connect_old"
    endpoints = {
        "stripe": {**STRIPE, "secrets": [mine]},
        "stripe-connect": {**STRIPE, "secrets": [connect, old]},
    }
    with build(database_url, endpoints) as app:
        assert_refused(app, deliver(app, "stripe", "customer.updated", secret=connect))
        assert_refused(app, deliver(app, "stripe-connect", "customer.updated", secret=mine))
        assert_recorded(deliver(app, "stripe-connect", "customer.updated", id="evt_1", secret=connect))
        assert_recorded(deliver(app, "stripe-connect", "customer.updated", id="evt_2", secret=old))
        assert_recorded(deliver(app, "stripe", "customer.updated", id="evt_1", secret=mine))
        found = [(row.endpoint, row.dedup_key, row.secret) for row in rows(app, "events")]
    assert found == [
        ("stripe-connect", "evt_1", fingerprint(connect)),
        ("stripe-connect", "evt_2", fingerprint(old)),
        ("stripe", "evt_1", fingerprint(mine)),
    ]


def test_every_secret_that_signed_a_delivery_of_the_event_is_noted(database_url: str) -> None:
    """A12: while a secret is rolled, the deliveries of one event may be signed with either."""
    with build(database_url, {"stripe": {**STRIPE, "secrets": ["whsec_current_1", "whsec_former_1"]}}) as app:
        for secret in ("whsec_former_1", "whsec_current_1", "whsec_former_1"):
            assert_recorded(deliver(app, "stripe", "customer.updated", id="evt_1", secret=secret))
        (event,) = rows(app, "events")
    assert event.deliveries == 3
    assert event.secret.split(",") == [fingerprint("whsec_former_1"), fingerprint("whsec_current_1")]


def test_white_space_around_a_configured_secret_is_removed_with_a_warning(database_url: str) -> None:
    """A13"""
    with (
        pytest.warns(UserWarning, match=r"WEBHOOKS\['stripe'\]\.secrets: white space") as warned,
        build(database_url, {"stripe": {**STRIPE, "secrets": ["whsec_PLACEHOLDER\n"]}}) as app,
    ):
        assert_recorded(deliver(app, "stripe", "customer.updated", secret="whsec_PLACEHOLDER"))
    assert "PLACEHOLDER" not in str(warned[0].message)


HOSTILE = {
    "a byte that is no ASCII": "\xe9abc",
    "all bytes": "".join(chr(n) for n in range(1, 256) if n not in {10, 13}),
    "very long": "a" * 60_000,
    "nothing but commas": "," * 500,
    "nothing but equals": "=" * 500,
}


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("prefix", ["", "sha256=", "t=1,v1=", "t={now},v1=", "v1="])
def test_whatever_a_signature_header_holds_is_a_plain_refusal(light: Flask, value: str, prefix: str) -> None:
    """A14"""
    given = prefix.format(now=int(time.time())) + value
    assert_refused(light, send_stripe(light, stripe_body(), given))
    assert_refused(light, send_github(light, b"{}", X_Hub_Signature_256=given))


HOSTILE_TIMES = [
    "",
    " ",
    "-1",
    "+1",
    "0x10",
    "1e9",
    "1_0",
    "9" * 400,
    "\xb2",
    "nan",
    "inf",
    "1.5",
    "None",
    "{now} ",
]


@pytest.mark.parametrize("given", HOSTILE_TIMES)
def test_a_time_that_is_no_time_is_a_plain_refusal_even_when_it_is_signed(light: Flask, given: str) -> None:
    """A14"""
    body, time_ = stripe_body(), given.format(now=int(time.time())).encode("latin-1")
    mac = hmac.new(STRIPE_SECRET.encode(), time_ + b"." + body, "sha256").hexdigest()
    assert_refused(light, send_stripe(light, body, f"t={time_.decode('latin-1')},v1={mac}"))


def test_header_names_come_in_any_case(light: Flask) -> None:
    """A15"""
    body = b'{"action":"opened","issue":{"id":9,"number":7}}'
    names = {"X-GitHub-Event": "issues", "X-Hub-Signature-256": github_header(body)}
    for number, spelling in enumerate((str.lower, str.upper), 1):
        headers = {spelling(name): value for name, value in names.items()}
        headers[spelling("X-GitHub-Delivery")] = f"guid-{number}"
        assert_recorded(light.test_client().post("/webhooks/github", data=body, headers=headers))
    assert [(row.dedup_key, row.type) for row in rows(light, "events")] == [
        ("guid-1", "issues.opened"),
        ("guid-2", "issues.opened"),
    ]
    assert [row.headers for row in rows(light, "bodies")] == [
        {"X-GitHub-Event": "issues", "X-GitHub-Delivery": f"guid-{number}"} for number in (1, 2)
    ]


def test_no_signature_is_kept_with_the_body(light: Flask) -> None:
    """A88"""
    deliver(light, "stripe", "customer.updated")
    deliver(light, "github", "issues.opened")
    kept = [row.headers for row in rows(light, "bodies")]
    assert [sorted(headers) for headers in kept] == [
        ["Content-Type"],
        ["Content-Type", "X-GitHub-Delivery", "X-GitHub-Event", "X-GitHub-Hook-ID"],
    ]


# -- clocks


@pytest.mark.parametrize("away", [timedelta(hours=1), timedelta(hours=-1), timedelta(days=365_000 // 365)])
def test_a_time_outside_the_window_is_refused_on_either_side(
    light: Flask, away: timedelta, caplog: pytest.LogCaptureFixture
) -> None:
    """A16, A84: right signature, wrong hour. The log says that it is the clock, the answer does not."""
    body = stripe_body()
    at = (datetime.now(UTC) + away).timestamp()
    assert_refused(light, send_stripe(light, body, stripe_header(body, at, STRIPE_SECRET)))
    assert "refused a delivery (clock)" in caplog.text


@pytest.mark.parametrize("away", [-20, -240, 240])
def test_a_slow_network_is_no_reason_to_refuse(light: Flask, away: int) -> None:
    """A17"""
    body = stripe_body()
    assert_recorded(send_stripe(light, body, stripe_header(body, time.time() + away, STRIPE_SECRET)))
    assert len(rows(light, "events")) == 1


def test_the_window_can_be_configured(sqlite_url: str) -> None:
    """A17"""
    body = stripe_body()
    with build(sqlite_url, {"stripe": {**STRIPE, "tolerance": 7200}}) as app:
        assert_recorded(send_stripe(app, body, stripe_header(body, time.time() - 7000, STRIPE_SECRET)))
    with build(sqlite_url, {"stripe": {**STRIPE, "tolerance": 60}}) as app:
        answer = send_stripe(app, body, stripe_header(body, time.time() - 90, STRIPE_SECRET))
    assert answer.status_code == 401


def test_a_captured_request_is_recorded_once_however_often_it_is_replayed(app: Flask) -> None:
    """A84"""
    request = signed(providers.get("stripe"), STRIPE_SECRET, "customer.updated", id="evt_1")
    for _ in range(3):
        assert_recorded(post(app, "/webhooks/stripe", request))
    (event,) = rows(app, "events")
    assert event.deliveries == 3
    assert bodies(app) == [request.body]


# -- what HTTP allows


def test_with_and_without_a_trailing_slash_it_is_one_endpoint(light: Flask) -> None:
    """A25"""
    for number, url in enumerate(["/webhooks/stripe", "/webhooks/stripe/", "/webhooks/stripe?source=x"], 1):
        assert_recorded(deliver(light, "stripe", "customer.updated", id=f"evt_{number}", url=url))
    assert len(rows(light, "events")) == 3


@pytest.mark.parametrize(
    "url",
    [
        "/webhooks//stripe",
        "//webhooks/stripe",
        "/webhooks/stripe//",
        "/webhooks",
        "/webhooks/",
        "/webhooks/nobody",
        "/webhooks/Stripe",
        "/webhooks/stripe/more",
        "/webhooks/../webhooks/nobody",
        "/webhooks/defaults",
    ],
)
@pytest.mark.parametrize("method", ["POST", "GET", "HEAD", "PUT"])
def test_no_url_near_an_endpoint_redirects(light: Flask, url: str, method: str) -> None:
    """A25: a provider does not follow, or follows with GET and loses the body."""
    request = signed(providers.get("stripe"), STRIPE_SECRET, "customer.updated")
    answer = light.test_client().open(
        url, method=method, data=request.body, headers=list(request.headers.items())
    )
    assert answer.status_code in {404, 405}
    assert "Location" not in answer.headers
    assert rows(light, "events") == []


@pytest.mark.parametrize("endpoint", ["stripe", "github"])
@pytest.mark.parametrize("slash", ["", "/"])
def test_looking_does_nothing(
    light: Flask, endpoint: str, slash: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A26"""
    client = light.test_client()
    for method in ("GET", "HEAD"):
        answer = client.open(f"/webhooks/{endpoint}{slash}", method=method)
        assert (answer.status_code, answer.get_data()) == (200, b"")
        answer = client.open(f"/webhooks/{endpoint}{slash}?challenge=1", method=method, data=b"x" * 10_000)
        assert (answer.status_code, answer.get_data()) == (200, b"")
    assert rows(light, "events") == []
    assert [record for record in caplog.records if record.name.startswith("webhooks")] == []


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"])
def test_any_other_method_is_not_allowed(light: Flask, method: str) -> None:
    """A26"""
    request = signed(providers.get("stripe"), STRIPE_SECRET, "customer.updated")
    answer = light.test_client().open(
        "/webhooks/stripe", method=method, data=request.body, headers=list(request.headers.items())
    )
    assert answer.status_code == 405
    assert rows(light, "events") == []


def test_the_first_ping_of_github_is_kept_as_ignored(light: Flask) -> None:
    """A27"""
    assert_recorded(send_github(light, b'{"zen":"x","hook_id":1,"hook":{"id":1}}', "ping"))
    apply(light)
    (event,) = rows(light, "events")
    assert (event.type, event.state, event.outcome, event.object_id) == (
        "ping",
        "ignored",
        "no_handler",
        None,
    )


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "text/plain",
        "",
        ";",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "\xe9",
        "a" * 9000,
    ],
)
def test_the_content_type_is_only_a_hint(light: Flask, content_type: str | None) -> None:
    """A29: Stripe knows JSON only."""
    assert_recorded(deliver(light, "stripe", "customer.updated", sent_headers={"Content-Type": content_type}))
    (event,) = rows(light, "events")
    assert (event.type, event.state) == ("customer.updated", "pending")
    apply(light)
    assert rows(light, "events")[0].outcome == "applied"


def test_a_burst_from_one_address_is_not_slowed_down(light: Flask) -> None:
    """A30"""
    statuses = {deliver(light, "stripe", "customer.updated", id=f"evt_{n}").status_code for n in range(500)}
    assert statuses == {200}
    assert len(rows(light, "events")) == 500


def test_a_form_of_600_kilobytes_is_no_reason_to_refuse(light: Flask) -> None:
    """A31: Werkzeug's own limit for forms is 500,000 bytes."""
    payload = json.dumps({"action": "opened", "issue": {"id": 1, "number": 1, "body": "x" * 600_000}})
    body = b"payload=" + quote(payload).encode()
    assert_recorded(send_github(light, body, Content_Type="application/x-www-form-urlencoded"))
    assert [row.type for row in rows(light, "events")] == ["issues.opened"]
    assert bodies(light) == [body]


def test_the_answer_does_not_wait_for_locks_workers_or_the_api(fresh_postgres: str) -> None:
    """A32: while everything but the inbox is locked, the delivery is answered: the lock is only released afterwards."""
    with build(fresh_postgres, {"stripe": STRIPE}) as app:
        engine = create_engine(fresh_postgres)
        with engine.connect() as other:
            other.execute(
                text(
                    "LOCK webhook_objects, webhook_processed_events, webhook_claims, webhook_runs, webhook_issues"
                )
            )
            answers: list[TestResponse] = []
            thread = threading.Thread(
                target=lambda: answers.append(deliver(app, "stripe", "customer.updated")), daemon=True
            )
            thread.start()
            thread.join(timeout=60)
            assert [answer.status_code for answer in answers] == [200]
            other.rollback()
        engine.dispose()
        assert len(rows(app, "events")) == 1


def test_eight_megabytes_are_recorded_and_more_than_the_limit_is_not_read(app: Flask) -> None:
    """A33: GitHub sends up to 25 MB."""
    body = b'{"action":"opened","issue":{"id":1,"number":1,"body":"' + b"x" * 8_000_000 + b'"}}'
    assert_recorded(send_github(app, body))
    assert bodies(app) == [body]

    class Unread(io.BytesIO):
        def read(self, *_: object) -> bytes:
            raise AssertionError("the body was read")

        readline = readlines = readinto = read  # type: ignore[assignment]

    limit = state(app).endpoints["github"].max_body
    assert limit == 25 * 1024 * 1024
    environ = {"wsgi.input": Unread(), "CONTENT_LENGTH": str(limit + 1)}
    answer = app.test_client().post("/webhooks/github", environ_overrides=environ)
    assert (answer.status_code, answer.get_data()) == (413, b"too large\n")
    assert len(rows(app, "events")) == 1


def test_exactly_the_limit_is_not_too_large(sqlite_url: str) -> None:
    """A33"""
    with build(sqlite_url, {"stripe": {**STRIPE, "max_body": 2048}}) as app:
        body = stripe_body(pad="")
        body = body.replace(b'"pad": ""', b'"pad": "' + b"x" * (2048 - len(body)) + b'"')
        assert len(body) == 2048
        assert_recorded(send_stripe(app, body))
        answer = send_stripe(app, body + b" ")
        assert (answer.status_code, answer.get_data()) == (413, b"too large\n")
        assert len(rows(app, "events")) == 1


# -- what JSON allows


def test_an_escaped_nul_is_kept_and_readable(app: Flask) -> None:
    """A34"""
    body = stripe_body().replace(b'"customer"}', rb'"customer","description":"a\u0000b"}')
    assert_recorded(send_stripe(app, body))
    apply(app)
    assert bodies(app) == [body]
    assert rows(app, "objects")[0].data == {**CUSTOMER, "description": "a\ufffdb"}
    assert rows(app, "events")[0].outcome == "applied"


def test_half_a_surrogate_pair_is_kept_and_readable(app: Flask) -> None:
    """A35"""
    body = (
        rb'{"action":"opened","issue":{"id":9,"number":7,"name":"x\ud83d","\udc00":1},"repository":{"id":1}}'
    )
    assert_recorded(send_github(app, body))
    apply(app)
    assert bodies(app) == [body]
    (copy,) = rows(app, "objects")
    assert copy.data == {"id": 9, "number": 7, "name": "x\ufffd", "\ufffd": 1}
    assert json.dumps(copy.data, ensure_ascii=False).encode()


UNREADABLE = {
    "A36: 20,000 deep": b"[" * 20_000 + b"]" * 20_000,
    "A36: 20,000 deep, within": b'{"id":"evt_1","type":"a.b","data":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "A36: 300,000 deep and open": b'{"a":' * 300_000,
    "A37: NaN": b'{"id":"evt_n","type":"x.y","data":{"object":{"id":"x","v":NaN}}}',
    "A37: Infinity": b'{"id":"evt_n","type":"x.y","data":{"object":{"id":"x","v":-Infinity}}}',
    "A37: 1e999": b'{"id":"evt_n","type":"x.y","data":{"object":{"id":"x","v":1e999}}}',
    "A38: 5,000 nines": b'{"id":"evt_n","type":"x.y","n":' + b"9" * 5000 + b"}",
    "A40: blank id": b'{"id":"  ","type":"x.y"}',
    "A40: empty id": b'{"id":"","type":"x.y"}',
    "A40: null id": b'{"id":null,"type":"x.y"}',
    "no id": b'{"type":"x.y"}',
    "id is a list": b'{"id":["evt_1"],"type":"x.y"}',
    "id is true": b'{"id":true,"type":"x.y"}',
    "no type": b'{"id":"evt_1"}',
    "type is a number": b'{"id":"evt_1","type":5}',
    "a list": b"[]",
    "a text": b'"evt_1"',
    "null": b"null",
    "nothing": b"",
    "white space": b" \r\n",
    "not JSON": b"id=evt_1&type=x.y",
    "cut off": b'{"id":"evt_1","type":"x.y","data":{"object":{"id":"x"',
    "not UTF-8": b'{"id":"evt_1","type":"x.y","a":"\xff"}',
    "a surrogate in UTF-8": b'{"id":"evt_1","type":"x.y","a":"\xed\xa0\x80"}',
    "UTF-16": '{"id":"evt_1","type":"x.y"}'.encode("utf-16"),
    "two marks": b'\xef\xbb\xbf\xef\xbb\xbf{"id":"evt_1","type":"x.y"}',
}


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE)
def test_what_is_signed_and_cannot_be_read_is_a_dead_letter(light: Flask, body: bytes) -> None:
    """A36, A37, A38, A40: 200, kept as it came, dead, and no worker ever touches it."""
    for _ in range(2):
        assert_recorded(send_stripe(light, body))
    assert apply(light).events == 0
    (event,) = rows(light, "events")
    assert (event.state, event.outcome, event.deliveries) == ("dead", "unreadable", 2)
    assert event.dedup_key == "sha256:" + hashlib.sha256(body).hexdigest()
    assert event.error
    assert bodies(light) == [body]


def test_dead_letters_are_kept_in_postgresql_too(fresh_postgres: str) -> None:
    """A36, A37, A38, A40: its text columns take less than SQLite's."""
    with build(fresh_postgres, {"stripe": STRIPE}) as app:
        for body in UNREADABLE.values():
            assert_recorded(send_stripe(app, body))
        assert bodies(app) == list(UNREADABLE.values())
        assert {(row.state, row.outcome) for row in rows(app, "events")} == {("dead", "unreadable")}


GITHUB_UNREADABLE: dict[str, tuple[bytes, dict[str, str]]] = {
    "form without payload": (b"a=1", {"Content_Type": "application/x-www-form-urlencoded"}),
    "form with a list": (b"payload=[]", {"Content_Type": "application/x-www-form-urlencoded"}),
    "form with no JSON": (b"payload={", {"Content_Type": "application/x-www-form-urlencoded"}),
    "form that is not UTF-8": (b"payload=\xff", {"Content_Type": "application/x-www-form-urlencoded"}),
    "a form that says it is JSON": (b"payload={}", {}),
    "no event": (b"{}", {"X_GitHub_Event": ""}),
    "blank event": (b"{}", {"X_GitHub_Event": " "}),
}


@pytest.mark.parametrize(("body", "headers"), GITHUB_UNREADABLE.values(), ids=GITHUB_UNREADABLE)
def test_an_unreadable_delivery_of_github_is_a_dead_letter(
    light: Flask, body: bytes, headers: dict[str, str]
) -> None:
    assert_recorded(send_github(light, body, **headers))
    (event,) = rows(light, "events")
    assert (event.state, event.outcome) == ("dead", "unreadable")
    assert bodies(light) == [body]


ODD = {
    "repository id is a dot": ("repository", b'{"action":"renamed","repository":{"id":"."}}'),
    "repository id is long": (
        "repository",
        b'{"action":"renamed","repository":{"id":"' + b"9" * 400 + b'"}}',
    ),
    "repository is a list": ("issues", b'{"action":"x","issue":{"id":1,"number":2},"repository":[]}'),
    "number is dots": ("issues", b'{"issue":{"id":1,"number":".."},"repository":{"id":1,"full_name":"a/b"}}'),
    "name climbs": ("issues", b'{"issue":{"id":1,"number":2},"repository":{"id":1,"full_name":"../.."}}'),
    "issue is a text": ("issues", b'{"issue":"x","repository":{"id":1,"full_name":"a/b"}}'),
    "ref is a number": ("push", b'{"ref":5,"repository":{"id":1,"full_name":"a/b"}}'),
    "ref climbs": ("push", b'{"ref":"refs/../../x","repository":{"id":1,"full_name":"a/b"}}'),
    "pushed at no time": ("push", b'{"ref":"refs/heads/m","repository":{"id":1,"pushed_at":"inf"}}'),
    "pushed before Christ": (
        "push",
        b'{"ref":"refs/heads/m","repository":{"id":1,"pushed_at":-62135596800}}',
    ),
    "installation is a text": ("installation", b'{"action":"created","installation":"x"}'),
    "installation id is a path": ("installation", b'{"installation":{"id":"../.."}}'),
    "action is a list": ("issues", b'{"action":["opened"],"issue":{"id":1}}'),
    "everything is null": (
        "issues",
        b'{"action":null,"issue":null,"repository":null,"installation":null,"sender":null}',
    ),
    "the event is a path": ("../../x", b"{}"),
    "the event is long": ("x" * 3000, b"{}"),
}


@pytest.mark.parametrize(("event", "body"), ODD.values(), ids=ODD)
def test_an_odd_delivery_of_github_is_recorded_and_applied_or_told_of(
    light: Flask, event: str, body: bytes
) -> None:
    """Signed, and like nothing that GitHub documents: no 5xx, and the events after it are applied."""
    assert_recorded(send_github(light, body, event))
    assert_recorded(send_github(light, b'{"action":"opened","issue":{"id":77,"number":7}}', guid="next"))
    apply(light)
    odd, after = rows(light, "events")
    assert odd.state in {"applied", "ignored", "dead"}
    assert (after.state, after.outcome) == ("applied", "applied")


STRIPE_ODD = {
    "created is inf": {"created": "inf"},
    "created is nan": {"created": "nan"},
    "created is 1e999": {"created": "1e999"},
    "created before Christ": {"created": -62135596800},
    "created in the year 9999": {"created": "9999-12-31T23:59:59Z"},
    "created is huge": {"created": 10**300},
    "created is a list": {"created": [1]},
    "updated is inf": {"data": {"object": {"id": "p", "object": "product", "updated": "inf"}}},
    "updated before Christ": {"data": {"object": {"id": "p", "object": "product", "updated": -62135596800}}},
    "object is a list": {"data": {"object": [CUSTOMER]}},
    "data is a text": {"data": "x"},
    "id of the object is a list": {"data": {"object": {"id": [1], "object": "customer"}}},
    "id of the object is a path": {"data": {"object": {"id": "../../x", "object": "customer"}}},
    "id of the object is long": {"data": {"object": {"id": "c" * 3000, "object": "customer"}}},
    "kind is long": {"data": {"object": {"id": "c", "object": "k" * 3000}}},
    "account is a header": {"account": "acct_1\r\nX-Evil: 1"},
    "account is an emoji": {"account": "\U0001f600" * 200},
    "livemode is a text": {"livemode": "false"},
    "request is a text": {"request": "req_1"},
    "idempotency key is long": {"request": {"idempotency_key": "k" * 3000}},
    "thin without related": {"object": "v2.core.event", "type": "v2.core.x"},
    "thin with a list": {"object": "v2.core.event", "related_object": []},
}


@pytest.mark.parametrize("fields", STRIPE_ODD.values(), ids=STRIPE_ODD)
def test_an_odd_delivery_of_stripe_is_recorded_and_applied_or_told_of(
    light: Flask, fields: dict[str, Any]
) -> None:
    """Signed, and like nothing that Stripe documents: no 5xx, no hanging, and the events after it are applied."""
    assert_recorded(send_stripe(light, stripe_body(**fields)))
    assert_recorded(deliver(light, "stripe", "customer.updated", id="evt_next"))
    apply(light)
    odd, after = rows(light, "events")
    assert odd.state in {"applied", "ignored", "dead"}
    assert (after.state, after.outcome) == ("applied", "applied")


def test_odd_deliveries_are_recorded_and_applied_or_told_of_on_postgresql(fresh_postgres: str) -> None:
    with build(fresh_postgres, BOTH) as app:
        with state(app).inbox.engine.begin() as connection:
            # A session that is ahead of UTC reads the end of the year 9999 as a date that there is not.
            connection.execute(
                text(f"ALTER DATABASE {connection.engine.url.database} SET timezone = 'Asia/Tokyo'")
            )
        state(app).inbox.engine.dispose()
        for number, (event, body) in enumerate(ODD.values()):
            assert_recorded(send_github(app, body, event, guid=f"guid-{number}"))
        for number, fields in enumerate(STRIPE_ODD.values()):
            assert_recorded(send_stripe(app, stripe_body(**{"id": f"evt_{number}", **fields})))
        apply(app)
        assert {row.state for row in rows(app, "events")} <= {"applied", "ignored", "dead"}
        assert len(rows(app, "events")) == len(ODD) + len(STRIPE_ODD)


def test_what_only_a_provider_file_stumbles_over_is_a_dead_letter(
    light: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider file with a mistake in `parse` must not turn deliveries away: GitHub would never send them again."""

    def stumble(self: object, key: object) -> None:
        raise KeyError(key)

    monkeypatch.setattr("webhooks.providers.stripe._contained", lambda snapshot: stumble(None, snapshot))
    assert_recorded(deliver(light, "stripe", "customer.updated", body=stripe_body()))
    (event,) = rows(light, "events")
    assert (event.state, event.outcome) == ("dead", "unreadable")
    assert bodies(light) == [stripe_body()]
    assert "KeyError" in event.error
    assert "cus_1" not in event.error


# -- ids


def test_ids_beyond_what_a_float_holds_stay_exact(app: Flask) -> None:
    """A39"""
    for number, id_ in enumerate((9007199254740993, 3000000000, 2**63 + 1, 10**40 + 7)):
        body = b'{"action":"opened","issue":{"id":%d,"number":%d}}' % (id_, number)
        assert_recorded(send_github(app, body, guid=f"guid-{number}"))
    apply(app)
    expected = ["9007199254740993", "3000000000", str(2**63 + 1), str(10**40 + 7)]
    assert [row.object_id for row in rows(app, "events")] == expected
    assert sorted(row.id for row in rows(app, "objects")) == sorted(expected)
    assert rows(app, "events")[0].object_id.endswith("993")


@pytest.mark.parametrize("guid", ["", "\t"])
def test_deliveries_without_an_id_are_told_apart_by_their_content(app: Flask, guid: str) -> None:
    """A40, A41: never the first kept and the second dropped; the same bytes three times are one event."""
    one, two = (b'{"action":"opened","issue":{"id":%d,"number":1}}' % n for n in (1, 2))
    for body in (one, two, one, one):
        assert_recorded(send_github(app, body, guid=guid))
    assert [(row.object_id, row.deliveries) for row in rows(app, "events")] == [("1", 3), ("2", 1)]
    assert all(row.dedup_key.startswith("sha256:") for row in rows(app, "events"))


def test_ids_and_types_of_any_length_are_recorded(app: Flask) -> None:
    """A42: an id is never cut, so that two that begin alike stay two."""
    assert_recorded(send_stripe(app, stripe_body(id="e" * 300 + "1", type="t" * 300)))
    assert_recorded(send_stripe(app, stripe_body(id="e" * 300 + "2", type="t" * 300)))
    assert_recorded(send_stripe(app, stripe_body(id="e" * 300 + "2", type="t" * 300)))
    assert_recorded(send_github(app, b"{}", "ping", guid="g" * 300))
    found = rows(app, "events")
    assert [row.deliveries for row in found] == [1, 2, 1]
    assert [row.type for row in found] == ["t" * 255, "t" * 255, "ping"]
    assert len({row.dedup_key for row in found}) == 3


def test_a_guid_that_is_no_text_is_recorded(app: Flask) -> None:
    """A42"""
    for guid in ("\xe9\xff", "\x7f\x01", "'; drop table webhook_events; --", "%00"):
        assert_recorded(send_github(app, b'{"a":"%s"}' % guid.encode().hex().encode(), "ping", guid=guid))
    assert [row.deliveries for row in rows(app, "events")] == [1, 1, 1, 1]


def test_one_guid_at_two_endpoints_is_two_events(database_url: str) -> None:
    """A43"""
    with build(database_url, {"repository": GITHUB, "organization": GITHUB}) as app:
        for endpoint in ("repository", "organization", "repository"):
            assert_recorded(deliver(app, endpoint, "issues.opened", id="one-guid"))
        found = [(row.endpoint, row.dedup_key, row.deliveries) for row in rows(app, "events")]
    assert found == [("repository", "one-guid", 2), ("organization", "one-guid", 1)]


def test_an_alias_is_the_same_inbox(database_url: str) -> None:
    """A43: an old URL beside a new one makes duplicates and not second events."""
    with build(database_url, {"stripe": {**STRIPE, "aliases": ["old-stripe"]}}) as app:
        for url in ("/webhooks/stripe", "/webhooks/old-stripe", "/webhooks/old-stripe/"):
            assert_recorded(deliver(app, "stripe", "customer.updated", id="evt_1", url=url))
        (event,) = rows(app, "events")
    assert (event.endpoint, event.deliveries) == ("stripe", 3)


def test_a_body_that_comes_again_under_another_unsigned_id_is_applied_once(app: Flask) -> None:
    """A43: GitHub does not sign the id, so a captured delivery could be sent under new ones."""
    body = b'{"action":"opened","issue":{"id":9,"number":7}}'
    for guid in ("first", "second"):
        assert_recorded(send_github(app, body, guid=guid))
    apply(app)
    assert [(row.dedup_key, row.outcome) for row in rows(app, "events")] == [
        ("first", "applied"),
        ("second", "duplicate_body"),
    ]


# -- after recording


def test_an_event_of_the_other_mode_is_ignored_without_asking_the_api(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A51"""
    live = {**STRIPE, "api_key": "sk_live_0123456789"}
    with build(database_url, {"stripe": live}) as app:
        assert_recorded(send_stripe(app, stripe_body(livemode=False)))
        assert apply(app).fetches == 0
        (event,) = rows(app, "events")
        assert (event.state, event.outcome, event.livemode) == ("ignored", "condition_not_met", False)
        assert rows(app, "objects") == []
        assert state(app).apis.calls == 0
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


def test_the_bell_is_rung_after_the_commit_and_not_at_all_without_one(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A62"""
    with build(database_url, {"stripe": STRIPE}) as app:
        seen_by_others: list[list[str]] = []

        def ring(_bell: Bell) -> None:
            engine = create_engine(database_url)
            with engine.connect() as other:
                seen_by_others.append(
                    list(other.scalars(text("SELECT dedup_key FROM webhook_events ORDER BY id")))
                )
            engine.dispose()

        monkeypatch.setattr(Bell, "ring", ring)
        assert_recorded(deliver(app, "stripe", "customer.updated", id="evt_1"))
        assert_recorded(deliver(app, "stripe", "customer.updated", id="evt_2"))
        assert seen_by_others == [["evt_1"], ["evt_1", "evt_2"]]
        assert_recorded(send_stripe(app, b"unreadable"))  # nobody can apply that, so nobody is woken
        assert deliver(app, "stripe", "customer.updated", secret="whsec_of_nobody").status_code == 401
        assert len(seen_by_others) == 2
        with state(app).inbox.engine.begin() as connection:
            connection.execute(text("ALTER TABLE webhook_events RENAME TO away"))
        assert deliver(app, "stripe", "customer.updated", id="evt_3").status_code == 503
        assert len(seen_by_others) == 2


def test_a_delivery_of_a_dead_event_arms_it_once_more(database_url: str) -> None:
    """A72"""
    webhooks, tries = Webhooks(), []

    @webhooks.on("stripe", "customer.updated")
    def fail(event: Any, customer: Any) -> None:
        tries.append(event.attempts)
        raise RuntimeError

    with build(
        database_url, {"stripe": {**STRIPE, "fetch": False, "max_attempts": 1}}, webhooks=webhooks
    ) as app:
        for expected in (1, 2):
            assert_recorded(deliver(app, "stripe", "customer.updated", id="evt_1"))
            assert rows(app, "events")[0].state == "pending"
            apply(app)
            (event,) = rows(app, "events")
            assert (event.state, event.outcome, event.deliveries) == ("dead", "handler_failed", expected)
            assert len(tries) == expected
        apply(app)
        assert len(tries) == 2


def test_a_delivery_of_an_applied_event_changes_nothing_but_its_count(database_url: str) -> None:
    """A72"""
    webhooks, seen = Webhooks(), []
    webhooks.on("stripe", "customer.updated")(lambda event, customer: seen.append(event.dedup_key))
    with build(database_url, {"stripe": {**STRIPE, "fetch": False}}, webhooks=webhooks) as app:
        for _ in range(3):
            assert_recorded(deliver(app, "stripe", "customer.updated", id="evt_1"))
            apply(app)
        (event,) = rows(app, "events")
    assert seen == ["evt_1"]
    assert (event.state, event.outcome, event.deliveries, event.attempts) == ("applied", "applied", 3, 1)


# -- security


@pytest.mark.parametrize("endpoint", ["stripe", "github"])
def test_nothing_that_is_signed_with_an_empty_secret_gets_in(sqlite_url: str, endpoint: str) -> None:
    """A82: not even where something went so wrong that an endpoint has no usable secret."""
    with build(sqlite_url, {"stripe": STRIPE, "github": GITHUB}) as app:
        found = state(app).endpoints[endpoint]
        for key in ("", " "):
            for secrets in ((), ("",), (" ",), ("\n", "")):
                object.__setattr__(found, "keyring", Keyring("here", secrets, lambda _: None))
                assert_refused(app, post(app, f"/webhooks/{endpoint}", signed(found.provider, key, "ping")))


@pytest.mark.parametrize(
    ("endpoint", "signature"), [("stripe", "Stripe-Signature"), ("github", "X-Hub-Signature-256")]
)
def test_a_delivery_without_its_signature_header_is_refused(
    light: Flask, endpoint: str, signature: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A83"""
    for without in (None, ""):
        assert_refused(light, deliver(light, endpoint, "ping", sent_headers={signature: without}))
    assert caplog.text.count("refused a delivery (missing)") == 2


def test_the_url_alone_decides_which_scheme_counts(light: Flask) -> None:
    """A83: headers of another provider, rightly signed with its own secret, open nothing."""
    stripe = signed(providers.get("stripe"), STRIPE_SECRET, "customer.updated")
    github = signed(providers.get("github"), GITHUB_SECRET, "issues.opened")
    assert_refused(light, post(light, "/webhooks/github", stripe))
    assert_refused(light, post(light, "/webhooks/stripe", github))
    slack = {"X-Slack-Signature": "v0=00", "X-Slack-Request-Timestamp": str(int(time.time()))}
    assert_refused(light, post(light, "/webhooks/stripe", Request("POST", "", slack, stripe.body)))


def test_nothing_secret_is_logged_stored_or_said(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A88: deliveries that succeed, fail and break a handler leave no secret, signature, key or body anywhere."""
    caplog.set_level(logging.DEBUG)
    webhooks, marker = Webhooks(), "MARKER-in-the-body"

    @webhooks.on("stripe", "customer.updated")
    def fail(event: Any, customer: Any) -> None:
        raise RuntimeError(f"{customer} {event.data}")

    @webhooks.on("stripe", "customer.created")
    def divide(event: Any, customer: Any) -> None:
        customer["object"][marker]  # a TypeError that repeats nothing; the locals hold the body

    answers = []
    with build(database_url, {"stripe": {**STRIPE, "fetch": False}}, webhooks=webhooks) as app:
        thing = {**CUSTOMER, "name": marker}
        for type_ in ("customer.updated", "customer.created", "customer.deleted"):
            good = signed(providers.get("stripe"), STRIPE_SECRET, type_, object=thing)
            wrong = signed(providers.get("stripe"), "whsec_of_somebody", type_, object=thing)
            answers += [post(app, "/webhooks/stripe", request) for request in (good, wrong)]
        answers.append(send_stripe(app, marker.encode()))
        apply(app)
        errors = [row.error or "" for row in rows(app, "events")]
        told = repr([state(app).endpoints["stripe"], good, state(app).endpoints, wrong])
    said = caplog.text + "".join(errors) + told
    said += "".join(answer.get_data(as_text=True) + str(answer.headers) for answer in answers)
    assert "in divide" in said
    assert "RuntimeError" in said
    for hidden in (
        STRIPE_SECRET,
        "whsec_of_somebody",
        STRIPE["api_key"],
        marker,
        good.headers["Stripe-Signature"],
        good.headers["Stripe-Signature"].rpartition("v1=")[2],
    ):
        assert hidden not in said


def test_no_refusal_says_why(light: Flask, caplog: pytest.LogCaptureFixture) -> None:
    """A89: no signature, a wrong one, a late one, a broken one, a foreign body: five times the same answer."""
    body, now = stripe_body(), time.time()
    answers = [
        light.test_client().post("/webhooks/stripe", data=body),
        send_stripe(light, body, stripe_header(body, now, "whsec_of_somebody")),
        send_stripe(light, body, stripe_header(body, now - 9999, STRIPE_SECRET)),
        send_stripe(light, body, "broken"),
        send_stripe(light, body + b" ", stripe_header(body, now, STRIPE_SECRET)),
    ]
    for answer in answers:
        assert_refused(light, answer)
    assert len({(a.status, a.get_data(), str(a.headers)) for a in answers}) == 1
    for reason in ("missing", "mismatch", "clock", "malformed"):
        assert f"({reason})" in caplog.text


class _Away(Exception):
    """An error whose text must not get out."""


@pytest.mark.parametrize("how", ["closed port", "no table", "anything"])
def test_while_the_inbox_cannot_be_written_the_provider_is_told_to_come_again(
    sqlite_url: str, how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A89, A91: 503 with Retry-After, never a 4xx, and nothing about the database; a bad signature is still a 401."""
    with build(sqlite_url, {"stripe": STRIPE}) as app:
        engine = create_engine("postgresql+psycopg://someone:hunter2@127.0.0.1:9/secret_database")
        if how == "closed port":
            monkeypatch.setattr(Inbox, "engine", engine)
            monkeypatch.setattr(state(app).inbox._door, "_engine", lambda: engine)
        elif how == "no table":
            with state(app).inbox.engine.begin() as connection:
                connection.execute(text("DROP TABLE webhook_events"))
        else:

            def fail(*_: object) -> None:
                raise _Away("hunter2")

            monkeypatch.setattr("webhooks.inbox.door._write_sqlite", fail)
        answer = deliver(app, "stripe", "customer.updated")
        refused = deliver(app, "stripe", "customer.updated", secret="whsec_of_somebody")
        engine.dispose()
    assert (answer.status_code, answer.get_data()) == (503, b"try again later\n")
    assert answer.headers["Retry-After"] == "30"
    assert refused.status_code == 401
    assert "could not be recorded" in caplog.text
    for hidden in ("hunter2", "secret_database", "webhook_events", "INSERT"):
        assert hidden not in caplog.text


def test_a_write_that_failed_leaves_no_lock_behind(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A57, A91: not even while somebody, a traceback for one, still holds what it was done with."""
    held = []

    def fail(cursor: Any, _rows: Any) -> None:
        held.append(cursor.execute("UPDATE webhook_events SET state = state RETURNING id"))
        raise RuntimeError

    with build(sqlite_url, {"stripe": STRIPE}) as app:
        assert_recorded(deliver(app, "stripe", "customer.updated", id="evt_1"))
        with monkeypatch.context() as patched:
            patched.setattr("webhooks.inbox.door._write_sqlite", fail)
            assert deliver(app, "stripe", "customer.updated", id="evt_2").status_code == 503
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), timeout=0)) as other:
            other.execute("BEGIN IMMEDIATE")
            other.rollback()
        assert held
        assert_recorded(deliver(app, "stripe", "customer.updated", id="evt_2"))
        assert [row.dedup_key for row in rows(app, "events")] == ["evt_1", "evt_2"]


def test_when_the_database_is_back_the_door_is_open_again(sqlite_url: str) -> None:
    """A91"""
    with build(sqlite_url, {"stripe": STRIPE}) as app:
        engine = state(app).inbox.engine
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE webhook_events RENAME TO away"))
        assert deliver(app, "stripe", "customer.updated", id="evt_1").status_code == 503
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE away RENAME TO webhook_events"))
        assert_recorded(deliver(app, "stripe", "customer.updated", id="evt_1"))
        assert len(rows(app, "events")) == 1


def test_a_compressed_body_is_refused_unopened(light: Flask) -> None:
    """A90"""
    bomb = gzip.compress(b"\0" * 128_000_000, 9)
    assert len(bomb) < 140_000
    header = stripe_header(bomb, time.time(), STRIPE_SECRET)
    tracemalloc.start()
    try:
        answers = [
            send_stripe(light, bomb, header, **{"Content-Encoding": encoding})
            for encoding in ("gzip", "GZIP", "deflate", "br", "gzip, identity", "x")
        ]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    for answer in answers:
        assert_refused(light, answer, 415, "unsupported")
    assert peak < 5_000_000


def test_identity_is_no_compression(light: Flask) -> None:
    """A90"""
    for number, encoding in enumerate(("identity", "", "Identity")):
        headers = {"Content-Encoding": encoding}
        assert_recorded(
            deliver(light, "stripe", "customer.updated", id=f"evt_{number}", sent_headers=headers)
        )
