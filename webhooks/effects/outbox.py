"""The effects of one database: promise, take, finish, settle. What nobody can know is state `unknown`, never hidden.

recorded ─▶ started ─▶ done      it happened
    ▲          │ ├───▶ dead      it did not happen, and nobody tries again
    └──────────┘ └───▶ unknown   it may have happened: `lookup=` or a person settles it
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Protocol

from sqlalchemy import Connection, and_, delete, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from ..inbox import Inbox
from ..jsontext import Json

__all__ = ["LEASE", "Outbox", "Taken"]

LEASE = timedelta(minutes=5)
"""A call that takes longer is taken to have died with its worker. Give every call a time limit well below it."""

PURGE_BATCH = 1000

UNSETTLED = ("recorded", "started", "unknown")


class Definition(Protocol):
    """What the outbox must know of an effect."""

    @property
    def name(self) -> str: ...
    @property
    def idempotent(self) -> bool: ...
    @property
    def key_lifetime(self) -> timedelta: ...
    @property
    def lookup(self) -> Any: ...
    @property
    def lookup_after(self) -> timedelta: ...
    @property
    def max_attempts(self) -> int: ...


@dataclass(frozen=True)
class Taken:
    """One effect that is this worker's, to be called, or to be looked up at the other side."""

    key: str
    name: str
    what: Literal["call", "lookup"]
    arguments: Mapping[str, Any] = field(repr=False)
    attempts: int
    looks: int
    call_no: int
    maybe: bool
    """An earlier call under the same key may have done it."""


