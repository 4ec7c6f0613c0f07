from __future__ import annotations

import json
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
from webhooks.errors import NotFetchable
from webhooks.provider import Json, ObjectRef, Request
from webhooks.providers.supabase import ALL_USERS, provider

SECRET = "v1,whsec_" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldY"
OTHER = "v1,whsec_" + "YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4"
SINCE = NOW - timedelta(hours=1)


@pytest.mark.parametrize("recording", recordings("supabase"), ids=lambda recording: recording.name)
def test_a_recorded_call_is_read_for_what_it_is(recording: Recording) -> None:
    assert_reads_as_recorded(provider, recording)


@pytest.mark.parametrize("vector", vectors("supabase"), ids=lambda vector: vector.name)
def test_a_published_vector_gets_its_verdict(vector: Vector) -> None:
    assert (verdict(provider, vector.request, vector.secrets, vector.now) == "accepted") == vector.accept


def test_every_sample_is_accepted_and_read() -> None:
    assert_samples_pass(provider, SECRET)


@given(
    garbage_bodies(
        "metadata", "uuid", "name", "user", "user_id", "sms", "claims", "valid", "factor_id", "id"
    ),
    garbage_headers("webhook-id", "webhook-timestamp", "webhook-signature"),
)
def test_garbage_is_refused_and_nothing_else(body: bytes, headers: dict[str, str]) -> None:
    assert_reads_or_refuses(provider, Request("POST", "", headers, body), SECRET)


def test_two_signatures_with_comma_and_blank_between_are_both_read() -> None:
    first, second = (
        provider.signature.sign(sampled(provider, "send-sms"), secret, NOW) for secret in (SECRET, OTHER)
    )
    both = first.with_headers(
        {"webhook-signature": f"{first.headers['webhook-signature']}, {second.headers['webhook-signature']}"}
    )
    assert [verdict(provider, both, [secret], NOW) for secret in (SECRET, OTHER)] == ["accepted", "accepted"]


def test_the_attempts_of_one_call_have_one_key_though_their_webhook_ids_differ() -> None:
    request = sampled(provider, "send-sms")
    keys = {provider.parse(request.with_headers({"webhook-id": id_}))[0].dedup_key for id_ in ("a", "b", "c")}
    assert keys == {"sample-1"}


def test_without_a_uuid_two_wrong_passwords_are_two_events_and_two_texts_are_told_by_their_content() -> None:
    wrong = json.dumps({"user_id": "u1", "valid": False}).encode()
    text = json.dumps({"user": {"id": "u1"}, "sms": {"otp": "123456"}}).encode()

    def keys(body: bytes) -> int:
        return len(
            {
                provider.parse(Request("POST", "", {"webhook-id": id_}, body))[0].dedup_key
                for id_ in ("a", "b")
            }
        )

    assert keys(wrong) == 2
    assert keys(text) == 1


def test_a_user_who_is_about_to_be_is_nothing_to_fetch() -> None:
    [before] = provider.parse(sampled(provider, "before-user-created", object={"id": "u1"}))
    [after] = provider.parse(sampled(provider, "after-user-created", object={"id": "u1"}))
    assert before.object is None
    assert before.snapshot is None
    assert after.object == ObjectRef("user", "u1")
    assert before.correlation == after.correlation == "u1"


@pytest.mark.parametrize(
    ("hook", "answer"),
    [
        ("before-user-created", {}),
        ("after-user-created", {}),
        ("send-sms", {}),
        ("send-email", {}),
        ("mfa-verification", {"decision": "continue"}),
        ("password-verification", {"decision": "continue"}),
    ],
)
def test_the_answer_changes_nothing(hook: str, answer: Json) -> None:
    reply = provider.reply(sampled(provider, hook))
    assert (reply.status, reply.content_type, json.loads(reply.body)) == (200, "application/json", answer)


