"""The words a provider file is written in. Nothing here knows a framework, a database, a queue or an HTTP client."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable
from urllib.parse import parse_qsl, quote

from . import jsontext
from .errors import NotFetchable, RetryLater, Unreadable
from .jsontext import Json

__all__ = [
    "Answers",
    "Api",
    "ApiSpec",
    "Change",
    "Disables",
    "Envelope",
    "Headers",
    "Health",
    "Json",
    "LogEntry",
    "ObjectRef",
    "Policy",
    "Provider",
    "Rate",
    "Redelivery",
    "Reply",
    "Request",
    "Sample",
    "Signature",
    "Subscription",
    "Version",
    "as_text",
    "body_key",
    "dig",
    "instant",
    "listed",
    "parts",
    "path_segment",
    "reply_ok",
    "served",
    "turn",
]

T = TypeVar("T")


class Headers(Mapping[str, str]):
    """Header names and values; names are found in any case, as HTTP has it."""

    __slots__ = ("_items",)

    def __init__(self, headers: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        self._items = {name.lower(): (name, value) for name, value in pairs}

    def __getitem__(self, name: str) -> str:
        return self._items[name.lower()][1]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._items.values())

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"Headers({sorted(self._items)})"  # names only: values hold signatures


@dataclass(frozen=True)
class Request:
    """One HTTP request of a provider, as it came: the body is the untouched bytes.

    `url` is the whole URL that the provider called, as far as we know it (the public one, where one is configured),
    with its query as received.
    """

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.headers, Headers):
            object.__setattr__(self, "headers", Headers(self.headers))

    @cached_property
    def json(self) -> Json:
        """The body as JSON. Raises Unreadable."""
        return jsontext.loads(self.body)

    @cached_property
    def document(self) -> dict[str, Any]:
        """The body as a JSON object. Raises Unreadable, also for a list or a bare value."""
        if not isinstance(self.json, dict):
            raise Unreadable("the body is not a JSON object")
        return self.json

    @cached_property
    def form(self) -> list[tuple[str, str]]:
        """The body's form fields, in order and with repeats. Raises Unreadable."""
        try:
            return parse_qsl(self.body.decode(), keep_blank_values=True)
        except ValueError:
            raise Unreadable("the body is not a form") from None

    @cached_property
    def content_type(self) -> str:
        """The media type alone, in lower case; empty if the provider sent none."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    def with_headers(self, headers: Mapping[str, str]) -> Request:
        """The same request with these headers added or replaced."""
        return replace(self, headers=Headers({**self.headers, **headers}))


@dataclass(frozen=True)
class Reply:
    """What the provider gets to read."""

    status: int = 200
    body: str = ""
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


def reply_ok(_request: Request) -> Reply:
    """An empty 200, which every provider takes for success unless its file says otherwise."""
    return Reply()


@dataclass(frozen=True)
class ObjectRef:
    """The thing an event is about, within an account.

    `path` says where the API serves it, for the few providers whose paths hold more than the id (a GitHub
    repository's name, which can change); it takes no part in comparison.
    """

    kind: str
    id: str
    path: str = field(default="", compare=False)


Version = int | str | datetime
"""A provider's own mark of an object's age; two versions of one object compare."""


@dataclass(frozen=True)
class Envelope:
    """What can be read off an event without knowing its meaning."""

    dedup_key: str
    """The same for every delivery of this event, another for every other event of the endpoint."""
    type: str
    data: Json = field(repr=False)
    """The whole event, decoded."""
    _: KW_ONLY
    object: ObjectRef | None = None
    snapshot: Json = field(default=None, repr=False)
    """The object as the event carries it, perhaps partial, certainly old."""
    gone: bool = False
    """The event says that the object does not exist any more."""
    occurred_at: datetime | None = None
    """Aware, or None where the provider does not say."""
    account: str = ""
    """The tenant at the provider (Stripe Connect account, Shopify shop …); empty: the endpoint's own."""
    livemode: bool | None = None
    correlation: str = ""
    """What other events about the same fact share, where the provider has such an id."""
    nonce: str = ""
    """A value that is signed in place of the body (Mailgun's token). It is good for the event that it first came with:
    the same nonce with another dedup key or another body is a replay."""
    request: Request | None = field(default=None, repr=False)
    """Where it was read from; its body and the headers that `parse` reads are kept."""


@dataclass(frozen=True)
class Disables:
    """When a provider stops sending to an endpoint that fails."""

    after: timedelta | None = None
    after_failures: int | None = None
    how: str = ""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a provider promises about its deliveries. None: its documentation does not say; never a guess."""

    checked: date
    respond_within: timedelta | None = None
    """An answer that comes later counts as a failure."""
    retries: tuple[timedelta, ...] | None = None
    """Waiting times between one attempt and the next; empty: it never retries; None: unpublished."""
    retry_window: timedelta | None = None
    """From the first attempt to the last one."""
    log_window: timedelta | None = None
    """How far back the provider's own event or delivery log reaches."""
    disables: Disables | None = None
    max_body: int | None = None
    """Bytes."""
    ordered: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)
    """Field name → URL of the page that says so."""

    @property
    def never_retries(self) -> bool:
        return self.retries == ()

    @property
    def comes_again(self) -> bool:
        """Whether a delivery that is refused for an hour comes again after it. What nobody says is taken for no."""
        if self.retries is not None:
            return sum(self.retries, timedelta(0)) >= timedelta(hours=1)
        return self.retry_window is not None and self.retry_window >= timedelta(hours=1)


