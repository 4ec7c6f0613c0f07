from __future__ import annotations

from collections.abc import Mapping
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
from tests.providers.worlds import WORLDS
from webhooks.errors import ApiRefused, NotFetchable, RateLimited, RetryLater
from webhooks.provider import Health, Json, ObjectRef, Reply, Request
from webhooks.providers.slack import provider
from webhooks.testing.contract import Call, FakeApi

SECRET = "8f14e45fceea167a5a36dedd4bea2543"
TOKEN = {"token": "xoxb-x"}
READING = TOKEN | {"fetch_messages": "yes"}
MESSAGE = ObjectRef("message", "C0KITCHEN:1772600767.000200")
REPLY = ObjectRef("message", "C0KITCHEN:1772600767.000200", "1772600700.000100")


def fetched(
    answers: Mapping[str, Json], ref: ObjectRef, settings: Mapping[str, str] = READING
) -> tuple[Json, list[Call]]:
    assert provider.fetch is not None
    api = FakeApi(answers, settings)
    return provider.fetch(api, ref), api.calls


@pytest.mark.parametrize("recording", recordings("slack"), ids=lambda recording: recording.name)
def test_a_recorded_delivery_is_read_for_what_it_is(recording: Recording) -> None:
    assert_reads_as_recorded(provider, recording)


@pytest.mark.parametrize("vector", vectors("slack"), ids=lambda vector: vector.name)
def test_a_published_vector_gets_its_verdict(vector: Vector) -> None:
    accepted = verdict(provider, vector.request, vector.secrets, vector.now) == "accepted"
    # Signed over bytes that are no UTF-8: accepted, and recorded as unreadable.
    assert accepted == (vector.accept or vector.name == "invalid-utf8-signed")


def test_a_signature_of_another_version_is_malformed() -> None:
    signed = provider.signature.sign(sampled(provider, "message"), SECRET, NOW)
    later = signed.with_headers(
        {"X-Slack-Signature": signed.headers["X-Slack-Signature"].replace("v0=", "v1=")}
    )
    assert verdict(provider, later, [SECRET], NOW) == "malformed"


def test_every_sample_is_accepted_and_read() -> None:
    assert_samples_pass(provider, SECRET)


def test_the_question_whether_the_url_is_ours_is_answered_and_not_recorded() -> None:
    signed = provider.signature.sign(sampled(provider, "url_verification", "abc123"), SECRET, NOW)
    assert verdict(provider, signed, [SECRET], NOW) == "accepted"
    assert provider.parse(signed) == []
    assert provider.reply(signed) == Reply(body="abc123")
    assert verdict(provider, sampled(provider, "url_verification"), [SECRET], NOW) == "missing"


def test_only_that_question_is_answered_with_its_challenge() -> None:
    for body in (
        b'{"type":"event_callback","challenge":"abc123"}',
        b'{"challenge":"abc123"}',
        b"no json",
        b"[]",
    ):
        assert provider.reply(Request("POST", "", {}, body)) == Reply()
    odd = Request("POST", "", {}, b'{"type":"url_verification","challenge":{"a":1}}')
    assert provider.reply(odd) == Reply()


def test_no_reply_asks_slack_not_to_try_again() -> None:
    # What we refuse may be ours once a secret is mended.
    replies = [
        provider.reply(sampled(provider, type_)) for type_ in (*provider.sample_types, "url_verification")
    ]
    assert all("x-slack-no-retry" not in {name.lower() for name in reply.headers} for reply in replies)


def test_a_retry_with_a_new_time_is_the_same_event() -> None:
    first = provider.signature.sign(sampled(provider, "message"), SECRET, NOW)
    retry = first.with_headers({"X-Slack-Retry-Num": "1", "X-Slack-Retry-Reason": "http_timeout"})
    retry = provider.signature.sign(retry, SECRET, NOW.replace(minute=12))
    assert retry.headers["X-Slack-Signature"] != first.headers["X-Slack-Signature"]
    assert provider.parse(retry)[0].dedup_key == provider.parse(first)[0].dedup_key
    assert {"X-Slack-Retry-Num", "X-Slack-Retry-Reason"} <= set(provider.headers)


