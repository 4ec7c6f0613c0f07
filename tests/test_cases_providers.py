"""Failures that people reported, each with the provider that it was reported for, from the door to the row.

A… are the cases. Everything is signed here with nothing but `hmac`, so that no mistake of ours can agree with itself,
unless the provider's own shape is beside the point.
"""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from tests import apps
from tests.apps import apply, build, deliver, post, rows, signed
from webhooks import Webhooks, providers
from webhooks.errors import ConfigError
from webhooks.extension import state
from webhooks.provider import Request, Sample
from webhooks.testing import Simulator

KEY = b"a key of some thirty-two bytes.."
WHSEC = "whsec_" + base64.b64encode(KEY).decode()
SECRETS = {
    "adyen": "0123456789abcdef" * 4,
    "clerk": WHSEC,
    "generic-hmac": "a secret of somebody",
    "github": "a github secret",
    "mailgun": "a signing key of mailgun",
    "paddle": "pdl_ntfset_0123456789",
    "razorpay": "a secret typed in",
    "shopify": "a client secret of an app",
    "slack": "0123456789abcdef" * 2,
    "standard-webhooks": WHSEC,
    "stripe": "whsec_0123456789abcdef",
    "supabase": f"v1,{WHSEC}",
    "svix": WHSEC,
    "twilio": "fedcba9876543210" * 2,
}
IN_A_HEADER = {
    "adyen": "HmacSignature",
    "clerk": "svix-signature",
    "generic-hmac": "X-Signature",
    "github": "X-Hub-Signature-256",
    "paddle": "Paddle-Signature",
    "razorpay": "X-Razorpay-Signature",
    "shopify": "X-Shopify-Hmac-Sha256",
    "slack": "X-Slack-Signature",
    "standard-webhooks": "webhook-signature",
    "stripe": "Stripe-Signature",
    "supabase": "webhook-signature",
    "svix": "svix-signature",
    "twilio": "X-Twilio-Signature",
}
TYPES = {"adyen": "balancePlatform.transfer.updated"}
"""Where the first of the sample types would not be signed in a header."""

