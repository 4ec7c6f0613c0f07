from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given

from tests.providers.recorded import (
    NOW,
    Recording,
    Scripted,
    Vector,
    assert_reads_as_recorded,
    assert_reads_or_refuses,
    assert_samples_pass,
    garbage_bodies,
    garbage_headers,
    gone,
    recordings,
    sampled,
    vectors,
    verdict,
)
from webhooks.errors import ApiRefused, NotFetchable, RateLimited
from webhooks.provider import Health, Json, ObjectRef, Redelivery, Reply, Request
from webhooks.providers.svix import provider

SECRET = "whsec_" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldY"
SINCE = NOW - timedelta(hours=1)
OURS = {"token": "sk_x.eu", "app_id": "app_1", "endpoint_id": "ep_1", "region": "eu"}
ENDPOINT = "/api/v1/app/app_1/endpoint/ep_1"


@pytest.mark.parametrize("recording", recordings("svix"), ids=lambda recording: recording.name)
def test_a_recorded_delivery_is_read_for_what_it_is(recording: Recording) -> None:
    assert_reads_as_recorded(provider, recording)


@pytest.mark.parametrize("vector", vectors("clerk"), ids=lambda vector: vector.name)
def test_a_published_vector_gets_its_verdict(vector: Vector) -> None:
    # Clerk's deliveries are Svix's. The one difference is a secret with `v1,` in front, which is the same secret.
    accepted = verdict(provider, vector.request, vector.secrets, vector.now) == "accepted"
    assert accepted == vector.accept or (vector.either and vector.name == "secret_with_v1_prefix")


