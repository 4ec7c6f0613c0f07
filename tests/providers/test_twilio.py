from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.providers.recorded import (
    NOW,
    Recording,
    Vector,
    assert_reads_as_recorded,
    assert_samples_pass,
    recordings,
    sampled,
    vectors,
    verdict,
)
from tests.providers.worlds import WORLDS
from webhooks.errors import ApiRefused, NotFetchable, Unreadable
from webhooks.provider import Health, ObjectRef, Request
from webhooks.providers.twilio import FORM, SETTINGS, provider
from webhooks.testing.contract import FakeApi

TOKEN = "0123456789abcdef" * 2
OTHER = "fedcba9876543210" * 2
SHARED = "sharedkey:a key that is shared"
ACCOUNT, SUB = "AC" + "0" * 32, "AC" + "1" * 32
SM, CA, PN = "SM" + "2" * 32, "CA" + "3" * 32, "PN" + "4" * 32
URL = "https://hooks.example.test/webhooks/twilio"
MESSAGE = ObjectRef("message", SM)


def form(url: str = URL, **fields: str) -> Request:
    body = urlencode({"AccountSid": ACCOUNT, **fields}).encode()
    return Request("POST", url, {"Content-Type": f"{FORM}; charset=UTF-8"}, body)


def signed(request: Request, secret: str = TOKEN) -> Request:
    return provider.signature.sign(request, secret, NOW)


def key(**fields: str) -> str:
    return provider.parse(form(**fields))[0].dedup_key


@pytest.mark.parametrize("recording", recordings("twilio"), ids=lambda recording: recording.name)
def test_a_recorded_delivery_is_read_for_what_it_is(recording: Recording) -> None:
    assert_reads_as_recorded(provider, recording)


@pytest.mark.parametrize("vector", vectors("twilio"), ids=lambda vector: vector.name)
def test_a_published_vector_gets_its_verdict(vector: Vector) -> None:
    assert (verdict(provider, vector.request, vector.secrets, vector.now) == "accepted") == vector.accept


def test_every_sample_is_accepted_and_read() -> None:
    assert_samples_pass(provider, TOKEN)


# -- signature


@pytest.mark.parametrize(
    ("called", "configured"),
    [
        ("https://hooks.example.test:8443/t", "https://hooks.example.test/t"),
        ("https://hooks.example.test/t", "https://hooks.example.test:443/t"),
        ("http://hooks.example.test/t", "http://hooks.example.test:80/t"),
        ("https://ann:secret@hooks.example.test:8443/t", "https://ann:secret@hooks.example.test/t"),
        ("https://ann:a@b:c@hooks.example.test/t", "https://ann:a@b:c@hooks.example.test:443/t"),
        ("https://[2001:db8::1]:8443/t", "https://[2001:db8::1]/t"),
        ("https://[2001:db8::1]/t", "https://[2001:db8::1]:443/t"),
        ("https://hooks.example.test?a=1", "https://hooks.example.test:443?a=1"),
        (
            "https://hooks.example.test/t?next=http://a:1/b",
            "https://hooks.example.test:443/t?next=http://a:1/b",
        ),
    ],
)
def test_twilio_may_sign_with_the_port_or_without(called: str, configured: str) -> None:
    fields = {"MessageSid": SM, "MessageStatus": "sent"}
    as_called = replace(signed(form(configured, **fields)), url=called)
    assert verdict(provider, as_called, [TOKEN], NOW) == "accepted"


@pytest.mark.parametrize(
    "called",
    [
        "http://hooks.example.test/t?a=1&b=2",
        "https://else.example.test/t?a=1&b=2",
        "https://hooks.example.test/t/?a=1&b=2",
        "https://hooks.example.test/t?b=2&a=1",
        "https://hooks.example.test/t?a=%31&b=2",
        "https://hooks.example.test:444/T?a=1&b=2",
        "https://ann@hooks.example.test/t?a=1&b=2",
        "no url",
        "",
    ],
)
def test_any_other_difference_in_the_url_is_refused(called: str) -> None:
    request = signed(form("https://hooks.example.test/t?a=1&b=2", MessageSid=SM, MessageStatus="sent"))
    assert verdict(provider, replace(request, url=called), [TOKEN], NOW) == "mismatch"


def test_the_query_is_taken_to_the_letter() -> None:
    request = signed(
        form(
            "https://hooks.example.test/t?tenant=a%20b&note=it's&empty=", MessageSid=SM, MessageStatus="sent"
        )
    )
    assert verdict(provider, request, [TOKEN], NOW) == "accepted"


