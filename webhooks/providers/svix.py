"""Svix: whoever sends through it, and its own operational webhooks. With the sender's token its log can be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

from .. import jsontext
from ..errors import ApiRefused, NotFetchable
from ..provider import (
    Api,
    ApiSpec,
    Change,
    Disables,
    Envelope,
    Health,
    Json,
    LogEntry,
    ObjectRef,
    Policy,
    Provider,
    Redelivery,
    Request,
    Sample,
    Subscription,
    Version,
    as_text,
    body_key,
    dig,
    instant,
    path_segment,
    served,
    turn,
)
from ..signatures import StandardWebhooks, whsec_problem

__all__ = ["provider"]

SIGNATURE = StandardWebhooks(prefixes=("svix-", "webhook-"))

OPERATIONAL = {"endpoint": ("endpoint", "endpointId"), "msg": ("message", "msgId")}
"""Part of the API's path → (our kind, the field of an operational webhook that holds the id)."""

PAGE = 250
SUCCESS, FAILED = 0, 2  # MessageStatus, svix 2.9.1


def parse(request: Request) -> list[Envelope]:
    event = request.document
    data = event.get("data")
    # Svix does not say the type outside of the body, and what is in the body is the sender's affair.
    type_ = next(
        (name for key in ("type", "eventType", "event_type") if (name := as_text(event.get(key)))), "message"
    )
    return [
        Envelope(
            SIGNATURE.message_id(request) or body_key(request.body),
            type_,
            event,
            object=_object(type_, data),
            snapshot=data,
            gone=type_.endswith(".deleted"),
            # Not the svix-timestamp: that is when this attempt was made.
            occurred_at=instant(event.get("timestamp")) or instant(dig(data, "lastAttempt", "timestamp")),
        )
    ]


def _object(type_: str, data: Json) -> ObjectRef | None:
    app = as_text(dig(data, "appId"))
    segment = (
        "endpoint" if type_.startswith("endpoint.") else "msg" if type_.startswith("message.attempt.") else ""
    )
    if app and segment:
        kind, field = OPERATIONAL[segment]
        id_ = as_text(dig(data, field))
        return (
            ObjectRef(kind, id_, f"{_app(app)}/{segment}/{path_segment(id_)}")
            if _is_segment(app, id_)
            else None
        )
    id_ = as_text(dig(data, "id"))
    return ObjectRef(type_.rpartition(".")[0] or type_, id_) if id_.strip() else None


def _is_segment(*ids: str) -> bool:
    try:
        return all(path_segment(id_) for id_ in ids)
    except NotFetchable:
        return False


def _app(app: str) -> str:
    return f"/api/v1/app/{path_segment(app)}"


def fetch(api: Api, ref: ObjectRef) -> Json | None:
    if ref.kind not in {"endpoint", "message"} or not ref.path:
        raise NotFetchable(f"Svix delivers for others; what a {ref.kind} is, only they can tell")
    return served(api.find(ref.path), ref.id)


def version(ref: ObjectRef, data: Json) -> Version | None:
    return instant(dig(data, "updatedAt")) if ref.kind == "endpoint" else None


def list_changed(api: Api, since: datetime) -> Iterator[Change]:
    """Endpoints of the configured app that were updated since, by reading their list whole. Misses deleted ones."""
    app = _app(_setting(api, "app_id"))
    for item in _items(api, f"{app}/endpoint"):
        changed = instant(item.get("updatedAt"))
        if (changed or since) >= since:
            id_ = as_text(item.get("id"))
            yield Change(
                ObjectRef("endpoint", id_, f"{app}/endpoint/{path_segment(id_)}"), item, changed, api.account
            )


def list_events(api: Api, since: datetime) -> Iterator[LogEntry]:
    """The messages that were sent to this endpoint since, with their payloads. Misses what was sent while it was
    disabled (`redeliver` has Svix send that) and payloads that the sender had deleted."""
    for item in _items(api, f"{_endpoint(api)}/msg", after=_iso(since), with_content="true"):
        yield LogEntry(
            as_text(item.get("id")),
            instant(item.get("timestamp")),
            partial(_read, item),
            delivered=item.get("status") == SUCCESS,
        )


def _read(item: Mapping[str, Any]) -> list[Envelope]:
    headers = {"Content-Type": "application/json", "svix-id": as_text(item.get("id"))}
    request = Request("POST", "", headers, jsontext.dumps(item.get("payload")))
    return [replace(envelope, request=request) for envelope in parse(request)]


def _items(api: Api, path: str, **params: Any) -> Iterator[dict[str, Any]]:
    iterator = dig(api.place, "cursor") if dig(api.place, "part") == path else None
    while True:
        answer = api.get(path, limit=PAGE, iterator=iterator, **params)
        following = dig(answer, "iterator")
        items = [item for item in dig(answer, "data") or [] if isinstance(item, dict)]
        yield from turn(api, items, path, following or iterator)
        if dig(answer, "done") is not False or not following or following == iterator:
            return
        iterator = following


def redeliver(api: Api, since: datetime) -> Iterator[Redelivery]:
    """Have Svix send again what failed since, and what it never tried because the endpoint was disabled. It does so in
    the background; each answer is one task, not one message."""
    for task, detail in (
        ("recover", "every failed message"),
        ("replay-missing", "every message that was never tried"),
    ):
        started = api.post(f"{_endpoint(api)}/{task}", {"since": _iso(since)})
        yield Redelivery(as_text(dig(started, "id")), "", detail)


