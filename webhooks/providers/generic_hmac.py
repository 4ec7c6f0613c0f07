"""Any provider that signs with an HMAC in a header: where what stands is configured, and no code is needed.

The settings, all text; the paths are keys joined by dots (`data.object.id`):

signature_header     the header that holds the signature (required)
signature_prefix     what stands before it, such as `sha256=`
signature_encoding   hex (default) or base64
signature_separator  what separates several signatures in the header; empty: there is one
algorithm            sha256 (default), sha1, sha384 or sha512
secret_encoding      how the secret is written: utf-8 (default), hex or base64
signed               what is signed, with {body}, {timestamp} and {id}; `{timestamp}.{body}` or `{body}` by default
timestamp_header     the header that holds the time of the attempt: Unix seconds or milliseconds, or ISO 8601
id_header, id_path   where the event's id is: the same for every delivery of it (default: id_path `id`)
type_header, type_path   where the event's type is (default: type_path `type`); neither: every event is a `message`
object_path          where the object that the event is about is (default: the whole body)
object_kind, object_kind_path   what kind of object it is; default: the type up to its last dot
object_id_path       where the object's id is; empty: the events are about no object
gone_types           types that say that the object is gone, separated by commas
time_path            where the time is at which the event happened
account_path         where the tenant is
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

from .. import jsontext
from ..errors import ConfigError, SignatureError, Unreadable
from ..provider import (
    Envelope,
    Json,
    ObjectRef,
    Policy,
    Provider,
    Request,
    Sample,
    as_text,
    body_key,
    dig,
    instant,
)
from ..signatures import TOLERANCE, header_bytes, hmac, matching, require_recent, unix

__all__ = ["provider"]

DEFAULTS = {
    "signature_encoding": "hex",
    "algorithm": "sha256",
    "secret_encoding": "utf-8",
    "id_path": "id",
    "type_path": "type",
}

CHOICES = {
    "signature_encoding": ("hex", "base64"),
    "algorithm": ("sha256", "sha1", "sha384", "sha512"),
    "secret_encoding": ("utf-8", "hex", "base64"),
}

SETTINGS = (
    "signature_header", "signature_prefix", "signature_encoding", "signature_separator", "algorithm", "secret_encoding",
    "signed", "timestamp_header", "id_header", "id_path", "type_header", "type_path", "object_path", "object_kind",
    "object_kind_path", "object_id_path", "gone_types", "time_path", "account_path",
)  # fmt: skip

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_PATH = re.compile(r"[^.\s]+(?:\.[^.\s]+)*")
_PLACE = re.compile(r"(\{[^{}]*\})")
_FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True, kw_only=True)
class ConfiguredHmac:
    """HMAC over the body and whatever else `signed` names, as the settings say."""

    header: str
    prefix: str = ""
    separator: str = ""
    encoding: str = "hex"
    algorithm: str = "sha256"
    key_encoding: str = "utf-8"
    signed: tuple[str, ...] = ("{body}",)
    timestamp_header: str = ""
    id_header: str = ""
    tolerance: timedelta | None = TOLERANCE
    signs_body: bool = True
    signs_time: bool = False
    signs_id: bool = True

    def verify(self, request: Request, secrets: Sequence[str], now: datetime | float) -> str:
        value = header_bytes(request, self.header)
        entries = [
            entry.strip() for entry in (value.split(self.separator.encode()) if self.separator else [value])
        ]
        prefix = self.prefix.encode()
        given = [
            self._comparable(entry[len(prefix) :].strip()) for entry in entries if entry.startswith(prefix)
        ]
        text = self._text(request)
        time = self._time(request) if self.signs_time else None
        if not any(given):
            raise SignatureError("malformed", self.header)
        secret = matching(secrets, given, lambda secret: self._value(text, secret))
        if time is not None:
            require_recent(time, now, self.tolerance)
        return secret

    def sign(self, request: Request, secret: str, now: datetime | float) -> Request:
        if self.timestamp_header:
            request = request.with_headers({self.timestamp_header: str(int(unix(now)))})
        if self.id_header and not request.headers.get(self.id_header):
            request = request.with_headers({self.id_header: body_key(request.body)[-32:]})
        return request.with_headers(
            {self.header: self.prefix + self._value(self._text(request), secret).decode()}
        )

    def _text(self, request: Request) -> bytes:
        return b"".join(self._part(request, part) for part in self.signed)

    def _part(self, request: Request, part: str) -> bytes:
        if part == "{body}":
            return request.body
        if part == "{timestamp}":
            return header_bytes(request, self.timestamp_header)
        return header_bytes(request, self.id_header) if part == "{id}" else part.encode()

    def _time(self, request: Request) -> float:
        at = instant(header_bytes(request, self.timestamp_header).decode("latin-1"))
        if at is None:
            raise SignatureError("malformed", self.timestamp_header)
        return at.timestamp()

    def _comparable(self, value: bytes) -> bytes:
        return value.lower() if self.encoding == "hex" else value

    def _value(self, text: bytes, secret: str) -> bytes:
        try:
            mac = hmac(_key(secret, self.key_encoding), text, algorithm=self.algorithm)
        except ValueError:
            raise SignatureError("no_secret") from None
        return mac.hex().encode() if self.encoding == "hex" else base64.b64encode(mac)


def _key(secret: str, encoding: str) -> bytes:
    """The key's bytes; ValueError if the secret is not written like that, or is too short for a secret."""
    try:
        if encoding == "hex":
            key = bytes.fromhex(secret)
        elif encoding == "base64":
            key = base64.b64decode(secret, validate=True)
        else:
            key = secret.encode()
    except (binascii.Error, ValueError):
        raise ValueError(f"it is not {encoding}") from None
    if len(key) < 8:
        raise ValueError("it is shorter than 8 bytes")
    return key