def test_all_distinct_values_of_a_repeated_field_take_part_sorted() -> None:
    repeated = Request("POST", URL, {"Content-Type": FORM}, b"Addr=%2B2&Addr=%2B1&Addr=%2B2&MessageSid=x")
    once = replace(repeated, body=b"MessageSid=x&Addr=%2B1&Addr=%2B2")
    other = replace(repeated, body=b"Addr=%2B2&MessageSid=x")
    given = signed(repeated).headers["X-Twilio-Signature"]
    assert signed(once).headers["X-Twilio-Signature"] == given
    assert signed(other).headers["X-Twilio-Signature"] != given


def test_neither_key_stands_in_for_the_other() -> None:
    request = form(MessageSid=SM, MessageStatus="sent")
    with_token, with_shared = signed(request), signed(request, SHARED)
    assert with_shared.headers[SETTINGS].endswith("algorithm=HMAC_SHA256")
    assert verdict(provider, with_shared, [TOKEN, SHARED], NOW) == "accepted"
    # Where only SharedKeys are configured, a request without their header is refused, whoever signed it.
    assert verdict(provider, with_token, [SHARED], NOW) == "missing"
    assert verdict(provider, with_shared, [TOKEN], NOW) == "no_secret"
    stripped = replace(
        with_shared, headers={n: v for n, v in with_shared.headers.items() if n.lower() != SETTINGS.lower()}
    )
    assert verdict(provider, stripped, [TOKEN, SHARED], NOW) == "mismatch"
    # The shared secret as an Auth Token, and an Auth Token as SHA-256, are nobody's signatures.
    assert verdict(provider, signed(request, SHARED.removeprefix("sharedkey:")), [SHARED], NOW) == "missing"
    assert verdict(provider, signed(request, f"sharedkey:{TOKEN}"), [TOKEN, SHARED], NOW) == "mismatch"


@pytest.mark.parametrize(
    "named", ["algorithm=HMAC_MD5", "key=x", "algorithm=", "nonsense", "algorithm=HMAC_SHA256x"]
)
def test_an_algorithm_that_we_do_not_know_is_refused(named: str) -> None:
    request = signed(form(MessageSid=SM, MessageStatus="sent")).with_headers({SETTINGS: named})
    assert verdict(provider, request, [TOKEN, SHARED], NOW) == "malformed"


def test_a_subaccount_can_only_sign_for_itself() -> None:
    secrets = [f"{ACCOUNT}:{TOKEN}", f"{SUB}:{OTHER}"]
    own = form(MessageSid=SM, MessageStatus="sent")
    assert provider.signature.verify(signed(own), secrets, NOW) == secrets[0]
    assert verdict(provider, signed(own, OTHER), secrets, NOW) == "mismatch"
    theirs = form(AccountSid=SUB, MessageSid=SM, MessageStatus="sent")
    assert provider.signature.verify(signed(theirs, OTHER), secrets, NOW) == secrets[1]
    bound = f"{ACCOUNT}:{SHARED}"
    assert provider.signature.verify(signed(own, SHARED), [bound], NOW) == bound


@pytest.mark.parametrize("secret", ["sharedkey:", "sharedkey:  ", f"{ACCOUNT}:", f"{ACCOUNT}:sharedkey:"])
def test_a_prefix_with_nothing_behind_it_signs_nothing(secret: str) -> None:
    request = signed(form(MessageSid=SM, MessageStatus="sent"), secret)
    assert verdict(provider, request, [secret], NOW) != "accepted"


def test_a_body_that_is_no_form_must_be_bound_to_the_url() -> None:
    body = b'[{"id":"EZ1","type":"x"}]'
    json = Request("POST", URL, {"Content-Type": "application/json"}, body)
    bound = signed(json)
    assert bound.url == f"{URL}?bodySHA256={hashlib.sha256(body).hexdigest()}"
    assert verdict(provider, bound, [TOKEN], NOW) == "accepted"
    assert verdict(provider, replace(bound, body=body + b" "), [TOKEN], NOW) == "mismatch"
    unbound = replace(
        json,
        headers={
            **json.headers,
            **signed(replace(json, body=b"")).headers,
            "Content-Type": "application/json",
        },
    )
    assert verdict(provider, unbound, [TOKEN], NOW) == "mismatch"
    # Nor can a bound body be taken away by calling it a form.
    emptied = replace(bound.with_headers({"Content-Type": FORM}), body=b"")
    assert verdict(provider, emptied, [TOKEN], NOW) == "mismatch"


