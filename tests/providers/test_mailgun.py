from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given

from tests.providers.recorded import (
    HERE,
    NOW,
    Recording,
    Scripted,
    Vector,
    assert_reads_as_recorded,
    assert_reads_or_refuses,
    assert_samples_pass,
    garbage_bodies,
    gone,
    recordings,
    sampled,
    vectors,
    verdict,
)
from webhooks.errors import ApiRefused, NotFetchable, RetryLater, Unreadable
from webhooks.provider import Health, Json, ObjectRef, Reply, Request
from webhooks.providers.mailgun import FORM, MAX_FIELDS, provider

SECRET = "signing-key-0123456789"
OTHER = "another-key-9876543210"
SINCE = NOW - timedelta(hours=1)
MESSAGE = ObjectRef("message", "m1@mg.example.test ann@example.test", "/v3/mg.example.test")


def signed(type_: str = "delivered", secret: str = SECRET, **fields: Any) -> Request:
    return provider.signature.sign(sampled(provider, type_, object=fields or None), secret, NOW)


def with_block(request: Request, **block: Any) -> Request:
    """The delivery with these parts of its signature replaced."""
    document = json.loads(request.body)
    document["signature"] |= block
    return replace(request, body=json.dumps(document).encode())


def recorded(name: str) -> Request:
    return next(recording.request for recording in recordings("mailgun") if recording.name == name)


@pytest.mark.parametrize("recording", recordings("mailgun"), ids=lambda recording: recording.name)
def test_a_recorded_delivery_is_read_for_what_it_is(recording: Recording) -> None:
    assert_reads_as_recorded(provider, recording)


@pytest.mark.parametrize("vector", vectors("mailgun"), ids=lambda vector: vector.name)
def test_a_published_vector_gets_its_verdict(vector: Vector) -> None:
    assert (verdict(provider, vector.request, vector.secrets, vector.now) == "accepted") == vector.accept


def test_every_sample_is_accepted_and_read() -> None:
    assert_samples_pass(provider, SECRET)


@given(garbage_bodies("signature", "token", "timestamp", "parent-signature", "event-data", "event", "id", "message", "headers",
                      "message-id", "recipient", "domain", "flags"))  # fmt: skip
def test_garbage_is_refused_and_nothing_else(body: bytes) -> None:
    for type_ in (
        "application/json",
        FORM,
        "multipart/form-data; boundary=b",
        "multipart/form-data",
        "",
        "\xe9",
    ):
        assert_reads_or_refuses(provider, Request("POST", "", {"Content-Type": type_}, body), SECRET)


@given(garbage_bodies("\r\n", "--b"))
def test_a_broken_multipart_form_is_refused_and_nothing_else(inside: bytes) -> None:
    for body in (
        b"--b\r\n" + inside + b"\r\n--b--",
        b'--b\r\nContent-Disposition: form-data; name="token"\r\n\r\n' + inside,
    ):
        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        assert_reads_or_refuses(provider, Request("POST", "", headers, body), SECRET)


def test_all_three_shapes_reach_the_same_verifier() -> None:
    for name in ("delivered", "stored_mail", "forwarded_mail_with_an_attachment"):
        assert (
            verdict(provider, recorded(name), [SECRET], NOW) == "mismatch"
        )  # the recorded signature is none
        request = provider.signature.sign(recorded(name), SECRET, NOW)
        assert verdict(provider, request, [SECRET], NOW) == "accepted"
        assert verdict(provider, request, [OTHER], NOW) == "mismatch"


def test_a_retry_with_its_first_time_is_accepted_for_a_day_and_a_future_time_for_a_quarter_of_an_hour() -> (
    None
):
    request = signed()
    minutes = (-16, -15, 10, 9 * 60, 24 * 60, 24 * 60 + 1)
    verdicts = [verdict(provider, request, [SECRET], NOW + timedelta(minutes=n)) for n in minutes]
    assert verdicts == ["clock", "accepted", "accepted", "accepted", "accepted", "clock"]


def test_a_digit_moved_from_time_to_token_makes_no_new_token() -> None:
    block = json.loads(signed().body)["signature"]
    time, token = block["timestamp"], block["token"]
    for moved in (
        {"timestamp": time[:-1], "token": time[-1] + token},
        {"timestamp": time + token[0], "token": token[1:]},
    ):
        assert verdict(provider, with_block(signed(), **moved), [SECRET], NOW) == "malformed"


