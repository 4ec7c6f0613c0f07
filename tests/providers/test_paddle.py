from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

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
from webhooks.errors import ApiRefused, NotFetchable
from webhooks.provider import Health, ObjectRef, Redelivery
from webhooks.providers.paddle import provider
from webhooks.signatures import TimestampedHeader
from webhooks.testing.contract import Call, FakeApi

SECRET = "pdl_ntfset_01kettle00000000000000001_" + "a" * 32
OLDER = "pdl_ntfset_01kettle00000000000000001_" + "b" * 32
DESTINATION = {"api_key": "pdl_live_apikey_x", "notification_setting_id": "ntfset_01kettle"}
TRANSACTION = ObjectRef("transaction", "txn_01kettle00000000000000001")


@pytest.mark.parametrize("recording", recordings("paddle"), ids=lambda recording: recording.name)
def test_a_recorded_delivery_is_read_for_what_it_is(recording: Recording) -> None:
    assert_reads_as_recorded(provider, recording)


@pytest.mark.parametrize("vector", vectors("paddle"), ids=lambda vector: vector.name)
def test_a_published_vector_gets_its_verdict(vector: Vector) -> None:
    assert isinstance(provider.signature, TimestampedHeader)
    # Some are about the five seconds of Paddle's own libraries.
    narrow = replace(provider, signature=replace(provider.signature, tolerance=timedelta(seconds=5)))
    accepted = verdict(narrow, vector.request, vector.secrets, vector.now) == "accepted"
    # An unknown entry beside a right one is skipped, so that Paddle can add a scheme.
    assert accepted == (vector.accept or vector.name == "unknown-key")


def test_every_sample_is_accepted_and_read() -> None:
    assert_samples_pass(provider, SECRET)


def test_a_delivery_may_take_twenty_seconds_but_not_six_minutes() -> None:
    signed = provider.signature.sign(sampled(provider, "transaction.completed"), SECRET, NOW)
    after = {s: verdict(provider, signed, [SECRET], NOW + timedelta(seconds=s)) for s in (-301, 20, 300, 360)}
    assert after == {-301: "clock", 20: "accepted", 300: "accepted", 360: "clock"}


def test_while_a_secret_is_rotated_either_of_several_h1_is_accepted() -> None:
    request = sampled(provider, "transaction.completed")
    newer, older = (
        provider.signature.sign(request, secret, NOW).headers["Paddle-Signature"]
        for secret in (SECRET, OLDER)
    )
    both = request.with_headers({"Paddle-Signature": f"{newer};{older.partition(';')[2]}"})
    assert [verdict(provider, both, [secret], NOW) for secret in (SECRET, OLDER)] == ["accepted", "accepted"]


def test_a_replay_by_hand_is_the_same_event_under_another_notification() -> None:
    first = sampled(provider, "transaction.completed")
    replay = replace(
        first, body=first.body.replace(b'"notification_id":"ntf_', b'"notification_id":"ntf_other')
    )
    assert replay.body != first.body
    assert provider.parse(first)[0].dedup_key == provider.parse(replay)[0].dedup_key == "sample-1"


def test_two_events_with_a_blank_id_are_two_events() -> None:
    requests = [sampled(provider, "transaction.paid", id_) for id_ in ("evt_a", "evt_b")]
    blank = [replace(r, body=r.body.replace(b'"event_id":"evt_', b'"event_id":"","was":"')) for r in requests]
    keys = [provider.parse(request)[0].dedup_key for request in blank]
    assert keys[0] != keys[1]
    assert all(key.startswith("sha256:") for key in keys)


def test_times_with_cut_zeros_compare_as_instants() -> None:
    assert provider.version is not None
    texts = [
        "2026-03-04T11:57:47.03542Z",
        "2026-03-04T11:57:47.035421Z",
        "2026-03-04T11:57:47.1Z",
        "2026-03-04T11:57:48Z",
    ]
    versions = [provider.version(TRANSACTION, {"updated_at": text}) for text in texts]
    assert versions == sorted(versions, key=str)
    assert sorted(texts) != texts, "as texts they would be out of order"