def test_the_example_that_svix_publishes_is_accepted() -> None:
    headers = {
        "svix-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "svix-timestamp": "1614265330",
        "svix-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"test": 2432232314}'
    assert verdict(provider, Request("POST", "", headers, body), [secret], 1614265330) == "accepted"
    assert verdict(provider, Request("POST", "", headers, body[:-1]), [secret], 1614265330) == "mismatch"


def test_every_sample_is_accepted_and_read() -> None:
    assert_samples_pass(provider, SECRET)


@given(
    garbage_bodies("type", "data", "appId", "msgId", "endpointId", "lastAttempt", "timestamp", "id"),
    garbage_headers("svix-id", "svix-signature"),
)
def test_garbage_is_refused_and_nothing_else(body: bytes, headers: dict[str, str]) -> None:
    assert_reads_or_refuses(provider, Request("POST", "", headers, body), SECRET)


def test_the_answer_never_speaks_to_svix() -> None:
    assert provider.reply(
        sampled(provider, "endpoint.created").with_headers({"webhook-delivery": "disable"})
    ) == Reply(200, "")


def test_ids_that_are_none_make_no_object() -> None:
    request = sampled(provider, "endpoint.disabled", object={"appId": "..", "endpointId": "ep_1"})
    assert provider.parse(request)[0].object is None


def test_operational_objects_are_fetched_and_others_are_not() -> None:
    assert provider.fetch is not None
    api = Scripted(lambda path, params: {"id": "ep_1", "updatedAt": "2026-03-04T05:06:07Z"})
    [envelope] = provider.parse(
        sampled(provider, "endpoint.updated", object={"appId": "app_1", "endpointId": "ep_1"})
    )
    assert envelope.object is not None
    found = provider.fetch(api, envelope.object)
    assert api.asked == [("GET", ENDPOINT, {})]
    assert provider.version is not None
    assert provider.version(envelope.object, found) == NOW
    assert provider.fetch(Scripted(gone), envelope.object) is None
    [envelope] = provider.parse(sampled(provider, "invoice.paid"))
    assert envelope.object is not None
    with pytest.raises(NotFetchable, match="only they can tell"):
        provider.fetch(api, envelope.object)


def paged(rows: list[dict[str, Any]], size: int = 2) -> Scripted:
    def script(path: str, params: dict[str, Any]) -> Json:
        start = int(params.get("iterator") or 0)
        return {
            "data": rows[start : start + size],
            "iterator": str(start + size),
            "done": start + size >= len(rows),
        }

    return Scripted(script, OURS)


def test_the_log_holds_what_was_sent_and_reads_as_it_was_delivered() -> None:
    assert provider.list_events is not None
    payload = {"type": "invoice.paid", "data": {"id": "in_1"}}
    rows = [
        {
            "id": f"msg_{n}",
            "timestamp": "2026-03-04T05:00:00Z",
            "status": status,
            "eventType": "invoice.paid",
            "payload": payload,
        }
        for n, status in enumerate((0, 2, 1))
    ]
    api = paged(rows)
    entries = list(provider.list_events(api, SINCE))
    assert [(entry.dedup_key, entry.delivered) for entry in entries] == [
        ("msg_0", True),
        ("msg_1", False),
        ("msg_2", False),
    ]
    asked = {"limit": 250, "iterator": None, "after": "2026-03-04T04:06:07.000Z", "with_content": "true"}
    assert api.asked[0] == ("GET", f"{ENDPOINT}/msg", asked)
    assert [params["iterator"] for _, _, params in api.asked] == [None, "2"]
    [logged] = entries[1].read()
    assert logged.request is not None
    [delivered] = provider.parse(Request("POST", "", {"svix-id": "msg_1"}, logged.request.body))
    assert (logged.dedup_key, logged.type, logged.object) == (
        delivered.dedup_key,
        delivered.type,
        delivered.object,
    )
    assert logged.object == ObjectRef("invoice", "in_1")


def test_a_list_that_never_says_that_it_is_done_ends() -> None:
    assert provider.list_events is not None
    api = Scripted(lambda path, params: {"data": [], "iterator": "same", "done": False}, OURS)
    assert list(provider.list_events(api, SINCE)) == []


def test_changed_endpoints_are_listed() -> None:
    assert provider.list_changed is not None
    rows = [
        {"id": "ep_1", "updatedAt": "2026-03-04T05:00:00Z"},
        {"id": "ep_2", "updatedAt": "2026-03-01T05:00:00Z"},
    ]
    [change] = provider.list_changed(paged(rows), SINCE)
    assert (change.object, change.object.path, change.data) == (
        ObjectRef("endpoint", "ep_1"),
        ENDPOINT,
        rows[0],
    )


def test_what_failed_and_what_was_never_tried_is_asked_for_again() -> None:
    assert provider.redeliver is not None
    api = Scripted(lambda path, params: {"id": "qtask_1", "status": "running"}, OURS)
    assert list(provider.redeliver(api, SINCE)) == [
        Redelivery("qtask_1", "", "every failed message"),
        Redelivery("qtask_1", "", "every message that was never tried"),
    ]
    body = {"since": "2026-03-04T04:06:07.000Z"}
    assert api.asked == [("POST", f"{ENDPOINT}/recover", body), ("POST", f"{ENDPOINT}/replay-missing", body)]


@pytest.mark.parametrize(
    ("endpoint", "attempts", "expected"),
    [
        ({"disabled": False}, [{"status": 0}], Health("enabled")),
        ({"disabled": False}, [], Health("enabled")),
        (
            {"disabled": False},
            [{"status": 2, "responseStatusCode": 502}],
            Health("failing", "the newest attempt got 502"),
        ),
        ({"disabled": True, "url": "https://x.test"}, [], Health("disabled", "https://x.test")),
        (None, [], Health("missing", "Svix has no such endpoint")),
    ],
)
def test_the_endpoint_is_as_svix_says(endpoint: Json, attempts: Json, expected: Health) -> None:
    assert provider.endpoint_health is not None
    api = Scripted(lambda path, params: {"data": attempts} if "/attempt/" in path else endpoint, OURS)
    assert provider.endpoint_health(api) == expected


def test_health_is_unknown_without_ids_or_rights_and_waits_when_throttled() -> None:
    assert provider.endpoint_health is not None
    assert provider.endpoint_health(Scripted(gone)).state == "unknown"

    def refusing(path: str, params: dict[str, Any]) -> Json:
        raise ApiRefused("the API answered 401", 401)

    def throttled(path: str, params: dict[str, Any]) -> Json:
        raise RateLimited("slow down", timedelta(seconds=7))

    assert provider.endpoint_health(Scripted(refusing, OURS)) == Health(
        "unknown", "the API answered 401", 401
    )
    with pytest.raises(RateLimited):
        provider.endpoint_health(Scripted(throttled, OURS))