def test_the_time_may_be_a_number() -> None:
    assert (
        verdict(provider, with_block(signed(), timestamp=int(NOW.timestamp())), [SECRET], NOW) == "accepted"
    )


def test_a_subaccounts_event_is_accepted_under_either_accounts_key() -> None:
    parent = json.loads(signed(secret=OTHER).body)["signature"]["signature"]
    both = with_block(signed(), **{"parent-signature": parent})
    assert [verdict(provider, both, [secret], NOW) for secret in (SECRET, OTHER)] == ["accepted", "accepted"]


def test_nothing_signed_is_nothing_accepted() -> None:
    for body in (b"{}", b'{"signature": []}', b'{"signature": {"token": null}}'):
        assert verdict(provider, Request("POST", "", {}, body), [SECRET], NOW) == "missing"
    assert verdict(provider, Request("POST", "", {}, b"not json"), [SECRET], NOW) == "malformed"
    assert verdict(provider, with_block(signed(), signature="\u00e9"), [SECRET], NOW) == "mismatch"
    assert verdict(provider, signed(), ["", " "], NOW) == "no_secret"


def test_a_token_used_again_for_another_event_shows_as_such() -> None:
    # The signature cannot tell: whoever has seen one delivery can put its triple on any body. What the inbox sees is
    # one nonce with two dedup keys, or with two bodies.
    genuine = signed(id="Ev-1")
    document = json.loads(genuine.body)
    document["event-data"] |= {"id": "Ev-2", "event": "failed", "severity": "permanent"}
    forged = replace(genuine, body=json.dumps(document).encode())
    assert verdict(provider, forged, [SECRET], NOW) == "accepted"
    [first], [second] = provider.parse(genuine), provider.parse(forged)
    assert first.nonce == second.nonce != ""
    assert first.dedup_key != second.dedup_key
    assert (provider.signature.signs_body, provider.signature.signs_id) == (False, False)


def test_the_same_event_under_another_token_is_the_same_event() -> None:
    # Whether a retry is signed anew is not documented; the key holds either way.
    [first] = provider.parse(with_block(signed(), token="a" * 50))
    [second] = provider.parse(with_block(signed(), token="b" * 50))
    assert first.dedup_key == second.dedup_key == "2026-03-04:sample-1"
    assert first.nonce != second.nonce


def test_an_id_is_good_for_a_day_and_an_event_without_one_is_known_by_its_content() -> None:
    def key(**fields: Any) -> str:
        return provider.parse(signed(**fields))[0].dedup_key

    assert key(id="Ev-1", timestamp=1772600767.5) != key(id="Ev-1", timestamp=1772600767.5 + 86400)
    assert key(id="", timestamp=1.5).startswith("sha256:")
    assert key(id="", timestamp=1.5) != key(id="", timestamp=2.5)


def test_a_mail_is_known_by_its_content_whatever_its_boundary_token_and_message_id() -> None:
    request = recorded("forwarded_mail_with_an_attachment")
    other = Request("POST", "", {"Content-Type": 'multipart/form-data; boundary="other"'},
                    request.body.replace(b"xYzZY", b"other").replace(b"a" * 50, b"b" * 50))  # fmt: skip
    changed = replace(request, body=request.body.replace(b"line one", b"line two"))
    [first], [second], [third] = (provider.parse(r) for r in (request, other, changed))
    assert first.dedup_key == second.dedup_key != third.dedup_key
    assert first.correlation == third.correlation


def test_a_mail_with_a_header_named_event_is_a_mail() -> None:
    request = recorded("stored_mail")
    spoofed = replace(request, body=b"event=bounced&domain=mg.example.test&" + request.body)
    assert provider.parse(spoofed)[0].type == "inbound"


def test_an_attachment_is_described_and_stays_in_the_body() -> None:
    [envelope] = provider.parse(recorded("forwarded_mail_with_an_attachment"))
    assert envelope.data["subject"] == "Größe"
    assert {name: envelope.data["attachment-1"][name] for name in ("filename", "size")} == {
        "filename": "note.txt",
        "size": 30,
    }
    assert not {"timestamp", "token", "signature"} & set(envelope.data)


