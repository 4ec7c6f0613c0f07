"""Slack (Events API): signs time and body; no event log, no redelivery, and every API answer is HTTP 200.

Fetching messages is off by default: apps outside the Marketplace may do it once a minute. The signed event is
then all there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from .. import jsontext
from ..errors import ApiRefused, NotFetchable, RateLimited, RetryLater, SignatureError, Unreadable
from ..provider import (
    Api,
    ApiSpec,
    Change,
    Disables,
    Envelope,
    Health,
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
)
from ..signatures import TOLERANCE, header_bytes, hmac, matching, require_recent, unix, unix_seconds

__all__ = ["provider"]

METHODS: Mapping[str, tuple[str, str, str]] = {
    "channel": ("conversations.info", "channel", "channel"),
    "file": ("files.info", "file", "file"),
    "team": ("team.info", "team", "team"),
    "user": ("users.info", "user", "user"),
}
"""Kind → (the method that serves it, its parameter, where the object is in the answer)."""

GONE = ("file_deleted", "file_not_found", "thread_not_found", "user_not_found")
OUT_OF_SIGHT = ("access_denied", "channel_not_found", "not_in_channel", "team_not_found", "user_not_visible")
"""Also said about what is there but not for this token, so it proves nothing."""
PASSING = ("fatal_error", "internal_error", "request_timeout", "service_unavailable", "team_added_to_org")

PAGE = 200


@dataclass(frozen=True, kw_only=True)
class SlackSignature:
    """`v0=` and the hex HMAC of `v0:<time>:<body>`; the time is in a header of its own."""

    tolerance: timedelta | None = TOLERANCE
    signs_body: bool = True
    signs_time: bool = True
    signs_id: bool = True  # the id is in the body

    def verify(self, request: Request, secrets: Sequence[str], now: datetime | float) -> str:
        time = header_bytes(request, "X-Slack-Request-Timestamp")
        given = header_bytes(request, "X-Slack-Signature")
        if not given.startswith(b"v0="):
            raise SignatureError("malformed", "X-Slack-Signature")
        seconds = unix_seconds(time)
        secret = matching(secrets, [given], lambda secret: self._value(time, request.body, secret))
        require_recent(seconds, now, self.tolerance)
        return secret

    def sign(self, request: Request, secret: str, now: datetime | float) -> Request:
        time = str(int(unix(now)))
        value = self._value(time.encode(), request.body, secret).decode()
        return request.with_headers({"X-Slack-Request-Timestamp": time, "X-Slack-Signature": value})

    def _value(self, time: bytes, body: bytes, secret: str) -> bytes:
        return b"v0=" + hmac(secret.encode(), b"v0:", time, b":", body).hex().encode()


def parse(request: Request) -> list[Envelope]:
    body = request.document
    type_ = body.get("type")
    if not isinstance(type_, str) or not type_.strip():
        raise Unreadable("a Slack delivery has a type")
    if type_ == "url_verification":
        return []
    event = body.get("event")
    team = as_text(body.get("team_id"))
    key = as_text(body.get("event_id")).strip()
    if not isinstance(event, dict):
        return [_outer(request, body, type_, team, key)]
    ref, snapshot, gone = _object(event, team)
    return [
        Envelope(
            key or body_key(request.body),
            _type(event, body),
            body,
            object=ref,
            snapshot=snapshot,
            gone=gone,
            occurred_at=instant(event.get("event_ts")) or instant(body.get("event_time")),
            account=team or as_text(body.get("enterprise_id")),
            # A mention is delivered twice, as app_mention and as message, under two event ids.
            correlation=ref.id if ref is not None and ref.kind == "message" else "",
        )
    ]


def _outer(request: Request, body: dict[str, Any], type_: str, team: str, key: str) -> Envelope:
    minute = as_text(body.get("minute_rate_limited"))
    if type_ == "app_rate_limited" and minute:
        # It has no id. Events of this team were lost in this minute: nothing brings them back but the lists.
        key = f"app_rate_limited:{as_text(body.get('api_app_id'))}:{team}:{minute}"
    at = instant(body.get("minute_rate_limited")) or instant(body.get("event_time"))
    return Envelope(key or body_key(request.body), type_, body, occurred_at=at, account=team)


def _type(event: Mapping[str, Any], body: Mapping[str, Any]) -> str:
    """`message.own…` for what our own app posted, so that a handler of `message` does not answer itself."""
    type_, subtype = as_text(event.get("type")), as_text(event.get("subtype"))
    if not type_.strip():
        raise Unreadable("a Slack event has a type")
    thing = event.get("message") if subtype and isinstance(event.get("message"), dict) else event
    app = as_text(body.get("api_app_id"))
    own = app and app in (as_text(dig(thing, "app_id")), as_text(dig(thing, "bot_profile", "app_id")))
    is_message = type_ in ("message", "app_mention")
    return ".".join(filter(None, (type_, "own" if own and is_message else "", subtype)))


def _object(event: Mapping[str, Any], team: str) -> tuple[ObjectRef | None, Json, bool]:
    type_ = as_text(event.get("type"))
    if type_ in ("message", "app_mention"):
        return _message(event)
    if type_.startswith("reaction_"):
        item = event.get("item")
        return _message_ref(dig(item, "channel"), dig(item, "ts")), None, False
    if type_ == "app_uninstalled":
        return (ObjectRef("installation", team) if team else None), None, True
    kind, found = "", None
    if type_.startswith("file_"):
        kind, found = "file", event.get("file_id") or dig(event, "file", "id")
    elif isinstance(event.get("user"), dict):
        kind, found = "user", event["user"].get("id")
    elif type_.startswith(("channel_", "group_", "im_", "mpim_", "member_")):
        kind, found = "channel", dig(event, "channel", "id") or event.get("channel")
    elif type_ in ("team_rename", "team_domain_change", "email_domain_changed"):
        kind, found = "team", team
    id_ = as_text(found)
    thing = event.get(kind)
    gone = type_ in ("file_deleted", "channel_deleted", "group_deleted")
    return ObjectRef(kind, id_) if id_ else None, thing if isinstance(thing, dict) else None, gone


def _message(event: Mapping[str, Any]) -> tuple[ObjectRef | None, Json, bool]:
    channel = event.get("channel")
    if event.get("subtype") == "message_deleted":
        before = event.get("previous_message")
        ref = _message_ref(channel, event.get("deleted_ts") or dig(before, "ts"), dig(before, "thread_ts"))
        return ref, before, True
    # An edit is an event with a time of its own around the message.
    thing = event["message"] if isinstance(event.get("message"), dict) else event
    return _message_ref(channel, thing.get("ts"), thing.get("thread_ts")), thing, False


def _message_ref(channel: Any, ts: Any, thread: Any = None) -> ObjectRef | None:
    channel, ts, thread = (
        as_text(channel),
        as_text(ts),
        as_text(thread),
    )  # a ts is text: floats lose its last digits
    return ObjectRef("message", f"{channel}:{ts}", thread if thread != ts else "") if channel and ts else None


def reply(request: Request) -> Reply:
    """The challenge, when Slack asks whether the URL is ours; else an empty 200. Never X-Slack-No-Retry."""
    try:
        body = request.document
    except Unreadable:
        return Reply()
    return Reply(body=as_text(body.get("challenge")) if body.get("type") == "url_verification" else "")


def fetch(api: Api, ref: ObjectRef) -> Json | None:
    if ref.kind == "message":
        return _fetch_message(api, ref)
    if ref.kind not in METHODS:
        raise NotFetchable(f"Slack: no method is known for {ref.kind}")
    method, parameter, place = METHODS[ref.kind]
    # A deactivated user is still there, and says so (`deleted`); it can come back.
    answer = _call(api, method, **{parameter: ref.id})
    if answer is not None and not isinstance(answer.get(place), dict):
        raise RetryLater(f"Slack: {method} answers without a {place}")
    return dig(answer, place)


def _fetch_message(api: Api, ref: ObjectRef) -> Json | None:
    if api.settings.get("fetch_messages") != "yes":
        raise NotFetchable(
            "Slack: set `fetch_messages` to yes if the app may read history at the normal rate"
        )
    channel, _, ts = ref.id.partition(":")
    only = {"channel": channel, "latest": ts, "oldest": ts, "inclusive": "true"}
    if not ref.path:
        found = _with_ts(_call(api, "conversations.history", **only, limit=1), ts)
        if found is not None:
            return found
    # Replies in a thread are in no history; this method also takes the time of a reply.
    return _with_ts(_call(api, "conversations.replies", **only, ts=ref.path or ts), ts)


def _with_ts(answer: Json, ts: str) -> Json | None:
    found = [message for message in dig(answer, "messages") or [] if dig(message, "ts") == ts]
    # What is left of a deleted message that has replies.
    return found[0] if found and dig(found[0], "subtype") != "tombstone" else None


def _call(api: Api, method: str, **params: Any) -> dict[str, Any] | None:
    """The answer of a method; None if it says that the thing is gone. All but 429 is said with HTTP 200."""
    answer = api.get(f"/api/{method}", **params)
    if isinstance(answer, dict) and answer.get("ok") is True:
        return answer
    error = as_text(dig(answer, "error")) or "no answer"
    if error in GONE:
        return None
    if error in OUT_OF_SIGHT:
        raise NotFetchable(f"Slack: {method} says {error}")
    if error in ("ratelimited", "rate_limited"):
        raise RateLimited(f"Slack: {method} says {error}")
    if error in PASSING:
        raise RetryLater(f"Slack: {method} says {error}")
    raise ApiRefused(f"Slack: {method} says {error}", 200, answer)


def version(ref: ObjectRef, data: Json) -> Version | None:
    if ref.kind == "message":
        # An unedited message is as old as its own ts. Texts of equal shape, compared as such.
        return as_text(dig(data, "edited", "ts")) or as_text(dig(data, "ts")) or None
    updated = dig(data, "updated")
    return updated if isinstance(updated, int) and not isinstance(updated, bool) else None


def list_changed(api: Api, since: datetime) -> Iterator[Change]:
    """Users and channels, but for those that say that they did not change since; with `fetch_messages`, also
    the messages since in the configured `channels`. Misses edits, deletions and reactions of older messages,
    replies in threads, and files."""
    team = _team(api)
    for user in _items(api, "users.list", "members"):
        if _changed(user, since):
            yield Change(ObjectRef("user", as_text(user.get("id"))), user, instant(user.get("updated")), team)
    for channel in _items(api, "conversations.list", "channels", types="public_channel,private_channel"):
        if _changed(channel, since):
            # A list entry lacks what the object has, so it only says that there is something.
            ref = ObjectRef("channel", as_text(channel.get("id")))
            yield Change(ref, None, instant(channel.get("updated")), team)
    if api.settings.get("fetch_messages") == "yes":
        for id_ in filter(None, (name.strip() for name in api.settings.get("channels", "").split(","))):
            yield from _messages_since(api, id_, since, team)


def _team(api: Api) -> str:
    return api.account or as_text(dig(_call(api, "auth.test"), "team_id"))


def _changed(item: Mapping[str, Any], since: datetime) -> bool:
    return bool(item.get("id")) and (instant(item.get("updated")) or since) >= since


def _messages_since(api: Api, channel: str, since: datetime, team: str) -> Iterator[Change]:
    oldest = f"{since.astimezone(UTC).timestamp():.6f}"
    for message in _items(api, "conversations.history", "messages", channel=channel, oldest=oldest):
        ref = _message_ref(channel, message.get("ts"), message.get("thread_ts"))
        if ref is not None:
            yield Change(ref, message, instant(message.get("ts")), team)


def _items(api: Api, method: str, place: str, **params: Any) -> Iterator[dict[str, Any]]:
    cursor = ""
    while True:
        answer = _call(api, method, limit=PAGE, cursor=cursor or None, **params)
        yield from (item for item in dig(answer, place) or [] if isinstance(item, dict))
        before, cursor = cursor, as_text(dig(answer, "response_metadata", "next_cursor"))
        if not cursor or cursor == before:
            return


def endpoint_health(api: Api) -> Health:
    """Whether the token lives. Whether Slack still sends is told to nobody but the app's owner, by e-mail."""
    try:
        _call(api, "auth.test")
    except ApiRefused as refusal:
        return Health("disabled", refusal.reason)
    return Health("unknown", "the token is good; Slack has no API that says whether events are sent")


