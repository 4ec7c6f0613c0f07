"""A handler while it runs: what it belongs to, and what it must not do with our transaction."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from ..errors import HandlerCommitted
from ..inbox import Event, Inbox

__all__ = ["Running", "in_handler", "now_running", "refuse_commit", "refuse_second_connection"]

_INFO = "webhooks_handler"


@dataclass
class Running:
    """One handler at work on one event, in one transaction."""

    session: Session
    inbox: Inbox
    event: Event | None
    """None: no event asks, but code of the app's own."""
    handler: str
    """As its ledger rows say."""
    promised: dict[str, Any] = field(default_factory=dict)
    """Idempotency key → arguments of the effects that this run has promised."""


_running: ContextVar[Running | None] = ContextVar("webhooks_running", default=None)


def now_running() -> Running | None:
    """The handler that this thread is in; None outside of one."""
    return _running.get()


@contextmanager
def in_handler(running: Running) -> Iterator[None]:
    """Watch a handler: ending the transaction that carries its ledger row is an error, whichever way it does it."""
    session = running.session
    before = session.get_transaction() or session.begin()
    session.info[_INFO] = True
    token = _running.set(running)
    try:
        yield
    finally:
        _running.reset(token)
        session.info.pop(_INFO, None)
    if session.get_transaction() is not before:
        raise HandlerCommitted(
            "a handler must not commit, roll back or close db.session: our ledger row is in its transaction"
        )


def refuse_commit(session: Session) -> None:
    """For the session's `before_commit`: a handler's own commit is stopped before it happens."""
    if session.info.get(_INFO) and session.get_nested_transaction() is None:
        raise HandlerCommitted(
            "a handler must not commit: its work, our ledger and the state of the event are one transaction, which is "
            "committed for you; remove the commit, or use flush()"
        )


_OURS = re.compile(r"\s*(?:INSERT\s+INTO|UPDATE|DELETE\s+FROM)\s+\"?webhook_", re.IGNORECASE)


def refuse_second_connection(connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
    """For the engine's `before_cursor_execute`: a handler must not write our tables past its own transaction.

    Seen: any connection or session of this engine in the handler's own thread. Not seen: other threads, other engines.
    """
    running = _running.get()
    if running is None or not _OURS.match(statement):
        return
    own = running.session.connection(bind_arguments={"bind": running.inbox.engine})
    if own.connection.dbapi_connection is not connection.connection.dbapi_connection:
        raise HandlerCommitted(
            "a handler wrote to our tables over a second connection, so that it would stay if the handler is rolled back; "
            "use db.session"
        )
