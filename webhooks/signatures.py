"""Schemes that at least two providers share, and the parts they are made of.

Every part works on bytes and in constant time; whatever a header holds, a scheme accepts or raises SignatureError.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac as _hmac
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from .errors import SignatureError
from .provider import Request

__all__ = [
    "HmacBody",
    "StandardWebhooks",
    "TimestampedHeader",
    "fingerprint",
    "header_bytes",
    "hmac",
    "is_probe",
    "matching",
    "probe_headers",
    "require_match",
    "require_recent",
    "standard_key",
    "unix",
    "unix_seconds",
    "usable",
    "whsec_problem",
]

TOLERANCE = timedelta(seconds=300)
"""What Stripe, Slack and Standard Webhooks use; narrower ones refuse good deliveries when a network is slow."""


def hmac(key: bytes, *parts: bytes, algorithm: str = "sha256") -> bytes:
    """The HMAC of the parts, one after the other."""
    mac = _hmac.new(key, digestmod=algorithm)
    for part in parts:
        mac.update(part)
    return mac.digest()


def usable(secrets: Sequence[str]) -> list[str]:
    """The secrets that can sign; an empty one could be used by anybody. Raises SignatureError if none is left."""
    good = [secret for secret in secrets if secret and not secret.isspace()]
    if not good:
        raise SignatureError("no_secret")
    return good


def header_bytes(request: Request, name: str) -> bytes:
    """A header's value as bytes; SignatureError if it is missing or empty.

    WSGI hands header bytes over as Latin-1 text, so that encoding gives back what was on the wire.
    """
    value = request.headers.get(name, "")
    if not value:
        raise SignatureError("missing", name)
    return value.encode("latin-1", "replace")


def require_match(given: Iterable[bytes], expected: bytes) -> bool:
    """Whether any of the given signatures is the expected one. Compares them all, each in constant time."""
    found = False
    for candidate in given:
        found |= _hmac.compare_digest(candidate, expected)
    return found


def matching(secrets: Sequence[str], given: Sequence[bytes], expected: Callable[[str], bytes]) -> str:
    """The first usable secret under which one of the given signatures is right; SignatureError if there is none."""
    for secret in usable(secrets):
        if require_match(given, expected(secret)):
            return secret
    raise SignatureError("mismatch")


def unix(now: datetime | float) -> float:
    """The instant as Unix seconds."""
    return now.timestamp() if isinstance(now, datetime) else float(now)


_SECONDS = re.compile(rb"[0-9]{1,11}")


def unix_seconds(text: bytes) -> int:
    """A signed time, written as plain decimal seconds; SignatureError for anything else."""
    if _SECONDS.fullmatch(text) is None:
        raise SignatureError("malformed", "time")
    return int(text)


def require_recent(seconds: float, now: datetime | float, tolerance: timedelta | None) -> None:
    """Refuse a time that is further from now than the tolerance, in either direction; None switches the check off.

    Called after the signature was found right, so that `clock` means a clock and not a stranger.
    """
    if tolerance is not None and abs(unix(now) - seconds) > tolerance.total_seconds():
        raise SignatureError("clock", f"{unix(now) - seconds:+.0f} s")


def fingerprint(secret: str) -> str:
    """A short name for a secret that tells two apart and gives neither away."""
    return hashlib.sha256(b"webhook secret\0" + secret.encode()).hexdigest()[:12]


PROBE = "Webhook-Inbox-Probe"


def probe_headers(request: Request, secret: str) -> dict[str, str]:
    """The header that makes a signed delivery a probe of ours. Only who has the secret can make it, for this body alone."""
    return {PROBE: hmac(secret.encode(), b"webhook inbox probe\0", request.body).hex()}


def is_probe(request: Request, secret: str) -> bool:
    """Whether a verified delivery is our own probe: it says that the way to the door and the secret are right."""
    given = request.headers.get(PROBE)
    return given is not None and require_match(
        [given.encode("latin-1", "replace")], probe_headers(request, secret)[PROBE].encode()
    )


@dataclass(frozen=True, kw_only=True)
class HmacBody:
    """HMAC over the raw body in one header: GitHub, Shopify, Razorpay and many more. Signs no time and no id."""

    header: str
    prefix: str = ""
    encoding: Literal["hex", "base64"] = "hex"
    algorithm: str = "sha256"
    signs_body: bool = True
    signs_time: bool = False
    signs_id: bool = False

    def verify(self, request: Request, secrets: Sequence[str], now: datetime | float) -> str:  # noqa: ARG002 - no time is signed
        given = header_bytes(request, self.header)
        return matching(secrets, [given], lambda secret: self._value(request.body, secret))

    def sign(self, request: Request, secret: str, now: datetime | float) -> Request:  # noqa: ARG002 - no time is signed
        return request.with_headers({self.header: self._value(request.body, secret).decode()})

    def _value(self, body: bytes, secret: str) -> bytes:
        mac = hmac(secret.encode(), body, algorithm=self.algorithm)
        return self.prefix.encode() + (
            mac.hex().encode() if self.encoding == "hex" else base64.b64encode(mac)
        )


@dataclass(frozen=True, kw_only=True)
class TimestampedHeader:
    """Time and signatures in one header, `t=…,v1=…`: Stripe and Paddle. One entry per live secret may be sent.

    Signed is `<time><joiner><body>`; unknown entries are skipped, so a weaker scheme beside cannot be chosen.
    """

    header: str
    time_key: str
    signature_key: str
    separator: str
    joiner: str
    tolerance: timedelta | None = TOLERANCE
    signs_body: bool = True
    signs_time: bool = True
    signs_id: bool = True  # the id is in the body

    def verify(self, request: Request, secrets: Sequence[str], now: datetime | float) -> str:
        entries = [
            item.partition(b"=") for item in header_bytes(request, self.header).split(self.separator.encode())
        ]
        times = [value for key, _, value in entries if key == self.time_key.encode()]
        given = [value for key, _, value in entries if key == self.signature_key.encode() and value]
        if len(times) != 1 or not given:
            raise SignatureError("malformed", self.header)
        seconds = unix_seconds(times[0])
        secret = matching(secrets, given, lambda secret: self._value(times[0], request.body, secret))
        require_recent(seconds, now, self.tolerance)
        return secret

    def sign(self, request: Request, secret: str, now: datetime | float) -> Request:
        time = str(int(unix(now))).encode()
        signature = self._value(time, request.body, secret)
        value = f"{self.time_key}={time.decode()}{self.separator}{self.signature_key}={signature.decode()}"
        return request.with_headers({self.header: value})

    def _value(self, time: bytes, body: bytes, secret: str) -> bytes:
        return hmac(secret.encode(), time, self.joiner.encode(), body).hex().encode()


def standard_key(secret: str) -> bytes:
    """The key bytes of a Standard Webhooks secret (`whsec_…`, Supabase's `v1,whsec_…`).

    Strict: a character that is not base64 raises ValueError, where lenient decoding would silently give another key.
    """
    text = secret.strip().removeprefix("v1,").removeprefix("whsec_")
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("what follows the prefix is not base64") from None
    if len(key) < 16:
        raise ValueError("it is shorter than 16 bytes")
    return key


def whsec_problem(secret: str) -> str | None:
    """Why this cannot be a `whsec_…` secret; None: it can. For `Provider.secret_problem`."""
    if not secret.strip().removeprefix("v1,").startswith("whsec_"):
        return "a signing secret begins with whsec_ (an API key or an endpoint's id is something else)"
    try:
        standard_key(secret)
    except ValueError as error:
        return f"no signing secret: {error}"
    return None


@dataclass(frozen=True, kw_only=True)
class StandardWebhooks:
    """Standard Webhooks and Svix: `<id>.<time>.<body>`, base64, several signatures separated by blanks.

    Of the header families in `prefixes` the first one that the request holds counts, whole: never a mixture. A request
    in which two families name two messages is refused, so that `message_id` is always the one that was signed.
    """

    prefixes: tuple[str, ...] = ("webhook-",)
    tolerance: timedelta | None = TOLERANCE
    signs_body: bool = True
    signs_time: bool = True
    signs_id: bool = True

    def verify(self, request: Request, secrets: Sequence[str], now: datetime | float) -> str:
        prefix = next((p for p in self.prefixes if request.headers.get(p + "signature")), self.prefixes[0])
        message = header_bytes(request, prefix + "id")
        if len({name for p in self.prefixes if (name := request.headers.get(p + "id"))}) > 1:
            raise SignatureError("malformed", "two ids")
        time = header_bytes(request, prefix + "timestamp")
        entries = [entry.partition(b",") for entry in header_bytes(request, prefix + "signature").split(b" ")]
        given = [value for version, _, value in entries if version == b"v1" and value]
        if not given:
            raise SignatureError("malformed", prefix + "signature")
        seconds = unix_seconds(time)

        def expected(secret: str) -> bytes:
            try:
                return self._value(message, time, request.body, secret)
            except ValueError:
                raise SignatureError("no_secret") from None

        secret = matching(secrets, given, expected)
        require_recent(seconds, now, self.tolerance)
        return secret

    def message_id(self, request: Request) -> str:
        """The id of the message, the same for all its deliveries; '' if the request has none."""
        return next((name for p in self.prefixes if (name := request.headers.get(p + "id", "").strip())), "")

    def sign(self, request: Request, secret: str, now: datetime | float) -> Request:
        """Sign under the id that the request carries; a request without one gets the digest of its body for an id."""
        prefix = self.prefixes[0]
        message = request.headers.get(prefix + "id") or "msg_" + hashlib.sha256(request.body).hexdigest()[:24]
        time = str(int(unix(now)))
        signature = self._value(message.encode(), time.encode(), request.body, secret).decode()
        return request.with_headers(
            {prefix + "id": message, prefix + "timestamp": time, prefix + "signature": f"v1,{signature}"}
        )

    def _value(self, message: bytes, time: bytes, body: bytes, secret: str) -> bytes:
        return base64.b64encode(hmac(standard_key(secret), message, b".", time, b".", body))
