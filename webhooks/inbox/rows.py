"""What goes into the inbox and what a worker gets out of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from .. import jsontext
from ..jsontext import Json
from ..models import KEY_LENGTH, stored_key
from ..provider import Envelope, ObjectRef, Provider, Request, Version

__all__ = [
    "Arrival",
    "Claim",
    "Event",
    "Group",
    "Origin",
    "Recorded",
    "arrival",
    "aware",
    "read_version",
    "stored_key",
    "unreadable",
    "write_version",
]

Origin = Literal["delivery", "recover", "reconcile", "replay", "fresh"]


@dataclass(frozen=True)
class Arrival:
    """One event on its way into the inbox; texts fit their columns."""

    endpoint: str
    dedup_key: str
    _: KW_ONLY
    origin: Origin = "delivery"
    type: str = ""
    object: ObjectRef | None = None
    account: str = ""
    livemode: bool | None = None
    gone: bool = False
    version: str | None = None
    occurred_at: datetime | None = None
    digest: str | None = None
    secret: str | None = None
    correlation: str | None = None
    body: bytes = field(default=b"", repr=False)
    headers: str = "{}"
    state: str = "pending"
    outcome: str | None = None
    error: str | None = None
    received_at: datetime | None = None
    """When it came, where that is not now: it was kept elsewhere in between."""
    sealed: str | None = None
    """The fingerprint of the key that its body is encrypted with; None: none."""

    @property
    def key(self) -> tuple[str, str]:
        return self.endpoint, self.dedup_key


@dataclass(frozen=True)
class Recorded:
    """What became of an arrival: its event's id, and whether it is new."""

    id: int
    new: bool


@dataclass(frozen=True)
class Event:
    """An event as handlers see it."""

    id: int
    endpoint: str
    dedup_key: str
    origin: Origin
    type: str
    object: ObjectRef | None
    account: str
    livemode: bool | None
    gone: bool
    version: str | None = field(repr=False)
    occurred_at: datetime | None
    received_at: datetime
    deliveries: int
    digest: str | None = field(repr=False)
    correlation: str | None
    attempts: int
    claim_no: int
    data: Json = field(default=None, repr=False)
    """The whole event as the provider sent it; None where its body has been dropped."""
    snapshot: Json = field(default=None, repr=False)
    """The object as the event carried it."""

    def with_data(self, data: Json, snapshot: Json) -> Event:
        """The same event with its data. A worker does this for every event, and `dataclasses.replace` takes six times
        as long."""
        made = object.__new__(Event)
        made.__dict__.update(self.__dict__, data=data, snapshot=snapshot)
        return made


@dataclass(frozen=True)
class Group:
    """All claimed events of one object, in order of arrival; an event about no object is a group by itself."""

    endpoint: str
    account: str
    object: ObjectRef | None
    events: Sequence[Event]


@dataclass(frozen=True)
class Claim:
    """What one worker may apply now. Whatever is fetched after it was made is at least as new as its number."""

    no: int
    as_of: datetime
    groups: Sequence[Group]
    full: bool
    """There is probably more."""

    @property
    def size(self) -> int:
        return sum(len(group.events) for group in self.groups)


def _fit(text: str, length: int = KEY_LENGTH) -> str:
    cleaned: str = jsontext.clean(text)
    return cleaned[:length]


def aware(moment: datetime) -> datetime:
    """The instant in UTC, as neither SQLite nor PostgreSQL gives it out."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def arrival(
    endpoint: str,
    provider: Provider,
    envelope: Envelope,
    request: Request | None,
    *,
    origin: Origin = "delivery",
    secret: str | None = None,
) -> Arrival:
    """The arrival for an envelope, with the body and those headers that are needed to read it again."""
    ref = envelope.object
    version = (
        provider.version(ref, envelope.snapshot) if provider.version and ref and envelope.snapshot else None
    )
    body = request.body if request is not None else jsontext.dumps(envelope.data)
    return Arrival(
        endpoint,
        stored_key(envelope.dedup_key),
        origin=origin,
        type=_fit(envelope.type),
        object=ref and ObjectRef(_fit(ref.kind), stored_key(ref.id), _fit(ref.path, 2000)),
        account=_fit(envelope.account),
        livemode=envelope.livemode,
        gone=envelope.gone,
        version=write_version(version),
        occurred_at=envelope.occurred_at,
        digest=hashlib.sha256(body).hexdigest() if provider.guards_body and origin == "delivery" else None,
        secret=secret,
        correlation=_fit(envelope.correlation) or None,
        body=body,
        headers=_headers(provider, request),
    )


def unreadable(endpoint: str, provider: Provider, request: Request, secret: str, why: str) -> Arrival:
    """The arrival for a signed body that nobody can read: kept, and dead at once."""
    return Arrival(
        endpoint,
        "sha256:" + hashlib.sha256(request.body).hexdigest(),
        secret=secret,
        body=request.body,
        headers=_headers(provider, request),
        state="dead",
        outcome="unreadable",
        error=why[:500],
    )


def _headers(provider: Provider, request: Request | None) -> str:
    if request is None:
        return "{}"
    kept = {name: request.headers.get(name) for name in ("Content-Type", *provider.headers)}
    return jsontext.dumps({name: _fit(value, 1000) for name, value in kept.items() if value}).decode()


def write_version(version: Version | None) -> str | None:
    """A version as text. Instants and texts compare as texts; numbers do not, so they are marked."""
    if isinstance(version, datetime):
        return version.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return f"#{version}" if isinstance(version, int) else version and version[:KEY_LENGTH]


def read_version(text: str | None) -> Any:
    """The same version, comparable with others of its object: numbers as numbers, everything else as text."""
    return int(text[1:]) if text and text.startswith("#") and text[1:].lstrip("-").isdigit() else text
