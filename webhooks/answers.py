"""Answers that are decided while the provider waits: at most once per event, in time, and the same when asked again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from marshmallow import Schema, ValidationError, fields
from sqlalchemy import DateTime, bindparam, select, text, update
from sqlalchemy.orm import Session

from . import jsontext
from .apply import Running, in_handler, summary
from .endpoints import Endpoint, Endpoints
from .errors import GiveUp, InboxUnavailable, Refuse
from .handlers import Handler, Handlers, checked
from .inbox import Arrival, Event, Inbox, Recorded
from .provider import Answers, Envelope, Reply
from .queue import Bell

__all__ = ["MARGIN", "UNKNOWN_DEADLINE", "Desk"]

UNKNOWN_DEADLINE = timedelta(seconds=10)
"""For providers that publish none: most cut the line after 10 to 30 s."""

MARGIN = timedelta(seconds=1)
"""Kept of the provider's deadline for the way there and back."""

GRACE = timedelta(milliseconds=400)
"""For a commit that is under way when the time is up; part of the margin."""

AT_ONCE = 64
"""Answers in the making per process. More would mean that they hang; who comes then is answered at once by `on_error`."""

LOOK_EVERY = timedelta(milliseconds=20)
"""How often a repeated call looks for the answer that the first one is about to give."""

TRY_LATER = "Please try again later."

log = logging.getLogger(__name__)


_KEEP = (
    "UPDATE webhook_bodies SET answer = CAST(:answer AS json) WHERE event_id = :event_id AND answer IS NULL"
    " RETURNING event_id"
)
_ENTER = "INSERT INTO webhook_processed_events (event_id, handler, processed_at)"
# While somebody waits, every round trip counts: where it can be, this is one.
_KEEP_POSTGRESQL = (
    text(
        f"WITH kept AS ({_KEEP}), entered AS ({_ENTER} SELECT event_id, CAST(:handler AS varchar), clock_timestamp()"
        " FROM kept ON CONFLICT DO NOTHING) SELECT event_id FROM kept"
    ),
)
_KEEP_SQLITE = (
    text(_KEEP.replace("CAST(:answer AS json)", ":answer")),
    text(f"{_ENTER} VALUES (:event_id, :handler, :now) ON CONFLICT DO NOTHING").bindparams(
        bindparam("now", type_=DateTime(timezone=True))
    ),
)


class _Late(Exception):
    """Nobody waits any more: what the handler did must not count."""


@dataclass
class _Wait:
    """One provider that waits for its answer, between the request's thread and the one that works on it."""

    deadline: float
    """time.monotonic() seconds."""
    done: threading.Event = field(default_factory=threading.Event)
    reply: Reply | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _state: Literal["open", "committing", "left"] = "open"

    def begin_commit(self) -> None:
        """From here on the answer counts. Raises _Late if nobody waits for it."""
        with self._lock:
            if self._state == "left":
                raise _Late
            self._state = "committing"

    def leave(self) -> bool:
        """Wait no longer; False if the answer is being committed, so that it is worth a moment more."""
        with self._lock:
            if self._state == "committing":
                return False
            self._state = "left"
            return True


class Desk:
    """Answers events for one app."""

    def __init__(
        self,
        inbox: Inbox,
        endpoints: Endpoints,
        handlers: Handlers,
        bell: Bell,
        scope: Callable[[], AbstractContextManager[Session]],
    ) -> None:
        self.inbox, self.endpoints, self.handlers, self.bell, self.scope = (
            inbox,
            endpoints,
            handlers,
            bell,
            scope,
        )
        self._free = threading.BoundedSemaphore(AT_ONCE)

    def answerer(self, endpoint: Endpoint, envelopes: list[Envelope]) -> Handler | None:
        """The `answer` handler that this delivery is for; None: it is recorded and acknowledged like any other."""
        if endpoint.provider.answers is None or len(envelopes) != 1:
            return None
        return self.handlers.answerer(endpoint, envelopes[0].type)

    def answer(
        self, endpoint: Endpoint, handler: Handler, envelope: Envelope, arrival: Arrival, started: float
    ) -> Reply:
        """Record the event, run the handler and return what the provider gets to read, before its deadline.

        Never raises. When the handler fails or is late, or the inbox cannot be written, the answer is `on_error`'s.
        """
        wait = _Wait(started + self._allowed(endpoint, handler).total_seconds())
        question = _Question(self.inbox, self.scope, endpoint, handler, envelope, arrival, wait)
        if not self._free.acquire(blocking=False):
            log.error(
                "%s: %d answers are in the making; this one is %s", endpoint.name, AT_ONCE, handler.on_error
            )
            return question.fallback()

        def work() -> None:
            try:
                wait.reply = question.work()
                self.bell.ring()
            finally:
                wait.done.set()
                self._free.release()

        # A thread of its own: what hangs in it cannot be ended, but it can be left.
        threading.Thread(target=work, name="webhooks-answer", daemon=True).start()
        if not wait.done.wait(max(wait.deadline - time.monotonic(), 0)) and not wait.leave():
            wait.done.wait(GRACE.total_seconds())
        if wait.reply is not None:
            return wait.reply
        log.error("%s: %s was not answered in time; it is %s", endpoint.name, envelope.type, handler.on_error)
        return question.fallback()

    def _allowed(self, endpoint: Endpoint, handler: Handler) -> timedelta:
        allowed = (endpoint.provider.policy.respond_within or UNKNOWN_DEADLINE) - MARGIN
        return allowed if handler.within is None else min(allowed, handler.within)