def secret_problem(secret: str) -> str | None:
    if secret.startswith(("xox", "xapp-")):
        return "this is a token; deliveries are signed with the app's Signing Secret"
    return (
        None if len(secret) == 32 else "a Slack Signing Secret has 32 characters (24: the verification token)"
    )


def sample(wanted: Sample) -> Request:
    type_, _, subtype = wanted.type.partition(".")
    stamp = f"{wanted.at.timestamp():.6f}"
    team = wanted.account or "T0ACME0001"
    thing: dict[str, Any] = {
        "channel": "C0ACME0001",
        "user": "U0ACME0001",
        "text": "Is the kettle on?",
        "ts": stamp,
    }
    if type_.startswith("reaction_"):
        thing = {"user": "U0ACME0001", "reaction": "tea", "item": {"type": "message", **thing}}
    elif type_ in ("user_change", "team_join"):
        user = {"id": "U0ACME0001", "name": "mo", "deleted": False, "updated": int(wanted.at.timestamp())}
        thing = {"user": user}
    elif type_.startswith("channel_"):
        thing = {"channel": {"id": "C0ACME0001", "name": "kitchen"}}
    elif type_.startswith("file_"):
        thing = {"file_id": "F0ACME0001"}
    elif subtype == "message_changed":
        edited = {"user": "U0ACME0001", "ts": stamp}
        thing = {
            "channel": "C0ACME0001",
            "ts": stamp,
            "message": {**thing, "type": "message", "edited": edited},
        }
    elif subtype == "message_deleted":
        thing = {
            "channel": "C0ACME0001",
            "deleted_ts": stamp,
            "previous_message": {**thing, "type": "message"},
        }
    event = {**(wanted.object or thing), "type": type_, "event_ts": stamp}
    if subtype:
        event["subtype"] = subtype
    body: dict[str, Any] = {
        "token": "not-used",
        "team_id": team,
        "api_app_id": "A0ACME0001",
        "event": event,
        "type": "event_callback",
        "event_id": wanted.id,
        "event_time": int(wanted.at.timestamp()),
        "authorizations": [{"enterprise_id": None, "team_id": team, "user_id": "U0ACME0009", "is_bot": True}],
        "is_ext_shared_channel": False,
    }
    if type_ == "app_rate_limited":
        # Made from the id, so that two samples are two minutes.
        minute = int.from_bytes(wanted.id.encode()[-6:]) * 60
        body = {"type": type_, "team_id": team, "api_app_id": "A0ACME0001", "minute_rate_limited": minute}
    elif type_ == "url_verification":
        body = {"type": type_, "token": "not-used", "challenge": wanted.id}
    return Request("POST", "", {"Content-Type": "application/json"}, jsontext.dumps(body))