class Outbox:
    """The effects that are promised in one database. Every method but `promise` is a transaction of its own."""

    def __init__(self, inbox: Inbox, *, lease: timedelta = LEASE) -> None:
        self.inbox = inbox
        self.lease = lease

    # -- in

    def promise(
        self,
        session: Session,
        key: str,
        *,
        endpoint: str,
        event_id: int | None,
        handler: str,
        name: str,
        per: str | None,
        arguments: Mapping[str, Any],
    ) -> bool:
        """Within the session's transaction: enter the effect, unless it was promised before; whether it is new."""
        effects = self.inbox.tables.effects
        now = self.inbox.moment()
        insert = sqlite.insert(effects) if self.inbox.is_sqlite else postgresql.insert(effects)
        entered = session.execute(
            insert.values(
                idempotency_key=key,
                endpoint=endpoint,
                event_id=event_id,
                handler=handler,
                name=name,
                per=per and per[:255],
                arguments=dict(arguments),
                state="recorded",
                attempts=0,
                looks=0,
                call_no=0,
                due_at=now,
                recorded_at=now,
            )
            .on_conflict_do_nothing()
            .returning(effects.c.idempotency_key)
        ).first()
        session.info["webhooks_promised"] = True
        return entered is not None

    # -- take

    def take(self, definitions: Mapping[str, Definition] | Iterable[Definition]) -> Taken | None:
        """The next effect that is due, marked and committed before anything is called; None if there is none.

        An effect whose lease ran out may have happened: it is started again only if its callee knows the key still,
        else it becomes unknown. Effects that no definition names are left alone, for the worker that has it.
        """
        known = {
            d.name: d for d in (definitions.values() if isinstance(definitions, Mapping) else definitions)
        }
        if not known:
            return None
        while True:
            with self.inbox.transaction() as connection:
                row = self._next(connection, known)
                if row is None:
                    return None
                taken = self._take(connection, row, known[row.name])
            if taken is not None:
                return taken

    def _next(self, connection: Connection, known: Mapping[str, Definition]) -> Any:
        c = self.inbox.tables.effects.c
        looked = [d.name for d in known.values() if d.lookup is not None]
        ours = or_(
            and_(c.state.in_(["recorded", "started"]), c.name.in_(list(known))),
            and_(c.state == "unknown", c.name.in_(looked)),
        )
        return connection.execute(
            select(self.inbox.tables.effects, self.inbox.moment().label("now"))
            # The state twice: once for the planner, whose partial index has just this condition.
            .where(c.state.in_(UNSETTLED), c.due_at <= self.inbox.moment(), ours)
            .order_by(c.due_at, c.idempotency_key)
            .limit(1)
            .with_for_update(skip_locked=True)
        ).one_or_none()

    def _take(self, connection: Connection, row: Any, definition: Definition) -> Taken | None:
        moment = self.inbox.moment
        attempts, looks, call_no = row.attempts, row.looks, row.call_no
        what: Literal["call", "lookup"] = "call"
        if row.state == "unknown":
            what, looks = "lookup", looks + 1
            values: dict[str, Any] = {"looks": looks, "due_at": moment(self.lease)}
        elif row.first_started_at is not None and not self._may_repeat(row, definition):
            self._update(
                connection, row.idempotency_key, self._unknown(definition, _why_not(row, definition))
            )
            return None
        else:
            attempts, call_no = attempts + 1, call_no + 1
            values = {
                "state": "started",
                "attempts": attempts,
                "call_no": call_no,
                "started_at": moment(),
                "first_started_at": row.first_started_at or moment(),
                "due_at": moment(self.lease),
            }
        self._update(connection, row.idempotency_key, values)
        return Taken(
            row.idempotency_key,
            row.name,
            what,
            row.arguments or {},
            attempts,
            looks,
            call_no,
            row.first_started_at is not None,
        )

    def _may_repeat(self, row: Any, definition: Definition) -> bool:
        """Whether calling once more cannot make it happen twice.

        `first_started_at` is when the first call began that may have done it: a call that says that it did nothing
        leaves no trace there.
        """
        if not definition.idempotent or (row.state == "started" and row.attempts >= definition.max_attempts):
            return False
        # The callee counts from its first sight of the key; a call may take until our lease ends.
        age = _aware(row.now) - _aware(row.first_started_at)
        return age + min(self.lease, definition.key_lifetime / 2) < definition.key_lifetime

    def _unknown(self, definition: Definition, error: str) -> dict[str, Any]:
        due = self.inbox.moment(definition.lookup_after) if definition.lookup is not None else None
        return {"state": "unknown", "due_at": due, "error": error}

    def _update(self, connection: Connection, key: str, values: Mapping[str, Any]) -> None:
        effects = self.inbox.tables.effects
        connection.execute(update(effects).where(effects.c.idempotency_key == key).values(**values))

    # -- finish: only with the number that the effect was taken with

    def done(self, taken: Taken, result: Json = None) -> bool:
        """It happened. Also true of an effect that is unknown by now, because its worker took so long."""
        values = {"state": "done", "finished_at": self.inbox.moment(), "due_at": None, "error": None}
        return self._finish(taken, {**values, "result": result})

    def again(self, taken: Taken, error: str, after: timedelta) -> bool:
        """It may be repeated: call it again, no sooner than that."""
        return self._finish(taken, {"state": "recorded", "due_at": self.inbox.moment(after), "error": error})

    def not_yet(self, taken: Taken, error: str, after: timedelta, *, counts: bool) -> bool:
        """This call did nothing: the next one is, for the callee, what this one would have been."""
        values: dict[str, Any] = {"state": "recorded", "due_at": self.inbox.moment(after), "error": error}
        if not counts:
            values["attempts"] = max(taken.attempts - 1, 0)
        if not taken.maybe:
            values["first_started_at"] = None
        return self._finish(taken, values)

    def dead(self, taken: Taken, definition: Definition, error: str) -> str:
        """This call did nothing, and trying again cannot help; returns `dead`, or `unknown` if an earlier one may have."""
        if taken.maybe and taken.what == "call":
            self.unknown(taken, definition, error)
            return "unknown"
        values = {"state": "dead", "finished_at": self.inbox.moment(), "due_at": None, "error": error}
        self._finish(taken, values)
        return "dead"

    def unknown(self, taken: Taken, definition: Definition, error: str) -> bool:
        """It may have happened."""
        return self._finish(taken, self._unknown(definition, error))

    def never_happened(self, taken: Taken, error: str, after: timedelta) -> bool:
        """The other side says so: call it, as for the first time."""
        due = self.inbox.moment(after)
        return self._finish(
            taken, {"state": "recorded", "due_at": due, "error": error, "first_started_at": None}
        )

    def look_again(self, taken: Taken, error: str, after: timedelta | None) -> bool:
        """The other side could not tell; ask again after that time (None: a person decides)."""
        due = None if after is None else self.inbox.moment(after)
        return self._finish(taken, {"state": "unknown", "due_at": due, "error": error})

    def _finish(self, taken: Taken, values: Mapping[str, Any]) -> bool:
        c = self.inbox.tables.effects.c
        mine = and_(c.idempotency_key == taken.key, c.call_no == taken.call_no)
        if taken.what == "lookup":
            mine = and_(mine, c.state == "unknown", c.looks == taken.looks)
        else:
            mine = and_(mine, c.state.in_(["started", "unknown"]))
        with self.inbox.transaction() as connection:
            return bool(
                connection.execute(update(self.inbox.tables.effects).where(mine).values(**values)).rowcount
            )

    # -- by people

    def settle(self, key: str, *, done: bool) -> bool:
        """A person knows what became of an unknown effect: it happened, or call it again. False: it is not unknown."""
        return self._decide([key], "unknown", done=done) == 1

    def redrive(self, keys: Collection[str]) -> int:
        """Call dead effects again, with all their attempts; how many they were."""
        return self._decide(keys, "dead", done=False)

    def _decide(self, keys: Collection[str], state: str, *, done: bool) -> int:
        c, now = self.inbox.tables.effects.c, self.inbox.moment()
        if done:
            values: dict[str, Any] = {"state": "done", "finished_at": now, "due_at": None}
        else:
            # As if it had never been called: its key is as good as new to whoever has forgotten it.
            values = {
                "state": "recorded",
                "attempts": 0,
                "looks": 0,
                "first_started_at": None,
                "finished_at": None,
            }
            values["due_at"] = now
        values["call_no"] = c.call_no + 1  # whoever still calls it has nothing to say any more
        with self.inbox.transaction() as connection:
            mine = and_(c.idempotency_key.in_(keys), c.state == state)
            return int(
                connection.execute(update(self.inbox.tables.effects).where(mine).values(**values)).rowcount
            )

    # -- numbers

    def due(self, within: timedelta = timedelta(0)) -> int:
        """How many effects are due, or will be within that time."""
        c = self.inbox.tables.effects.c
        due = select(func.count()).where(c.state.in_(UNSETTLED), c.due_at <= self.inbox.moment(within))
        with self.inbox.engine.connect() as connection:
            return int(connection.scalar(due) or 0)

    def next_due(self) -> timedelta | None:
        """How long until the next effect is due; None if nothing is."""
        c = self.inbox.tables.effects.c
        with self.inbox.engine.connect() as connection:
            first, now = connection.execute(
                select(func.min(c.due_at), self.inbox.moment()).where(c.state.in_(["recorded", "unknown"]))
            ).one()
        return None if first is None else max(_aware(first) - _aware(now), timedelta(0))

    # -- old rows

    def purge(self, older_than: timedelta) -> int:
        """Delete effects that were done longer ago. As long as events are kept, so must their effects' keys be."""
        effects, total = self.inbox.tables.effects, 0
        old = (
            select(effects.c.idempotency_key)
            .where(effects.c.state == "done", effects.c.finished_at < self.inbox.moment(-older_than))
            .limit(PURGE_BATCH)
        )
        while True:
            with self.inbox.transaction() as connection:
                gone = connection.execute(delete(effects).where(effects.c.idempotency_key.in_(old))).rowcount
            total += gone
            if gone < PURGE_BATCH:
                return int(total)


def _why_not(row: Any, definition: Definition) -> str:
    if not definition.idempotent:
        return "its worker died, or took longer than its lease, while it was being called"
    if row.attempts >= definition.max_attempts:
        return f"cut off {row.attempts} times"
    return "its callee may have forgotten the key by now, so that a repeat would be a second time"


def _aware(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