@dataclass
class _Question:
    """One event that is to be answered."""

    inbox: Inbox
    scope: Callable[[], AbstractContextManager[Session]]
    endpoint: Endpoint
    handler: Handler
    envelope: Envelope
    arrival: Arrival
    wait: _Wait

    def __post_init__(self) -> None:
        found = self.endpoint.provider.answers
        assert found is not None
        self.answers: Answers = found

    def fallback(self) -> Reply:
        """What `on_error` says."""
        if self.handler.on_error == "refuse" and self.answers.refuse is not None:
            return self.answers.refuse(self.envelope, TRY_LATER, 503)
        return self.answers.say(self.envelope, None)

    def work(self) -> Reply | None:
        """The answer; None if it came too late."""
        recorded: Recorded | None = None
        try:
            try:
                recorded = self.inbox.record([self.arrival])[0]
            except InboxUnavailable as error:
                if self.handler.on_error == "refuse":
                    raise
                log.error(
                    "%s: %s is answered but not recorded (%s)", self.endpoint.name, self.envelope.type, error
                )
            if recorded is not None and not recorded.new:
                return self._first_answer(recorded.id)
            return self._decide(recorded)
        except Exception as error:  # noqa: BLE001 - whatever broke, somebody waits at a sign-in
            return self._failed(recorded, error)

    # -- the handler

    def _decide(self, recorded: Recorded | None) -> Reply:
        handler = self.handler
        event = _event(self.arrival, self.envelope, recorded)
        with self.scope() as session:
            try:
                data = checked(handler.schema, event.data, f"{handler.name}: the event does not")
                if handler.schema is not None:
                    event = replace(event, data=data)
                with in_handler(Running(session, self.inbox, event, handler.entry)):
                    reply = self._asked(event)
                self.wait.begin_commit()
                if recorded is None:
                    return reply
                stored = self._keep(session, recorded.id, reply)
                if stored is not None:
                    return stored  # somebody else's answer was first, and ours with its work is undone
                session.commit()
            except BaseException:
                session.rollback()
                raise
        return reply

    def _asked(self, event: Event) -> Reply:
        """What the handler says, as the provider reads it. A refusal is an answer: its work counts like any other's."""
        try:
            said = self.handler.function(event)
        except Refuse as refusal:
            if self.answers.refuse is None:
                raise GiveUp(f"{self.endpoint.provider.name} has no way to refuse") from None
            return self._sized(self.answers.refuse(self.envelope, refusal.message, refusal.http_status))
        if said is not None:
            what = f"{self.handler.name}: the answer does not"
            checked(self.handler.reply_schema, said, what)
            if self.envelope.type in self.answers.fields:
                checked(_schema(self.envelope.type, self.endpoint.provider.name, self.answers), said, what)
        try:
            return self._sized(self.answers.say(self.envelope, said))
        except ValueError as wrong:
            raise GiveUp(f"{self.handler.name}: {wrong}") from None

    def _sized(self, reply: Reply) -> Reply:
        size, limit = len(reply.body.encode()), self.answers.max_size
        if limit is not None and size > limit:
            raise GiveUp(
                f"{self.handler.name}: the answer has {size} bytes; {self.endpoint.provider.name} takes {limit}"
            )
        return reply

    # -- stored answers

    def _keep(self, session: Session, event_id: int, reply: Reply, error: str | None = None) -> Reply | None:
        """Within the session's transaction: this is the event's answer, and its ledger row. If it has one: that one."""
        values = {
            "event_id": event_id,
            "answer": jsontext.dumps(_written(reply, error)).decode(),
            "handler": self.handler.entry,
            "now": datetime.now(UTC),
        }
        session.flush()  # the handler's own work comes first
        connection = session.connection(bind_arguments={"bind": self.inbox.engine})
        kept, *more = _KEEP_SQLITE if self.inbox.is_sqlite else _KEEP_POSTGRESQL
        if not connection.execute(kept, values).first():
            bodies = self.inbox.tables.bodies
            found = session.execute(select(bodies.c.answer).where(bodies.c.event_id == event_id)).scalar()
            session.rollback()
            return _read(found) if found is not None else reply
        for statement in more:
            connection.execute(statement, values)
        return None

    def _first_answer(self, event_id: int) -> Reply:
        """What the first call of this event was answered, or is about to be."""
        bodies, events = self.inbox.tables.bodies, self.inbox.tables.events
        asked = (
            select(bodies.c.answer, events.c.received_at, self.inbox.moment())
            .join_from(bodies, events, events.c.id == bodies.c.event_id)
            .where(bodies.c.event_id == event_id)
        )
        allowed = (self.endpoint.provider.policy.respond_within or UNKNOWN_DEADLINE) - MARGIN
        while True:
            with self.inbox.engine.connect() as connection:
                row = connection.execute(asked).one_or_none()
            if row is not None and row[0] is not None:
                return _read(row[0])
            # The provider's deadline is for all its calls together, and it began with the first one.
            over = row is None or _naive(row[2]) - _naive(row[1]) > allowed
            if over or time.monotonic() > self.wait.deadline:
                raise GiveUp("an earlier call of the same event was cut off before it was answered")
            time.sleep(LOOK_EVERY.total_seconds())

    def _failed(self, recorded: Recorded | None, error: Exception) -> Reply | None:
        """`on_error`'s answer, stored like any other, so that a repeated call does not run the handler again."""
        reply = self.fallback()
        late = isinstance(error, _Late)
        said = "late" if late else summary(error)
        if not late:
            log.error("%s: %s: %s", self.endpoint.name, self.envelope.type, said)
        if recorded is not None and recorded.new:
            try:
                with self.scope() as session:
                    stored = self._keep(session, recorded.id, reply, said)
                    if isinstance(error, GiveUp):
                        self._bury(session, recorded.id, said)
                    session.commit()
                    reply = stored or reply
            except Exception as second:  # noqa: BLE001 - the provider is answered in any case
                log.error("%s: an answer could not be stored (%s)", self.endpoint.name, type(second).__name__)
        return None if late else reply

    def _bury(self, session: Session, event_id: int, said: str) -> None:
        events = self.inbox.tables.events
        session.execute(
            update(events)
            .where(events.c.id == event_id, events.c.state == "pending")
            .values(state="dead", outcome="gave_up", error=said, finished_at=self.inbox.moment())
        )


