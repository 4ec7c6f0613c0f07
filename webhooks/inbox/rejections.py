"""What the door refused: a bounded note of each, without its body."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy import insert
from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from . import Inbox

__all__ = ["Refusal", "Rejections"]

PER_MINUTE = 60
"""Notes that one process writes per endpoint: whoever sends rubbish must not fill the table, nor slow the door."""

MINUTE = timedelta(minutes=1)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Refusal:
    """One refused delivery."""

    reason: str
    """A `SignatureError.reason`, `too_large` or `unsupported`."""
    length: int
    digest: str
    content_type: str


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
            "received_at": self._inbox.moment(),
            "reason": refusal.reason,
            "length": min(refusal.length, 2**31 - 1),
            "digest": refusal.digest,
            "headers": {"Content-Type": refusal.content_type} if refusal.content_type.isprintable() else {},
        }
        try:
            with self._inbox.transaction() as connection:
                connection.execute(insert(self._inbox.tables.rejections).values(row))
        except SQLAlchemyError as error:
            log.warning("%s: a refused delivery could not be noted (%s)", endpoint, type(error).__name__)

    def _may_write(self, endpoint: str) -> bool:
        now = time.monotonic()
        with self._lock:
            written = self._written.setdefault(endpoint, deque(maxlen=PER_MINUTE))
            if len(written) == PER_MINUTE and now - written[0] < MINUTE.total_seconds():
                return False
            written.append(now)
            return True