def _secret_problem(encoding: str, secret: str) -> str | None:
    try:
        _key(secret, encoding)
    except ValueError as error:
        return f"no secret of this endpoint: {error}"
    return None


def configure(settings: Mapping[str, str]) -> Provider:
    """The provider that these settings describe; ConfigError names every one that is wrong."""
    given = {name: settings.get(name, DEFAULTS.get(name, "")) for name in SETTINGS}
    given["signed"] = given["signed"] or ("{timestamp}.{body}" if given["timestamp_header"] else "{body}")
    mistakes = [*_wrong_names(given), *_wrong_text(given)]
    if mistakes:
        raise ConfigError(mistakes)
    signed = tuple(part for part in _PLACE.split(given["signed"]) if part)
    by_header = bool(given["id_header"])
    return replace(
        provider,
        signature=ConfiguredHmac(
            header=given["signature_header"],
            prefix=given["signature_prefix"],
            separator=given["signature_separator"],
            encoding=given["signature_encoding"],
            algorithm=given["algorithm"],
            key_encoding=given["secret_encoding"],
            signed=signed,
            timestamp_header=given["timestamp_header"],
            id_header=given["id_header"],
            signs_time="{timestamp}" in signed,
            # An id in the body, or made of it, is signed with it.
            signs_id=not by_header or "{id}" in signed,
        ),
        parse=partial(_parse, given),
        # A type out of a header is never signed; who relies on it trusts whoever can repeat a delivery.
        headers=tuple(given[name] for name in ("id_header", "type_header") if given[name]),
        secret_problem=partial(_secret_problem, given["secret_encoding"]),
        sample=partial(_sample, given),
    )


def _wrong_names(given: Mapping[str, str]) -> list[str]:
    wrong = (
        []
        if given["signature_header"]
        else ["signature_header is missing; name the header that holds the signature"]
    )
    for name, choices in CHOICES.items():
        if given[name] not in choices:
            wrong.append(f"{name} is one of {', '.join(choices)}, not {given[name]!r}")
    for name, value in given.items():
        if name.endswith("_header") and value and not _HEADER.fullmatch(value):
            wrong.append(f"{name}: {value!r} is no name of a header")
        if name.endswith("_path") and value and not _PATH.fullmatch(value):
            wrong.append(f"{name}: {value!r} is no path; write keys joined by dots")
    return wrong


def _wrong_text(given: Mapping[str, str]) -> list[str]:
    wrong, places = [], [part for part in _PLACE.split(given["signed"]) if part.startswith("{")]
    if unknown := sorted(set(places) - {"{body}", "{timestamp}", "{id}"}):
        wrong.append(
            f"signed: {', '.join(unknown)} is not known; there are {{body}}, {{timestamp}} and {{id}}"
        )
    if places.count("{body}") != 1:
        wrong.append(
            "signed holds {body} once; a signature that does not cover the body proves nothing about it"
        )
    if "{timestamp}" in places and not given["timestamp_header"]:
        wrong.append("timestamp_header is missing; `signed` holds {timestamp}")
    if "{timestamp}" not in places and given["timestamp_header"]:
        wrong.append(
            "signed lacks {timestamp}; a time that is not signed keeps nobody from repeating a delivery"
        )
    if "{id}" in places and not given["id_header"]:
        wrong.append("id_header is missing; `signed` holds {id}")
    if (given["object_kind"] or given["object_kind_path"]) and not given["object_id_path"]:
        wrong.append("object_id_path is missing; a kind of object without ids is of no use")
    return wrong