provider = Provider(
    name="slack",
    docs="https://docs.slack.dev/apis/events-api/",
    signature=SlackSignature(),
    parse=parse,
    policy=Policy(
        checked=date(2026, 12, 1),
        respond_within=timedelta(seconds=3),
        retries=(
            timedelta(0),
            timedelta(minutes=1),
            timedelta(minutes=5),
        ),  # the first one "nearly immediately"
        retry_window=timedelta(
            minutes=6
        ),  # with the app's switch "Delayed Events" it goes on hourly for a day
        log_window=None,  # there is no log
        disables=Disables(
            after=timedelta(hours=1),
            how="when over 95 % of an hour's attempts fail, never below 1,000 events an hour; told by e-mail",
        ),
        sources={
            "respond_within": "https://docs.slack.dev/apis/events-api/",
            "retries": "https://docs.slack.dev/apis/events-api/",
            "retry_window": "https://docs.slack.dev/apis/events-api/",
            "disables": "https://docs.slack.dev/apis/events-api/",
        },
    ),
    reply=reply,
    # parse does not read them; kept because they tell whether an earlier attempt never reached us, and why.
    headers=("X-Slack-Retry-Num", "X-Slack-Retry-Reason"),
    settings=("token", "fetch_messages", "channels"),
    required=("token",),
    secret_problem=secret_problem,
    api=ApiSpec("https://slack.com", {"Authorization": "Bearer {token}"}),
    fetch=fetch,
    kinds=("message", *METHODS),
    version=version,
    list_changed=list_changed,
    endpoint_health=endpoint_health,
    untold={
        "subscriptions": "an app's manifest is read with a configuration token, which no app has at run time.",
        "enable": "events are switched on in the app's settings; Slack tells its owner by e-mail when it stops.",
    },
    authoritative={
        "answer-mention": (("app_mention",), "https://docs.slack.dev/reference/events/message.channels"),
    },
    companions={"answer-mention": ("message",)},
    sample=sample,
    sample_types=(
        "message",
        "message.message_changed",
        "message.message_deleted",
        "app_mention",
        "reaction_added",
        "user_change",
        "channel_rename",
        "file_shared",
        "app_uninstalled",
        "app_rate_limited",
    ),
)
