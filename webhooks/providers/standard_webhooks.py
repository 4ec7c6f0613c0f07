"""Standard Webhooks: everybody who signs as https://www.standardwebhooks.com says, with a shared or a public key."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from .. import jsontext
from ..errors import SignatureError
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
from ..signatures import (
    StandardWebhooks,
    header_bytes,
    require_recent,
    standard_key,
    unix,
    unix_seconds,
    usable,
)

__all__ = ["provider"]

PUBLIC, PRIVATE = "whpk_", "whsk_"

MISSING = 'a whpk_ key needs the package cryptography: pip install "flask-webhook-inbox[crypto]"'


@dataclass(frozen=True, kw_only=True)
class AnyKey(StandardWebhooks):
    """Standard Webhooks under shared (`whsec_…`, v1) and public keys (`whpk_…`, v1a, ed25519), any number of each.

    A key only ever vouches for signatures of its own version. Signs with a `whsk_…` what its public key verifies.
    """

    def verify(self, request: Request, secrets: Sequence[str], now: datetime | float) -> str:
        secrets = usable(secrets)
        shared = [secret for secret in secrets if not secret.startswith(PUBLIC)]
        public = [secret for secret in secrets if secret.startswith(PUBLIC)]
        try:
            return super().verify(request, shared, now)
        except SignatureError as refused:
            # `clock` was signed by a shared key. For all else a public key may still vouch.
            if not public or refused.reason == "clock":
                raise
        return self._verify_public(request, public, now)

    def _verify_public(self, request: Request, keys: Sequence[str], now: datetime | float) -> str:
        message, time = header_bytes(request, "webhook-id"), header_bytes(request, "webhook-timestamp")
        entries = [entry.partition(b",") for entry in header_bytes(request, "webhook-signature").split(b" ")]
        given = [value for name, _, value in entries if name == b"v1a" and value]
        if not given:
            raise SignatureError("malformed", "webhook-signature")
        seconds = unix_seconds(time)
        text = b".".join((message, time, request.body))
        key = next((key for key in keys if any(_vouches(key, signature, text) for signature in given)), None)
        if key is None:
            raise SignatureError("mismatch")
        require_recent(seconds, now, self.tolerance)
        return key

    def sign(self, request: Request, secret: str, now: datetime | float) -> Request:
        if not secret.startswith(PRIVATE):
            return super().sign(request, secret, now)
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415 - an extra

        message = self.message_id(request) or "msg_" + body_key(request.body)[-24:]
        time = str(int(unix(now)))
        # Some write the public key behind the seed.
        key = Ed25519PrivateKey.from_private_bytes(standard_key(secret.removeprefix(PRIVATE))[:32])
        signature = base64.b64encode(key.sign(b".".join((message.encode(), time.encode(), request.body))))
        return request.with_headers(
            {
                "webhook-id": message,
                "webhook-timestamp": time,
                "webhook-signature": f"v1a,{signature.decode()}",
            }
        )


def _vouches(key: str, signature: bytes, text: bytes) -> bool:
    try:
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415 - an extra
    except ImportError:
        raise SignatureError("no_secret", MISSING) from None
    try:
        public = Ed25519PublicKey.from_public_bytes(standard_key(key.removeprefix(PUBLIC)))
    except ValueError:
        raise SignatureError("no_secret") from None
    try:
        public.verify(base64.b64decode(signature, validate=True), text)
    except (InvalidSignature, binascii.Error, ValueError):
        return False
    return True


SIGNATURE = AnyKey()


def parse(request: Request) -> list[Envelope]:
    event = request.document
    data = event.get("data")
    # The standard only recommends a type, a time and data.
    type_ = as_text(event.get("type")) or "message"
    return [
        Envelope(
            SIGNATURE.message_id(request) or body_key(request.body),
            type_,
            event,
            object=_object(type_, data),
            snapshot=data,
            gone=type_.endswith(".deleted"),
            # Not the webhook-timestamp: that is when this attempt was made.
            occurred_at=instant(event.get("timestamp")),
        )
    ]


def _object(type_: str, data: Json) -> ObjectRef | None:
    # By the standard's convention for types, `invoice.paid` is about an invoice.
    id_ = as_text(dig(data, "id"))
    return ObjectRef(type_.rpartition(".")[0] or type_, id_) if id_.strip() else None


def secret_problem(secret: str) -> str | None:
    if secret.startswith(PRIVATE):
        return "whsk_ is the sender's private key; verifying takes the public one, which begins with whpk_"
    try:
        key = standard_key(secret.removeprefix(PUBLIC))
    except ValueError as error:
        return f"no Standard Webhooks secret: {error}"
    if not secret.startswith(PUBLIC):
        return None
    if len(key) != 32:
        return "a whpk_ key holds 32 bytes"
    try:
        import cryptography  # noqa: F401, PLC0415 - an extra
    except ImportError:
        return MISSING
    return None


def sample(wanted: Sample) -> Request:
    data: dict[str, Any] = {"id": wanted.id.lower(), **(wanted.object or {})}
    at = wanted.at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    body = {"type": wanted.type, "timestamp": at, "data": data}
    headers = {"Content-Type": "application/json", "webhook-id": wanted.id}
    return Request("POST", "", headers, jsontext.dumps(body))


provider = Provider(
    name="standard-webhooks",
    docs="https://www.standardwebhooks.com/",
    signature=SIGNATURE,
    parse=parse,
    policy=Policy(checked=date(2026, 12, 1)),  # each sender has its own
    headers=("webhook-id",),
    secret_problem=secret_problem,
    untold={
        "endpoint_health": "the standard says how to sign, not how to ask the sender.",
        "subscriptions": "the standard says how to sign, not how to ask the sender.",
        "enable": "the standard says how to sign, not how to ask the sender.",
    },
    sample=sample,
    sample_types=("contact.created", "contact.updated", "contact.deleted", "invoice.paid"),
)
