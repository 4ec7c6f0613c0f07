"""Supabase Auth hooks: calls in the middle of a sign-in. What we answer is what the user gets, within five seconds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from .. import jsontext
from ..errors import NotFetchable, Unreadable
from ..provider import (
    Answers,
    Api,
    ApiSpec,
    Change,
    Envelope,
    Json,
    ObjectRef,
    Policy,
    Provider,
    Reply,
    Request,
    Sample,
    Version,
    as_text,
    body_key,
    dig,
    instant,
    path_segment,
    served,
)
from ..signatures import StandardWebhooks, whsec_problem

__all__ = ["provider"]

SHAPES: Mapping[str, tuple[str, ...]] = {
    "send-sms": ("user", "sms"),
    "send-email": ("user", "email_data"),
    "customize-access-token": ("user_id", "claims"),
    "mfa-verification": ("user_id", "factor_id"),
    "password-verification": ("user_id", "valid"),
}
"""Hook → the fields that only it has, in the order to look. Servers before v2.187.0 sent no name with these."""

DECISIONS = frozenset({"mfa-verification", "password-verification"})
"""Their bodies repeat word for word: the same user, and whether the code was right."""

TOKEN = "customize-access-token"  # noqa: S105 - the name of a hook

CLAIMS: Mapping[str, Any] = {
    "aud": (str, list),
    "exp": int,
    "iat": int,
    "sub": str,
    "email": str,
    "phone": str,
    "role": str,
    "aal": str,
    "session_id": str,
    "is_anonymous": bool,
}
"""The claims that a token must have (supabase/auth v2.196.0, internal/hooks/v0hooks/v0hooks.go, MinimumViableTokenSchema)."""

ALL_USERS = 1000
"""The most that one page may hold."""


@dataclass(frozen=True, kw_only=True)
class HookSignature(StandardWebhooks):
    """Standard Webhooks, but with several secrets the signatures are joined by `, ` where the standard has a blank."""

    def verify(self, request: Request, secrets: Sequence[str], now: datetime | float) -> str:
        name = "webhook-signature"
        return super().verify(
            request.with_headers({name: request.headers.get(name, "").replace(", ", " ")}), secrets, now
        )


def parse(request: Request) -> list[Envelope]:
    event = request.document
    type_ = _hook(event)
    user = event.get("user")
    id_ = as_text(dig(user, "id")) or as_text(event.get("user_id"))
    # Before its creation there is no user to fetch: asking would find "gone" what is about to be.
    known = id_ and type_ != "before-user-created"
    return [
        Envelope(
            _key(type_, event, request),
            type_,
            event,
            object=ObjectRef("user", id_) if known else None,
            snapshot=user if known else None,
            occurred_at=instant(dig(event, "metadata", "time")),
            # The call before and the one after a user's creation share the id.
            correlation=id_,
        )
    ]


def _hook(event: Mapping[str, Any]) -> str:
    name = dig(event, "metadata", "name")
    if isinstance(name, str) and name.strip():
        return name
    for hook, fields in SHAPES.items():
        if all(field in event for field in fields):
            return hook
    raise Unreadable("a Supabase hook says its name in `metadata`, or shows by its fields which it is")


def _key(type_: str, event: Mapping[str, Any], request: Request) -> str:
    # The webhook-id is new on every attempt of one call, the body is not.
    uuid = as_text(dig(event, "metadata", "uuid"))
    if uuid.strip():
        return uuid
    if type_ in DECISIONS:
        # Without a uuid, two wrong passwords in a row look alike. Rather count a retried call twice than lose one.
        return body_key(
            request.headers.get("webhook-id", "").encode("utf-8", "surrogatepass") + b"\0" + request.body
        )
    return body_key(request.body)


def reply(request: Request) -> Reply:
    """What changes nothing: sign-ups are allowed, tokens keep their claims, decisions stand."""
    try:
        return say(parse(request)[0], None)
    except Unreadable:
        return _json({})


def _json(answer: Json) -> Reply:
    # 200 without this content type is an error to Auth.
    return Reply(200, jsontext.dumps(answer).decode(), "application/json")


def say(envelope: Envelope, answer: Any) -> Reply:
    """The app's answer: `{"claims": {…}}` for tokens, `{"decision": …}` for decisions, `{}` for all others.

    204 is none: Auth takes it for missing claims, and the sign-in fails.
    """
    if answer is None:
        if envelope.type in DECISIONS:
            return _json({"decision": "continue"})
        # All claims must come back: what is left out is missing from the token, and the sign-in fails.
        return _json({"claims": dig(envelope.data, "claims")} if envelope.type == TOKEN else {})
    if not isinstance(answer, dict):
        raise ValueError("an answer to a Supabase hook is a dict, or None for whatever changes nothing")
    if "error" in answer:
        raise ValueError("to refuse, raise Refuse(message); an error without a message would be consent")
    if envelope.type in DECISIONS and answer.get("decision") not in {"continue", "reject"}:
        raise ValueError(
            "the decision is 'continue' or 'reject'; anything else would be taken for 'continue'"
        )
    return _json(answer)


def refuse(envelope: Envelope, message: str, http_status: int) -> Reply:
    # Never an HTTP status: for a 400 Auth answers the user 500, and our message is lost. Decisions have their own no,
    # which for `mfa-verification` also ends all sessions of the user.
    if envelope.type in DECISIONS:
        return _json({"decision": "reject", "message": message})
    return _json({"error": {"http_code": http_status, "message": message}})


def fetch(api: Api, ref: ObjectRef) -> Json | None:
    if ref.kind != "user":
        raise NotFetchable(f"Supabase Auth serves users, not {ref.kind}")
    found = served(api.find(f"/admin/users/{path_segment(ref.id)}"), ref.id)
    # Softly deleted users are still served.
    return None if dig(found, "deleted_at") else found


def version(_ref: ObjectRef, data: Json) -> Version | None:
    changed = instant(dig(data, "updated_at"))
    # In a hook, a user that is not stored yet has the year 1.
    return changed if changed is not None and changed.year > 1 else None


def list_changed(api: Api, since: datetime) -> Iterator[Change]:
    """Users that were updated since, by reading the whole list, which knows no such filter. Misses deletions.

    A server without cursors lists by page, and a user can slip from one page to another meanwhile; there every user is
    a change, so that who is missed now is found by the next run.
    """
    answer = api.get("/admin/users", limit=ALL_USERS)
    exact = isinstance(dig(answer, "pagination"), dict)
    for user in _by_cursor(api, answer) if exact else _by_page(api):
        changed = instant(user.get("updated_at"))
        if not exact or changed is None or changed >= since:
            yield Change(ObjectRef("user", as_text(user.get("id"))), user, changed, api.account)


def _by_cursor(api: Api, answer: Json) -> Iterator[dict[str, Any]]:
    while True:
        yield from _users(answer)
        cursor = dig(answer, "pagination", "next_cursor")
        if not cursor:
            return
        answer = api.get("/admin/users", limit=ALL_USERS, cursor=cursor)


def _by_page(api: Api) -> Iterator[dict[str, Any]]:
    page = 1
    while True:
        users = _users(api.get("/admin/users", page=page, per_page=ALL_USERS, sort="created_at asc"))
        yield from users
        if len(users) < ALL_USERS:
            return
        page += 1


def _users(answer: Json) -> list[dict[str, Any]]:
    return [user for user in dig(answer, "users") or [] if dig(user, "id")]


_SECRET = re.compile(r"(?:v1,)?whsec_[A-Za-z0-9+/=]{32,88}", re.ASCII)


def secret_problem(secret: str) -> str | None:
    if "|" in secret:
        return "several secrets are a list here, not joined by |"
    if secret.startswith("v1a,"):
        return "Supabase Auth does not sign with asymmetric keys; use a secret that begins with v1,whsec_"
    if _SECRET.fullmatch(secret) is None:
        return "a hook's secret is v1,whsec_ and 32 to 88 characters of base64"
    return whsec_problem(secret)


def sample(wanted: Sample) -> Request:
    now = wanted.at.astimezone(UTC).isoformat().replace("+00:00", "Z")
    thing = dict(wanted.object or {})
    id_ = thing.setdefault("id", "8d0f4d6e-0000-4000-8000-000000000001")
    user = {
        "aud": "authenticated",
        "role": "authenticated",
        "email": "sam@example.test",
        "phone": "",
        "app_metadata": {"provider": "email", "providers": ["email"]},
        "user_metadata": {},
        "created_at": now,
        "updated_at": now,
        "is_anonymous": False,
        **thing,
    }
    claims = {
        "aud": "authenticated",
        "exp": int(wanted.at.timestamp()) + 3600,
        "iat": int(wanted.at.timestamp()),
        "sub": id_,
        "email": "sam@example.test",
        "phone": "",
        "role": "authenticated",
        "aal": "aal1",
        "session_id": "8d0f4d6e-0000-4000-8000-000000000002",
        "is_anonymous": False,
    }
    special: Mapping[str, dict[str, Any]] = {
        "send-sms": {"user": user, "sms": {"otp": "000000", "phone": "15555550100"}},
        "send-email": {"user": user, "email_data": {"token": "000000", "email_action_type": "signup"}},
        "customize-access-token": {"user_id": id_, "claims": claims, "authentication_method": "password"},
        "mfa-verification": {"user_id": id_, "factor_id": "sample", "factor_type": "totp", "valid": True},
        "password-verification": {"user_id": id_, "valid": True},
    }
    metadata = {"uuid": wanted.id, "time": now, "name": wanted.type, "ip_address": "192.0.2.1"}
    body = {"metadata": metadata, **special.get(wanted.type, {"user": user})}
    return Request("POST", "", {"Content-Type": "application/json"}, jsontext.dumps(body))


HOOKS = (
    "before-user-created",
    "after-user-created",
    "send-sms",
    "send-email",
    TOKEN,
    "mfa-verification",
    "password-verification",
)

SOURCE = "https://github.com/supabase/auth/blob/v2.196.0/internal/hooks/hookshttp/hookshttp.go"

provider = Provider(
    name="supabase",
    docs="https://supabase.com/docs/guides/auth/auth-hooks",
    signature=HookSignature(),
    parse=parse,
    reply=reply,
    policy=Policy(
        checked=date(2026, 12, 1),
        respond_within=timedelta(seconds=5),  # for all attempts of one call together
        retries=(
            timedelta(seconds=2),
            timedelta(seconds=2),
        ),  # only if it could not connect; the docs say otherwise
        retry_window=timedelta(seconds=5),
        log_window=None,  # the audit log knows what users did, but no hook calls
        disables=None,  # it never does: each call that fails is a user's request that fails
        sources={"respond_within": SOURCE, "retries": SOURCE, "retry_window": SOURCE},
    ),
    headers=("webhook-id",),
    settings=("project", "service_key"),
    required=("project", "service_key"),
    secret_problem=secret_problem,
    api=ApiSpec(
        "https://{project}.supabase.co/auth/v1",
        {"Authorization": "Bearer {service_key}", "apikey": "{service_key}"},
    ),
    fetch=fetch,
    kinds=("user",),
    version=version,
    list_changed=list_changed,
    authoritative={
        "sign-up": (
            ("after-user-created",),
            "https://github.com/supabase/auth/blob/v2.196.0/internal/hooks/v0hooks/v0hooks.go",
        ),
    },
    answers=Answers(
        types=HOOKS,
        say=say,
        refuse=refuse,
        fields={TOKEN: {"claims": CLAIMS}},
        max_size=20_000,  # the documented limit; the code of v2.196.0 takes 200 KiB
        source=SOURCE,
    ),
    untold={
        "endpoint_health": "hooks stand in the project's configuration, which another API with another token holds.",
        "subscriptions": "hooks stand in the project's configuration, which another API with another token holds.",
        "enable": "nothing disables a hook; it is set in the project's configuration.",
    },
    sample=sample,
    sample_types=HOOKS,
)
