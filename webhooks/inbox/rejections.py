"""What the door refused: a bounded note of each, without its body."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from .. import jsontext
from ..errors import InboxUnavailable

if TYPE_CHECKING:
    from . import Inbox

__all__ = ["Refusal", "Rejections"]

PER_MINUTE = 60
"""Notes that one process writes per endpoint: whoever sends rubbish must not fill the table, nor slow the door."""

MINUTE = timedelta(minutes=1)

WITHIN = timedelta(seconds=1)
"""A note is not worth a longer wait."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Refusal:
    """One refused delivery."""

    reason: str
    """A `SignatureError.reason`, `too_large` or `unsupported`."""
    length: int
    digest: str
    content_type: str

    @property
    def kept_headers(self) -> dict[str, str]:
        return {"Content-Type": self.content_type} if self.content_type.isprintable() else {}


class Rejections:
    """Writes notes of refused deliveries; purging keeps the newest thousand of each endpoint."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._lock = threading.Lock()
        self._written: dict[str, deque[float]] = {}

    def note(self, endpoint: str, refusal: Refusal) -> None:
        """Keep a note, unless there were too many in the last minute. Never raises."""
        if not self._may_write(endpoint):
            return
        row = {
            "endpoint": endpoint,
            "reason": refusal.reason,
            "length": min(refusal.length, 2**31 - 1),
            "digest": refusal.digest,
            "headers": jsontext.dumps(refusal.kept_headers).decode(),
            "body": None,
        }
        try:
            self._inbox.note_refusal(row, WITHIN)
        except InboxUnavailable as error:
            log.warning("%s: a refused delivery could not be noted (%s)", endpoint, error)

    def _may_write(self, endpoint: str) -> bool:
        now = time.monotonic()
        with self._lock:
            written = self._written.setdefault(endpoint, deque(maxlen=PER_MINUTE))
            if len(written) == PER_MINUTE and now - written[0] < MINUTE.total_seconds():
                return False
            written.append(now)
            return True
