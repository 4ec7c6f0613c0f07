"""Mailgun: JSON events, forms and multipart mails. It signs a token and a time but not the body, so bodies are hints."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlencode

from .. import jsontext
from ..errors import ApiRefused, NotFetchable, RetryLater, SignatureError, Unreadable
from ..provider import (
    Api,
    ApiSpec,
    Envelope,
    Health,
    Json,
    LogEntry,
    ObjectRef,
    Policy,
    Provider,
    Request,
    Sample,
    Subscription,
    Version,
    as_text,
    dig,
    instant,
    parts,
    path_segment,
    turn,
)
from ..signatures import hmac, matching, unix

__all__ = ["provider"]

RANKS = {
    "accepted": 0,
    "failed.temporary": 1,
    "opened": 2,
    "clicked": 2,
    "unsubscribed": 2,
    "complained": 2,
    "delivered": 2,
    "failed.permanent": 3,
    "rejected": 3,
    "bounced": 3,
    "dropped": 3,
}
"""Event → how final it is. A late bounce follows a delivery; who opened a mail has got it, whatever was delivered to us."""

PAGE = 300
LATE = timedelta(minutes=30)
"""So much later than it says an event may turn up in the log
(https://documentation.mailgun.com/docs/mailgun/user-manual/events/event-polling)."""

SIGNED = ("timestamp", "token", "signature")

FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
MAIL = frozenset({"body-plain", "body-mime", "stripped-text", "message-url"})
"""Fields that only a mail has, each of which Mailgun writes itself."""

HOOKS = {"permanent_fail": "failed.permanent", "temporary_fail": "failed.temporary"}
"""What an event is called where webhooks are set up, if otherwise → its type."""

MAX_FIELDS = 2000
"""A mail's headers and attachments are a field each; nobody has thousands."""

_TIME = re.compile(r"[0-9]{10}", re.ASCII)
_TOKEN = re.compile(r"[0-9A-Za-z]{32,64}", re.ASCII)
_DOMAIN = re.compile(r"[A-Za-z0-9.-]{1,253}", re.ASCII)
_NAME = re.compile(rb'[;\s]name="([^"]*)"')
_FILENAME = re.compile(rb'[;\s]filename="([^"]*)"')
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s;,"]{1,70}))', re.ASCII | re.IGNORECASE)
_STORED = re.compile(r"/v3/domains/([A-Za-z0-9.-]{1,253})/messages/([A-Za-z0-9_=-]{1,1000})$", re.ASCII)
_PAGING = re.compile(r"/v3/[^/]+/events/([A-Za-z0-9_=-]{1,4096})", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class TokenSignature:
    """HMAC over time and token, which stand in the body. Nothing else of the body is signed.

    The two are joined without a mark, so their formats are strict: a digit moved from one to the other would make a
    token that nobody has seen. The window is wide, as a retry after hours is taken to carry the first attempt's time.
    """

    tolerance: timedelta | None = timedelta(hours=24)
    ahead: timedelta = timedelta(minutes=15)
    signs_body: bool = False
    signs_time: bool = True
    signs_id: bool = False  # the event's id; the token, which is signed, is the envelope's nonce

    def verify(self, request: Request, secrets: Sequence[str], now: datetime | float) -> str:
        try:
            block = _block(request)
        except Unreadable:
            raise SignatureError("malformed", "body") from None
        time, token, given = (as_text(block.get(name)) for name in SIGNED)
        if not time or not token or not given:
            raise SignatureError("missing")
        if _TIME.fullmatch(time) is None or _TOKEN.fullmatch(token) is None:
            raise SignatureError("malformed", "time or token")
        # An event of a subaccount is signed with its own key, and beside that with the parent account's.
        both = [
            text.encode("utf-8", "replace")
            for text in (given, as_text(block.get("parent-signature")))
            if text
        ]
        secret = matching(secrets, both, lambda secret: _mac(secret, time, token))
        age = unix(now) - int(time)
        if (
            self.tolerance is not None
            and not -self.ahead.total_seconds() <= age <= self.tolerance.total_seconds()
        ):
            raise SignatureError("clock", f"{age:+.0f} s")
        return secret

    def sign(self, request: Request, secret: str, now: datetime | float) -> Request:
        """Sign with a token made of the content, so that signing one event again gives the same token."""
        content = {name: value for name, value in _content(request).items() if name not in SIGNED}
        time, token = str(int(unix(now))), jsontext.digest(content)[:50]
        block = {"timestamp": time, "token": token, "signature": _mac(secret, time, token).decode()}
        if request.content_type == MULTIPART:
            mark = b"--" + _boundary(request)
            parts = b"".join(
                mark + f'\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
                for name, value in block.items()
            )
            before, _, _ = request.body.rpartition(mark + b"--")
            return replace(request, body=before + parts + mark + b"--\r\n")
        if request.content_type == FORM:
            return replace(request, body=request.body + b"&" + urlencode(block).encode())
        return replace(request, body=jsontext.dumps({"signature": block, **content}))


def _mac(secret: str, time: str, token: str) -> bytes:
    return hmac(secret.encode(), time.encode(), token.encode()).hex().encode()


def _block(request: Request) -> Mapping[str, Any]:
    if request.content_type in {FORM, MULTIPART}:
        return _content(request)
    block = _content(request).get("signature")
    return block if isinstance(block, dict) else {}


def _content(request: Request) -> dict[str, Any]:
    """The JSON document, or the form's fields: of several with one name the last, as Mailgun's own come last."""
    if request.content_type == MULTIPART:
        pairs = list(_parts(request))
    elif request.content_type == FORM:
        # Anybody can make us read a form, as its signature is in it.
        if request.body.count(b"&") > MAX_FIELDS:
            raise Unreadable("the form has too many fields")
        pairs = [(name, value) for name, value in request.form]
    else:
        return request.document
    fields: dict[str, Any] = jsontext.clean(dict(pairs))
    return fields


def _parts(request: Request) -> Iterator[tuple[str, Any]]:
    mark = b"\r\n--" + _boundary(request)
    pieces = (b"\r\n" + request.body).split(mark, MAX_FIELDS)[1:]
    for piece in pieces:
        if piece.startswith(b"--"):
            return
        head, blank, content = piece.partition(b"\r\n\r\n")
        name, filename = _NAME.search(head), _FILENAME.search(head)
        if not blank or name is None:
            break
        yield _utf8(name[1]), _utf8(content) if filename is None else _attachment(filename[1], content)
    raise Unreadable("the form is not whole")


def _attachment(filename: bytes, content: bytes) -> dict[str, Any]:
    # Its bytes stay in the body, which is kept.
    return {"filename": _utf8(filename), "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _boundary(request: Request) -> bytes:
    match = _BOUNDARY.search(request.headers.get("Content-Type", ""))
    if match is None:
        raise Unreadable("a multipart form says its boundary")
    return (match[1] or match[2]).encode("latin-1", "replace")


def _utf8(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def parse(request: Request) -> list[Envelope]:
    content = _content(request)
    if request.content_type in {FORM, MULTIPART}:
        return [_from_form(content, as_text(content.get("token")))]
    event = content.get("event-data")
    if not isinstance(event, dict) or not as_text(event.get("event")):
        raise Unreadable("a Mailgun event is in `event-data` and has a name in `event`")
    ref = _message_ref(
        _message_id(event), as_text(event.get("recipient")), as_text(dig(event, "domain", "name"))
    )
    test = dig(event, "flags", "is-test-mode")
    return [
        Envelope(
            _key(event),
            _type(event),
            {"event-data": event},
            object=ref,
            snapshot=_message([event]) if ref else None,
            occurred_at=instant(event.get("timestamp")),
            livemode=not test if isinstance(test, bool) else None,
            correlation=_message_id(event),
            nonce=as_text(dig(content, "signature", "token")),
        )
    ]


def _key(event: Mapping[str, Any]) -> str:
    # An id is unique within a day only. The log has no tokens, so the token cannot be the key: what was delivered and
    # what is logged would be two events.
    id_, at = as_text(event.get("id")), instant(event.get("timestamp"))
    return f"{at:%Y-%m-%d}:{id_}" if id_.strip() and at else "sha256:" + jsontext.digest(event)


def _type(event: Mapping[str, Any]) -> str:
    name, severity = as_text(event.get("event")), as_text(event.get("severity"))
    return f"{name}.{severity}" if severity else name


def _message_id(event: Mapping[str, Any]) -> str:
    return as_text(dig(event, "message", "headers", "message-id")).strip("<>")


def _message_ref(message: str, recipient: str, domain: str) -> ObjectRef | None:
    if not message or not recipient or set(" \t\r\n") & set(message):
        return None
    where = f"/v3/{domain}" if _DOMAIN.fullmatch(domain) and ".." not in domain else ""
    return ObjectRef("message", f"{message} {recipient}", where)


def _message(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One message to one recipient, as its events tell; Mailgun has no such object."""
    newest = max(
        events, key=lambda event: instant(event.get("timestamp")) or datetime.min.replace(tzinfo=UTC)
    )
    types = sorted({_type(event) for event in events})
    return {
        "message-id": _message_id(newest),
        "recipient": as_text(newest.get("recipient")),
        "state": max((type_ for type_ in types if type_ in RANKS), key=_final, default=""),
        "types": types,
        "updated": newest.get("timestamp"),
        "events": list(events),
    }


def _final(type_: str) -> tuple[int, bool]:
    return RANKS[type_], type_ == "delivered"


def _from_form(fields: dict[str, Any], token: str) -> Envelope:
    content = {name: value for name, value in fields.items() if name not in SIGNED}
    event = as_text(fields.get("event"))
    at, recipient = instant(as_text(fields.get("timestamp"))), as_text(fields.get("recipient"))
    message = as_text(fields.get("Message-Id")).strip("<>")
    # A webhook of the older kind. Every header of a mail is a field, and its sender may call one `event`.
    if event and not MAIL & set(fields):
        ref = _message_ref(message, recipient, as_text(fields.get("domain")))
        key = f"token:{token}" if token else "sha256:" + jsontext.digest(content)
        told = {
            "event": event,
            "recipient": recipient,
            "timestamp": fields.get("timestamp"),
            "message": {"headers": {"message-id": message}},
        }
        snapshot = _message([told]) if ref else None
        return Envelope(
            key,
            event,
            content,
            object=ref,
            snapshot=snapshot,
            occurred_at=at,
            correlation=message,
            nonce=token,
        )
    stored = _STORED.search(as_text(fields.get("message-url")))
    # A sender chooses the Message-Id, so that two mails may share one: the whole content is the key.
    return Envelope(
        "sha256:" + jsontext.digest(content),
        "inbound",
        content,
        object=ObjectRef("stored_message", stored[2], stored[0]) if stored else None,
        snapshot=content if stored else None,
        occurred_at=at,
        correlation=message,
        nonce=token,
    )


def fetch(api: Api, ref: ObjectRef) -> Json | None:
    """A message as its events in the log tell, or a stored mail.

    A message that the log does not show is never "gone": its events turn up within half an hour and are dropped after
    days. It is asked for again, and an event that somebody made up ends as a dead letter.
    """
    if ref.kind == "stored_message" and ref.path:
        return api.find(ref.path)
    message, _, recipient = ref.id.partition(" ")
    if ref.kind != "message" or not recipient:
        raise NotFetchable(f"Mailgun: no path is known for {ref.kind} {ref.id}")
    where = ref.path or f"/v3/{path_segment(next(iter(_domains(api))))}"
    events = list(_events(api, f"{where}/events", **{"message-id": message, "recipient": recipient}))
    if not events:
        raise RetryLater("Mailgun's log does not show this message", LATE / 6)
    return _message(events)


def version(ref: ObjectRef, data: Json) -> Version | None:
    return instant(dig(data, "updated")) if ref.kind == "message" else None


def list_events(api: Api, since: datetime) -> Iterator[LogEntry]:
    """The log of the configured domains, oldest first, which reaches back three days or more. Misses mails that a route
    forwarded without storing them, and events that turn up later than half an hour after they happened."""
    for domain, token in parts(api, _domains(api)):
        begin = int((since - LATE).timestamp())
        path = f"/v3/{path_segment(domain)}/events"
        for event in _events(api, path, part=domain, token=token, begin=begin, ascending="yes"):
            yield LogEntry(_key(event), instant(event.get("timestamp")), partial(_read, event))


def _read(event: Mapping[str, Any]) -> list[Envelope]:
    body = jsontext.dumps({"event-data": event})
    request = Request("POST", "", {"Content-Type": "application/json"}, body)
    return [replace(envelope, request=request) for envelope in parse(request)]


def _events(
    api: Api, path: str, *, part: str = "", token: str | None = None, **params: Any
) -> Iterator[dict[str, Any]]:
    # Not `find`: a domain that is not there is a wrong setting or region, and no empty log.
    answer = api.get(f"{path}/{token}") if token else api.get(path, limit=PAGE, **params)
    while items := [item for item in dig(answer, "items") or [] if isinstance(item, dict)]:
        following = _PAGING.search(as_text(dig(answer, "paging", "next")))
        yield from turn(api, items, part, following[1] if following else None)
        if following is None:
            return
        answer = api.get(f"{path}/{following[1]}")


def _domains(api: Api) -> list[str]:
    domains = [domain.strip() for domain in api.settings.get("domain", "").split(",") if domain.strip()]
    if not domains:
        raise NotFetchable("set `domain` (several separated by commas) to read Mailgun's log")
    return domains


def endpoint_health(api: Api) -> Health:
    ours = api.settings.get("endpoint_url", "")
    if not ours:
        return Health("unknown", "set `endpoint_url` to see for which events Mailgun calls it")
    try:
        types = {name for domain in _domains(api) for name in _types_at(api, domain, ours)}
        account = dig(api.find("/v1/webhooks"), "webhooks") or []
    except NotFetchable as reason:
        return Health("unknown", str(reason))
    except ApiRefused as refusal:
        return Health("unknown", refusal.reason, refusal.http_status)
    types |= {name for hook in account if dig(hook, "url") == ours for name in dig(hook, "event_types") or []}
    return (
        Health("enabled", ", ".join(sorted(types)))
        if types
        else Health("missing", f"no webhook calls {ours}")
    )


def subscriptions(api: Api) -> list[Subscription]:
    """The URLs that are called for the configured domains, each with its types, and those of the whole account."""
    ours = api.settings.get("endpoint_url")
    found = []
    for domain in _domains(api):
        types: dict[str, list[str]] = {}
        for name, urls in _hooks_of(api, domain).items():
            for url in urls:
                types.setdefault(url, []).append(HOOKS.get(name, name))
        found += [
            Subscription(
                f"{domain}: {url}",
                url,
                types=tuple(sorted(names)),
                ours=url == ours if ours else None,
                scope=domain,
            )
            for url, names in types.items()
        ]
    for hook in dig(api.find("/v1/webhooks"), "webhooks") or []:
        url = as_text(dig(hook, "url"))
        names = tuple(HOOKS.get(name, name) for name in map(as_text, dig(hook, "event_types") or []))
        id_ = as_text(dig(hook, "webhook_id")) or as_text(dig(hook, "id")) or url
        found.append(Subscription(f"account: {id_}", url, types=names, ours=url == ours if ours else None))
    return found


def _types_at(api: Api, domain: str, ours: str) -> list[str]:
    return [name for name, urls in _hooks_of(api, domain).items() if ours in urls]


def _hooks_of(api: Api, domain: str) -> dict[str, list[str]]:
    """What Mailgun calls an event for a webhook → the URLs that it calls."""
    hooks = dig(api.get(f"/v3/domains/{path_segment(domain)}/webhooks"), "webhooks") or {}
    return {name: [as_text(url) for url in dig(hook, "urls") or []] for name, hook in hooks.items()}


def secret_problem(secret: str) -> str | None:
    if secret.startswith("pubkey-"):
        return "this is the public validation key; Mailgun signs with the HTTP webhook signing key"
    return None if len(secret) >= 16 else "an HTTP webhook signing key is longer"


def sample(wanted: Sample) -> Request:
    message, at = f"{wanted.id}@mg.example.test", wanted.at.timestamp()
    if wanted.type == "inbound":
        fields = {
            "recipient": "inbox@mg.example.test",
            "sender": "sam@example.test",
            "subject": wanted.id,
            "body-plain": "Hello.",
            "Message-Id": f"<{message}>",
            **(wanted.object or {}),
        }
        return Request("POST", "", {"Content-Type": FORM}, urlencode(fields).encode())
    name, _, severity = wanted.type.partition(".")
    event: dict[str, Any] = {
        "event": name,
        "id": wanted.id,
        "timestamp": round(at, 6),
        "domain": {"name": "mg.example.test"},
        "recipient": "sam@example.test",
        "message": {"headers": {"message-id": message, "to": "sam@example.test", "subject": "Hello"}},
        "flags": {"is-test-mode": False, "is-system-test": False},
    }
    if severity:
        event |= {
            "severity": severity,
            "reason": "generic",
            "delivery-status": {"code": 550, "attempt-no": 1},
        }
    body = {"event-data": event | (wanted.object or {})}
    return Request("POST", "", {"Content-Type": "application/json"}, jsontext.dumps(body))


MANUAL = "https://documentation.mailgun.com/docs/mailgun/user-manual"

provider = Provider(
    name="mailgun",
    docs=f"{MANUAL}/webhooks/webhooks",
    signature=TokenSignature(),
    parse=parse,
    # Exactly 200: other codes of success are not documented as such, and only 406 ends the retries.
    policy=Policy(
        checked=date(2026, 12, 1),
        respond_within=None,
        # Routes wait 10, 15 and 30 minutes first. `delivered` is never sent again: only the log has those that we miss.
        retries=(
            timedelta(minutes=5),
            timedelta(minutes=10),
            timedelta(minutes=15),
            timedelta(hours=1),
            timedelta(hours=2),
            timedelta(hours=4),
        ),
        retry_window=timedelta(hours=7, minutes=30),
        log_window=timedelta(days=3),  # "at least"; more in higher plans
        disables=None,
        max_body=None,
        sources={
            "retries": f"{MANUAL}/webhooks/webhook-retries",
            "retry_window": f"{MANUAL}/webhooks/webhook-retries",
            "log_window": "https://documentation.mailgun.com/docs/mailgun/api-reference/send/mailgun/events",
        },
    ),
    headers=("Content-Type",),
    settings=("api_key", "domain", "host", "endpoint_url"),
    required=("api_key",),
    defaults={"host": "api.mailgun.net"},  # api.eu.mailgun.net in the EU; in the wrong one no domain is found
    secret_problem=secret_problem,
    api=ApiSpec("https://{host}", basic=("api", "{api_key}")),
    fetch=fetch,
    kinds=("message", "stored_message"),
    version=version,
    list_events=list_events,
    endpoint_health=endpoint_health,
    subscriptions=subscriptions,
    untold={"enable": "Mailgun never disables a webhook; one that was deleted is made anew there."},
    authoritative={
        "delivery": (("delivered", "failed.permanent"), f"{MANUAL}/events/events"),
    },
    sample=sample,
    sample_types=(
        "accepted",
        "delivered",
        "failed.temporary",
        "failed.permanent",
        "opened",
        "clicked",
        "unsubscribed",
        "complained",
        "rejected",
        "inbound",
    ),
)