def test_a_token_keeps_all_its_claims() -> None:
    request = sampled(provider, "customize-access-token")
    claims = json.loads(request.body)["claims"]
    assert json.loads(provider.reply(request).body) == {"claims": claims}
    assert {"aud", "exp", "iat", "sub", "email", "phone", "role", "aal", "session_id", "is_anonymous"} <= set(
        claims
    )


def test_what_nobody_can_read_is_answered_all_the_same() -> None:
    reply = provider.reply(Request("POST", "", {}, b"["))
    assert (reply.status, reply.body, reply.content_type) == (200, "{}", "application/json")


def test_what_is_not_a_hooks_secret_is_named() -> None:
    assert provider.secret_problem(SECRET) is None
    assert provider.secret_problem(SECRET.removeprefix("v1,")) is None
    assert "not joined" in (provider.secret_problem(f"{SECRET}|{OTHER}") or "")
    assert "asymmetric" in (provider.secret_problem("v1a,whpk_AAAA:v1a,whsk_AAAA") or "")
    for wrong in (SECRET[:-1] + "!", "v1,whsec_QUJD", "service-role-key", ""):
        assert provider.secret_problem(wrong), wrong


def test_a_user_is_fetched_and_a_softly_deleted_one_is_gone() -> None:
    assert provider.fetch is not None
    ref = ObjectRef("user", "u/1")
    api = Scripted(lambda path, params: {"id": "u/1", "deleted_at": None})
    assert provider.fetch(api, ref) == {"id": "u/1", "deleted_at": None}
    assert api.asked == [("GET", "/admin/users/u%2F1", {})]
    assert (
        provider.fetch(
            Scripted(lambda path, params: {"id": "u/1", "deleted_at": "2026-01-01T00:00:00Z"}), ref
        )
        is None
    )
    assert provider.fetch(Scripted(gone), ref) is None
    with pytest.raises(NotFetchable):
        provider.fetch(api, ObjectRef("factor", "f1"))


def test_a_user_who_is_not_stored_yet_has_no_version() -> None:
    assert provider.version is not None
    ref = ObjectRef("user", "u1")
    assert provider.version(ref, {"updated_at": "0001-01-01T00:00:00Z"}) is None
    assert provider.version(ref, {"updated_at": "2026-03-04T05:06:07Z"}) == NOW


USERS = [
    {"id": f"u{n}", "updated_at": "2026-03-04T05:00:00Z" if n % 400 == 0 else "2026-01-01T00:00:00Z"}
    for n in range(2500)
]


def test_a_server_with_cursors_lists_exactly_who_changed() -> None:
    assert provider.list_changed is not None

    def script(path: str, params: dict[str, Any]) -> Json:
        start, end = int(params.get("cursor", "0")), int(params.get("cursor", "0")) + params["limit"]
        more = {"next_cursor": str(end), "has_more": True} if end < len(USERS) else {"has_more": False}
        return {"users": USERS[start:end], "aud": "authenticated", "pagination": more}

    api = Scripted(script)
    assert [change.object.id for change in provider.list_changed(api, SINCE)] == [
        f"u{n}" for n in range(0, 2500, 400)
    ]
    assert [params.get("cursor") for _, _, params in api.asked] == [None, "1000", "2000"]


def test_a_server_with_pages_lists_everybody_so_that_the_next_run_finds_who_slipped() -> None:
    assert provider.list_changed is not None

    def script(path: str, params: dict[str, Any]) -> Json:
        size, page = params.get("per_page", 50), params.get("page", 1)
        return {"users": USERS[(page - 1) * size : page * size], "aud": "authenticated"}

    api = Scripted(script)
    changes = list(provider.list_changed(api, SINCE))
    assert [change.object.id for change in changes] == [user["id"] for user in USERS]
    assert changes[0].data == USERS[0]
    assert api.asked[1] == (
        "GET",
        "/admin/users",
        {"page": 1, "per_page": ALL_USERS, "sort": "created_at asc"},
    )