def test_a_form_of_thousands_of_fields_is_refused_before_it_is_read() -> None:
    many = b"&".join(b"a=1" for _ in range(MAX_FIELDS + 2))
    parts = (
        b"".join(
            b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n' for _ in range(MAX_FIELDS + 2)
        )
        + b"--b--"
    )
    for type_, body in ((FORM, many), ("multipart/form-data; boundary=b", parts)):
        request = Request("POST", "", {"Content-Type": type_}, body)
        assert verdict(provider, request, [SECRET], NOW) == "malformed"
        with pytest.raises(Unreadable):
            provider.parse(request)


def test_the_answer_is_exactly_200() -> None:
    assert provider.reply(signed()) == Reply(200, "")


def test_what_is_not_a_signing_key_is_named() -> None:
    assert provider.secret_problem(SECRET) is None
    assert "public" in (provider.secret_problem("pubkey-0123456789abcdef") or "")
    assert "longer" in (provider.secret_problem("short") or "")


def event(name: str, at: float, **fields: Any) -> dict[str, Any]:
    message = {"headers": {"message-id": "m1@mg.example.test"}}
    return {
        "event": name,
        "timestamp": at,
        "id": f"{name}-{at}",
        "recipient": "ann@example.test",
        "message": message,
        **fields,
    }


def log(*events: dict[str, Any], size: int = 2) -> Scripted:
    """The log, in pages of that many; the last page is empty and names a next one, as Mailgun's does."""

    def script(path: str, params: dict[str, Any]) -> Json:
        if "/events" not in path:
            return None
        start = int(path.rpartition("/events/p")[2] or 0) if "/events/" in path else 0
        return {
            "items": list(events[start : start + size]),
            "paging": {"next": f"https://api.eu.mailgun.net/v3/mg.example.test/events/p{start + size}"},
        }

    return Scripted(script, {"domain": "mg.example.test"})


def test_a_message_is_what_its_events_say() -> None:
    assert provider.fetch is not None
    api = log(event("opened", 3.0), event("accepted", 1.0), event("delivered", 2.0))
    found = provider.fetch(api, MESSAGE)
    assert found is not None
    assert {name: found[name] for name in ("message-id", "recipient", "state", "types", "updated")} == {
        "message-id": "m1@mg.example.test",
        "recipient": "ann@example.test",
        "state": "delivered",
        "types": ["accepted", "delivered", "opened"],
        "updated": 3.0,
    }
    assert len(found["events"]) == 3
    asked = {"limit": 300, "message-id": "m1@mg.example.test", "recipient": "ann@example.test"}
    assert api.asked[0] == ("GET", "/v3/mg.example.test/events", asked)
    assert api.asked[1:] == [("GET", f"/v3/mg.example.test/events/p{n}", {}) for n in (2, 4)]


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([event("delivered", 1.0), event("failed", 2.0, severity="permanent")], "failed.permanent"),
        ([event("failed", 2.0, severity="temporary"), event("accepted", 1.0)], "failed.temporary"),
        ([event("failed", 1.0, severity="temporary"), event("delivered", 2.0)], "delivered"),
        ([event("accepted", 1.0), event("clicked", 2.0)], "clicked"),
        ([event("stored", 1.0)], ""),
    ],
)
def test_the_most_final_event_gives_the_state(events: list[dict[str, Any]], state: str) -> None:
    assert provider.fetch is not None
    found = provider.fetch(log(*events), MESSAGE)
    assert found is not None
    assert found["state"] == state


def test_a_message_that_the_log_does_not_show_is_asked_for_again_and_never_gone() -> None:
    assert provider.fetch is not None
    with pytest.raises(RetryLater) as raised:
        provider.fetch(log(), MESSAGE)
    assert raised.value.after == timedelta(minutes=5)
    with pytest.raises(ApiRefused):  # another region, or somebody else's domain
        provider.fetch(Scripted(gone), MESSAGE)


def test_the_domain_is_the_events_or_else_the_configured_one() -> None:
    assert provider.fetch is not None
    api = log(event("delivered", 1.0))
    provider.fetch(api, ObjectRef("message", MESSAGE.id))
    assert api.asked[0][1] == "/v3/mg.example.test/events"
    with pytest.raises(NotFetchable, match="domain"):
        provider.fetch(Scripted(gone), ObjectRef("message", MESSAGE.id))
    for name in ("../../v4", "..", "a/b", ""):
        [odd] = provider.parse(signed(domain={"name": name}))
        assert odd.object is not None
        assert odd.object.path == ""


