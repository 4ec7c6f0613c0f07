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
from webhooks.errors import NotFetchable
from webhooks.provider import Json, ObjectRef, Reply, Request
from webhooks.providers.clerk import OVERLAP, PAGE, provider

SECRET = "whsec_" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldY"
OLDER = "whsec_" + "YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4"
SINCE = NOW - timedelta(hours=1)


def ms(minutes: float) -> int:
    """So many minutes after SINCE, as Clerk writes times."""
    return int((SINCE.timestamp() + minutes * 60) * 1000)


@pytest.mark.parametrize("recording", recordings("clerk"), ids=lambda recording: recording.name)
def test_a_recorded_delivery_is_read_for_what_it_is(recording: Recording) -> None:
    assert_reads_as_recorded(provider, recording)


@pytest.mark.parametrize("vector", vectors("clerk"), ids=lambda vector: vector.name)
def test_a_published_vector_gets_its_verdict(vector: Vector) -> None:
    # One differs on purpose: a secret with Supabase's `v1,` in front is the same secret, so we strip that.
    accepted = verdict(provider, vector.request, vector.secrets, vector.now) == "accepted"
    assert accepted == vector.accept or (vector.either and vector.name == "secret_with_v1_prefix")


def test_every_sample_is_accepted_and_read() -> None:
    assert_samples_pass(provider, SECRET)


@given(
    garbage_bodies("type", "data", "object", "id", "timestamp"),
    garbage_headers("svix-id", "svix-timestamp", "svix-signature"),
)
def test_garbage_is_refused_and_nothing_else(body: bytes, headers: dict[str, str]) -> None:
    assert_reads_or_refuses(provider, Request("POST", "", headers, body), SECRET)


def test_while_a_secret_is_rolled_either_one_is_accepted() -> None:
    request = provider.signature.sign(sampled(provider, "user.created"), SECRET, NOW)
    older = provider.signature.sign(sampled(provider, "user.created"), OLDER, NOW)
    both = request.with_headers(
        {"svix-signature": f"{request.headers['svix-signature']} {older.headers['svix-signature']}"}
    )
    assert [verdict(provider, both, [secret], NOW) for secret in (SECRET, OLDER)] == ["accepted", "accepted"]
    assert verdict(provider, request, [OLDER], NOW) == "mismatch"


def test_a_message_may_not_be_named_twice() -> None:
    # The second name would be an unsigned dedup key, under which the message could be delivered once more.
    request = provider.signature.sign(sampled(provider, "user.created"), SECRET, NOW)
    assert (
        verdict(provider, request.with_headers({"webhook-id": "msg_another"}), [SECRET], NOW) == "malformed"
    )
    assert verdict(provider, request.with_headers({"webhook-id": "sample-1"}), [SECRET], NOW) == "accepted"


def test_the_window_is_five_minutes_to_either_side() -> None:
    request = provider.signature.sign(sampled(provider, "user.created"), SECRET, NOW)
    verdicts = {
        s: verdict(provider, request, [SECRET], NOW + timedelta(seconds=s)) for s in (-301, -300, 300, 301)
    }
    assert verdicts == {-301: "clock", -300: "accepted", 300: "accepted", 301: "clock"}


def test_a_delivery_without_an_id_is_known_by_its_bytes() -> None:
    body = sampled(provider, "user.created").body
    [first], [second] = (
        provider.parse(Request("POST", "", {"svix-id": " "}, b)) for b in (body, body + b" ")
    )
    assert first.dedup_key.startswith("sha256:")
    assert first.dedup_key != second.dedup_key


def test_the_answer_never_speaks_to_svix() -> None:
    # A `webhook-delivery` header would stop the retries or disable the endpoint.
    request = sampled(provider, "user.created").with_headers({"webhook-delivery": "disable"})
    assert provider.reply(request) == Reply(200, "")


def test_what_is_not_a_signing_secret_is_named() -> None:
    assert provider.secret_problem(SECRET) is None
    assert "begins with whsec_" in (provider.secret_problem("sk_live_abc") or "")
    assert "not base64" in (provider.secret_problem(SECRET[:-1] + "!") or "")
    assert "shorter" in (provider.secret_problem("whsec_QUJD") or "")


def test_the_key_tells_the_mode() -> None:
    assert provider.livemode is not None
    assert [provider.livemode({"api_key": key}) for key in ("sk_live_1", "sk_test_1", "other", "")] == [
        True,
        False,
        None,
        None,
    ]