def test_a_mention_and_its_message_are_two_events_of_one_message() -> None:
    by_name = {
        recording.name: provider.parse(recording.request)[0]
        for recording in recordings("slack")[:14]
        if recording.expected
    }
    message, mention = by_name["message"], by_name["mention_of_the_same_message"]
    assert message.dedup_key != mention.dedup_key
    assert message.object == mention.object
    assert message.correlation == mention.correlation != ""


def test_what_our_app_posted_is_no_message_to_answer() -> None:
    types = {r.name: provider.parse(r.request)[0].type for r in recordings("slack") if "posted" in r.name}
    assert types == {
        "message_that_our_app_posted": "message.own",
        "message_that_another_app_posted": "message",
    }


def test_messages_are_not_fetched_unless_that_is_asked_for() -> None:
    with pytest.raises(NotFetchable, match="fetch_messages"):
        fetched({}, MESSAGE, TOKEN)


def test_a_message_is_looked_for_in_the_history_and_then_among_replies() -> None:
    history, replies = "/api/conversations.history", "/api/conversations.replies"
    ours, other = {"ts": "1772600767.000200", "text": "tea?"}, {"ts": "1772600700.000100", "text": "hello"}
    nothing = {"ok": True, "messages": []}

    found, calls = fetched({history: {"ok": True, "messages": [ours]}}, MESSAGE)
    assert (found, [call.path for call in calls]) == (ours, [history])
    exactly = {
        "channel": "C0KITCHEN",
        "latest": "1772600767.000200",
        "oldest": "1772600767.000200",
        "inclusive": "true",
    }
    assert calls[0].params == exactly | {"limit": 1}

    # A reply is in no history; that it is absent there does not mean that it is gone.
    found, calls = fetched({history: nothing, replies: {"ok": True, "messages": [other, ours]}}, MESSAGE)
    assert (found, [call.path for call in calls]) == (ours, [history, replies])
    found, calls = fetched({replies: {"ok": True, "messages": [other, ours]}}, REPLY)
    assert (found, calls[0].params["ts"]) == (ours, "1772600700.000100")


@pytest.mark.parametrize(
    "replies",
    [
        {"ok": False, "error": "thread_not_found"},
        {"ok": True, "messages": [{"ts": "1772600700.000100", "text": "another one"}]},
        {"ok": True, "messages": [{"ts": "1772600767.000200", "subtype": "tombstone"}]},
    ],
)
def test_a_deleted_message_is_gone(replies: Json) -> None:
    answers = {
        "/api/conversations.history": {"ok": True, "messages": []},
        "/api/conversations.replies": replies,
    }
    assert fetched(answers, MESSAGE)[0] is None


def test_a_deactivated_user_is_still_there() -> None:
    user = {"id": "U0ANN", "deleted": True, "updated": 1772600766}
    found, calls = fetched({"/api/users.info": {"ok": True, "user": user}}, ObjectRef("user", "U0ANN"))
    assert (found, calls[0].params) == (user, {"user": "U0ANN"})
    assert (
        fetched({"/api/users.info": {"ok": False, "error": "user_not_found"}}, ObjectRef("user", "U0ANN"))[0]
        is None
    )


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        ("channel_not_found", NotFetchable),
        ("not_in_channel", NotFetchable),
        ("internal_error", RetryLater),
        ("ratelimited", RateLimited),
        ("invalid_auth", ApiRefused),
        ("missing_scope", ApiRefused),
        ("something_new", ApiRefused),
    ],
)
def test_what_slack_says_with_http_200_is_taken_for_what_it_is(error: str, raised: type[Exception]) -> None:
    with pytest.raises(raised, match=error) as caught:
        fetched({"/api/conversations.info": {"ok": False, "error": error}}, ObjectRef("channel", "C0KITCHEN"))
    assert type(caught.value) is raised


