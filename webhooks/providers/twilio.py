"""Twilio: signs the URL and the form's fields, no time; an event has no id, so what it says is its key.

Status callbacks are not repeated once we have answered, whatever we said, and come in any order: a state's rank
tells which is newer, and the API what is true.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from .. import jsontext
from ..errors import ApiRefused, NotFetchable, SignatureError, Unreadable
from ..provider import (
    Answers,
    Api,
    ApiSpec,
    Change,
    Envelope,
    Health,
    Json,
    LogEntry,
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
    served,
)
from ..signatures import header_bytes, hmac, require_match, usable

__all__ = ["provider"]

FINAL = {
    "call": lambda call: call.get("status") in {"completed", "busy", "failed", "no-answer", "canceled"},
    "message": lambda message: (
        message.get("status") in {"delivered", "undelivered", "failed", "received", "canceled", "read"}
    ),
}
"""Kind → whether it is in its last state (https://www.twilio.com/docs/messaging/api/message-resource#message-status-values,
https://www.twilio.com/docs/voice/api/call-resource#call-status-values)."""

PATHS: Mapping[str, str] = {"message": "Messages", "call": "Calls"}

RANKS: Mapping[str, Mapping[str, int]] = {
    "message": {
        "accepted": 0,
        "scheduled": 0,
        "queued": 1,
        "sending": 2,
        "receiving": 2,
        "sent": 3,
        "delivered": 4,
        "partially_delivered": 4,
        "undelivered": 4,
        "failed": 4,
        "canceled": 4,
        "received": 4,
        "read": 5,
    },
    "call": {
        "queued": 0,
        "initiated": 1,
        "ringing": 2,
        "in-progress": 3,
        "answered": 3,
        "completed": 4,
        "busy": 4,
        "failed": 4,
        "no-answer": 4,
        "canceled": 4,
    },
}
"""A state never goes back; two final ones have the same rank, and the API says which of them it is."""

PAGE = 1000
FORM = "application/x-www-form-urlencoded"
SIGNATURE, SETTINGS = "X-Twilio-Signature", "X-Twilio-Webhooks-Signature-Settings"
ALGORITHMS = {"HMAC_SHA1": "sha1", "HMAC_SHA256": "sha256"}

_SIDS = {
    "MessageSid": re.compile(r"(?:SM|MM)[0-9a-fA-F]{32}", re.ASCII),
    "CallSid": re.compile(r"CA[0-9a-fA-F]{32}", re.ASCII),
    "AccountSid": re.compile(r"AC[0-9a-fA-F]{32}", re.ASCII),
}
_STATE = re.compile(r"[a-z][a-z_-]{1,39}", re.ASCII)
_SECRET = re.compile(r"(?:(AC[0-9a-fA-F]{32}):)?(sharedkey:)?(.*)", re.ASCII | re.DOTALL)
_NETLOC = re.compile(r"(?P<user>.*@)?(?P<host>\[[^\]]*\]|[^:]*)(?P<port>:[0-9]*)?", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class TwilioSignature:
    """Base64 HMAC of the URL as it was called and, for a form, of each name with each of its distinct values.

    A secret is an Auth Token (SHA-1). Written as `sharedkey:…` it is a SharedKey, which signs with SHA-256 and a
    settings header: neither stands in for the other, so nobody can choose the weaker. With `AC…:` before it, a
    secret is only good for that account, so that no subaccount can sign for another.
    """

    signs_body: bool = True
    signs_time: bool = False
    signs_id: bool = True  # what the key is made of is signed

    def verify(self, request: Request, secrets: Sequence[str], now: datetime | float) -> str:  # noqa: ARG002 - no time is signed
        given = header_bytes(request, SIGNATURE)
        algorithm = _algorithm(request)
        try:
            fields = _signed_fields(request)
        except Unreadable:
            raise SignatureError("malformed", "body") from None
        messages = [url.encode("utf-8", "replace") + fields for url in _urls(request.url)]
        keys = [(secret, *_key(secret)) for secret in usable(secrets)]
        eligible = [
            (secret, owner, key) for secret, owner, scheme, key in keys if scheme == algorithm and key.strip()
        ]
        if not eligible:
            raise SignatureError("missing" if algorithm == "sha1" else "no_secret", SETTINGS)
        for secret, owner, key in eligible:
            if not owner or owner == _claimed_account(request):
                for message in messages:
                    if require_match([base64.b64encode(hmac(key, message, algorithm=algorithm))], given):
                        return secret
        raise SignatureError("mismatch")

    def sign(self, request: Request, secret: str, now: datetime | float) -> Request:  # noqa: ARG002 - no time is signed
        if request.body and request.content_type != FORM and "bodySHA256=" not in request.url:
            joiner = "&" if "?" in request.url else "?"
            digest = hashlib.sha256(request.body).hexdigest()
            request = replace(request, url=f"{request.url}{joiner}bodySHA256={digest}")
        _, algorithm, key = _key(secret)
        value = base64.b64encode(
            hmac(key, _urls(request.url)[0].encode(), _signed_fields(request), algorithm=algorithm)
        )
        headers = {SIGNATURE: value.decode()}
        if algorithm == "sha256":
            headers[SETTINGS] = "key=webhooks_sharedkey_simulated,algorithm=HMAC_SHA256"
        return request.with_headers(headers)


def _claimed_account(request: Request) -> str:
    try:
        return as_text(_fields(request).get("AccountSid"))
    except Unreadable:
        return ""


def _key(secret: str) -> tuple[str, str, bytes]:
    match = _SECRET.fullmatch(secret)
    owner, shared, key = match.groups() if match else (None, None, secret)
    return owner or "", "sha256" if shared else "sha1", key.encode()


def _algorithm(request: Request) -> str:
    settings = request.headers.get(SETTINGS, "")
    named = dict(part.strip().partition("=")[::2] for part in settings.split(",")).get("algorithm", "")
    if settings and named.strip().upper() not in ALGORITHMS:
        raise SignatureError("malformed", SETTINGS)
    return ALGORITHMS[named.strip().upper()] if settings else "sha1"


def _signed_fields(request: Request) -> bytes:
    """What is signed behind the URL. A body that is no form is bound by its hash in the URL, or refused."""
    fields = request.form if request.content_type == FORM else []
    if fields:
        # Names and values are joined without a mark between them: what moves over the border stays signed. So
        # parse holds ids and states to their patterns.
        return "".join(name + value for name, value in sorted(set(fields))).encode("utf-8", "replace")
    bound = dict(_query(request)).get("bodySHA256")
    if bound is None and not request.body:
        return b""
    if not require_match(
        [(bound or "").encode("utf-8", "replace")], hashlib.sha256(request.body).hexdigest().encode()
    ):
        raise SignatureError("mismatch", "bodySHA256")
    return b""


def _urls(url: str) -> list[str]:
    """The URL with its port and without: Twilio signs one or the other. All else is taken to the letter."""
    scheme, mark, rest = url.partition("#")[0].partition("://")
    end = next((index for index, letter in enumerate(rest) if letter in "/?"), len(rest))
    match = _NETLOC.fullmatch(rest[:end])
    if not mark or match is None:
        return [url]
    before, port, tail = f"{scheme}{mark}{match['user'] or ''}{match['host']}", match["port"], rest[end:]
    default = ":443" if scheme.lower() == "https" else ":80"
    return [f"{before}{port or ''}{tail}", f"{before}{'' if port else default}{tail}"]


def _query(request: Request) -> list[tuple[str, str]]:
    query = request.url.partition("#")[0].partition("?")[2]
    return parse_qsl(query, keep_blank_values=True)


def _fields(request: Request) -> dict[str, Any]:
    """The parameters by name; a list where a name stands more than once."""
    if request.body and request.content_type != FORM:
        return request.json if isinstance(request.json, dict) else {}
    found: dict[str, Any] = {}
    for name, value in jsontext.clean(
        [list(pair) for pair in (request.form if request.body else _query(request))]
    ):
        found[name] = [*_listed(found[name]), value] if name in found else value
    return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def parse(request: Request) -> list[Envelope]:
    if request.body and request.content_type != FORM:
        items = request.json if isinstance(request.json, list) else [request.json]
        return [_cloud_event(item) for item in items]
    if not request.body:
        # A GET has everything in its URL; it is kept as the form that a POST would have been.
        query = request.url.partition("#")[0].partition("?")[2].encode("utf-8", "replace")
        request = replace(request.with_headers({"Content-Type": FORM}), body=query)
    return [replace(_envelope(_fields(request)), request=request)]


def _envelope(fields: dict[str, Any]) -> Envelope:
    account = _sid(fields, "AccountSid") if fields.get("AccountSid") else ""
    if "MessageSid" in fields or "MessageStatus" in fields:
        kind, id_ = "message", _sid(fields, "MessageSid")
        # An inbound message comes with SmsStatus or without any.
        state = _state(fields.get("MessageStatus") or fields.get("SmsStatus") or "received")
        key = ":".join(filter(None, (id_, state, as_text(fields.get("ErrorCode")))))
    elif "CallStatus" in fields:
        kind, id_ = "call", _sid(fields, "CallSid")
        state = _state(fields["CallStatus"])
        # Requests for instructions have no number; those in one state differ in what was dialled or said.
        number = as_text(fields.get("SequenceNumber")) or jsontext.digest(fields)[:32]
        key = f"{id_}:{state}:{number}"
    else:
        return Envelope(f"sha256:{jsontext.digest(fields)}", _other_type(fields), fields, account=account)
    return Envelope(
        key,
        f"{kind}.{state}",
        fields,
        object=ObjectRef(kind, id_),
        snapshot=fields,
        occurred_at=_rfc_2822(fields.get("Timestamp")),  # calls only; a message's status says no time
        account=account,
        correlation=as_text(fields.get("ParentCallSid")),
    )


def _sid(fields: Mapping[str, Any], name: str) -> str:
    value = as_text(fields.get(name))
    if not _SIDS[name].fullmatch(value):
        raise Unreadable(f"{name} is not a SID")
    return value


def _state(value: Any) -> str:
    state = as_text(value)
    if not _STATE.fullmatch(state):
        raise Unreadable("the status is not a word")
    return state


def _other_type(fields: Mapping[str, Any]) -> str:
    """RecordingStatus=completed → recording.completed; `callback` where nothing says a state."""
    for name in sorted(fields):
        if name.endswith("Status") and name[:-6].isalnum() and _STATE.fullmatch(as_text(fields[name])):
            return f"{name[:-6].lower()}.{fields[name]}"
    return "callback"


def _cloud_event(item: Json) -> Envelope:
    """Event Streams send CloudEvents; any other JSON is an event without an id."""
    if not isinstance(item, dict):
        raise Unreadable("a Twilio event is a JSON object")
    data = item.get("data")
    sids = {name: as_text(dig(data, name) or dig(data, name[0].lower() + name[1:])) for name in _SIDS}
    known = {name: sid for name, sid in sids.items() if _SIDS[name].fullmatch(sid)}
    kind, id_ = next(((kind, known[name]) for kind, name in _KINDS if name in known), ("", ""))
    return Envelope(
        as_text(item.get("id")).strip() or f"sha256:{jsontext.digest(item)}",
        as_text(item.get("type")).strip() or "callback",
        item,
        object=ObjectRef(kind, id_) if kind else None,
        occurred_at=instant(item.get("time")),
        account=known.get("AccountSid", ""),
    )


_KINDS = (("message", "MessageSid"), ("call", "CallSid"))


def _rfc_2822(value: Any) -> datetime | None:
    try:
        at = parsedate_to_datetime(as_text(value))
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def reply(_request: Request) -> Reply:
    """Instructions to do nothing. To an inbound message any text would be sent to its sender."""
    return _twiml("")


def say(envelope: Envelope, answer: Any) -> Reply:
    """The app's answer: TwiML, as text or as an object of the SDK, or a sentence for the sender or the caller."""
    if answer is None:
        return _twiml("")
    text = str(answer)
    if not text.lstrip().startswith("<"):
        return _twiml(f"<{_verb(envelope)}>{escape(text)}</{_verb(envelope)}>")
    try:
        root = ET.fromstring(text.encode())  # noqa: S314 - our own app wrote it
    except ET.ParseError as error:
        raise ValueError(f"the answer is no TwiML: {error}") from None
    if root.tag != "Response":
        raise ValueError(f"TwiML is a <Response>, not a <{root.tag}>")
    return Reply(body=text, content_type="text/xml")


def refuse(envelope: Envelope, message: str, _http_status: int) -> Reply:
    # There is no other no: the sender gets to read it, the caller to hear it before the line is cut.
    end = "<Hangup/>" if _verb(envelope) == "Say" else ""
    return _twiml(f"<{_verb(envelope)}>{escape(message)}</{_verb(envelope)}>{end}")


def _verb(envelope: Envelope) -> str:
    return "Message" if envelope.type.startswith("message.") else "Say"


def _twiml(content: str) -> Reply:
    return Reply(
        body=f'<?xml version="1.0" encoding="UTF-8"?><Response>{content}</Response>', content_type="text/xml"
    )


def fetch(api: Api, ref: ObjectRef) -> Json | None:
    if ref.kind not in PATHS or not _SIDS[f"{ref.kind.capitalize()}Sid"].fullmatch(ref.id):
        raise NotFetchable(f"Twilio: no path is known for {ref.kind}")
    return served(api.find(f"{_account_path(api)}/{PATHS[ref.kind]}/{ref.id}.json"), ref.id, name="sid")


def _account_path(api: Api) -> str:
    return f"/2010-04-01/Accounts/{_account(api)}"


def _account(api: Api) -> str:
    account = api.account or api.settings.get("account_sid", "")
    if not _SIDS["AccountSid"].fullmatch(account):
        raise NotFetchable("Twilio: set `account_sid` (AC…)")
    return account


def version(ref: ObjectRef, data: Json) -> Version | None:
    # date_updated has seconds only, and a price moves it too.
    states = (dig(data, name) for name in ("status", "MessageStatus", "CallStatus", "SmsStatus"))
    return RANKS.get(ref.kind, {}).get(next((state for state in states if isinstance(state, str)), ""))


def list_changed(api: Api, since: datetime) -> Iterator[Change]:
    """Messages sent or received since, and calls started since. Misses later changes of older ones, and
    messages that were not sent (queued, scheduled, failed before): those must be read again by id."""
    for kind, time in (("message", "DateSent"), ("call", "StartTime")):
        path = f"{_account_path(api)}/{PATHS[kind]}.json"
        for item in _items(api, path, PATHS[kind].lower(), {f"{time}>": _utc(since), "PageSize": PAGE}):
            at = _rfc_2822(item.get("date_updated")) or _rfc_2822(item.get("date_created"))
            yield Change(ObjectRef(kind, as_text(item.get("sid"))), item, at, _account(api))


def _utc(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _items(api: Api, path: str, place: str, params: dict[str, Any]) -> Iterator[dict[str, Any]]:
    while True:
        page = api.get(path, **params)
        yield from (item for item in dig(page, place) or [] if isinstance(item, dict))
        # Only the query of the next page is taken: it holds a token for the place where this one ends.
        link = as_text(dig(page, "next_page_uri")) or as_text(dig(page, "meta", "next_page_url"))
        before, params = params, dict(parse_qsl(link.partition("?")[2], keep_blank_values=True))
        if not params or params == before:
            return


def list_events(api: Api, since: datetime) -> Iterator[LogEntry]:
    """Callbacks to `webhook_url` that Twilio logged as failed, up to 30 days back. Misses what we answered
    well and lost. Each costs a request, because only a single alert holds what was sent."""
    url = api.settings.get("webhook_url")
    if not url:
        raise NotFetchable("Twilio: set `webhook_url` to read which of its callbacks failed")
    alerts = _items(
        api, "/v1/Alerts", "alerts", {"LogLevel": "error", "StartDate": _utc(since), "PageSize": PAGE}
    )
    for alert in alerts:
        if as_text(alert.get("error_code")).startswith("11"):  # 11200 … 11999: our answer or the way to it
            yield from _logged(api, as_text(alert.get("sid")), url)


def _logged(api: Api, sid: str, url: str) -> Iterator[LogEntry]:
    alert = api.find(f"/v1/Alerts/{sid}") if re.fullmatch(r"NO[0-9a-fA-F]{32}", sid, re.ASCII) else None
    if not _same_url(as_text(dig(alert, "request_url")), url):
        return
    sent = as_text(dig(alert, "request_variables")).encode("utf-8", "replace")
    request = Request("POST", "", {"Content-Type": FORM}, sent)
    try:
        key = parse(request)[0].dedup_key
    except Unreadable:
        key = body_key(sent)
    at = instant(dig(alert, "date_generated")) or instant(dig(alert, "date_created"))
    yield LogEntry(key, at, lambda: parse(request), delivered=False)


def _same_url(found: str, wanted: str) -> bool:
    return found.partition("#")[0].partition("?")[0] == wanted.partition("#")[0].partition("?")[0]


def endpoint_health(api: Api) -> Health:
    """Whether the number still points to us. Twilio never switches a URL off, however often it fails."""
    number, url = api.settings.get("phone_number_sid", ""), api.settings.get("webhook_url")
    if not url or not re.fullmatch(r"PN[0-9a-fA-F]{32}", number, re.ASCII):
        return Health(
            "unknown", "set `webhook_url` and `phone_number_sid` (PN…) to ask where its number points"
        )
    try:
        found = api.find(f"{_account_path(api)}/IncomingPhoneNumbers/{number}.json")
    except NotFetchable as reason:
        return Health("unknown", str(reason))
    except ApiRefused as refusal:
        return Health("unknown", refusal.reason, refusal.http_status)
    urls = [as_text(dig(found, name)) for name in ("sms_url", "voice_url", "status_callback")]
    if any(_same_url(candidate, url) for candidate in urls):
        return Health("enabled")
    return Health("missing", f"{number} does not call {url}" if found else f"there is no number {number}")


def secret_problem(secret: str) -> str | None:
    if re.fullmatch(r"[A-Z]{2}[0-9a-fA-F]{32}", secret, re.ASCII):
        return "this is a SID; deliveries are signed with the Auth Token, or with a SharedKey (`sharedkey:…`)"
    return None if _key(secret)[2].strip() else "there is no secret behind the colon"


def sample(wanted: Sample) -> Request:
    kind, _, state = wanted.type.partition(".")
    digest = hashlib.sha256(wanted.id.encode()).hexdigest()[:32]
    fields = {
        "AccountSid": wanted.account or f"AC{'0123456789abcdef' * 2}",
        "ApiVersion": "2010-04-01",
        "From": "+15005550006",
        "To": "+15005550009",
    }
    if kind == "message":
        fields |= {"MessageSid": f"SM{digest}", "SmsSid": f"SM{digest}", "SmsStatus": state}
        if state == "received":
            fields |= {"Body": "Is the kettle on?", "NumMedia": "0", "NumSegments": "1"}
        else:
            fields["MessageStatus"] = state
        if state in ("failed", "undelivered"):
            fields["ErrorCode"] = "30008"
    elif kind == "call":
        fields |= {"CallSid": f"CA{digest}", "CallStatus": state, "Direction": "outbound-api"}
        number = RANKS["call"].get(state, 1) - 1
        fields |= {
            "SequenceNumber": str(max(number, 0)),
            "Timestamp": format_datetime(wanted.at.astimezone(UTC)),
        }
    else:
        fields |= {"Sid": digest, f"{kind.capitalize()}Status": state or "completed"}
    given = {name: as_text(value) for name, value in (wanted.object or {}).items()}
    headers = {
        "Content-Type": f"{FORM}; charset=UTF-8",
        "User-Agent": "TwilioProxy/1.1",
        "I-Twilio-Idempotency-Token": wanted.id,
    }
    return Request("POST", "", headers, urlencode(fields | given).encode())


OVERRIDES = "https://www.twilio.com/docs/usage/webhooks/webhooks-connection-overrides"

provider = Provider(
    name="twilio",
    docs="https://www.twilio.com/docs/usage/webhooks",
    signature=TwilioSignature(),
    parse=parse,
    policy=Policy(
        checked=date(2026, 12, 1),
        respond_within=timedelta(seconds=15),
        # One more attempt only if no connection came about. `#rc=5&rp=all` behind the URL asks for more.
        retries=(),
        retry_window=timedelta(seconds=15),
        log_window=timedelta(days=30),  # alerts, so failed requests only
        disables=None,  # the documentation does not say that it ever does
        sources={
            "respond_within": OVERRIDES,
            "retries": OVERRIDES,
            "retry_window": OVERRIDES,
            "log_window": "https://www.twilio.com/docs/usage/monitor-alert",
        },
    ),
    reply=reply,
    methods=("POST", "GET"),
    # parse does not read the token: it is the same over Twilio's retries of a request, but not signed.
    headers=("Content-Type", "I-Twilio-Idempotency-Token"),
    settings=("account_sid", "auth_token", "api_key", "webhook_url", "phone_number_sid"),
    required=("account_sid", "auth_token"),
    secret_problem=secret_problem,
    # `auth_token` is the account's or, with `api_key` (SK…), that key's secret. Paths name the (sub)account.
    api=ApiSpec(
        "https://api.twilio.com",
        basic=("{api_key|account_sid}", "{auth_token}"),
        bases={"/v1/Alerts": "https://monitor.twilio.com"},
    ),
    fetch=fetch,
    kinds=tuple(PATHS),
    version=version,
    list_changed=list_changed,
    final=FINAL,
    list_events=list_events,
    endpoint_health=endpoint_health,
    untold={
        "subscriptions": "each message and call names its own callback when it is made, so there is no list of them.",
        "enable": "Twilio never switches a URL off; a number that points elsewhere is set by hand.",
    },
    authoritative={
        "message-outcome": (
            ("message.delivered", "message.undelivered", "message.failed"),
            "https://www.twilio.com/docs/messaging/guides/outbound-message-status-in-status-callbacks",
        ),
    },
    sample=sample,
    answers=Answers(
        types=("message.received", "call.ringing", "call.in-progress"),
        say=say,
        refuse=refuse,
        max_size=64 * 1024,  # https://www.twilio.com/docs/api/errors/11750
        source="https://www.twilio.com/docs/messaging/twiml",
    ),
    sample_types=(
        "message.received",
        "message.sent",
        "message.delivered",
        "message.undelivered",
        "message.failed",
        "message.read",
        "call.initiated",
        "call.ringing",
        "call.in-progress",
        "call.completed",
    ),
)
