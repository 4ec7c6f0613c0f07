"""The door's own line to the database: whatever is asked over it is answered in time, or given up.

A database that takes connections and says nothing, a table that somebody has locked: a provider waits for neither.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

from sqlalchemy import Engine, PoolProxiedConnection, event
from sqlalchemy.pool import Pool

from ..errors import InboxUnavailable

__all__ = ["Line", "TooSlow", "call_off", "cut"]

CONNECT_SECONDS = 2
"""For each address of the database; psycopg knows no shorter time."""

CANCEL_SECONDS = 0.5
"""For telling a database that we wait no longer, so that it does not wait for a lock on our behalf."""

_connecting = threading.local()


class TooSlow(InboxUnavailable):
    """The database did not answer in the time that the door has."""


class Line:
    """Connections of the door's own, beside the host's pool, which others may have used up."""

    def __init__(self) -> None:
        self.ends = float("inf")
        """time.monotonic() seconds at which whoever waits for an answer is told that there is none."""
        self._engine: Engine | None = None
        self._pool: Pool | None = None
        self._busy: int | None = None

    def connect(self, engine: Engine) -> PoolProxiedConnection:
        """A new connection; everything on it is given up at `ends`."""
        if self._engine is not engine:
            self._engine, self._pool = engine, engine.pool.recreate()
            if engine.dialect.name == "postgresql":
                event.listen(engine, "do_connect", _hasten)
                event.listen(self._pool, "connect", self._bind, insert=True)
        assert self._pool is not None
        self._busy = None
        _connecting.door = True
        try:
            return self._pool.connect()
        finally:
            _connecting.door = False

    def hurry(self, cursor: Any) -> None:
        """SQLite: have the next statements wait for other writers until `ends`, and no longer."""
        left = max(self.ends - time.monotonic(), 0.0)
        wait = min(round(left * 10) * 100, 30_000)
        if wait != self._busy:
            cursor.execute(f"PRAGMA busy_timeout = {wait:d}")
            self._busy = wait

    def _bind(self, connection: Any, _record: Any) -> None:
        wait = connection.wait

        def bounded(asked: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
            return wait(self._until_the_end(asked), *args, **options)

        connection.wait = bounded

    def _until_the_end(self, asked: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """psycopg's own steps. It looks ten times a second whether there is news; where there is none, we look too."""
        try:
            wanted = next(asked)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > self.ends:
                    raise TooSlow("the database did not answer in time")
                wanted = asked.send(ready)
        except StopIteration as done:
            return done.value


def cut(connection: PoolProxiedConnection) -> None:
    """Give a connection up; what it still waits for is called off."""
    call_off(connection.driver_connection)
    connection.invalidate()


def call_off(driver: Any) -> None:
    """Tell the database that nobody waits any more for what this driver's connection has asked, if it is psycopg's."""
    cancel: Callable[..., None] | None = getattr(driver, "cancel_safe", None)
    if cancel is not None and _is_waiting(driver):
        with suppress(Exception):  # it is only politeness towards a database that may not even be there
            cancel(timeout=CANCEL_SECONDS)


def _is_waiting(driver: Any) -> bool:
    from psycopg import capabilities  # noqa: PLC0415 - only where the driver is psycopg
    from psycopg.pq import TransactionStatus  # noqa: PLC0415

    # Without it, calling off may itself wait for ever.
    return capabilities.has_cancel_safe() and driver.info.transaction_status == TransactionStatus.ACTIVE


def _hasten(_dialect: Any, _record: Any, _args: Any, parameters: dict[str, Any]) -> None:
    """For the engine's `do_connect`: the door alone does not wait as long as the host's URL allows, or as for ever."""
    if getattr(_connecting, "door", False):
        given = str(parameters.get("connect_timeout") or CONNECT_SECONDS)
        parameters["connect_timeout"] = (
            min(int(given), CONNECT_SECONDS) if given.isdigit() else CONNECT_SECONDS
        )
