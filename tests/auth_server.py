"""A stand-in for Supabase Auth, as far as it calls hooks: its statuses, its retries, its total deadline.

After supabase/auth v2.196.0, internal/hooks/hookshttp/hookshttp.go and v0hooks/v0hooks.go. Nothing of it was copied.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import urllib3
from urllib3.exceptions import HTTPError

from webhooks.provider import Request
from webhooks.providers.supabase import provider

__all__ = ["AuthServer", "Outcome"]

SECRET = "v1,whsec_QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY="
DEADLINE = 5.0
"""Seconds for all attempts of one call together."""
ATTEMPTS = 3
PAUSE = 2.0
"""Seconds before another attempt, only where the connection failed."""
MAX_REPLY = 200 * 1024

CLAIMS = {
    "iss": "https://x.supabase.co/auth/v1",
    "sub": "8484b834-f29e-4af2-bf42-80644d154f76",
    "aud": "authenticated",
    "exp": 1764550800,
    "iat": 1764547200,
    "email": "zoe@example.org",
    "phone": "",
    "app_metadata": {"provider": "email"},
    "user_metadata": {},
    "role": "authenticated",
    "aal": "aal1",
    "amr": [{"method": "password", "timestamp": 1764547200}],
    "session_id": "4b938a09-5372-4177-a314-cfa292099ea2",
    "is_anonymous": False,
}
USER = {
    "id": "8484b834-f29e-4af2-bf42-80644d154f76",
    "aud": "authenticated",
    "role": "authenticated",
    "email": "zoe@example.org",
    "phone": "15555550101",
    "app_metadata": {"provider": "email", "providers": ["email"]},
    "user_metadata": {},
    "identities": [],
    "created_at": "2025-12-01T00:00:00Z",
    "updated_at": "2025-12-01T00:00:00Z",
    "is_anonymous": False,
}
BODIES: dict[str, dict[str, Any]] = {
    "before-user-created": {
        "user": {**USER, "created_at": "0001-01-01T00:00:00Z", "updated_at": "0001-01-01T00:00:00Z"}
    },
    "after-user-created": {"user": USER},
    "send-sms": {"user": USER, "sms": {"otp": "561166", "phone": "15555550101"}},
    "send-sms (mfa)": {"user": USER, "sms": {"otp": "561166", "sms_type": "mfa", "phone": "15555550101"}},
    "send-email": {
        "user": USER,
        "email_data": {
            "token": "305805",
            "token_hash": "7d5b",
            "email_action_type": "signup",
            "site_url": "https://a.test",
        },
    },
    "customize-access-token": {"user_id": USER["id"], "claims": CLAIMS, "authentication_method": "password"},
    "mfa-verification": {"user_id": USER["id"], "factor_id": "6eab", "factor_type": "totp", "valid": True},
    "password-verification": {"user_id": USER["id"], "valid": False},
}
"""The eight hooks: what Auth sends, without `metadata`."""

REQUIRED_CLAIMS = ("aud", "exp", "iat", "sub", "email", "phone", "role", "aal", "session_id", "is_anonymous")


@dataclass
class Outcome:
    """What the user of Auth gets."""

    status: int
    message: str = ""
    claims: dict[str, Any] | None = None
    attempts: int = 0
    seconds: float = 0.0
    replies: list[bytes] = field(default_factory=list)

    @property
    def allowed(self) -> bool:
        return self.status == 200


class AuthServer:
    """Calls hooks at one URL."""

    def __init__(self, url: str, *, secret: str = SECRET) -> None:
        self.url, self.secret = url, secret
        self.pool = urllib3.PoolManager(maxsize=8)
        self.deaf = 0
        """So many of the next answers are lost on the way: the connection is cut when the hook has answered."""

    def invoke(self, hook: str, *, uuid_: str | None = None, **changed: Any) -> Outcome:
        """One hook call, and what the user gets out of it."""
        name = hook.partition(" ")[0]
        metadata = {
            "uuid": uuid_ or str(uuid.uuid4()),
            "time": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "name": name,
            "ip_address": "203.0.113.7",
        }
        body = json.dumps({"metadata": metadata, **BODIES[hook], **changed}, separators=(",", ":")).encode()
        started = time.monotonic()
        outcome = self._attempts(name, body, started)
        outcome.seconds = time.monotonic() - started
        return outcome

    def _attempts(self, name: str, body: bytes, started: float) -> Outcome:
        replies: list[bytes] = []
        for attempt in range(1, ATTEMPTS + 1):
            left = DEADLINE - (time.monotonic() - started)
            if left <= 0:
                return Outcome(422, "hook_timeout_after_retry", attempts=attempt - 1, replies=replies)
            # The id is new for every attempt; the body is not.
            request = Request(
                "POST", self.url, {"Content-Type": "application/json", "webhook-id": str(uuid.uuid4())}, body
            )
            signed = provider.signature.sign(request, self.secret, time.time())
            try:
                reply = self.pool.request(
                    "POST",
                    self.url,
                    body=body,
                    headers=dict(signed.headers),
                    timeout=left,
                    retries=False,
                    redirect=False,
                )
                replies.append(reply.data)
                if self.deaf:
                    self.deaf -= 1
                    raise ConnectionResetError
            except (urllib3.exceptions.ReadTimeoutError, urllib3.exceptions.ConnectTimeoutError):
                return Outcome(422, "hook_timeout", attempts=attempt, replies=replies)
            except (HTTPError, ConnectionResetError):
                time.sleep(max(0.0, min(PAUSE, DEADLINE - (time.monotonic() - started))))
                continue
            if reply.status in {429, 503} and reply.headers.get("retry-after"):
                continue
            outcome = self._understood(name, reply)
            outcome.attempts, outcome.replies = attempt, replies
            return outcome
        return Outcome(422, "hook_timeout_after_retry", attempts=ATTEMPTS, replies=replies)

    def _understood(self, name: str, reply: urllib3.BaseHTTPResponse) -> Outcome:
        if reply.status in {200, 202}:
            if reply.headers.get("Content-Type", "").partition(";")[0].strip() != "application/json":
                return Outcome(400, "hook_payload_invalid_content_type")
            if len(reply.data) > MAX_REPLY:
                return Outcome(422, "hook_payload_over_size_limit")
            return self._read(name, json.loads(reply.data))
        if reply.status == 204:
            return self._read(name, {})
        known = {
            400: "Invalid payload sent to hook",
            401: "Hook requires authorization token",
            429: "Service currently unavailable due to hook",
            503: "Service currently unavailable due to hook",
        }
        return Outcome(
            500, known.get(reply.status, f"Unexpected status code returned from hook: {reply.status}")
        )

    def _read(self, name: str, answer: dict[str, Any]) -> Outcome:
        error = answer.get("error") or {}
        if error.get("message"):  # an empty one is ignored
            return Outcome(error.get("http_code") or 500, error["message"])
        if name == "customize-access-token":
            claims = answer.get("claims") or {}
            missing = [claim for claim in REQUIRED_CLAIMS if claim not in claims]
            if missing:
                return Outcome(500, f"output claims do not conform to the expected schema: {missing}")
            return Outcome(200, claims=claims)
        if name == "mfa-verification" and answer.get("decision") == "reject":
            return Outcome(403, answer.get("message") or "mfa_verification_rejected")
        if name == "password-verification" and answer.get("decision") == "reject":
            return Outcome(400, answer.get("message") or "invalid_credentials")
        return Outcome(200)