def test_a_signed_body_that_is_no_json_is_accepted_and_unreadable() -> None:
    request = signed(Request("POST", URL, {"Content-Type": "application/json"}, b"\xff\xfe"))
    assert verdict(provider, request, [TOKEN], NOW) == "accepted"
    with pytest.raises(Unreadable):
        provider.parse(request)


def test_a_get_is_verified_read_and_kept_as_the_form_it_could_have_been() -> None:
    query = urlencode({"AccountSid": ACCOUNT, "MessageSid": SM, "MessageStatus": "sent"})
    request = signed(Request("GET", f"{URL}?{query}", {}, b""))
    assert verdict(provider, request, [TOKEN], NOW) == "accepted"
    [envelope] = provider.parse(request)
    assert (envelope.dedup_key, envelope.account) == (f"{SM}:sent", ACCOUNT)
    assert envelope.request is not None
    kept = Request("POST", "", {"Content-Type": envelope.request.content_type}, envelope.request.body)
    assert provider.parse(kept)[0].dedup_key == envelope.dedup_key
    assert provider.methods == ("POST", "GET")


# -- reading


def test_each_status_is_an_event_and_a_repeated_one_is_none() -> None:
    keys = [key(MessageSid=SM, MessageStatus=status) for status in ("sent", "delivered", "sent")]
    assert keys == [f"{SM}:sent", f"{SM}:delivered", f"{SM}:sent"]
    legs = [key(CallSid=call, CallStatus="ringing", SequenceNumber="1") for call in (CA, "CA" + "5" * 32)]
    assert legs[0] != legs[1]


def test_a_caller_who_presses_two_digits_makes_two_events() -> None:
    pressed = [key(CallSid=CA, CallStatus="in-progress", Digits=digits) for digits in ("1", "2", "1")]
    assert pressed[0] == pressed[2] != pressed[1]


@pytest.mark.parametrize(
    "body",
    [
        f"MessageSi=d{SM}&MessageStatus=sent",
        f"MessageSid={SM}M&essageStatus=sent",
        f"MessageSid={SM[:-1]}&MessageStatus=sent",
        f"MessageSid={SM}&MessageStatus=sent%20now",
        f"MessageSid={SM}&MessageStatus=",
        f"AccountSid=AC1&MessageSid={SM}&MessageStatus=sent",
        "CallSid=1&CallStatus=ringing",
        f"CallSid={CA}&CallStatus=1",
        f"MessageSid={SM}&MessageSid={SM}&MessageStatus=sent",
    ],
)
def test_what_moved_between_names_and_values_is_unreadable_or_what_it_was(body: str) -> None:
    # Nothing marks where a name ends, so such a body can be signed right.
    request = Request("POST", URL, {"Content-Type": FORM}, body.encode())
    try:
        [envelope] = provider.parse(request)
    except Unreadable:
        return
    assert body.endswith("MessageStatus=")
    assert envelope.type == "message.received"


def test_no_reply_is_sent_to_a_phone() -> None:
    for type_ in provider.sample_types:
        reply = provider.reply(sampled(provider, type_))
        assert (reply.status, reply.content_type) == (200, "text/xml")
        assert reply.body.endswith("<Response></Response>")


# -- the API


def test_states_only_go_forward_whatever_carries_them() -> None:
    assert provider.version is not None
    order = ["accepted", "queued", "sending", "sent", "delivered", "read"]
    ranks: list[Any] = [provider.version(MESSAGE, {"MessageStatus": state}) for state in order]
    assert ranks == sorted(set(ranks))
    assert ranks == [provider.version(MESSAGE, {"status": state}) for state in order]
    final = {
        provider.version(MESSAGE, {"status": state})
        for state in ("delivered", "undelivered", "failed", "canceled")
    }
    assert len(final) == 1, "of two final states the API says which is true"
    call = ObjectRef("call", CA)
    ranks = [
        provider.version(call, {"CallStatus": state})
        for state in ("queued", "initiated", "ringing", "in-progress", "busy")
    ]
    assert ranks == sorted(set(ranks))
    assert provider.version(MESSAGE, {"status": "brand-new"}) is None


def test_a_message_is_fetched_from_the_account_that_it_belongs_to() -> None:
    assert provider.fetch is not None
    settings = {"account_sid": ACCOUNT, "auth_token": "x"}
    for account, path in (("", ACCOUNT), (SUB, SUB)):
        api = FakeApi(lambda _: {"sid": SM, "status": "sent"}, settings, account)
        assert provider.fetch(api, MESSAGE) == {"sid": SM, "status": "sent"}
        assert api.calls[0].path == f"/2010-04-01/Accounts/{path}/Messages/{SM}.json"
    for ref, account in (
        (ObjectRef("message", "../Calls"), ACCOUNT),
        (ObjectRef("fax", "FX1"), ACCOUNT),
        (MESSAGE, "x"),
    ):
        with pytest.raises(NotFetchable):
            provider.fetch(FakeApi(lambda _: {}, {}, account), ref)


