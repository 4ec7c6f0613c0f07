"""One object in one transaction: freshness, ledger, handlers, state. All of it commits, or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy.orm import Session

from .. import jsontext
from ..endpoints import Endpoint
from ..errors import NotVisibleYet, TimeLimit, WebhooksError
from ..handlers import Handler, Handlers
from ..inbox import Event, Group, Inbox, read_version, write_version
from ..jsontext import Json
from ..provider import ObjectRef
from .fetching import Fetched, is_behind, older, regresses, require_visible
from .limiting import within
from .running import Running, in_handler
from .statements import Guard, Statements

__all__ = ["ClaimLost", "Refetch", "Write"]

_Guard = Literal["claim", "absent", "locked"]


class ClaimLost(WebhooksError):
    """Our lease ran out and another worker has taken the events: what we did is rolled back, what it does counts."""


class Refetch(WebhooksError):
    """Another worker wrote a fresher copy that is not kept as data: the events are claimed and fetched again."""


@dataclass
class Write:
    """The transaction for one group; `run` is called again, from the start, if the database asks for that."""

    session: Session
    inbox: Inbox
    statements: Statements
    endpoint: Endpoint
    handlers: Handlers
    group: Group
    fetched: Fetched
    claim_no: int
    as_of: datetime
    keep_data: bool

    def run(self) -> list[str]:
        """Apply all events of the group and give each its outcome; return the outcomes. The caller commits.

        Raises what a handler raises, NotVisibleYet, Refetch, or ClaimLost.
        """
        events = list(self.group.events)
        at_once = self._at_once(events)
        if at_once is not None:
            return at_once
        outcomes: dict[int, tuple[str, str]] = {}
        if self.endpoint.provider.guards_body:
            for event in self._copies(events):
                outcomes[event.id] = ("ignored", "duplicate_body")
            events = [event for event in events if event.id not in outcomes]
        if self.group.object is None:
            for event in events:
                outcomes[event.id] = self._occasion(event, event.data, gone=False) or (
                    "ignored",
                    "no_handler",
                )
        elif self.fetched.asked:
            outcomes |= self._write_fetched(self.group.object, events)
        else:
            outcomes |= self._write_carried(self.group.object, events)
        self._close(outcomes)
        return [outcome for _, outcome in outcomes.values()]

    # -- what most groups are, in one round trip

    def _at_once(self, events: Sequence[Event]) -> list[str] | None:
        """Write an object that only `sync` handlers are for and that needs no look at our row; None: it is not so simple.

        The events get their outcome before the handlers run; one that raises takes all of it back.
        """
        ref = self.group.object
        if self.statements.at_once is None or ref is None:
            return None
        guard = self._guard(ref, events)
        if guard is None:
            return None
        syncs = self.handlers.syncs(self.endpoint, ref.kind)
        newest = events[-1]
        thing = self.fetched.data if self.fetched.asked else newest.snapshot
        as_of = self.as_of if self.fetched.asked else newest.occurred_at or newest.received_at
        outcome = self._healed(newest) if self.fetched.asked else "applied"
        values = self._row(ref, None, thing, gone=False, as_of=as_of) | {
            "entries": [handler.entry for handler in syncs],
            "ids": [event.id for event in events],
            "newest": newest.id,
            "outcome": outcome,
        }
        done = self.session.connection().execute(self.statements.at_once[guard], values).one()
        if done.closed != len(events):
            raise ClaimLost
        if not done.fresh:
            return ["stale"] * len(events)
        for handler in syncs:
            self._call(handler, newest, handler.checked(thing))
        self.session.flush()
        return ["covered"] * (len(events) - 1) + [outcome]

    def _guard(self, ref: ObjectRef, events: Sequence[Event]) -> Guard | None:
        """By what the stored row is known to be newer, where nothing else has to be looked at."""
        provider = self.endpoint.provider
        if any(event.digest is not None and provider.guards_body for event in events):
            return None
        if any(event.gone or self._ons(event) for event in events):
            return None
        if self.fetched.asked:
            versioned = self._version(ref, self.fetched.data) is not None
            return None if self.fetched.gone or versioned else "claim_no"
        (event, *more) = events
        simple = not more and event.snapshot is not None and event.origin != "fresh"
        versioned = event.version is not None or self._version(ref, event.snapshot) is not None
        return "as_of" if simple and not versioned else None

    # -- the object as fetched

    def _write_fetched(self, ref: ObjectRef, events: Sequence[Event]) -> dict[int, tuple[str, str]]:
        version = self._version(ref, self.fetched.data)
        stored = self._stored(ref) if self.fetched.gone or version is not None else None
        require_visible(self.group, self.fetched, self.as_of, known=stored is not None)
        if any(is_behind(self.endpoint, event, self.fetched, self.as_of) for event in events):
            raise NotVisibleYet("the API shows an older version than the event says")
        if stored is not None and regresses(events, version, stored.version, self.as_of):
            raise NotVisibleYet("the API shows an older version than we already have")
        fresh = self._freshen(ref, version, self.fetched.data, gone=self.fetched.gone, as_of=self.as_of)
        thing, gone = (self.fetched.data, self.fetched.gone) if fresh else self._fresher(ref)
        if fresh:
            self._sync(ref, events, thing)
        outcomes = {}
        for event in events:
            done = self._occasion(event, thing, gone=gone)
            if done is not None:
                outcomes[event.id] = done
            elif gone:
                outcomes[event.id] = ("applied", "object_gone")
            elif not fresh:
                outcomes[event.id] = ("applied", "stale")
            else:
                newest = event is events[-1]
                outcomes[event.id] = ("applied", self._healed(event) if newest else "covered")
        return outcomes

    def _healed(self, event: Event) -> str:
        return "healed" if event.origin == "reconcile" else "applied"

    def _fresher(self, ref: ObjectRef) -> tuple[Json, bool]:
        """What the other worker wrote; our events' `on` handlers see that."""
        stored = self._stored(ref)
        assert stored is not None
        if stored.deleted_at is not None:
            return None, True
        if stored.data is None:
            raise Refetch
        return stored.data, False

    # -- where nothing can be fetched: the event's own time decides, or the provider's rank

    def _write_carried(self, ref: ObjectRef, events: Sequence[Event]) -> dict[int, tuple[str, str]]:
        outcomes = {}
        for event in sorted(events, key=lambda e: (e.occurred_at or e.received_at, e.id)):
            # What we ask for ourselves carries nothing.
            fresh = event.origin != "fresh" and self._carry(ref, event)
            stored = None if fresh else self._stored(ref)
            thing = event.snapshot if stored is None or stored.data is None else stored.data
            gone = event.gone if stored is None else stored.deleted_at is not None
            if fresh:
                self._sync(ref, [event], None if event.gone else event.snapshot)
            done = self._occasion(event, thing, gone=gone)
            outcomes[event.id] = done or ("applied", "applied" if fresh else "stale")
        return outcomes

    def _carry(self, ref: ObjectRef, event: Event) -> bool:
        """Write what the event carries, unless we have something newer. Equal times are not stale."""
        version = event.version or self._version(ref, event.snapshot)
        as_of = event.occurred_at or event.received_at
        stored = self._stored(ref)
        if stored is None:
            if self._freshen(ref, version, event.snapshot, gone=event.gone, as_of=as_of, guard="absent"):
                return True
            stored = self._stored(ref)  # another worker was first; now the row is there, and locked
        ranked = version is not None and stored.version is not None
        if (
            older(read_version(version), read_version(stored.version))
            if ranked
            else as_of < _aware(stored.as_of)
        ):
            return False
        return self._freshen(ref, version, event.snapshot, gone=event.gone, as_of=as_of, guard="locked")

    # -- the parts

    def _version(self, ref: ObjectRef, data: Json) -> str | None:
        version = self.endpoint.provider.version
        return write_version(version(ref, data)) if version is not None and data is not None else None

    def _key(self, ref: ObjectRef) -> dict[str, Any]:
        return {
            "endpoint": self.endpoint.name,
            "account": self.group.account,
            "kind": ref.kind,
            "id": ref.id,
        }

    def _stored(self, ref: ObjectRef) -> Any:
        """Our row of the object, locked until the end of the transaction; None if there is none."""
        return self.session.execute(self.statements.lock, self._key(ref)).one_or_none()

    def _freshen(
        self,
        ref: ObjectRef,
        version: str | None,
        data: Json,
        *,
        gone: bool,
        as_of: datetime,
        guard: _Guard = "claim",
    ) -> bool:
        """Write the object's row, unless the guard forbids it; return whether we did. Locks the row.

        `claim`: a later claim has written it; its fetch was later too, so ours may be older. `absent`: there is a row.
        `locked`: the caller holds the row and has decided.
        """
        said = self.statements
        statement = {"claim": said.write_newer, "absent": said.write_absent, "locked": said.write}[guard]
        row = self._row(ref, version, data, gone=gone, as_of=as_of)
        return self.session.execute(statement, row).first() is not None

    def _row(
        self, ref: ObjectRef, version: str | None, data: Json, *, gone: bool, as_of: datetime
    ) -> dict[str, Any]:
        return {
            **self._key(ref),
            "path": ref.path or None,
            "claim_no": self.claim_no,
            "as_of": as_of,
            "version": version,
            "digest": None if data is None else jsontext.digest(data),
            "data": jsontext.dumps(data).decode()
            if self.keep_data and not gone and data is not None
            else None,
            "deleted_at": as_of if gone else None,
            "now": datetime.now(UTC),
        }

    def _copies(self, events: Sequence[Event]) -> list[Event]:
        """Those events whose body came before under another id. Where the id is not signed, that is a replay."""
        copies = []
        for event in events:
            if event.digest is None or event.origin == "replay":
                continue
            values = {
                "endpoint": event.endpoint,
                "digest": event.digest,
                "id": event.id,
                "type": event.type,
                "account": event.account,
            }
            if self.session.execute(self.statements.copies, values).first() is not None:
                copies.append(event)
        return copies

    def _enter(self, handler: Handler, events: Sequence[Event]) -> set[int]:
        """Enter into the ledger; return the ids of the events that were not there before."""
        values = {"handler": handler.entry, "ids": [event.id for event in events], "now": datetime.now(UTC)}
        return set(self.session.execute(self.statements.enter, values).scalars())

    def _sync(self, ref: ObjectRef, events: Sequence[Event], thing: Json) -> None:
        """Copy the object once, whatever number of events the claim has for it."""
        if not events:
            return
        for handler in self.handlers.syncs(self.endpoint, ref.kind):
            self._enter(handler, events)
            self._call(handler, events[-1], handler.checked(thing))

    def _occasion(self, event: Event, thing: Json, *, gone: bool) -> tuple[str, str] | None:
        """Run the `on` handlers of one event that it has not had; None if it has none."""
        outcome = None
        for handler in self._ons(event):
            checked = handler.checked(thing)  # before `when` and `once_per`, which may rely on the fields
            if handler.when is not None and (gone or not handler.when(thing)):
                outcome = outcome or ("ignored", "condition_not_met")
            elif not self._enter(handler, [event]):
                outcome = outcome or ("applied", "applied")
            elif handler.flow is not None and not self._decide(handler, event, thing):
                outcome = outcome or ("ignored", "flow_already_decided")
            else:
                self._call(handler, event, checked)
                outcome = ("applied", "applied")
        return outcome

    def _ons(self, event: Event) -> list[Handler]:
        """The `on` handlers for an event. One that we made ourselves is no occasion: it decides the flow it names."""
        wanted = self.handlers.ons(self.endpoint, event.type)
        if event.origin != "fresh":
            return wanted
        return [
            handler for handler in wanted if handler.flow is not None and handler.flow == event.correlation
        ]

    def _decide(self, handler: Handler, event: Event, thing: Json) -> bool:
        """Whether this event decides the flow for its key: the unique key says so, whoever comes at the same time.

        A flow that this one replaces is decided along with it, so that either trigger finds what the other did.
        """
        for flow, key in handler.keys(thing, event.data):
            row = {
                "flow": flow,
                "key": key,
                "event_id": event.id,
                "handler": handler.name,
                "now": datetime.now(UTC),
            }
            if self.session.execute(self.statements.decide, row).first() is None:
                return False
        return True

    def _call(self, handler: Handler, event: Event, thing: Json) -> None:
        def work() -> None:
            handler.function(event, thing)
            self.session.flush()  # what waits for a lock is part of the handler's time

        limit = handler.time_limit if handler.time_limit is not None else self.endpoint.time_limit
        with in_handler(Running(self.session, self.inbox, event, handler.entry)):
            try:
                within(limit, work, handler.name, self.session, self.inbox.engine)
            except TimeLimit as over:
                over.event_id = event.id if handler.verb == "on" else None
                raise

    def _close(self, outcomes: dict[int, tuple[str, str]]) -> None:
        """Enter the outcomes; the fence: if one of the events is not ours any more, nothing of this counts."""
        self.session.flush()
        kinds: dict[tuple[str, str], list[int]] = {}
        for id_, decided in outcomes.items():
            kinds.setdefault(decided, []).append(id_)
        for (state, outcome), ids in kinds.items():
            values = {"state": state, "outcome": outcome, "error": None, "claim_no": self.claim_no}
            done: Any = self.session.execute(
                self.statements.close, {**values, "ids": ids, "now": datetime.now(UTC)}
            )
            if done.rowcount != len(ids):
                raise ClaimLost


def _aware(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
