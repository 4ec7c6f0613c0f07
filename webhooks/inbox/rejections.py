"""What the door refused: a bounded note of each; its body only where that is asked for, for as long as it may be checked
again."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from .. import jsontext
from ..errors import InboxUnavailable, SignatureError
from ..provider import Headers, Request

if TYPE_CHECKING:
    from ..endpoints import Endpoint
    from . import Inbox

__all__ = ["CHECKABLE", "MAX_KEPT", "MAX_KEPT_BYTES", "Refusal", "Rejections", "rebuilt"]

PER_MINUTE = 60
"""Notes that one process writes per endpoint: whoever sends rubbish must not fill the table, nor slow the door."""

MINUTE = timedelta(minutes=1)

WITHIN = timedelta(seconds=1)
"""A note is not worth a longer wait."""

CHECKABLE = frozenset({"mismatch", "no_secret", "clock"})
"""Reasons that may be ours: a secret or a clock that is mended later. Of the others no body is ever kept."""

MAX_KEPT = 1000
MAX_KEPT_BYTES = 32 * 1024 * 1024
MAX_KEPT_BODY = 1024 * 1024
"""Bodies and bytes that are kept per endpoint, and of one delivery; beyond that there is only the note."""

METHOD, URL = ":method", ":url"
"""Kept beside the headers, under names that no header has."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Refusal:
    """One refused delivery."""

    reason: str
    """A `SignatureError.reason`, `too_large` or `unsupported`."""
    length: int
    digest: str
    content_type: str
    delivery: Request | None = field(default=None, repr=False)
    """The whole delivery, if it is to be kept."""


class Rejections:
    """Writes notes of refused deliveries; purging keeps the newest thousand of each endpoint."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._lock = threading.Lock()
        self._written: dict[str, deque[float]] = {}
        self._room: dict[str, tuple[float, int, int]] = {}

    def note(self, endpoint: Endpoint, refusal: Refusal) -> None:
        """Keep a note, unless there were too many in the last minute. Never raises."""
        name = endpoint.name
        if not self._may_write(name):
            return
        body, sealed = None, None
        headers = {"Content-Type": refusal.content_type} if refusal.content_type.isprintable() else {}
        try:
            if refusal.delivery is not None and self._has_room(name, len(refusal.delivery.body)):
                headers = _kept_headers(endpoint, refusal.delivery)
                body, sealed = self._inbox.sealer.seal(refusal.delivery.body)
            row = {
                "endpoint": name,
                "reason": refusal.reason,
                "length": min(refusal.length, 2**31 - 1),
                "digest": refusal.digest,
                "headers": jsontext.dumps(jsontext.clean(headers)).decode(),
                "body": body,
                "sealed": sealed,
            }
            self._inbox.note_refusal(row, WITHIN)
        except InboxUnavailable as error:
            log.warning("%s: a refused delivery could not be noted (%s)", name, error)

    def _may_write(self, endpoint: str) -> bool:
        now = time.monotonic()
        with self._lock:
            written = self._written.setdefault(endpoint, deque(maxlen=PER_MINUTE))
            if len(written) == PER_MINUTE and now - written[0] < MINUTE.total_seconds():
                return False
            written.append(now)
            return True

    def _has_room(self, endpoint: str, size: int) -> bool:
        """Whether one more body fits. What others keep is counted once a minute."""
        if size > MAX_KEPT_BODY:
            return False
        now = time.monotonic()
        until, rows, left = self._room.get(endpoint, (0.0, 0, 0))
        if now >= until:
            kept, used = self._inbox.kept_refusals(endpoint, WITHIN)
            until, rows, left = now + MINUTE.total_seconds(), MAX_KEPT - kept, MAX_KEPT_BYTES - used
        fits = rows > 0 and left >= size
        self._room[endpoint] = (until, rows - fits, left - size * fits)
        return fits


class _Asked(Headers):
    """Headers that remember which of them were asked for."""

    __slots__ = ("names",)

    def __init__(self, headers: Headers) -> None:
        super().__init__(headers)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return super().__getitem__(name)


def _kept_headers(endpoint: Endpoint, delivery: Request) -> dict[str, str]:
    """What is needed to check and read it again: the headers that the scheme asks for, those that `parse` reads, the
    method and the URL. Cookies, addresses and all else are not kept."""
    asked = _Asked(Headers(delivery.headers))
    seen = Request(delivery.method, delivery.url, asked, delivery.body)
    with suppress(SignatureError):  # it is refused again, of course
        endpoint.provider.signature.verify(seen, endpoint.secrets, datetime.now(UTC))
    wanted = {"Content-Type", *endpoint.provider.headers, *asked.names}
    kept = {name: value[:4000] for name in wanted if (value := delivery.headers.get(name))}
    return {**kept, METHOD: delivery.method, URL: delivery.url[:4000]}


def rebuilt(headers: dict[str, Any], body: bytes) -> Request:
    """The delivery that was kept."""
    plain = {name: str(value) for name, value in headers.items() if not name.startswith(":")}
    return Request(str(headers.get(METHOD, "POST")), str(headers.get(URL, "")), plain, body)