def _event(arrival: Arrival, envelope: Envelope, recorded: Recorded | None) -> Event:
    return Event(
        id=recorded.id if recorded is not None else 0,
        endpoint=arrival.endpoint,
        dedup_key=arrival.dedup_key,
        origin="delivery",
        type=arrival.type,
        object=arrival.object,
        account=arrival.account,
        livemode=arrival.livemode,
        gone=arrival.gone,
        version=arrival.version,
        occurred_at=arrival.occurred_at,
        received_at=datetime.now(UTC),
        deliveries=1,
        digest=arrival.digest,
        correlation=arrival.correlation,
        attempts=1,
        claim_no=0,
        data=envelope.data,
        snapshot=envelope.snapshot,
    )


def _written(reply: Reply, error: str | None) -> dict[str, Any]:
    return {
        "status": reply.status,
        "body": reply.body,
        "content_type": reply.content_type,
        "headers": dict(reply.headers),
        "error": error,
    }


def _read(stored: Mapping[str, Any]) -> Reply:
    return Reply(stored["status"], stored["body"], stored["content_type"], stored["headers"] or {})


def _naive(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo is not None else moment


class _OneOf(fields.Field[Any]):
    """A value of one of several types. bool is no int here."""

    def __init__(self, types: tuple[type, ...], **options: Any) -> None:
        super().__init__(**options)
        self._types = types

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> Any:
        if not isinstance(value, self._types) or (isinstance(value, bool) and bool not in self._types):
            raise ValidationError(f"must be {' or '.join(t.__name__ for t in self._types)}")
        return value


_schemas: dict[tuple[str, str], type[Schema]] = {}


def _schema(type_: str, provider: str, answers: Answers) -> type[Schema]:
    if (provider, type_) not in _schemas:
        _schemas[provider, type_] = _schema_of(answers.fields[type_], "Answer")
    return _schemas[provider, type_]


def _schema_of(wanted: Mapping[str, Any], name: str) -> type[Schema]:
    made: dict[str, Any] = {}
    for field_name, kind in wanted.items():
        if isinstance(kind, Mapping):
            made[field_name] = fields.Nested(_schema_of(kind, field_name), required=True)
        else:
            made[field_name] = _OneOf(kind if isinstance(kind, tuple) else (kind,), required=True)
    return Schema.from_dict(made, name=name)