@dataclass(frozen=True)
class Health:
    """What the provider says about one of our endpoints."""

    state: Literal["enabled", "failing", "disabled", "missing", "unknown"]
    detail: str = ""
    refused: int | None = None
    """With `unknown`: the HTTP status with which the provider refused to say; None: it was not asked, or has no say."""


@dataclass(frozen=True)
class Subscription:
    """One endpoint that the provider knows: where it sends what."""

    id: str
    url: str
    enabled: bool = True
    types: tuple[str, ...] = ()
    """What it is subscribed to, in the terms of `Envelope.type`, `*` standing for any text; empty: it does not say."""
    api_version: str = ""
    ours: bool | None = None
    """Whether it is the one that our settings name; None: they name none."""
    scope: str = ""
    """The part of the account that it is about (a domain, a channel): two of different ones never send the same; empty:
    all of it."""


@dataclass(frozen=True)
class Rate:
    """How many calls of its API a provider allows in a time, of all who use the account together."""

    calls: int
    per: timedelta
    source: str


@dataclass(frozen=True)
class Change:
    """One object of a listing: it may have changed since."""

    object: ObjectRef
    data: Json = field(default=None, repr=False)
    """The object as listed, if the listing holds the whole object; else None."""
    changed_at: datetime | None = None
    account: str = ""


@dataclass(frozen=True)
class LogEntry:
    """One entry of the provider's own log. `read` costs a request where the log holds no bodies."""

    dedup_key: str
    occurred_at: datetime | None
    read: Callable[[], list[Envelope]] = field(repr=False)
    delivered: bool | None = None
    """Whether the provider takes it for delivered; None: it does not say."""


@dataclass(frozen=True)
class Redelivery:
    """One delivery that the provider was asked to send again."""

    id: str
    event: str
    detail: str = ""


@dataclass(frozen=True)
class ApiSpec:
    """Where the API is and what every request carries; `{name}` stands for a setting, `{account}` for the account,
    and `{one|other}` for the first of them that is set.

    A header whose template names something that is not set is left out. `basic` is user and password for HTTP basic
    authentication. `under` holds headers for paths that start with its keys, instead of the general ones of that name;
    `bases` holds base URLs for paths that start with its keys, instead of the general one.
    """

    base_url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    basic: tuple[str, str] | None = None
    rate: Rate | None = None
    """None: the documentation does not say; then only the answers tell."""
    under: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    bases: Mapping[str, str] = field(default_factory=dict)