TWILIO = {"AccountSid": "AC" + "0" * 32, "MessageSid": "SM" + "1" * 32, "MessageStatus": "sent"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(params=["blueprint", "front door"], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Through Flask's blueprint and through the front door before it."""
    apps.front_door = request.param == "front door"
    yield
    apps.front_door = False


@contextmanager
def site(url: str, *names: str, **options: Any) -> Iterator[Flask]:
    """An app with these endpoints; nothing is fetched."""
    settings = {"generic-hmac": {"signature_header": "X-Signature"}}
    endpoints = {
        name: {
            "provider": name,
            "secrets": [SECRETS[name]],
            "fetch": False,
            **settings.get(name, {}),
            **options,
        }
        for name in names
    }
    with build(url, endpoints) as app:
        yield app


def mac(secret: str | bytes, *parts: bytes, algorithm: str = "sha256") -> bytes:
    key = secret.encode() if isinstance(secret, str) else secret
    return hmac.new(key, b"".join(parts), algorithm).digest()


def send(app: Flask, name: str, body: bytes, headers: dict[str, str]) -> TestResponse:
    return post(app, f"/webhooks/{name}", Request("POST", "", headers, body))


def first_type(name: str) -> str:
    return TYPES.get(name) or providers.get(name).sample_types[0]


def assert_refused(app: Flask, answer: TestResponse) -> None:
    assert 400 <= answer.status_code < 500
    assert rows(app, "events") == []


# -- every provider


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_a_signed_delivery_of_every_provider_is_recorded_once(name: str, sqlite_url: str) -> None:
    assert sorted(SECRETS) == providers.names()
    with site(sqlite_url, name) as app:
        request = signed(state(app).endpoints[name].provider, SECRETS[name], first_type(name), id="evt_1")
        request = Request(request.method, "", request.headers, request.body)
        if name == "twilio":
            request = providers.get(name).signature.sign(
                Request("POST", "http://localhost/webhooks/twilio", request.headers, request.body),
                SECRETS[name],
                0,
            )
        assert [post(app, f"/webhooks/{name}", request).status_code for _ in range(3)] == [200] * 3
        [event] = rows(app, "events")
        assert event.deliveries == 3


@pytest.mark.parametrize("name", sorted(IN_A_HEADER))
def test_a14_a83_whatever_the_signature_header_holds_is_a_plain_refusal(name: str, sqlite_url: str) -> None:
    values = (None, "", "\xe9abc", "sha256=\xe9abc", "v0=\xe9", "t=1,v1=\xe9", "v1,\xe9", "ts=1;h1=\xe9")
    with site(sqlite_url, name) as app:
        for value in values:
            headers = {IN_A_HEADER[name]: value}
            assert_refused(app, deliver(app, name, first_type(name), sent_headers=headers))


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_a82_no_app_starts_with_an_empty_secret(name: str, sqlite_url: str) -> None:
    more = {"signature_header": "X-Signature"} if name == "generic-hmac" else {}
    for secret in ("", "   ", "\n"):
        endpoint = {"provider": name, "secrets": [secret], **more}
        with pytest.raises(ConfigError, match=name), build(sqlite_url, {name: endpoint}):
            pass


# -- Slack


def slack(body: bytes, *, away: float = 0.0) -> dict[str, str]:
    at = str(int(time.time() + away))
    signature = "v0=" + mac(SECRETS["slack"], b"v0:", at.encode(), b":", body).hex()
    return {
        "X-Slack-Request-Timestamp": at,
        "X-Slack-Signature": signature,
        "Content-Type": "application/json",
    }


SLACK = b'{"type":"event_callback","team_id":"T1","event_id":"Ev1","event":{"type":"app_mention","channel":"C1","ts":"1.2"}}'


def test_a03_a_slash_command_of_slack_is_verified_as_the_form_that_it_is(sqlite_url: str) -> None:
    body = b"command=%2Fplan&text=a+b&team_id=T0"
    with site(sqlite_url, "slack") as app:
        assert send(app, "slack", body, {**slack(body), **FORM}).status_code == 200
        [stored] = rows(app, "bodies")
        assert bytes(stored.body) == body


def test_a15_slack_in_lower_case_and_shopify_in_upper_case(sqlite_url: str) -> None:
    with site(sqlite_url, "slack", "shopify") as app:
        assert send(app, "slack", SLACK, {n.lower(): v for n, v in slack(SLACK).items()}).status_code == 200
        body, headers = shopify(b'{"id":1001}')
        assert send(app, "shopify", body, {n.upper(): v for n, v in headers.items()}).status_code == 200
        first, second = rows(app, "events")
        assert (first.dedup_key, second.dedup_key) == ("Ev1", "hook-1")
        kept = {name.lower() for name in rows(app, "bodies")[1].headers}
        assert "x-shopify-topic" in kept
        assert not any("hmac" in name for name in kept)


def test_a18_a_clock_that_is_wrong_is_told_from_a_wrong_secret(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Our clock is two hours behind the one that signs."""
    with site(sqlite_url, "slack") as app:
        for _ in range(20):
            assert_refused(app, send(app, "slack", SLACK, slack(SLACK, away=7200)))
        told: list[Any] = []
        state(app).issues._tellers.append(told.append)
        for _ in range(3):
            state(app).watch.check()
        assert {row.reason for row in rows(app, "rejections")} == {"clock"}
        assert [(issue.endpoint, issue.kind, issue.state) for issue in told] == [
            ("slack", "clock_skew", "open")
        ]
    assert caplog.text.count("refused a delivery (clock)") == 20


def test_a28_the_challenge_of_slack_is_answered_when_it_is_signed_and_makes_no_work(sqlite_url: str) -> None:
    body = b'{"type":"url_verification","challenge":"abc123"}'
    with site(sqlite_url, "slack") as app:
        answer = send(app, "slack", body, slack(body))
        assert (answer.status_code, answer.text) == (200, "abc123")
        assert rows(app, "events") == []
        unsigned = send(app, "slack", body, {"Content-Type": "application/json"})
        assert_refused(app, unsigned)
        assert "abc123" not in unsigned.text


# -- Shopify


def shopify(body: bytes, topic: str = "orders/updated", id_: str = "hook-1") -> tuple[bytes, dict[str, str]]:
    headers = {
        "X-Shopify-Topic": topic,
        "X-Shopify-Shop-Domain": "acme.myshopify.com",
        "X-Shopify-Webhook-Id": id_,
        "X-Shopify-Hmac-Sha256": base64.b64encode(mac(SECRETS["shopify"], body)).decode(),
    }
    return body, headers


def test_a06_a_byte_order_mark_of_shopify_is_signed_stored_and_skipped(sqlite_url: str) -> None:
    body, headers = shopify(b'\xef\xbb\xbf{"id":1001,"updated_at":"2026-01-02T03:04:05-05:00"}')
    with site(sqlite_url, "shopify") as app:
        assert send(app, "shopify", body, headers).status_code == 200
        apply(app)
        [event] = rows(app, "events")
        assert (event.object_kind, event.object_id, event.state) == ("order", "1001", "applied")
        assert bytes(rows(app, "bodies")[0].body) == body


def test_a43_one_delivery_id_at_two_shops_endpoints_is_two_events(sqlite_url: str) -> None:
    options = {"provider": "shopify", "secrets": [SECRETS["shopify"]], "fetch": False}
    with build(sqlite_url, {"one": options, "two": options}) as app:
        body, headers = shopify(b'{"id":1001}')
        assert [send(app, name, body, headers).status_code for name in ("one", "two", "one")] == [200] * 3
        assert [(row.endpoint, row.deliveries) for row in rows(app, "events")] == [("one", 2), ("two", 1)]


def test_a54_uninstalling_and_erasing_need_no_api(sqlite_url: str) -> None:
    """The token is revoked by then, so the API says 401 to everything; only what has to be fetched is stuck."""
    webhooks, heard = Webhooks(), []
    for topic in ("app/uninstalled", "customers/redact", "products/update"):
        webhooks.on("shopify", topic, name=topic.replace("/", "_"))(lambda event, _: heard.append(event.type))
    with Simulator("shopify") as simulator:
        config = {**simulator.config, "secrets": [SECRETS["shopify"]], "access_token": "shpat_revoked"}
        with build(sqlite_url, {"shopify": config}, webhooks=webhooks) as app:
            for number, topic in enumerate(("app/uninstalled", "customers/redact", "products/update")):
                body, headers = shopify(
                    b'{"id":%d,"shop_domain":"acme.myshopify.com"}' % number, topic, f"h{number}"
                )
                assert send(app, "shopify", body, headers).status_code == 200
            apply(app)
            assert sorted(heard) == ["app/uninstalled", "customers/redact"]
            states = {row.type: row.state for row in rows(app, "events")}
            assert states["app/uninstalled"] == states["customers/redact"] == "applied"
            assert states["products/update"] == "dead"
            assert {call.path.rpartition("/")[2] for call in simulator.calls} <= {"graphql.json"}


# -- Razorpay


def razorpay(body: bytes, id_: str | None = None) -> dict[str, str]:
    headers = {"X-Razorpay-Signature": mac(SECRETS["razorpay"], body).hex()}
    return headers if id_ is None else {**headers, "X-Razorpay-Event-Id": id_}


@pytest.mark.parametrize("id_", [None, "", "  "])
def test_a41_razorpay_without_an_id_is_told_apart_by_its_content(id_: str | None, sqlite_url: str) -> None:
    one, other = (b'{"event":"order.paid","created_at":%d}' % at for at in (1767225845, 1767225846))
    with site(sqlite_url, "razorpay") as app:
        for body in (one, one, one, other):
            assert send(app, "razorpay", body, razorpay(body, id_)).status_code == 200
        assert [row.deliveries for row in rows(app, "events")] == [3, 1]


def test_a41_a_captured_delivery_of_razorpay_under_a_new_id_is_applied_once(sqlite_url: str) -> None:
    """The id is a header that nobody signed."""
    body = b'{"event":"order.paid","created_at":1767225845,"payload":{"order":{"entity":{"id":"order_1"}}}}'
    with site(sqlite_url, "razorpay") as app:
        for id_ in ("first", "second"):
            assert send(app, "razorpay", body, razorpay(body, id_)).status_code == 200
        apply(app)
        assert [row.outcome for row in rows(app, "events")] == ["applied", "duplicate_body"]


# -- Paddle


def paddle(body: bytes, *, away: int = 0) -> dict[str, str]:
    at = str(int(time.time()) + away)
    return {"Paddle-Signature": f"ts={at};h1={mac(SECRETS['paddle'], at.encode(), b':', body).hex()}"}


@pytest.mark.parametrize(("away", "status"), [(-20, 200), (20, 200), (-280, 200), (-3600, 401), (3600, 401)])
def test_a16_a17_a84_paddle_may_be_slow_but_not_old_and_not_early(
    away: int, status: int, sqlite_url: str
) -> None:
    body = b'{"event_id":"evt_1","event_type":"customer.updated","data":{"id":"ctm_1"}}'
    with site(sqlite_url, "paddle") as app:
        assert send(app, "paddle", body, paddle(body, away=away)).status_code == status
        assert len(rows(app, "events")) == (status == 200)


@pytest.mark.parametrize("id_", ['""', '"  "', "null"])
def test_a40_a_blank_id_of_paddle_is_no_key(id_: str, sqlite_url: str) -> None:
    bodies = [
        f'{{"event_id":{id_},"event_type":"customer.updated","data":{{"id":"{name}"}}}}'.encode()
        for name in ("ctm_1", "ctm_2", "ctm_1")
    ]
    with site(sqlite_url, "paddle") as app:
        for body in bodies:
            assert send(app, "paddle", body, paddle(body)).status_code == 200
        assert [(row.object_id, row.deliveries) for row in rows(app, "events")] == [
            ("ctm_1", 2),
            ("ctm_2", 1),
        ]


@pytest.mark.parametrize(
    "written",
    [
        "1767225845",
        "1767225845000",
        '"2026-01-01T00:04:05Z"',
        '"2026-01-01T00:04:05.000Z"',
        '"2026-01-01T00:04:05.0000007Z"',
        '"2026-01-01T00:04:05+00:00"',
        '"2025-12-31T19:04:05-05:00"',
        '"2026-01-01 00:04:05"',
    ],
)
def test_a45_one_instant_however_it_is_written_and_stored(written: str, database_url: str) -> None:
    body = f'{{"event_id":"e","event_type":"customer.updated","occurred_at":{written},"data":{{"id":"c"}}}}'.encode()
    with site(database_url, "paddle") as app:
        assert send(app, "paddle", body, paddle(body)).status_code == 200
        [event] = rows(app, "events")
        at = event.occurred_at.replace(tzinfo=event.occurred_at.tzinfo or UTC)
        assert at == datetime(2026, 1, 1, 0, 4, 5, tzinfo=UTC)


def test_a45_a_time_that_nobody_can_read_is_unknown_and_never_old(sqlite_url: str) -> None:
    with site(sqlite_url, "paddle") as app:
        for number, written in enumerate(('"2026-01-02T00:00:00Z"', '"soon"')):
            body = f'{{"event_id":"e{number}","event_type":"customer.updated","occurred_at":{written},"data":{{"id":"c","n":{number}}}}}'.encode()
            assert send(app, "paddle", body, paddle(body)).status_code == 200
            apply(app)
        assert [row.outcome for row in rows(app, "events")] == ["applied", "applied"]
        assert rows(app, "objects")[0].data["n"] == 1


# -- Clerk, Svix, Supabase


def standard(
    prefix: str, body: bytes, *, id_: str = "msg_1", form: str = "v1,{}", away: int = 0
) -> dict[str, str]:
    at = str(int(time.time()) + away)
    text = mac(KEY, id_.encode(), b".", at.encode(), b".", body)
    signature = form.format(base64.b64encode(text).decode())
    return {f"{prefix}id": id_, f"{prefix}timestamp": at, f"{prefix}signature": signature}


CLERK = b'{"type":"user.updated","data":{"object":"user","id":"user_1"}}'
WRONG = "A" * 43 + "="


@pytest.mark.parametrize("name", ["clerk", "svix"])
def test_a10_one_right_signature_of_several_is_enough(name: str, sqlite_url: str) -> None:
    with site(sqlite_url, name) as app:
        for without in (f"v1,{WRONG}", f"v1,{WRONG} v2,BBBB", "v2,{}", "v1", "v1a,{}", "v1,{} "[:2]):
            assert_refused(app, send(app, name, CLERK, standard("svix-", CLERK, form=without)))
        for good in (f"v1,{WRONG} v1,{{}} v2,BBBB", f"v1,{{}} v1,{WRONG}", "v2 , v1,{}"):
            assert send(app, name, CLERK, standard("svix-", CLERK, form=good)).status_code == 200
        assert [row.deliveries for row in rows(app, "events")] == [3]


def test_a09_the_prefix_of_a_supabase_secret_is_no_part_of_the_key(sqlite_url: str) -> None:
    body = b'{"metadata":{"uuid":"u1","name":"after-user-created"},"user":{"id":"user_1"}}'
    with site(sqlite_url, "supabase") as app:
        answer = send(app, "supabase", body, standard("webhook-", body))
        assert (answer.status_code, answer.content_type) == (200, "application/json")
        assert [row.dedup_key for row in rows(app, "events")] == ["u1"]


def test_a09_a_supabase_secret_that_is_not_base64_starts_no_app(sqlite_url: str) -> None:
    for wrong in (SECRETS["supabase"].replace("Y", "*", 1), "v1,whsec_short", WHSEC.removeprefix("whsec_")):
        with (
            pytest.raises(ConfigError, match="supabase") as caught,
            build(sqlite_url, {"supabase": {"secrets": [wrong]}}),
        ):
            pass
        assert wrong not in str(caught.value)


@pytest.mark.parametrize("length", [254, 255, 256, 300, 3000])
def test_a42_an_id_of_any_length_is_one_event_and_is_never_cut(length: int, database_url: str) -> None:
    with site(database_url, "clerk") as app:
        for last in "abb":
            id_ = "m" * (length - 1) + last
            assert send(app, "clerk", CLERK, standard("svix-", CLERK, id_=id_)).status_code == 200
        assert [row.deliveries for row in rows(app, "events")] == [1, 2]


# -- Twilio


def twilio(url: str, fields: list[tuple[str, str]]) -> tuple[bytes, dict[str, str]]:
    text = url + "".join(name + value for name, value in sorted(set(fields)))
    signature = base64.b64encode(mac(SECRETS["twilio"], text.encode(), algorithm="sha1")).decode()
    return urlencode(fields).encode(), {**FORM, "X-Twilio-Signature": signature}


HOOKS = "https://hooks.example.test"


@pytest.mark.parametrize(
    ("public", "path", "signed_url"),
    [
        (HOOKS, "/webhooks/twilio", f"{HOOKS}/webhooks/twilio"),
        (HOOKS, "/webhooks/twilio", f"{HOOKS}:443/webhooks/twilio"),
        (f"{HOOKS}:8443", "/webhooks/twilio", f"{HOOKS}:8443/webhooks/twilio"),
        (f"{HOOKS}:8443", "/webhooks/twilio", f"{HOOKS}/webhooks/twilio"),
        (
            HOOKS,
            "/webhooks/twilio?tenant=a%20b&note=it's&empty=",
            f"{HOOKS}/webhooks/twilio?tenant=a%20b&note=it's&empty=",
        ),
    ],
)
def test_a20_a21_a22_what_twilio_signed_is_the_public_url_to_the_letter(
    public: str, path: str, signed_url: str, sqlite_url: str
) -> None:
    """It reaches the app as http://10.0.0.5:8000."""
    body, headers = twilio(signed_url, list(TWILIO.items()))
    with site(sqlite_url, "twilio", public_url=public) as app:
        answer = app.test_client().post(path, base_url="http://10.0.0.5:8000", data=body, headers=headers)
        assert answer.status_code == 200
        assert [row.type for row in rows(app, "events")] == ["message.sent"]


def test_a23_every_value_of_a_repeated_field_is_signed(sqlite_url: str) -> None:
    fields = [("Addr", "+15550002"), ("Addr", "+15550001"), *TWILIO.items()]
    body, headers = twilio(f"{HOOKS}/webhooks/twilio", fields)
    with site(sqlite_url, "twilio", public_url=HOOKS) as app:
        assert_refused(app, send(app, "twilio", body.replace(b"50002", b"50003"), headers))
        assert send(app, "twilio", body, headers).status_code == 200


def test_a24_a_forwarded_host_changes_nothing(sqlite_url: str) -> None:
    other = {"X-Forwarded-Host": "other.example.test", "X-Forwarded-Proto": "https"}
    with site(sqlite_url, "twilio", public_url=HOOKS) as app:
        body, headers = twilio("https://other.example.test/webhooks/twilio", list(TWILIO.items()))
        assert_refused(app, send(app, "twilio", body, {**headers, **other}))
        body, headers = twilio(f"{HOOKS}/webhooks/twilio", list(TWILIO.items()))
        assert send(app, "twilio", body, {**headers, **other}).status_code == 200


def test_a44_every_state_of_a_message_is_an_event_and_the_same_state_is_one(sqlite_url: str) -> None:
    with site(sqlite_url, "twilio", public_url=HOOKS) as app:
        for status in ("sent", "delivered", "sent"):
            fields = list({**TWILIO, "MessageStatus": status}.items())
            body, headers = twilio(f"{HOOKS}/webhooks/twilio", fields)
            answer = send(app, "twilio", body, headers)
            assert (answer.status_code, answer.content_type) == (200, "text/xml")
            assert "<Message" not in answer.text
        assert [(row.type, row.deliveries) for row in rows(app, "events")] == [
            ("message.sent", 2),
            ("message.delivered", 1),
        ]


# -- Mailgun


def mailgun(token: str = "t" * 50, *, away: int = 0) -> dict[str, str]:
    at = str(int(time.time()) + away)
    return {
        "timestamp": at,
        "token": token,
        "signature": mac(SECRETS["mailgun"], at.encode(), token.encode()).hex(),
    }


def mailgun_json(id_: str, block: dict[str, str]) -> tuple[bytes, dict[str, str]]:
    event = {
        "id": id_,
        "event": "failed",
        "severity": "permanent",
        "timestamp": 1767225845.5,
        "recipient": "a@b.test",
    }
    body = json.dumps({"signature": block, "event-data": event}).encode()
    return body, {"Content-Type": "application/json"}


def mailgun_form(block: dict[str, str]) -> tuple[bytes, dict[str, str]]:
    return urlencode({**block, "event": "failed", "Message-Id": "<a@example.test>"}).encode(), FORM


def mailgun_multipart(block: dict[str, str]) -> tuple[bytes, dict[str, str]]:
    fields = {**block, "event": "failed", "Message-Id": "<a@example.test>"}
    parts = "".join(
        f'--xyz\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    )
    return f"{parts}--xyz--\r\n".encode(), {"Content-Type": "multipart/form-data; boundary=xyz"}


@pytest.mark.parametrize("shape", ["json", "form", "multipart"])
def test_a07_every_shape_of_mailgun_reaches_the_same_verifier(shape: str, sqlite_url: str) -> None:
    block = mailgun()
    made = {
        "json": mailgun_json("1", block),
        "form": mailgun_form(block),
        "multipart": mailgun_multipart(block),
    }
    body, headers = made[shape]
    with site(sqlite_url, "mailgun") as app:
        assert_refused(app, send(app, "mailgun", body.replace(b"tttt", b"uuuu"), headers))
        assert [send(app, "mailgun", body, headers).status_code for _ in range(2)] == [200, 200]
        [event] = rows(app, "events")
        assert event.type in {"failed", "failed.permanent"}
        assert event.deliveries == 2
        assert bytes(rows(app, "bodies")[0].body) == body


@pytest.mark.parametrize(("away", "status"), [(-600, 200), (-8 * 3600, 200), (-3 * 86400, 401), (3600, 401)])
def test_a19_a_retry_of_mailgun_carries_its_first_time(away: int, status: int, sqlite_url: str) -> None:
    body, headers = mailgun_json("1", mailgun(away=away))
    with site(sqlite_url, "mailgun") as app:
        assert send(app, "mailgun", body, headers).status_code == status
        assert len(rows(app, "events")) == (status == 200)


def test_a85_a_token_is_good_for_the_event_that_it_came_with_in_any_shape(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    block = mailgun()
    with site(sqlite_url, "mailgun") as app:
        assert send(app, "mailgun", *mailgun_json("1", block)).status_code == 200
        for forged in (mailgun_json("2", block), mailgun_form(block), mailgun_multipart(block)):
            assert 400 <= send(app, "mailgun", *forged).status_code < 500
        assert len(rows(app, "events")) == 1
        assert caplog.text.count("refused a delivery (replayed)") == 3


# -- Adyen


def test_every_item_of_adyen_is_verified_and_is_an_event_of_its_own(sqlite_url: str) -> None:
    """A01 for a scheme that signs fields: one that is genuine says nothing about the next."""
    adyen, at = providers.get("adyen"), datetime.now(UTC)
    assert adyen.sample is not None
    items = []
    for reference in ("P1", "P2"):
        request = adyen.signature.sign(
            adyen.sample(Sample("AUTHORISATION", reference, at)), SECRETS["adyen"], at
        )
        items += json.loads(request.body)["notificationItems"]
    with site(sqlite_url, "adyen") as app:
        forged = json.loads(json.dumps(items))
        forged[1]["NotificationRequestItem"]["amount"]["value"] = 1
        assert_refused(app, send(app, "adyen", json.dumps({"notificationItems": forged}).encode(), {}))
        answer = send(app, "adyen", json.dumps({"live": "false", "notificationItems": items}).encode(), {})
        assert (answer.status_code, answer.text) == (200, "[accepted]")
        assert [row.object_id for row in rows(app, "events")] == ["P1", "P2"]