@pytest.mark.parametrize("answer", [{"ok": True}, {"ok": True, "channel": "C0KITCHEN"}])
def test_an_answer_without_the_object_is_not_taken_for_gone(answer: Json) -> None:
    with pytest.raises(RetryLater, match="without a channel"):
        fetched({"/api/conversations.info": answer}, ObjectRef("channel", "C0KITCHEN"))


def test_an_edit_makes_a_message_newer_and_digits_are_not_lost() -> None:
    assert provider.version is not None
    before = provider.version(MESSAGE, {"ts": "1772600767.000200"})
    after = provider.version(MESSAGE, {"ts": "1772600767.000200", "edited": {"ts": "1772600767.000201"}})
    assert isinstance(before, str)
    assert isinstance(after, str)
    assert before < after
    assert provider.version(ObjectRef("user", "U0ANN"), {"updated": 1772600766}) == 1772600766
    assert provider.version(ObjectRef("team", "T0KETTLE"), {"id": "T0KETTLE"}) is None


def test_what_says_that_it_did_not_change_is_left_out() -> None:
    world = WORLDS["slack"]()
    assert provider.list_changed is not None
    found = {change.object.id for change in provider.list_changed(world.api(restless=False), world.since)}
    assert {"U0KETTLE1", "C0KITCHEN"} <= found
    assert not {"U0KETTLE0", "C0STILL"} & found


def test_listings_belong_to_the_team_of_the_token() -> None:
    answers: dict[str, Any] = {
        "/api/auth.test": {"ok": True, "team_id": "T0KETTLE"},
        "/api/users.list": {"ok": True, "members": [{"id": "U0ANN"}]},
        "/api/conversations.list": {"ok": True, "channels": []},
    }
    assert provider.list_changed is not None
    [change] = provider.list_changed(FakeApi(answers, TOKEN), NOW)
    assert (change.account, change.object) == ("T0KETTLE", ObjectRef("user", "U0ANN"))
    api = FakeApi(answers, TOKEN, "T0OTHER")
    [change] = provider.list_changed(api, NOW)
    assert change.account == "T0OTHER"
    assert "/api/auth.test" not in {call.path for call in api.calls}


def test_a_dead_token_is_reported_and_a_good_one_proves_nothing() -> None:
    health = provider.endpoint_health
    assert health is not None
    dead = FakeApi({"/api/auth.test": {"ok": False, "error": "account_inactive"}}, TOKEN)
    assert health(dead) == Health("disabled", "Slack: auth.test says account_inactive")
    assert health(FakeApi({"/api/auth.test": {"ok": True}}, TOKEN)).state == "unknown"


def test_what_cannot_be_a_signing_secret_is_refused_at_start_up() -> None:
    assert provider.secret_problem(SECRET) is None
    assert "token" in (provider.secret_problem("xoxb-1-2-" + "a" * 23) or "")
    assert "verification" in (provider.secret_problem("a" * 24) or "")


def test_the_official_library_accepts_what_we_sign_and_we_what_it_signs() -> None:
    official = pytest.importorskip("slack_sdk.signature")

    class Clock(official.Clock):  # type: ignore[misc, name-defined]
        def now(self) -> float:
            return NOW.timestamp()

    theirs = official.SignatureVerifier(SECRET, Clock())
    signed = provider.signature.sign(sampled(provider, "message"), SECRET, NOW)
    assert theirs.is_valid_request(signed.body, dict(signed.headers))
    time = str(int(NOW.timestamp()))
    signature = theirs.generate_signature(timestamp=time, body=signed.body)
    headers = {"X-Slack-Request-Timestamp": time, "X-Slack-Signature": signature}
    assert verdict(provider, Request("POST", "", headers, signed.body), [SECRET], NOW) == "accepted"