def test_each_kind_is_fetched_where_the_api_serves_it() -> None:
    assert provider.fetch is not None
    [envelope] = provider.parse(sampled(provider, "organizationInvitation.accepted"))
    assert envelope.object is not None
    invitation = envelope.object.id
    api = Scripted(lambda path, params: {"id": invitation if "invitations" in path else "a/b"})
    for kind in ("user", "organization", "session", "role", "permission"):
        assert provider.fetch(api, ObjectRef(kind, "a/b"))
    assert provider.fetch(api, envelope.object)
    assert [path for _, path, _ in api.asked] == [
        "/users/a%2Fb",
        "/organizations/a%2Fb",
        "/sessions/a%2Fb",
        "/organization_roles/a%2Fb",
        "/organization_permissions/a%2Fb",
        "/organizations/org_sample/invitations/organizationinvitation_sample-1",
    ]
    assert provider.fetch(Scripted(gone), ObjectRef("user", "user_1")) is None
    with pytest.raises(NotFetchable):
        provider.fetch(api, ObjectRef("email", "ema_1"))


def test_a_membership_is_found_among_the_organizations_members() -> None:
    assert provider.fetch is not None
    [envelope] = provider.parse(
        sampled(provider, "organizationMembership.created", object={"id": "orgmem_1"})
    )
    ref = envelope.object
    assert ref is not None
    api = Scripted(lambda path, params: {"data": [{"id": "orgmem_1", "role": "org:admin"}], "total_count": 1})
    assert provider.fetch(api, ref) == {"id": "orgmem_1", "role": "org:admin"}
    assert api.asked == [
        ("GET", "/organizations/org_sample/memberships", {"limit": PAGE, "user_id": "user_sample"})
    ]


@pytest.mark.parametrize("answer", [{"data": []}, {"data": [{"id": "orgmem_2"}]}, None])
def test_who_left_has_no_membership_even_after_coming_back(answer: Json) -> None:
    assert provider.fetch is not None
    ref = ObjectRef("organization_membership", "orgmem_1", "/organizations/org_1/memberships?user_id=user_1")
    assert provider.fetch(Scripted(lambda path, params: answer), ref) is None


def test_ids_that_are_none_make_no_path() -> None:
    odd = {"organization": {"id": "../secrets"}, "public_user_data": {"user_id": "user_1&role=x"}}
    [envelope] = provider.parse(sampled(provider, "organizationMembership.created", object=odd))
    assert envelope.object is not None
    assert envelope.object.path == ""


def clerk(users: list[dict[str, Any]], organizations: list[dict[str, Any]] | None = None) -> Scripted:
    def script(path: str, params: dict[str, Any]) -> Json:
        rows = users if path == "/users" else (organizations or []) if path == "/organizations" else []
        if params["order_by"] == "-updated_at":
            rows = sorted(rows, key=lambda row: -row["updated_at"])
        page = rows[params["offset"] : params["offset"] + params["limit"]]
        return page if path == "/users" else {"data": page, "total_count": len(rows)}

    return Scripted(script)


def test_changed_users_are_listed_newest_first_until_they_are_too_old() -> None:
    assert provider.list_changed is not None
    users = [{"id": f"user_{n}", "updated_at": ms(n)} for n in range(-2000, 5)]
    api = clerk(users, [{"id": "org_old", "updated_at": ms(-1)}, {"id": "org_new", "updated_at": ms(1)}])
    changes = list(provider.list_changed(api, SINCE))
    assert [change.object.id for change in changes] == [
        "user_4",
        "user_3",
        "user_2",
        "user_1",
        "user_0",
        "org_new",
    ]
    assert changes[0].data == users[-1]
    assert changes[0].changed_at == SINCE + timedelta(minutes=4)
    assert sum(path == "/users" for _, path, _ in api.asked) == 1


def test_nobody_is_skipped_when_the_list_moves_while_it_is_read() -> None:
    assert provider.list_changed is not None
    organizations = [{"id": f"org_{n}", "updated_at": ms(1)} for n in range(PAGE + 100)]
    api = clerk([], organizations)
    seen = []
    for change in provider.list_changed(api, SINCE):
        seen.append(change.object.id)
        if len(seen) == PAGE:  # between the first page and the second
            del organizations[: OVERLAP - 1]
            organizations.append({"id": "org_late", "updated_at": ms(2)})
    assert sorted(seen) == sorted({*(f"org_{n}" for n in range(PAGE + 100)), "org_late"})


def test_a_version_is_the_time_of_the_last_change() -> None:
    assert provider.version is not None
    older, newer = ({"updated_at": ms(minutes)} for minutes in (1, 2))
    ref = ObjectRef("user", "user_1")
    assert provider.version(ref, older) < provider.version(ref, newer)  # type: ignore[operator]
    assert provider.version(ref, {"id": "user_1", "deleted": True}) is None