def test_each_kind_is_fetched_where_paddle_serves_it() -> None:
    customer = "/customers/ctm_01kettle"
    refs = {
        "/transactions/txn_01kettle00000000000000001": TRANSACTION,
        "/discount-groups/dsg_1": ObjectRef("discount_group", "dsg_1"),
        f"{customer}/addresses/add_1": ObjectRef("address", "add_1", f"{customer}/addresses/add_1"),
    }
    assert provider.fetch is not None
    for path, ref in refs.items():
        api = FakeApi({path: {"data": {"id": ref.id}, "meta": {}}})
        assert provider.fetch(api, ref) == {"id": ref.id}
    adjustment = ObjectRef("adjustment", "adj_1")
    api = FakeApi({"/adjustments": {"data": [{"id": "adj_0"}, {"id": "adj_1", "action": "refund"}]}})
    assert provider.fetch(api, adjustment) == {"id": "adj_1", "action": "refund"}
    assert api.calls == [Call("GET", "/adjustments", {"id": "adj_1"})]
    assert provider.fetch(FakeApi({"/adjustments": {"data": []}}), adjustment) is None
    for ref in (ObjectRef("address", "add_1"), ObjectRef("payout", "pay_1")):
        with pytest.raises(NotFetchable):
            provider.fetch(FakeApi({}), ref)


def test_a_failed_delivery_is_replayed_once_and_only_to_us() -> None:
    def notification(number: int, **more: Any) -> dict[str, Any]:
        payload = {"event_id": f"evt_{number}"}
        return {
            "id": f"ntf_{number}",
            "type": "x.y",
            "origin": "event",
            "replayed_at": None,
            "payload": payload,
            **more,
        }

    listed = [
        notification(3),
        notification(2, replayed_at="2026-03-04T05:00:00Z"),
        notification(1, origin="replay"),
    ]

    def script(call: Call) -> Any:
        if call.method == "POST":
            return {"data": {"notification_id": "ntf_new"}}
        return {"data": listed, "meta": {"pagination": {"has_more": False}}}

    api = FakeApi(script, DESTINATION)
    assert provider.redeliver is not None
    assert list(provider.redeliver(api, NOW)) == [Redelivery("ntf_new", "evt_3", "x.y")]
    asked, posted = api.calls
    assert asked.params["notification_setting_id"] == "ntfset_01kettle"
    assert (asked.params["status"], asked.params["from"]) == ("failed", "2026-03-04T05:06:07Z")
    assert posted.path == "/notifications/ntf_3/replay"
    with pytest.raises(NotFetchable, match="notification_setting_id"):
        list(provider.redeliver(FakeApi(script), NOW))


@pytest.mark.parametrize(
    ("setting", "waiting", "health"),
    [
        ({"active": True}, [], Health("enabled")),
        (
            {"active": True},
            [{"id": "ntf_1"}],
            Health("failing", "deliveries are waiting for another attempt"),
        ),
        ({"active": False}, [], Health("disabled", "the destination is not active")),
        (None, [], Health("missing", "Paddle has no destination ntfset_01kettle")),
    ],
)
def test_health_is_what_paddle_says_about_our_destination(
    setting: dict[str, Any] | None, waiting: list[dict[str, Any]], health: Health
) -> None:
    answers = {
        "/notification-settings/ntfset_01kettle": setting and {"data": setting},
        "/notifications": {"data": waiting},
    }
    assert provider.endpoint_health is not None
    assert provider.endpoint_health(FakeApi(answers, DESTINATION)) == health
    refused = FakeApi(lambda _: ApiRefused("answered 403", 403), DESTINATION)
    assert provider.endpoint_health(refused) == Health("unknown", "answered 403", 403)


def test_what_cannot_be_a_secret_key_is_refused_at_start_up() -> None:
    assert provider.secret_problem(SECRET) is None
    assert provider.secret_problem("pdl_ntf_01kettle_x") is None
    assert provider.secret_problem("pdl_live_apikey_01kettle") is not None
    assert provider.livemode is not None
    keys = ("pdl_live_apikey_x", "pdl_sdbx_apikey_x", "")
    assert [provider.livemode({"api_key": key}) for key in keys] == [True, False, None]


def test_the_official_library_accepts_what_we_sign() -> None:
    official = pytest.importorskip("paddle_billing.Notifications")
    signed = provider.signature.sign(sampled(provider, "transaction.completed"), SECRET, NOW)
    integrity = official.PaddleSignature().verify(
        signed.headers["Paddle-Signature"], signed.body.decode(), official.Secret(SECRET)
    )
    assert integrity