def test_a_stored_mail_is_fetched_from_our_own_host_and_gone_after_its_days() -> None:
    assert provider.fetch is not None
    [envelope] = provider.parse(recorded("stored_mail"))
    assert envelope.object is not None
    api = Scripted(lambda path, params: {"Subject": "Hello"})
    assert provider.fetch(api, envelope.object) == {"Subject": "Hello"}
    assert api.asked == [("GET", "/v3/domains/mg.example.test/messages/BAABAgU-key==", {})]
    assert provider.fetch(Scripted(gone), envelope.object) is None
    with pytest.raises(NotFetchable):
        provider.fetch(api, ObjectRef("route", "r1"))


def test_a_version_is_the_time_of_the_newest_event_in_delivery_and_log_alike() -> None:
    assert provider.version is not None
    assert provider.fetch is not None
    [envelope] = provider.parse(signed())
    older, newer = (
        provider.fetch(log(*events), MESSAGE)
        for events in ([event("accepted", 1.0)], [event("opened", 1772600768.0)])
    )
    versions = [provider.version(MESSAGE, data) for data in (older, envelope.snapshot, newer)]
    assert versions == sorted(versions)  # type: ignore[type-var]
    assert len(set(versions)) == 3


def test_the_log_is_read_from_half_an_hour_earlier_and_has_the_keys_of_the_deliveries() -> None:
    assert provider.list_events is not None
    delivered = json.loads(signed(id="Ev-1").body)["event-data"]
    api = log(event("accepted", NOW.timestamp()), delivered, event("opened", NOW.timestamp()))
    entries = list(provider.list_events(api, SINCE))
    assert len(entries) == 3
    begin = int((SINCE - timedelta(minutes=30)).timestamp())
    assert api.asked[0] == (
        "GET",
        "/v3/mg.example.test/events",
        {"limit": 300, "begin": begin, "ascending": "yes"},
    )
    [from_log] = entries[1].read()
    [from_delivery] = provider.parse(signed(id="Ev-1"))
    assert entries[1].dedup_key == from_log.dedup_key == from_delivery.dedup_key
    assert (from_log.object, from_log.data) == (from_delivery.object, from_delivery.data)
    assert from_log.nonce == ""
    assert from_log.request is not None
    assert provider.parse(from_log.request)[0].dedup_key == from_log.dedup_key


def test_every_configured_domain_has_a_log() -> None:
    assert provider.list_events is not None
    api = Scripted(lambda path, params: {"items": []}, {"domain": "one.test, two.test"})
    assert list(provider.list_events(api, SINCE)) == []
    assert [path for _, path, _ in api.asked] == ["/v3/one.test/events", "/v3/two.test/events"]
    with pytest.raises(NotFetchable):
        list(provider.list_events(Scripted(gone), SINCE))


@pytest.mark.parametrize(
    ("domain", "account", "expected"),
    [
        ({"delivered": {"urls": ["https://ours.test/in"]}, "opened": {"urls": ["https://x.test"]}}, [], Health("enabled", "delivered")),
        ({}, [{"url": "https://ours.test/in", "event_types": ["opened", "clicked"]}], Health("enabled", "clicked, opened")),
        ({"delivered": {"urls": []}}, [{"url": "https://x.test", "event_types": ["opened"]}],
         Health("missing", "no webhook calls https://ours.test/in")),
    ],
)  # fmt: skip
def test_the_endpoint_is_there_if_a_webhook_calls_it(domain: Json, account: Json, expected: Health) -> None:
    assert provider.endpoint_health is not None
    settings = {"domain": "mg.example.test", "endpoint_url": "https://ours.test/in"}
    api = Scripted(lambda path, params: {"webhooks": account if path == "/v1/webhooks" else domain}, settings)
    assert provider.endpoint_health(api) == expected


def test_health_is_unknown_without_a_url_or_rights() -> None:
    assert provider.endpoint_health is not None
    assert provider.endpoint_health(Scripted(gone)).state == "unknown"
    settings = {"domain": "mg.example.test", "endpoint_url": "https://ours.test/in"}
    assert provider.endpoint_health(Scripted(gone, settings)) == Health(
        "unknown", "the API answered 404", 404
    )


def test_no_recording_holds_a_signature_that_is_real() -> None:
    for path in (HERE / "mailgun").glob("*.json"):
        assert "f" * 64 in path.read_text()
