"""While the database is away: verified deliveries of providers that do not come again, kept in a file of this host.

A SQLite file, written and flushed to disk before the provider is answered; whatever is in it goes into the inbox as soon
as the database is back, by whichever process of this host comes first. Recording is idempotent, so that a process that
dies between the two steps costs nothing.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from ..errors import InboxUnavailable
from .marks import EVERYWHERE, Marks
from .rows import Arrival, Recorded

if TYPE_CHECKING:
    from . import Inbox

__all__ = ["MARK", "MAX_BYTES", "MAX_ROWS", "Held", "Nonce", "Spool", "SpoolState", "as_row", "note_drained"]

MARK = "spool:"
"""What the names of marks begin with that say what the spools of hosts held."""

MAX_ROWS = 10_000
MAX_BYTES = 256 * 1024 * 1024
"""Hours of a busy endpoint. What does not fit is refused, so that the provider's own log shows it as failed."""

BUSY = timedelta(seconds=1)
"""How long one process waits for another one's write."""

BATCH = 50
"""Deliveries that go into the inbox at once."""

AGAIN = timedelta(seconds=5)
"""How often a process that has put something in looks whether the database is back."""

LOOK = timedelta(seconds=30)
"""How often a process that has put nothing in looks whether another one, perhaps a dead one, has."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS held (
  id INTEGER PRIMARY KEY AUTOINCREMENT, received_at REAL NOT NULL, endpoint TEXT NOT NULL, size INTEGER NOT NULL,
  tries INTEGER NOT NULL DEFAULT 0, error TEXT, delivery BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS held_size ON held (size, received_at);
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Nonce:
    """What was signed in place of a body, and the event that it came with."""

    value: str
    dedup_key: str
    digest: str


@dataclass(frozen=True)
class Held:
    """One delivery in the spool."""

    endpoint: str
    received_at: datetime
    arrivals: list[Arrival] = field(repr=False)
    nonces: list[Nonce] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class SpoolState:
    """How full a spool is."""

    host: str
    path: str
    rows: int
    bytes: int
    oldest: datetime | None
    failed: int
    """Deliveries that the inbox did not take although it took others."""
    trouble: str = ""
    """Why it could not be read or written; '' if it can."""


_write = msgspec.msgpack.Encoder().encode
_read = msgspec.msgpack.Decoder(Held).decode


class Spool:
    """The spool of one host. Every method opens the file anew: there is nothing to carry over a fork."""

    def __init__(
        self,
        path: Path,
        record: Callable[[Held], Sequence[Recorded]],
        is_up: Callable[[], bool],
        *,
        max_rows: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
        drained: Callable[[int], None] = lambda _number: None,
    ) -> None:
        """`record` puts one delivery into the inbox; `is_up` says whether it is the database where that fails;
        `drained` is told how many were, when some were."""
        self.path, self.max_rows, self.max_bytes = path, max_rows, max_bytes
        self._record, self._is_up, self._drained = record, is_up, drained
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._waits = False
        self._look_at = 0.0

    # -- in

    def put(self, held: Held) -> None:
        """Keep a delivery; it is on disk when this returns. Raises InboxUnavailable if the spool is full or cannot be
        written."""
        blob = _write(held)
        try:
            with self._open(create=True) as file:
                file.execute("BEGIN IMMEDIATE")
                rows, size = file.execute("SELECT count(*), coalesce(sum(size), 0) FROM held").fetchone()
                if rows >= self.max_rows or size + len(blob) > self.max_bytes:
                    file.execute("ROLLBACK")
                    raise InboxUnavailable("the spool is full")
                file.execute(
                    "INSERT INTO held (received_at, endpoint, size, delivery) VALUES (?, ?, ?, ?)",
                    (held.received_at.timestamp(), held.endpoint, len(blob), blob),
                )
                file.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise InboxUnavailable(f"the spool cannot be written ({type(error).__name__})") from error
        self._wait(AGAIN)

    # -- out

    def drain(self) -> int:
        """Put what is held into the inbox, oldest first; return how many deliveries that were.

        Ends when nothing is left, when another process is at it, or when the database is still away. Raises nothing.
        """
        total = 0
        try:
            if not self._is_there():
                return 0
            with self._alone() as alone:
                if alone:
                    while (number := self._drain_some()) > 0:
                        total += number
        except (sqlite3.Error, OSError) as error:
            log.error("the spool %s cannot be read (%s)", self.path, type(error).__name__)
        if total:
            log.warning(
                "%d deliveries that were kept while the database was away are in the inbox now", total
            )
            self._drained(total)
        return total

    def look(self) -> None:
        """After a delivery that the database took: if anything is held, drain it in the background. Costs nothing
        otherwise; never raises."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK.total_seconds()
        if self._is_there():
            self._wait(timedelta(0))

    def state(self) -> SpoolState:
        """How full it is."""
        host, path = socket.gethostname(), str(self.path)
        try:
            if not self._is_there():
                return SpoolState(host, path, 0, 0, None, 0)
            with self._open() as file:
                rows, size, oldest, failed = file.execute(
                    "SELECT count(*), coalesce(sum(size), 0), min(received_at), coalesce(sum(tries > 0), 0) FROM held"
                ).fetchone()
        except (sqlite3.Error, OSError) as error:
            return SpoolState(host, path, 0, 0, None, 0, type(error).__name__)
        return SpoolState(host, path, rows, size, oldest and datetime.fromtimestamp(oldest, UTC), failed)

    def erase(self, is_theirs: Callable[[Arrival], bool], *, dry: bool = False) -> int:
        """Take the bodies out of those deliveries that `is_theirs` says yes to; they keep their keys. Returns how many."""
        if not self._is_there():
            return 0
        number = 0
        with self._open() as file:
            for id_, blob in file.execute("SELECT id, delivery FROM held").fetchall():
                held = _read(blob)
                theirs = [is_theirs(arrival) for arrival in held.arrivals]
                if not any(theirs):
                    continue
                number += 1
                arrivals = [_emptied(a) if mine else a for a, mine in zip(held.arrivals, theirs, strict=True)]
                if not dry:
                    file.execute("PRAGMA secure_delete = ON")
                    changed = _write(replace(held, arrivals=arrivals))
                    file.execute(
                        "UPDATE held SET delivery = ?, size = ? WHERE id = ?", (changed, len(changed), id_)
                    )
            if number and not dry:
                file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return number

    # -- the parts

    def _drain_some(self) -> int:
        """One batch; how many of it are in the inbox now. What fails goes behind the others."""
        with self._open() as file:
            rows = file.execute(
                "SELECT id, delivery FROM held ORDER BY tries, id LIMIT ?", (BATCH,)
            ).fetchall()
            number = 0
            for id_, blob in rows:
                try:
                    self._record(_read(blob))
                except Exception as error:  # noqa: BLE001 - whatever it is, the next one may do
                    if not self._is_up():
                        break
                    said = type(error.__cause__ or error).__name__
                    file.execute("UPDATE held SET tries = tries + 1, error = ? WHERE id = ?", (said, id_))
                else:
                    file.execute("DELETE FROM held WHERE id = ?", (id_,))
                    number += 1
            return number

    def _wait(self, first: timedelta) -> None:
        """See to it that a thread of this process drains the spool until it is empty, the first time after so long."""
        with self._lock:
            if self._waits:
                return
            self._waits = True
        threading.Thread(
            target=self._drain_until_empty, args=(first,), name="webhooks-spool", daemon=True
        ).start()

    def _drain_until_empty(self, first: timedelta) -> None:
        pause = first
        while True:
            time.sleep(pause.total_seconds())
            pause = AGAIN
            self.drain()
            with self._lock:
                if self.state().rows == 0:
                    self._waits = False
                    return

    def _is_there(self) -> bool:
        return self.path.exists()

    @contextmanager
    def _open(self, *, create: bool = False) -> Iterator[sqlite3.Connection]:
        new = create and not self._is_there()
        if new:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Only we read it: it holds what providers sent.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        with closing(
            sqlite3.connect(self.path, timeout=BUSY.total_seconds(), isolation_level=None)
        ) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON")
            if new:
                connection.executescript(SCHEMA)
                _flush_folder(self.path.parent)
            elif not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'held'").fetchone():
                connection.executescript(SCHEMA)  # whoever made the file was killed before it had a table
            yield connection

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether no other process drains; its end, however it comes, lets go."""
        lock = os.open(self.path.with_name(self.path.name + ".lock"), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            os.close(lock)


def _emptied(arrival: Arrival) -> Arrival:
    """What is recorded of a delivery whose body was erased before it could be: its key, and that there is nothing."""
    return replace(
        arrival,
        body=b"",
        sealed=None,
        headers="{}",
        correlation=None,
        state="ignored",
        outcome="condition_not_met",
        error="erased",
    )


def _flush_folder(folder: Path) -> None:
    """A file's own flush does not make its name last."""
    handle = os.open(folder, os.O_RDONLY)
    with suppress(OSError):  # not every file system knows it for a folder
        os.fsync(handle)
    os.close(handle)


def note_drained(inbox: Inbox, state: SpoolState, number: int) -> None:
    """Leave a mark of what this host's spool held, and holds still, for whoever looks from another host."""
    left = {name: value for name, value in as_row(state).items() if name != "oldest"}
    oldest = state.oldest.isoformat() if state.oldest is not None else None
    try:
        Marks(inbox).put(EVERYWHERE, MARK + state.host, {**left, "oldest": oldest, "drained": number})
    except SQLAlchemyError as error:
        log.warning("the spool's mark could not be made (%s)", type(error).__name__)


def as_row(state: SpoolState) -> dict[str, Any]:
    """The state for documents."""
    return {
        "host": state.host,
        "path": state.path,
        "rows": state.rows,
        "bytes": state.bytes,
        "oldest": state.oldest,
        "failed": state.failed,
        "trouble": state.trouble or None,
    }