def test_a_callback_that_failed_is_read_back_from_the_alert_about_it() -> None:
    sent = form(MessageSid=SM, MessageStatus="failed", ErrorCode="30008").body.decode()
    alert = {
        "sid": "NO" + "6" * 32,
        "error_code": "11200",
        "request_url": f"{URL}?x=1",
        "request_variables": sent,
    }
    alert |= {"date_generated": "2026-03-04T05:06:07Z"}
    answers = {
        "/v1/Alerts": {"alerts": [{"sid": alert["sid"], "error_code": "11200"}]},
        f"/v1/Alerts/{alert['sid']}": alert,
    }
    assert provider.list_events is not None
    [entry] = provider.list_events(FakeApi(answers, {"webhook_url": URL}), NOW)
    assert (entry.dedup_key, entry.occurred_at, entry.delivered) == (f"{SM}:failed:30008", NOW, False)
    [envelope] = entry.read()
    assert (envelope.type, envelope.object) == ("message.failed", MESSAGE)
    # The inbox keeps what it can read again: the form, not the decoded fields.
    assert envelope.request is not None
    assert (envelope.request.content_type, envelope.request.body) == (FORM, sent.encode())
    assert provider.api is not None
    assert provider.api.bases == {"/v1/Alerts": "https://monitor.twilio.com"}
    with pytest.raises(NotFetchable, match="webhook_url"):
        list(provider.list_events(FakeApi(answers), NOW))


def test_alerts_about_other_urls_and_other_troubles_are_no_callbacks() -> None:
    world = WORLDS["twilio"]()
    assert provider.list_events is not None
    entries = list(provider.list_events(world.api(restless=False), world.since))
    assert [entry.dedup_key for entry in entries] == list(world.events)


@pytest.mark.parametrize(
    ("number", "state"),
    [
        ({"sms_url": f"{URL}#rc=5&rp=all", "voice_url": ""}, "enabled"),
        ({"sms_url": "https://else.example.test/", "voice_url": f"{URL}?a=1"}, "enabled"),
        ({"sms_url": "https://else.example.test/", "voice_url": None}, "missing"),
        (None, "missing"),
    ],
)
def test_health_is_whether_the_number_still_points_to_us(number: dict[str, Any] | None, state: str) -> None:
    settings = {"account_sid": ACCOUNT, "webhook_url": URL, "phone_number_sid": PN}
    api = FakeApi({f"/2010-04-01/Accounts/{ACCOUNT}/IncomingPhoneNumbers/{PN}.json": number}, settings)
    health = provider.endpoint_health
    assert health is not None
    assert health(api).state == state
    assert health(FakeApi({}, {"webhook_url": URL})).state == "unknown"
    assert health(FakeApi(lambda _: ApiRefused("answered 401", 401), settings)) == Health(
        "unknown", "answered 401", 401
    )


def test_a_sid_is_no_secret() -> None:
    good = (TOKEN, SHARED, f"{ACCOUNT}:{TOKEN}", f"{ACCOUNT}:{SHARED}")
    assert [provider.secret_problem(secret) for secret in good] == [None] * 4
    assert all(
        provider.secret_problem(secret) for secret in (ACCOUNT, "SK" + "0" * 32, "sharedkey:", f"{ACCOUNT}:")
    )


def test_the_official_library_accepts_what_we_sign_and_we_what_it_signs() -> None:
    official = pytest.importorskip("twilio.request_validator")
    fields = {"AccountSid": ACCOUNT, "MessageSid": SM, "MessageStatus": "sent", "Body": "ü +%& "}
    validator = official.RequestValidator(TOKEN)
    ours = signed(form(**fields))
    assert validator.validate(URL, fields, ours.headers["X-Twilio-Signature"])
    theirs = form(**fields).with_headers({"X-Twilio-Signature": validator.compute_signature(URL, fields)})
    assert verdict(provider, theirs, [TOKEN], NOW) == "accepted"
    shared = official.RequestValidator("a key that is shared").compute_signature(URL, fields, "HMAC_SHA256")
    settings = "key=webhooks_sharedkey_01,algorithm=HMAC_SHA256"
    theirs = form(**fields).with_headers({"X-Twilio-Signature": shared, SETTINGS: settings})
    assert verdict(provider, theirs, [SHARED], NOW) == "accepted"