def endpoint_health(api: Api) -> Health:
    try:
        found = api.find(_endpoint(api))
    except NotFetchable as reason:
        return Health("unknown", str(reason))
    except ApiRefused as refusal:
        return Health("unknown", refusal.reason, refusal.http_status)
    if found is None:
        return Health("missing", "Svix has no such endpoint")
    if dig(found, "disabled"):
        return Health("disabled", as_text(dig(found, "url")))
    newest = next(iter(dig(api.get(_attempts(api), limit=1, with_content="false"), "data") or []), None)
    failed = dig(newest, "status") == FAILED
    return (
        Health("failing", f"the newest attempt got {dig(newest, 'responseStatusCode')}")
        if failed
        else Health("enabled")
    )


def subscriptions(api: Api) -> list[Subscription]:
    """The endpoints of the configured app. One without types gets all of them."""
    wanted = api.settings.get("endpoint_id")
    return [
        Subscription(
            as_text(item.get("id")),
            as_text(item.get("url")),
            item.get("disabled") is not True,
            tuple(as_text(type_) for type_ in item.get("filterTypes") or ["*"]),
            ours=item.get("id") == wanted if wanted else None,
            scope=",".join(sorted(as_text(channel) for channel in item.get("channels") or [])),
        )
        for item in _items(api, f"{_app(_setting(api, 'app_id'))}/endpoint")
    ]


def enable(api: Api) -> None:
    api.send("PATCH", _endpoint(api), {"disabled": False})


def _endpoint(api: Api) -> str:
    return f"{_app(_setting(api, 'app_id'))}/endpoint/{path_segment(_setting(api, 'endpoint_id'))}"


def _attempts(api: Api) -> str:
    return f"{_app(_setting(api, 'app_id'))}/attempt/endpoint/{path_segment(_setting(api, 'endpoint_id'))}"


def _setting(api: Api, name: str) -> str:
    value = api.settings.get(name, "")
    if not value:
        raise NotFetchable("set `app_id` and `endpoint_id` to ask Svix about this endpoint")
    return value


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def sample(wanted: Sample) -> Request:
    thing: dict[str, Any] = {"appId": "app_sample", "endpointId": f"ep_{wanted.id}"}
    if wanted.type.startswith("message.attempt."):
        attempt = {"id": "atmpt_sample", "timestamp": _iso(wanted.at), "responseStatusCode": 500}
        thing |= {"msgId": f"msg_{wanted.id}_subject", "lastAttempt": attempt}
    elif not wanted.type.startswith("endpoint."):
        thing = {"id": wanted.id.lower()}
    body = {"type": wanted.type, "timestamp": _iso(wanted.at), "data": thing | (wanted.object or {})}
    headers = {"Content-Type": "application/json", "User-Agent": "Svix-Webhooks/sample", "svix-id": wanted.id}
    return Request("POST", "", headers, jsontext.dumps(body))


provider = Provider(
    name="svix",
    docs="https://docs.svix.com/",
    signature=SIGNATURE,
    parse=parse,
    policy=Policy(
        checked=date(2026, 12, 1),
        respond_within=timedelta(seconds=15),
        retries=(
            timedelta(seconds=5),
            timedelta(minutes=5),
            timedelta(minutes=30),
            timedelta(hours=2),
            timedelta(hours=5),
            timedelta(hours=10),
            timedelta(hours=10),
        ),
        retry_window=timedelta(hours=27, minutes=35, seconds=5),
        log_window=timedelta(days=90),  # as far as its lists reach unless another time is asked for
        disables=Disables(
            after=timedelta(days=5),
            how="when all deliveries fail for five days, counted from several failures that lie 12 hours apart",
        ),
        sources={
            "respond_within": "https://docs.svix.com/retries",
            "retries": "https://docs.svix.com/retries",
            "retry_window": "https://docs.svix.com/retries",
            "log_window": "https://api.svix.com/docs",
            "disables": "https://docs.svix.com/retries",
        },
    ),
    # An empty 200, for the same reason as with Clerk (https://docs.svix.com/receiving/delivery-control).
    headers=("svix-id", "webhook-id"),
    settings=("token", "app_id", "endpoint_id", "region"),
    required=("token",),
    defaults={"region": "us"},  # the last part of the token says which: us, eu, ca, au or in
    secret_problem=whsec_problem,
    api=ApiSpec("https://api.{region}.svix.com", {"Authorization": "Bearer {token}"}),
    fetch=fetch,
    kinds=("endpoint", "message"),
    version=version,
    list_changed=list_changed,
    list_events=list_events,
    redeliver=redeliver,
    endpoint_health=endpoint_health,
    subscriptions=subscriptions,
    enable=enable,
    authoritative={
        "endpoint-disabled": (("endpoint.disabled",), "https://docs.svix.com/retries"),
    },
    sample=sample,
    sample_types=(
        "endpoint.created",
        "endpoint.updated",
        "endpoint.disabled",
        "endpoint.deleted",
        "message.attempt.exhausted",
        "message.attempt.failing",
        "message.attempt.recovered",
        "invoice.paid",
    ),
)