def _parse(given: Mapping[str, str], request: Request) -> list[Envelope]:
    event = jsontext.clean(dict(request.form)) if request.content_type == _FORM else request.document
    type_ = _text_at(given, "type", event, request)
    if not type_ and (given["type_header"] or given["type_path"]):
        where = " or ".join(given[name] for name in ("type_header", "type_path") if given[name])
        raise Unreadable(f"the delivery has no type in {where}")
    type_ = type_ or "message"
    ref = _object(given, type_, event)
    return [
        Envelope(
            _text_at(given, "id", event, request) or body_key(request.body),
            type_,
            event,
            object=ref,
            snapshot=_at(event, given["object_path"]) if ref else None,
            gone=type_ in [name.strip() for name in given["gone_types"].split(",")],
            occurred_at=instant(_at(event, given["time_path"])) if given["time_path"] else None,
            account=as_text(_at(event, given["account_path"])) if given["account_path"] else "",
        )
    ]


def _text_at(given: Mapping[str, str], what: str, event: Json, request: Request) -> str:
    """The header's value or what stands at the path; '' if it is blank."""
    header, path = given[f"{what}_header"], given[f"{what}_path"]
    value = request.headers.get(header, "") if header else as_text(_at(event, path)) if path else ""
    return value.strip()


def _at(event: Json, path: str) -> Json:
    return dig(event, *path.split(".")) if path else event


def _object(given: Mapping[str, str], type_: str, event: Json) -> ObjectRef | None:
    id_ = as_text(_at(event, given["object_id_path"])) if given["object_id_path"] else ""
    kind_path = given["object_kind_path"]
    kind = (
        as_text(_at(event, kind_path))
        if kind_path
        else given["object_kind"] or type_.rpartition(".")[0] or type_
    )
    return ObjectRef(kind, id_) if id_.strip() and kind.strip() else None


def _sample(given: Mapping[str, str], wanted: Sample) -> Request:
    at = wanted.at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    body: dict[str, Any] = {} if given["object_path"] else dict(wanted.object or {})
    kind = given["object_kind"] or wanted.type.rpartition(".")[0] or wanted.type
    values: list[tuple[str, Any]] = [
        (given["object_path"], dict(wanted.object or {})),
        (given["object_id_path"], _own_id(given, wanted.object) or wanted.id.lower()),
        (given["object_kind_path"], kind),
        ("" if given["type_header"] else given["type_path"], wanted.type),
        ("" if given["id_header"] else given["id_path"], wanted.id),
        (given["time_path"], at),
        (given["account_path"], wanted.account),
    ]
    for path, value in values:
        if path and value != "":
            _put(body, path.split("."), value)
    headers = {
        "Content-Type": "application/json",
        given["type_header"]: wanted.type,
        given["id_header"]: wanted.id,
    }
    return Request("POST", "", {name: value for name, value in headers.items() if name}, jsontext.dumps(body))


def _own_id(given: Mapping[str, str], thing: Mapping[str, Any] | None) -> str:
    """The id that the object already has, where its place is within the object."""
    inside = given["object_path"] and given["object_path"] + "."
    path = given["object_id_path"]
    return as_text(_at(dict(thing or {}), path.removeprefix(inside))) if path.startswith(inside) else ""


def _put(body: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    for key in keys[:-1]:
        inner = body.get(key)
        body = inner if isinstance(inner, dict) else body.setdefault(key, {})
    body[keys[-1]] = value


STANDING = {name: DEFAULTS.get(name, "") for name in SETTINGS}

provider = Provider(
    name="generic-hmac",
    docs="https://www.rfc-editor.org/rfc/rfc2104",
    # As it stands without any settings; an endpoint gets what `configure` makes of its own.
    signature=ConfiguredHmac(header="X-Signature"),
    parse=partial(_parse, STANDING),
    policy=Policy(checked=date(2026, 12, 1)),  # nobody's
    settings=SETTINGS,
    configure=configure,
    defaults=DEFAULTS,
    secret_problem=partial(_secret_problem, "utf-8"),
    untold=dict.fromkeys(
        ("endpoint_health", "subscriptions", "enable"), "who sends is not known, nor how to ask them."
    ),
    sample=partial(_sample, STANDING),
    sample_types=("thing.created", "thing.updated", "thing.deleted"),
)
