"""A handler's time: one that hangs is stopped, so that it does not hold its worker for ever."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from ..errors import TimeLimit
from ..inbox.line import call_off

__all__ = ["can_stop", "within"]

AGAIN = timedelta(seconds=1)
"""Code that catches everything is told again so often."""

T = TypeVar("T")

_limit = text("SELECT set_config('statement_timeout', :milliseconds, true)")
CANCELED = "57014"


class _Over(BaseException):
    """The time is over. No `except Exception` of a handler's may take it for an error of its own."""


def can_stop() -> bool:
    """Whether a handler can be stopped wherever it is: only in a process's main thread, and not on every system."""
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()


def within(
    limit: timedelta,
    work: Callable[[], T],
    what: str,
    session: Session | None = None,
    engine: Engine | None = None,
) -> T:
    """What `work` returns. Raises TimeLimit if it takes longer.

    In the main thread, which is where a Celery worker's processes apply, an alarm ends it: a loop, a sleep, a wait for
    a lock. In other threads only the database can: a statement that takes longer than the limit is called off
    (PostgreSQL); what hangs elsewhere hangs on, until its lease is over and somebody else takes the event.
    """
    over = f"{what} took longer than {limit.total_seconds():g} s"
    if can_stop():
        return _stopped(limit, work, over, session, _driver(session, engine))
    if session is None or session.get_bind().dialect.name != "postgresql":
        return work()
    session.execute(_limit, {"milliseconds": str(max(round(limit.total_seconds() * 1000), 1))})
    try:
        return work()
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) == CANCELED:
            raise TimeLimit(over) from None
        raise


def _driver(session: Session | None, engine: Engine | None) -> Any:
    """The driver's connection of a session that works on this engine."""
    if session is None or engine is None:
        return None
    return session.connection(bind_arguments={"bind": engine}).connection.driver_connection


def _stopped(limit: timedelta, work: Callable[[], T], over: str, session: Session | None, driver: Any) -> T:
    running = True

    def ring(*_: Any) -> None:
        if running:
            # Now, and not when the exception has arrived: by then the connection is closed, and a database that waits
            # for a lock does not notice that; it would keep our own locks meanwhile.
            call_off(driver)
            raise _Over

    started = time.monotonic()
    before = signal.signal(signal.SIGALRM, ring)
    theirs = (0.0, 0.0)
    try:
        theirs = signal.setitimer(signal.ITIMER_REAL, limit.total_seconds(), AGAIN.total_seconds())
        try:
            return work()
        finally:
            running = False
            _give_back(before, theirs, started)
    except _Over:
        if running:  # it came at the very end, when nothing was given back yet
            running = False
            _give_back(before, theirs, started)
        if session is not None:
            session.invalidate()  # it may be in the middle of a statement, and of everything
        raise TimeLimit(over) from None


def _give_back(before: Any, theirs: tuple[float, float], started: float) -> None:
    """The alarm as we found it: somebody else's may still be set, for what is left of it."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before if before is not None else signal.SIG_DFL)
    if theirs[0] > 0:
        left = max(theirs[0] - (time.monotonic() - started), 0.001)
        signal.setitimer(signal.ITIMER_REAL, left, theirs[1])
