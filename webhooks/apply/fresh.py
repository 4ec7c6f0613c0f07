"""See to it, for somebody who waits, that our copy of one object is what the provider has now."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import and_, select

from .. import jsontext
from ..endpoints import Endpoint
from ..errors import ConfigError, HandlerCommitted
from ..handlers import Handler
from ..inbox import Arrival
from ..jsontext import Json
from ..models import stored_key
from ..provider import ObjectRef
from .running import now_running

if TYPE_CHECKING:
    from . import Applier

__all__ = ["Copy", "ensure_fresh"]

FIRST_PAUSE = 0.01
LONGEST_PAUSE = 0.25
"""Seconds between two looks at a claim that another worker has."""


@dataclass(frozen=True)
class Copy:
    """Our copy of an object, and whether it can be relied on."""

    state: Literal["fresh", "gone", "late", "absent"]
    """`fresh`: read while we waited. `gone`: read while we waited, and the provider has it no more. `late`: the time was
    up, or it could not be read; this is what we had. `absent`: the same, and we had none."""
    data: Json = field(default=None, repr=False)
    """None also where the endpoint keeps no data (`mirror="none"`)."""
    version: str | None = None
    as_of: datetime | None = None

    @property
    def is_fresh(self) -> bool:
        return self.state in {"fresh", "gone"}


def ensure_fresh(
    applier: Applier, endpoint: str, kind: str, id_: str, *, within: timedelta, account: str, flow: str | None
) -> Copy:
    """Apply what waits for the object, wait for a claim that is running, or fetch it; return our copy of it."""
    if now_running() is not None:
        raise HandlerCommitted(
            "ensure_fresh waits for the network, and a handler is within a transaction; it gets the object"
        )
    found = applier.endpoints.at(endpoint)
    if found is None:
        raise ConfigError(
            f"there is no endpoint {endpoint!r} in WEBHOOKS; there are {sorted(applier.endpoints)}"
        )
    trigger = None if flow is None else _trigger(applier, found, flow)
    if trigger is None and not applier.wants_kind(found, kind):
        raise ConfigError(
            f"nobody keeps a copy of {kind!r} of {endpoint}: register a sync() for it, or set mirror to 'all'"
        )
    one = _One(applier, found, ObjectRef(kind, stored_key(id_)), account, trigger)
    return one.freshen(time.monotonic() + within.total_seconds())


def _trigger(applier: Applier, endpoint: Endpoint, flow: str) -> Handler:
    for handler in applier.handlers.flows():
        if handler.flow == flow and handler.is_for(endpoint):
            return handler
    raise ConfigError(f"no handler for {endpoint.name} has flow={flow!r}")


@dataclass
class _One:
    applier: Applier
    endpoint: Endpoint
    ref: ObjectRef
    account: str
    trigger: Handler | None

    def freshen(self, deadline: float) -> Copy:
        before = self._row()
        number = 0 if before is None else int(before.claim_no)
        asked, pause = False, FIRST_PAUSE
        while True:
            waiting, running = self._open()
            if not running:
                row = self._row()
                read = row is not None and row.claim_no > number
                if not waiting and read and (asked or self._decided()):
                    return _copy(row, read=True)
                if not waiting and asked:
                    return _copy(row, read=read)  # it could not be read: see the event's outcome
                if not asked and (not waiting or not self._decided()) and not (read and self._decided()):
                    asked = True
                    if not self._ask(number):
                        return _copy(row, read=read)
                    waiting, _ = self._open()
                if waiting and self.applier.apply_now(waiting, deadline=deadline).events:
                    continue
            if time.monotonic() + pause > deadline:
                row = self._row()
                return _copy(row, read=row is not None and row.claim_no > number)
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _mine(self) -> Any:
        c = self.applier.inbox.tables.events.c
        return and_(
            c.endpoint == self.endpoint.name,
            c.object_kind == self.ref.kind,
            c.object_id == self.ref.id,
            c.account == self.account,
        )

    def _open(self) -> tuple[list[int], bool]:
        """The events that wait for the object, and whether somebody applies some of them now."""
        inbox = self.applier.inbox
        c = inbox.tables.events.c
        with inbox.engine.connect() as connection:
            rows = connection.execute(
                select(c.id, c.state, (c.due_at > inbox.moment()).label("held")).where(
                    self._mine(), c.state.in_(["pending", "applying"])
                )
            ).all()
        return [row.id for row in rows], any(row.state == "applying" and row.held for row in rows)

    def _decided(self) -> bool:
        """Whether the flow's handler has had an event of this object; True where no flow is asked for."""
        if self.trigger is None:
            return True
        inbox = self.applier.inbox
        ledger, events = inbox.tables.processed_events, inbox.tables.events
        with inbox.engine.connect() as connection:
            entered = select(ledger.c.event_id).join(events, events.c.id == ledger.c.event_id)
            found = connection.execute(
                entered.where(self._mine(), ledger.c.handler == self.trigger.entry).limit(1)
            )
            return found.first() is not None

    def _ask(self, number: int) -> bool:
        """Record an event of our own; whether there is any way to ask. Of several who ask at once, one event is made."""
        provider = self.endpoint.provider
        if not self.endpoint.fetches or (provider.kinds and self.ref.kind not in provider.kinds):
            return False
        flow = self.trigger.flow if self.trigger is not None else None
        arrival = Arrival(
            self.endpoint.name,
            stored_key(f"fresh:{flow or ''}:{self.account}:{self.ref.kind}:{self.ref.id}:{number}"),
            origin="fresh",
            type=f"fresh.{self.ref.kind}" if self.trigger is None else self.trigger.types[0],
            object=self.ref,
            account=self.account,
            correlation=flow,
            body=jsontext.dumps({"fresh": self.ref.kind, "id": self.ref.id}),
        )
        (recorded,) = self.applier.inbox.record([arrival])
        if not recorded.new:
            self.applier.inbox.redrive([recorded.id])  # it may have died of an API that was down
        return True

    def _row(self) -> Any:
        objects = self.applier.inbox.tables.objects
        c = objects.c
        with self.applier.inbox.engine.connect() as connection:
            return connection.execute(
                select(c.claim_no, c.as_of, c.version, c.data, c.deleted_at).where(
                    c.endpoint == self.endpoint.name,
                    c.account == self.account,
                    c.kind == self.ref.kind,
                    c.id == self.ref.id,
                )
            ).one_or_none()


def _copy(row: Any, *, read: bool) -> Copy:
    if row is None:
        return Copy("absent")
    as_of = row.as_of if row.as_of.tzinfo else row.as_of.replace(tzinfo=UTC)
    gone = row.deleted_at is not None
    return Copy(
        ("gone" if gone else "fresh") if read else "late", None if gone else row.data, row.version, as_of
    )
