"""Clerk: delivered by Svix, and no way to ask what it delivered; users are found again by their time of change."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl

from .. import jsontext
from ..errors import NotFetchable, Unreadable
from ..provider import (
    Api,
    ApiSpec,
    Change,
    Disables,
    Envelope,
    Json,
    ObjectRef,
    Policy,
    Provider,
    Rate,
    Request,
    Sample,
    Version,
    as_text,
    body_key,
    dig,
    instant,
    listed,
    path_segment,
    served,
)
from ..signatures import StandardWebhooks, whsec_problem

__all__ = ["provider"]

SIGNATURE = StandardWebhooks(prefixes=("svix-", "webhook-"))
"""Clerk sends svix-*; the other family is what a white-labelled Svix sends."""

PATHS = {
    "organization": "/organizations",
    "permission": "/organization_permissions",
    "role": "/organization_roles",
    "session": "/sessions",
    "user": "/users",
}
"""Kind → where the API serves it with an id behind (clerk-backend-api 7.0.0)."""

SCANNED = {
    "organization": "/organizations",
    "organization_membership": "/organization_memberships",
    "organization_invitation": "/organization_invitations",
}
"""Kinds whose lists can only be sorted by creation, so that finding changes means reading them whole."""

PAGE = 500
OVERLAP = 50
"""Pages are asked for by offset: so many deletions between two of them do not make us skip anything."""

_ID = re.compile(r"[A-Za-z0-9_-]{1,255}", re.ASCII)


def parse(request: Request) -> list[Envelope]:
    event = request.document
    type_, data = event.get("type"), event.get("data")
    if not isinstance(type_, str) or not type_ or not isinstance(data, dict):
        raise Unreadable("a Clerk event has a type and data")
    return [
        Envelope(
            SIGNATURE.message_id(request) or body_key(request.body),
            type_,
            event,
            object=_object(type_, data),
            snapshot=data,
            # A deleted membership comes whole, everything else as a stub with `deleted`: only the type is sure.
            gone=type_.endswith(".deleted"),
            # Documented in milliseconds, and in seconds in the examples of the OpenAPI description.
            occurred_at=instant(event.get("timestamp")),
            # `instance_id` is no account: an endpoint, its secret and its API key belong to exactly one instance, and
            # objects in lists do not name theirs.
        )
    ]


def _object(type_: str, data: Mapping[str, Any]) -> ObjectRef | None:
    # Billing objects do not say what they are; the event's type does.
    kind, id_ = as_text(data.get("object")) or type_.partition(".")[0], as_text(data.get("id"))
    return ObjectRef(kind, id_, _path(kind, id_, data)) if id_ else None


def _path(kind: str, id_: str, data: Mapping[str, Any]) -> str:
    if kind == "organization_membership":
        organization, user = dig(data, "organization", "id"), dig(data, "public_user_data", "user_id")
        if _is_id(organization) and _is_id(user):
            return f"/organizations/{organization}/memberships?user_id={user}"
    if kind == "organization_invitation" and _is_id(data.get("organization_id")) and _is_id(id_):
        return f"/organizations/{data['organization_id']}/invitations/{id_}"
    return ""


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def fetch(api: Api, ref: ObjectRef) -> Json | None:
    if ref.kind in PATHS:
        return served(api.find(f"{PATHS[ref.kind]}/{path_segment(ref.id)}"), ref.id)
    if ref.kind == "organization_membership" and ref.path:
        # There is no GET by a membership's id. Who leaves and comes back has another one: this one is gone.
        path, _, query = ref.path.partition("?")
        said = api.find(path, limit=PAGE, **dict(parse_qsl(query)))
        members = [] if said is None else listed(said, "data")
        return next((member for member in members if dig(member, "id") == ref.id), None)
    if ref.kind == "organization_invitation" and ref.path:
        return served(api.find(ref.path), ref.id)
    raise NotFetchable(f"Clerk: no path is known for {ref.kind} {ref.id}")


def version(_ref: ObjectRef, data: Json) -> Version | None:
    return instant(dig(data, "updated_at"))


def list_changed(api: Api, since: datetime) -> Iterator[Change]:
    """Users, organizations, memberships and invitations that were updated since; all but the users by reading their
    lists whole. Misses deletions, sessions (listed per user only), roles, e-mails and text messages."""
    for user in _walk(api, "/users", order_by="-updated_at"):
        if (_updated(user) or since) < since:
            break
        yield _change(api, "user", user)
    for kind, path in SCANNED.items():
        for item in _walk(api, path, order_by="created_at"):
            if (_updated(item) or since) >= since:
                yield _change(api, kind, item)


def _change(api: Api, kind: str, item: Mapping[str, Any]) -> Change:
    id_ = as_text(item.get("id"))
    return Change(ObjectRef(kind, id_, _path(kind, id_, item)), item, _updated(item), api.account)


def _updated(item: Mapping[str, Any]) -> datetime | None:
    return instant(item.get("updated_at"))


def _walk(api: Api, path: str, **params: Any) -> Iterator[dict[str, Any]]:
    seen: set[str] = set()
    offset = 0
    while True:
        answer = api.get(path, limit=PAGE, offset=offset, **params)
        # Users come as a bare list, everything else as `data` beside a total.
        items = [
            item
            for item in (answer if isinstance(answer, list) else dig(answer, "data") or [])
            if dig(item, "id")
        ]
        yield from (item for item in items if as_text(item["id"]) not in seen)
        if len(items) < PAGE:
            return
        seen = {as_text(item["id"]) for item in items}
        offset += PAGE - OVERLAP


def livemode(settings: Mapping[str, str]) -> bool | None:
    match = re.match(r"sk_(live|test)_", settings.get("api_key", ""))
    return match and match[1] == "live"


def sample(wanted: Sample) -> Request:
    subject, _, action = wanted.type.partition(".")
    kind = re.sub(r"(?<=[a-z])([A-Z])", lambda match: "_" + match[0].lower(), subject)
    now = int(wanted.at.timestamp() * 1000)
    thing: dict[str, Any] = {"object": kind, "id": f"{subject.lower()}_{wanted.id.replace('_', '')}"}
    if action == "deleted" and subject != "organizationMembership":
        thing["deleted"] = True
    else:
        thing |= {"created_at": now, "updated_at": now}
    if subject == "organizationMembership":
        thing |= {"organization": {"object": "organization", "id": "org_sample"}, "role": "org:member"}
        thing["public_user_data"] = {"user_id": "user_sample", "identifier": "sam@example.test"}
    elif subject == "organizationInvitation":
        thing["organization_id"] = "org_sample"
    event = {
        "object": "event",
        "type": wanted.type,
        "instance_id": "ins_sample",
        "timestamp": now,
        "data": thing | (wanted.object or {}),
        "event_attributes": {"http_request": {"client_ip": "192.0.2.1", "user_agent": "sample"}},
    }
    headers = {"Content-Type": "application/json", "User-Agent": "Svix-Webhooks/sample", "svix-id": wanted.id}
    return Request("POST", "", headers, jsontext.dumps(event))


provider = Provider(
    name="clerk",
    docs="https://clerk.com/docs/guides/development/webhooks/overview",
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
        log_window=None,  # Clerk's API shows no messages; its dashboard does
        disables=Disables(
            after=timedelta(days=5),
            how="when all deliveries fail for five days; Svix then tells Clerk, and nobody tells us",
        ),
        sources={
            "respond_within": "https://docs.svix.com/retries",
            "retries": "https://docs.svix.com/retries",
            "retry_window": "https://docs.svix.com/retries",
            "disables": "https://docs.svix.com/retries",
        },
    ),
    # An empty 200. A `webhook-delivery` header in an answer would stop retries or disable the endpoint
    # (https://docs.svix.com/receiving/delivery-control), so nothing of the request is ever sent back.
    headers=("svix-id", "webhook-id"),
    settings=("api_key", "api_version"),
    required=("api_key",),
    defaults={"api_version": "2025-11-10"},  # what clerk-backend-api 7.0.0 pins
    secret_problem=whsec_problem,
    livemode=livemode,
    api=ApiSpec(
        "https://api.clerk.com/v1",
        {"Authorization": "Bearer {api_key}", "Clerk-API-Version": "{api_version}"},
        # Of a production instance; one for development has a tenth of it.
        rate=Rate(1000, timedelta(seconds=10), "https://clerk.com/docs/guides/how-clerk-works/system-limits"),
    ),
    fetch=fetch,
    kinds=(*PATHS, "organization_membership", "organization_invitation"),
    version=version,
    list_changed=list_changed,
    authoritative={
        "sign-up": (("user.created",), "https://clerk.com/docs/guides/development/webhooks/syncing"),
    },
    untold={
        "endpoint_health": "Clerk's API does not show its endpoints at Svix; silence beside changed users is the only sign.",
        "subscriptions": "Clerk's API does not show its endpoints at Svix; its dashboard does.",
        "enable": "endpoints are enabled in Clerk's dashboard, which then sends what is missing.",
    },
    sample=sample,
    sample_types=(
        "user.created",
        "user.updated",
        "user.deleted",
        "organization.created",
        "organizationMembership.created",
        "organizationMembership.deleted",
        "organizationInvitation.accepted",
        "session.created",
    ),
)
