"""What a failure means: try the transaction again, wait, or give up; and what may be said of it."""

from __future__ import annotations

import logging
import random
from datetime import timedelta

from sqlalchemy.exc import DBAPIError

from ..errors import GiveUp, HandlerCommitted, RetryLater, TimeLimit, Unreadable
from ..inbox import Group
from .writing import ClaimLost, Refetch

__all__ = ["backoff", "is_the_events_own", "may_repeat", "report", "summary"]

FIRST_WAIT = timedelta(seconds=5)
LONGEST_WAIT = timedelta(hours=1)

log = logging.getLogger(__name__)


def backoff(attempts: int) -> timedelta:
    """How long to wait after that many failed attempts: doubling, with jitter, an hour at most."""
    wait: timedelta = min(FIRST_WAIT * 2 ** min(attempts, 20), LONGEST_WAIT)
    return wait * random.uniform(0.5, 1.0)  # noqa: S311 - jitter


def summary(error: Exception) -> str:
    """An error for the `error` column. What we raise says what to do; of other exceptions only the kind and the place
    are kept, since their text may repeat what a payload or a query held."""
    if isinstance(error, RetryLater | GiveUp | Unreadable | HandlerCommitted | TimeLimit):
        return f"{type(error).__name__}: {error}"[:1000]
    original = getattr(error, "orig", None) or error
    return f"{type(original).__module__}.{type(original).__qualname__} at {_place(error)}"[:1000]


def _place(error: BaseException) -> str:
    frame = error.__traceback__
    place = "?"
    while frame is not None:
        code = frame.tb_frame.f_code
        module = frame.tb_frame.f_globals.get("__name__", "?")
        if not module.startswith("sqlalchemy"):
            place = f"{module}:{frame.tb_lineno} in {code.co_name}"
        frame = frame.tb_next
    return place


def report(group: Group, error: Exception) -> None:
    what = f"{group.object.kind} {group.object.id}" if group.object else group.events[0].type
    level = logging.INFO if isinstance(error, RetryLater) else logging.WARNING
    log.log(level, "%s: %s could not be applied: %s", group.endpoint, what, summary(error))


def is_the_events_own(error: Exception) -> bool:
    return not isinstance(error, ClaimLost | Refetch) and not (
        isinstance(error, DBAPIError) and error.connection_invalidated
    )


def may_repeat(error: DBAPIError) -> bool:
    code = getattr(error.orig, "sqlstate", None)
    if error.connection_invalidated or code in {"40P01", "40001", "57P01", "57P02", "57P03"}:
        return True
    said = str(error.orig)
    return (
        "database is locked" in said
        or "database table is locked" in said
        or type(error.orig).__name__ == "AdminShutdown"
    )
