"""Secrets as they are now: from the configuration, from a file, or from a function. They can be renewed without a restart."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

from .errors import InboxUnavailable

__all__ = ["Entry", "Keyring"]

LOOK = timedelta(seconds=1)
"""How often a file is looked at; it is read when it has changed."""

ASK = timedelta(seconds=30)
"""How often a function is asked."""

Entry = str | Path | Callable[[], "str | Sequence[str]"]
"""A secret, the file that holds it (or several, one a line), or a function that returns one or several."""

log = logging.getLogger(__name__)


class _Source:
    """One file or function, and the last good secrets that came of it."""

    def __init__(self, name: str, entry: Path | Callable[[], str | Sequence[str]], problem: _Problem) -> None:
        self.name, self._entry, self._problem = name, entry, problem
        self._good: tuple[str, ...] = ()
        self._lock = threading.Lock()
        self._look_at = 0.0
        self._seen: tuple[int, int, int] | None = None
        self._told = ""

    def current(self) -> tuple[str, ...]:
        """The secrets now; the last good ones where the newer ones are none. () if there never were good ones."""
        if time.monotonic() >= self._look_at and self._lock.acquire(blocking=not self._good):
            try:
                if time.monotonic() >= self._look_at:
                    self._renew()
            finally:
                self._lock.release()
        return self._good

    def trouble(self) -> str:
        """Why it gives no good secrets at this moment; '' if it does. Never holds anything of a secret."""
        try:
            found = self._read()
        except Exception as error:  # noqa: BLE001 - whatever a function of the app's raises
            return f"cannot be had ({type(error).__name__})"
        if found is None:
            return ""
        if not found:
            return "is empty"
        for secret in found:
            said = "is blank" if not secret else self._problem(secret)
            if said:
                return said
        self._good = tuple(found)
        return ""

    def _renew(self) -> None:
        wait = LOOK if isinstance(self._entry, Path) else ASK
        trouble = self.trouble()
        if trouble:
            wait = LOOK  # so that what is mended counts soon
            if trouble != self._told:
                kept = "the last good ones are still used" if self._good else "there are none to fall back on"
                log.error("%s %s; %s", self.name, trouble, kept)
        elif self._told:
            log.warning("%s is good again", self.name)
        self._told = trouble
        self._look_at = time.monotonic() + wait.total_seconds()

    def _read(self) -> list[str] | None:
        """What it says now; None: a file that has not changed since it was good."""
        if not isinstance(self._entry, Path):
            said = self._entry()
            return [str(one).strip() for one in ([said] if isinstance(said, str) else said)]
        found = self._entry.stat()
        seen = (found.st_mtime_ns, found.st_size, found.st_ino)
        if seen == self._seen and not self._told:
            return None
        lines = [line.strip() for line in self._entry.read_text(encoding="utf-8").splitlines()]
        self._seen = seen
        return [line for line in lines if line]


_Problem = Callable[[str], "str | None"]


class Keyring:
    """The secrets of one endpoint, the current one first."""

    def __init__(self, where: str, entries: Sequence[Entry], problem: _Problem) -> None:
        """`problem` says why a text cannot be such a secret; None: it can."""
        self._entries = [
            entry if isinstance(entry, str) else _Source(f"{where}[{n}]", entry, problem)
            for n, entry in enumerate(entries)
        ]
        plain = tuple(entry for entry in self._entries if isinstance(entry, str))
        self._fixed = plain if len(plain) == len(self._entries) else None

    def __repr__(self) -> str:
        return f"Keyring({len(self._entries)})"

    def current(self) -> tuple[str, ...]:
        """The secrets now. Raises InboxUnavailable (503) if there are none: that is our fault and not the provider's."""
        if self._fixed is not None:
            return self._fixed
        found: list[str] = []
        for entry in self._entries:
            found += [entry] if isinstance(entry, str) else entry.current()
        if not found:
            raise InboxUnavailable("there is no secret to check a signature with")
        return tuple(dict.fromkeys(found))

    def file_troubles(self) -> list[tuple[int, str]]:
        """Position and trouble of the files that hold no good secret. Functions are not asked: they may need an app."""
        return [
            (n, trouble)
            for n, entry in enumerate(self._entries)
            if isinstance(entry, _Source) and isinstance(entry._entry, Path) and (trouble := entry.trouble())
        ]