class Api(Protocol):
    """HTTP to one provider, bound to one endpoint and account.

    Paths are relative to the configured base URL; an absolute URL out of a payload is never requested. 429 and 5xx
    raise RetryLater with the provider's own hint, other refusals ApiRefused.
    """

    place: Json
    """Where a listing goes on; None: at its beginning. A listing reads it when it begins, and writes it before it hands out
    the last item of a page: then a run that is killed goes on behind that page. Where a listing does not, it begins anew."""

    @property
    def settings(self) -> Mapping[str, str]: ...
    @property
    def account(self) -> str: ...
    def get(self, path: str, **params: Any) -> Json:
        """The decoded answer; 404 and 410 raise ApiRefused."""

    def find(self, path: str, **params: Any) -> Json | None:
        """The decoded answer, or None when there is no such object (404, 410)."""

    def pages(self, path: str, **params: Any) -> Iterator[Json]:
        """The decoded answer and, as long as it names one in a `Link: rel="next"` header, its next page."""

    def post(self, path: str, json: Json = None, **params: Any) -> Json:
        """Send JSON, return the decoded answer."""

    def send(
        self, method: str, path: str, json: Json = None, *, form: Mapping[str, str] | None = None
    ) -> Json:
        """Any other request, with JSON or a form; the decoded answer."""

    def graphql(self, path: str, query: str, **variables: Any) -> Json:
        """The `data` of a GraphQL answer; throttling raises RateLimited, errors ApiRefused."""


@runtime_checkable
class Signature(Protocol):
    """How a provider signs. Frozen; `tolerance` can be replaced per endpoint where the scheme signs a time."""

    @property
    def signs_body(self) -> bool: ...
    @property
    def signs_time(self) -> bool: ...
    @property
    def signs_id(self) -> bool: ...
    def verify(self, request: Request, secrets: Sequence[str], now: datetime | float) -> str:
        """Return the one of `secrets` that signed the request; raise SignatureError and nothing else."""

    def sign(self, request: Request, secret: str, now: datetime | float) -> Request:
        """Return the request with the headers that `verify` accepts at `now`."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """How a provider takes answers that are decided while it waits."""

    types: tuple[str, ...]
    """The event types whose reply it reads."""
    say: Callable[[Envelope, Any], Reply]
    """The app's answer as the provider reads it; None: whatever changes nothing. Raises ValueError that says what is
    wrong with an answer that the provider would not understand."""
    refuse: Callable[[Envelope, str, int], Reply] | None = None
    """The reply that says no, with a message for the user and an HTTP status where the reply has room for one; None:
    the provider cannot be told no."""
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Event type → the fields that its answer must have: name → a type, several types, or such a mapping again."""
    max_size: int | None = None
    """Bytes of a reply; the provider refuses longer ones."""
    source: str = ""


@dataclass(frozen=True)
class Sample:
    """What a made-up delivery should say; `Provider.sample` writes it as the provider would, unsigned."""

    type: str
    id: str
    at: datetime
    object: dict[str, Any] | None = field(default=None, repr=False)
    """The object that the event is about; None: the provider file makes one up."""
    account: str = ""


def _always_usable(_secret: str) -> str | None:
    return None


@dataclass(frozen=True, kw_only=True)
class Provider:
    """Everything we know about one service that sends webhooks. None: it offers no such thing."""

    name: str
    docs: str
    signature: Signature
    parse: Callable[[Request], list[Envelope]]
    """Read the envelopes off a verified request; [] for a handshake. Raises Unreadable."""
    policy: Policy
    reply: Callable[[Request], Reply] = reply_ok
    """What to answer once the delivery is recorded."""
    methods: tuple[str, ...] = ("POST",)
    """The HTTP methods of its deliveries; any other GET or HEAD is a person or a monitor looking."""
    headers: tuple[str, ...] = ()
    """The headers that `parse` reads: kept with the body. Never one that holds a signature."""
    unsigned_id: bool | None = None
    """True: the dedup key is not covered by the signature, so the body's digest is a second guard."""
    settings: tuple[str, ...] = ()
    """What the endpoint's configuration may hold."""
    configure: Callable[[Mapping[str, str]], Provider] | None = None
    """The finished provider for these settings, where they decide how to verify and to read; called once, at start-up.
    Raises ConfigError that names every wrong setting. None: the provider is finished as it stands."""
    required: tuple[str, ...] = ()
    """Those of `settings` without which nothing can be fetched."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    secret_problem: Callable[[str], str | None] = _always_usable
    """Why a configured secret cannot be one that this provider issues; None: it can."""
    livemode: Callable[[Mapping[str, str]], bool | None] | None = None
    """The mode that the settings belong to, if they tell."""
    api: ApiSpec | None = None
    fetch: Callable[[Api, ObjectRef], Json | None] | None = None
    """The object as it is now; None: it is gone. Raises NotFetchable for a kind that the API does not serve."""
    kinds: tuple[str, ...] = ()
    """The kinds that `fetch` serves."""
    version: Callable[[ObjectRef, Json], Version | None] | None = None
    """Comparable over one object's life; None where the provider has none."""
    list_changed: Callable[[Api, datetime], Iterator[Change]] | None = None
    """Objects that changed since; the docstring says what it misses."""
    final: Mapping[str, Callable[[Json], bool]] = field(default_factory=dict)
    """Kind → whether such an object is in its last state. Given for kinds whose lists know only creation: our copies that
    are not in their last state are read again, by their ids."""
    list_events: Callable[[Api, datetime], Iterator[LogEntry]] | None = None
    """The provider's own log of events or deliveries since."""
    list_events_between: Callable[[Api, datetime, datetime], Iterator[LogEntry]] | None = None
    """The same log from one instant until another, where the API can be asked for that: long gaps are then read in
    pieces, and a run that was killed goes on where it was."""
    redeliver: Callable[[Api, datetime], Iterator[Redelivery]] | None = None
    """Ask the provider to send again what it failed to deliver since."""
    endpoint_health: Callable[[Api], Health] | None = None
    subscriptions: Callable[[Api], list[Subscription]] | None = None
    """Every endpoint that this account has at the provider, others' too."""
    lists_all: bool = True
    """Whether `subscriptions` shows them all; False: what is missing in it proves nothing."""
    enable: Callable[[Api], None] | None = None
    """Have the provider send to our endpoint again. Only ever called when a person asks for it."""
    untold: Mapping[str, str] = field(default_factory=dict)
    """`endpoint_health`, `subscriptions`, `enable`, where they are None → why its API has no such thing."""
    authoritative: Mapping[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)
    """Flow → (the event types that should decide it, the page that says so)."""
    companions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Flow → what else the provider sends for the same fact, and what should not decide it."""
    answers: Answers | None = None
    """How its events are answered within the request; None: it reads nothing but the HTTP status."""
    sample: Callable[[Sample], Request] | None = None
    """An unsigned delivery as this provider writes it: for tests, the simulator and `flask webhooks send`."""
    sample_types: tuple[str, ...] = ()
    """The main event types, each of which `sample` can make up."""

    @property
    def guards_body(self) -> bool:
        """True where only the body's digest stops a replay under another id."""
        return not self.signature.signs_id if self.unsigned_id is None else self.unsigned_id


_ISO = re.compile(
    r"(\d{4}-\d{2}-\d{2})[T ](\d{2}:\d{2}:\d{2})(?:\.(\d{1,12}))?\s*(Z|[+-]\d{2}:?\d{2}|UTC)?",
    re.ASCII | re.IGNORECASE,
)
_NUMBER = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{1,12})?", re.ASCII)
_MILLISECONDS_FROM = 100_000_000_000
"""A number of seconds beyond this is the year 5138, so it is milliseconds (and microseconds a thousand times later)."""

_FIRST, _LAST = datetime(1000, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
"""Nobody's clock shows a time outside, and not every database can read back there what it has written."""


def instant(value: Any) -> datetime | None:
    """The instant that any of the providers' time formats means, aware and in UTC; None: it cannot be told.

    Takes Unix seconds, milliseconds or microseconds (also as text) and ISO 8601 with any fraction; a text without a
    zone is UTC. Unknown is None and never "old".
    """
    try:
        found = _instant(value)
    except (ValueError, OverflowError, OSError):
        return None
    return found if found is not None and _FIRST <= found < _LAST else None


def _instant(value: Any) -> datetime | None:
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    if isinstance(value, str):
        text = value.strip()
        match = _ISO.fullmatch(text)
        if match is not None:
            day, time, fraction, zone = match.groups()
            zone = "+00:00" if zone is None or zone.upper() in {"Z", "UTC"} else zone
            micros = (fraction or "").ljust(6, "0")[:6]
            return datetime.fromisoformat(f"{day}T{time}.{micros}{zone}").astimezone(UTC)
        value = float(text) if _NUMBER.fullmatch(text) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    for unit in (1, 1_000, 1_000_000, 1_000_000_000):  # seconds, milliseconds, microseconds, nanoseconds
        if abs(value) < _MILLISECONDS_FROM * unit:
            return datetime.fromtimestamp(value / unit, UTC)
    return None


def as_text(value: Any) -> str:
    """An id as text: strings as they are, whole numbers in full; anything else is no id and gives ''."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def body_key(body: bytes) -> str:
    """The dedup key of an event without an id: the same for the same bytes, another for others."""
    return "sha256:" + hashlib.sha256(body).hexdigest()


def path_segment(value: str) -> str:
    """An id out of a payload as one segment of a URL's path; raises NotFetchable for what can be no id."""
    if not value or len(value) > 255 or set(value) == {"."} or not value.isprintable():
        raise NotFetchable("the id cannot be part of a URL")
    return quote(value, safe="")


def listed(answer: Json, *path: str) -> list[dict[str, Any]]:
    """The objects of a listing, which stands under these keys of the answer.

    Raises RetryLater for an answer that is none: taken for an empty listing, it would say that nothing has changed.
    """
    found = dig(answer, *path) if path else answer
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise RetryLater("the API answered with something that is no listing")
    return found


def parts(api: Api, names: Sequence[str]) -> Iterator[tuple[str, Json]]:
    """The parts of a listing that are still to be read, and the cursor at which the first of them goes on; see `turn`."""
    part, cursor = dig(api.place, "part"), dig(api.place, "cursor")
    start = names.index(part) if part in names else 0
    for number, name in enumerate(names[start:]):
        yield name, cursor if number == 0 and part in names else None


def turn(api: Api, items: Sequence[T], part: str, cursor: Json) -> Iterator[T]:
    """Hand out a page; with its last item the listing has come to that cursor of that part."""
    yield from items[:-1]
    api.place = {"part": part, "cursor": cursor}
    yield from items[-1:]


def served(answer: Json, id_: str, *path: str, name: str = "id") -> Json | None:
    """The object that was asked for by its id, which stands under these keys of the answer; None: there is no such object.

    Raises RetryLater for an answer that is another object or none: something between us and the API has answered, and it
    must neither replace a good copy nor be taken for the object's end.
    """
    if answer is None:
        return None
    found = dig(answer, *path)
    if as_text(dig(found, name)) != id_:
        raise RetryLater("the API answered with something that is no object, or another than was asked for")
    return found


def dig(data: Json, *path: str) -> Any:
    """The value under these keys, or None where any of them is missing or is not in an object."""
    for key in path:
        if not isinstance(data, dict):
            return None
        data = data.get(key)
    return data
