"""The one path: claim, fetch, one transaction per object. Workers, `flask webhooks work`, `apply="request"` and
`ensure_fresh` all go it."""

from __future__ import annotations

import logging
import math
import os
import random
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import timedelta

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from ..api import Apis
from ..endpoints import Endpoint, Endpoints
from ..errors import GiveUp, RateLimited, RetryLater, TimeLimit, Unreadable
from ..handlers import Handlers
from ..inbox import Claim, Event, Group, Inbox, Sealed
from ..queue import Bell
from .failures import backoff, is_the_events_own, may_repeat, report, summary
from .fetching import Fetched, fetch
from .flights import Flight, Flights
from .fresh import Copy, ensure_fresh
from .limiting import within
from .mirroring import BATCH as MIRROR_BATCH
from .mirroring import Mirrored, is_plain, mirror
from .pace import Pace
from .reading import Bodies, Body, read_again, read_delivery, with_bodies
from .running import Running, in_handler, now_running, refuse_commit, refuse_second_connection
from .statements import Statements, statements
from .writing import ClaimLost, Refetch, Write

__all__ = [
    "Applied",
    "Applier",
    "Copy",
    "Running",
    "backoff",
    "ensure_fresh",
    "in_handler",
    "now_running",
    "read_again",
    "read_delivery",
    "refuse_commit",
    "refuse_second_connection",
    "summary",
    "within",
]

log = logging.getLogger(__name__)

TRIES = 6
"""Times a transaction is repeated when the database asks for it, or was away for a moment."""


SHIFT = timedelta(seconds=50)
"""A doorbell's task ends after that and rings again, so that a long backlog does not look like a stuck task."""

RING_AHEAD = timedelta(seconds=60)
"""Postponed events that are due within this are rung for; the sweep finds the others."""


@dataclass
class Applied:
    """What one pass did."""

    events: int = 0
    claims: int = 0
    fetches: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)

    def add(self, other: Applied) -> None:
        """Count what another pass did as ours."""
        self.events += other.events
        self.claims += other.claims
        self.fetches += other.fetches
        for outcome, number in other.outcomes.items():
            self.count(outcome, number)

    def count(self, outcome: str, number: int = 1) -> None:
        """So many events have had this outcome."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + number


@dataclass(frozen=True)
class _Prepared:
    """A claim that can be written: its objects are being asked for."""

    claim: Claim
    bodies: Bodies
    unasked: list[Group]
    """Those of its groups that no API is asked for."""
    asked: list[Group]
    answers: Iterable[tuple[Group, Fetched | Exception]]
    """The others with what the provider says, as it says it."""
    done: Applied
    """What was done with those that are not to be written."""

    def close(self) -> None:
        """Ask for nothing more."""
        if isinstance(self.answers, Flight):
            self.answers.close()


@dataclass
class Applier:
    """Applies what is in one inbox, for one app."""

    inbox: Inbox
    endpoints: Endpoints
    handlers: Handlers
    apis: Apis
    bell: Bell
    scope: Callable[[], AbstractContextManager[Session]]
    """A fresh session of the host's, inside an app context."""
    at: Callable[[str], None] = lambda _step: None
    """Called at each step (`claimed`, `fetched`, `written`); tests end the process there."""

    def __post_init__(self) -> None:
        self._flights: Flights | None = None
        self._beside: ThreadPoolExecutor | None = None
        self._pace = Pace()
        self._made: Statements | None = None
        # A child has none of its parent's threads, and would wait for them for ever.
        me = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forget_threads(me()))

    # -- the loops

    def drain(self, *, shift: timedelta | None = None, limit: int | None = None) -> Applied:
        """Apply until nothing is due, or until the shift is over, then ring for whoever comes next.

        A claim takes `limit` events; without one, as many as the pace of those before it says.
        """
        done = Applied()
        ends = math.inf if shift is None else time.monotonic() + shift.total_seconds()
        while True:
            claim = self._claim(limit)
            if claim is None:
                self._ring_for_postponed()
                return done
            # SQLite has one writer at a time: nothing to be gained there.
            if claim.full and self._pace.is_quick and not self.inbox.is_sqlite:
                self._stream(claim, limit, ends, done)
            else:
                started = time.monotonic()
                self._apply(claim, done)
                if claim.full:
                    self._pace.took(time.monotonic() - started)
            if time.monotonic() > ends:
                self.bell.ring()
                return done

    def apply_now(self, ids: Collection[int], *, deadline: float) -> Applied:
        """Apply these events and what is due of their objects, within the deadline (time.monotonic() seconds).

        What does not fit stays due, for a worker or the sweep.
        """
        done = Applied()
        claim = self.inbox.claim(self.endpoints, only=ids)
        if claim is not None:
            self._apply(claim, done, deadline=deadline)
        return done

    def _claim(self, limit: int | None) -> Claim | None:
        claim = self.inbox.claim(self.endpoints, limit=limit or self._pace.size)
        if claim is not None and claim.full:
            self.bell.ring()  # idle workers may join in
        return claim

    def _ring_for_postponed(self) -> None:
        wait = self.inbox.next_due(self.endpoints)
        if wait is not None and wait <= RING_AHEAD:
            self.bell.ring_in(wait + timedelta(milliseconds=100))

    # -- a backlog

    def _stream(self, claim: Claim, limit: int | None, ends: float, done: Applied) -> None:
        """Apply claims for as long as they are full: while one is written here, the next is made beside, and its objects
        are asked for behind those of this one.

        Handlers run in this thread and nowhere else.
        """
        if self._beside is None:
            self._beside = ThreadPoolExecutor(1, thread_name_prefix="webhooks-claim")
        ahead: Future[_Prepared | None] | None = self._beside.submit(self._prepare, claim)
        try:
            while ahead is not None:
                started = time.monotonic()
                prepared = ahead.result()
                ahead = None
                if prepared is None:
                    return
                try:  # also where the next claim cannot be begun: nobody else would call these requests off
                    if prepared.claim.full and self._pace.is_quick and time.monotonic() <= ends:
                        ahead = self._beside.submit(self._prepare_next, limit)
                    self._write_all(prepared, done)
                finally:
                    prepared.close()
                self._pace.took(time.monotonic() - started)
        except BaseException:
            if ahead is not None:
                ahead.add_done_callback(self._give_back)
            raise

    def _prepare_next(self, limit: int | None) -> _Prepared | None:
        claim = self._claim(limit)
        return None if claim is None else self._prepare(claim)

    def _give_back(self, ahead: Future[_Prepared | None]) -> None:
        """What was claimed for a thread that has ended is due again at once, and not when its lease is over."""
        if ahead.exception() is not None or (prepared := ahead.result()) is None:
            return
        prepared.close()
        ids = [event.id for group in (*prepared.unasked, *prepared.asked) for event in group.events]
        self.inbox.postpone(prepared.claim.no, ids, None, timedelta(0), counts=False)

    # -- one claim

    def _apply(self, claim: Claim, done: Applied, *, deadline: float | None = None) -> None:
        self._write_all(self._prepare(claim, deadline), done)

    def _prepare(self, claim: Claim, deadline: float | None = None) -> _Prepared:
        """See what of the claim is to be written, and have the provider asked for it."""
        self.at("claimed")
        done = Applied(claim.size, 1)
        groups, bodies = self._opened(claim, self._sorted_out(claim, done), done)
        asked: list[Group] = []
        unasked: list[Group] = []
        for group in groups:
            fetches = group.object is not None and self.endpoints[group.endpoint].fetches
            (asked if fetches else unasked).append(group)
        return _Prepared(claim, bodies, unasked, asked, self._answers(asked, deadline), done)

    def _write_all(self, prepared: _Prepared, done: Applied) -> None:
        """Write each group as soon as the provider has answered."""
        done.add(prepared.done)
        plain: list[Mirrored] = []
        try:
            for group in prepared.unasked:
                self._put(prepared, group, Fetched(asked=False), plain, done)
            for group, said in prepared.answers:
                self.at("fetched")
                done.fetches += 1
                if isinstance(said, Exception):
                    self._settle(prepared.claim, group, group.events, said, done)
                else:
                    self._put(prepared, group, said, plain, done)
        finally:
            prepared.close()
        self._mirror(prepared.claim, plain, done)

    def _answers(
        self, groups: list[Group], deadline: float | None
    ) -> Iterable[tuple[Group, Fetched | Exception]]:
        ask = self._asking(deadline)
        if len(groups) <= 1 or deadline is not None:
            return ((group, _attempt(ask, group)) for group in groups)
        if self._flights is None:
            self._flights = Flights()
        return self._flights.begin(groups, ask)

    def _asking(self, deadline: float | None) -> Callable[[Group], Fetched]:
        return lambda group: fetch(self.apis, self.endpoints[group.endpoint], group, deadline=deadline)

    def _sorted_out(self, claim: Claim, done: Applied) -> list[Group]:
        """The groups that need work; the other events get their outcome, all of one kind in one statement."""
        wanted: list[Group] = []
        refused: dict[tuple[str, str, str | None], list[int]] = {}
        for group in claim.groups:
            endpoint = self.endpoints[group.endpoint]
            events = []
            for event in group.events:
                if event.attempts > endpoint.max_attempts:
                    refused.setdefault(("dead", "gave_up", "its worker died every time"), []).append(event.id)
                elif (
                    endpoint.livemode is not None
                    and event.livemode is not None
                    and endpoint.livemode != event.livemode
                ):
                    refused.setdefault(
                        ("ignored", "condition_not_met", "the other mode (live or test)"), []
                    ).append(event.id)
                elif (
                    not self._wants(endpoint, event)
                    and self.handlers.answerer(endpoint, event.type) is not None
                ):
                    refused.setdefault(("applied", "answered", None), []).append(event.id)
                elif not self._wants(endpoint, event):
                    refused.setdefault(("ignored", "no_handler", None), []).append(event.id)
                else:
                    events.append(event)
            if events:
                wanted.append(group if len(events) == len(group.events) else replace(group, events=events))
        for (state, outcome, error), ids in refused.items():
            self.inbox.finish(claim.no, ids, state, outcome, error)
            done.count(outcome, len(ids))
        return wanted

    def _opened(self, claim: Claim, groups: list[Group], done: Applied) -> tuple[list[Group], Bodies]:
        """The groups, and their `_bodies`; those with one that cannot be opened wait for its key, and hold no others."""
        try:
            return groups, self._bodies(groups)
        except Sealed:
            opened: list[Group] = []
            bodies: dict[int, Body] = {}
            for group in groups:
                try:
                    bodies |= self._bodies([group])
                except Sealed as sealed:
                    self._settle(claim, group, group.events, sealed, done)
                else:
                    opened.append(group)
            return opened, bodies

    def _bodies(self, groups: Iterable[Group]) -> dict[int, Body]:
        """The bodies that somebody looks at: a handler, or whoever cannot fetch. One query."""
        ids = [
            event.id
            for group in groups
            if not (endpoint := self.endpoints[group.endpoint]).fetches or self._has_handler(endpoint, group)
            for event in group.events
        ]
        return self.inbox.bodies(ids) if ids else {}

    def _wants(self, endpoint: Endpoint, event: Event) -> bool:
        if event.object is not None and self.wants_kind(endpoint, event.object.kind):
            return True
        return bool(self.handlers.ons(endpoint, event.type))

    def wants_kind(self, endpoint: Endpoint, kind: str) -> bool:
        """Whether anybody keeps a copy of such objects: a `sync` handler, or the mirror."""
        return self._mirrors_all(endpoint) or bool(self.handlers.syncs(endpoint, kind))

    def _mirrors_all(self, endpoint: Endpoint) -> bool:
        return endpoint.mirror == "all" or (endpoint.mirror == "auto" and not self.handlers.any_for(endpoint))

    # -- objects that no handler is for, many at once

    def _put(
        self, prepared: _Prepared, group: Group, fetched: Fetched, plain: list[Mirrored], done: Applied
    ) -> None:
        """Write an object, now or, where no handler is for it, together with others."""
        claim, endpoint = prepared.claim, self.endpoints[group.endpoint]
        group = with_bodies(endpoint, group, prepared.bodies)
        if not fetched.asked:
            try:
                group = self._with_snapshots(group)
            except Sealed as sealed:
                self._settle(claim, group, group.events, sealed, done)
                return
        if self._has_handler(endpoint, group) or not is_plain(group, fetched):
            self._write(claim, group, fetched, done)
            return
        plain.append(Mirrored(endpoint, group, fetched))
        if len(plain) >= MIRROR_BATCH:
            self._mirror(claim, plain, done)

    def _mirror(self, claim: Claim, plain: list[Mirrored], done: Applied) -> None:
        batch = plain.copy()
        plain.clear()
        if not batch:
            return
        try:
            left, outcomes = mirror(self.inbox, claim, batch)
        except DBAPIError:
            left, outcomes = batch, []  # one by one, each with its own tries and its own error
        for outcome in outcomes:
            done.count(outcome)
        self.at("written")
        for one in left:
            self._write(claim, one.group, one.fetched, done)

    def _with_snapshots(self, group: Group) -> Group:
        """The group with decoded data, for a kind that turned out not to be fetchable."""
        bare = [event.id for event in group.events if event.data is None]
        return with_bodies(self.endpoints[group.endpoint], group, self.inbox.bodies(bare)) if bare else group

    def _has_handler(self, endpoint: Endpoint, group: Group) -> bool:
        kind = group.object.kind if group.object else None
        return bool(kind is not None and self.handlers.syncs(endpoint, kind)) or any(
            self.handlers.ons(endpoint, event.type) for event in group.events
        )

    # -- one object

    def _write(self, claim: Claim, group: Group, fetched: Fetched, done: Applied) -> None:
        try:
            outcomes = self._commit(claim, group, fetched)
        except Exception as error:  # noqa: BLE001 - every error has a place: postponed, dead, or dropped
            if isinstance(error, TimeLimit):
                self._settle_slow(claim, group, error, done)
                return
            if len(group.events) > 1 and is_the_events_own(error):
                # One bad event must not hold the others: each in its own transaction, only the failing one waits.
                for event in group.events:
                    self._write(claim, replace(group, events=[event]), fetched, done)
                return
            self._settle(claim, group, group.events, error, done)
        else:
            self.at("written")
            for outcome in outcomes:
                done.count(outcome)

    def _commit(self, claim: Claim, group: Group, fetched: Fetched) -> list[str]:
        tries = 0
        while True:
            tries += 1
            try:
                return self._commit_once(claim, group, fetched)
            except DBAPIError as error:
                if tries == TRIES or not may_repeat(error):
                    raise
            # Deadlock, serialization failure, a busy SQLite, a database that restarts: the same work once more.
            time.sleep(random.uniform(0.5, 1.5) * 0.02 * 3**tries)  # noqa: S311 - jitter

    def _commit_once(self, claim: Claim, group: Group, fetched: Fetched) -> list[str]:
        endpoint = self.endpoints[group.endpoint]
        outcomes: list[str] = []
        with self.scope() as session:
            outcomes = Write(
                session,
                self.inbox,
                self._statements(),
                endpoint,
                self.handlers,
                group,
                fetched,
                claim.no,
                claim.as_of,
                keep_data=endpoint.mirror != "none",
            ).run()
            session.commit()
        return outcomes

    def _statements(self) -> Statements:
        if self._made is None:
            self._made = statements(is_sqlite=self.inbox.is_sqlite)
        return self._made

    # -- what went wrong

    def _settle_slow(self, claim: Claim, group: Group, error: TimeLimit, done: Applied) -> None:
        """Only the event whose handler was stopped has failed. The others are not tried one by one here, which might
        take as long for each: they are due again, and the failing one is then not among them."""
        slow = [event for event in group.events if error.event_id in {None, event.id}]
        others = [event.id for event in group.events if event not in slow]
        self._settle(claim, group, slow, error, done)
        if others:
            self.inbox.postpone(claim.no, others, None, timedelta(0), counts=False)

    def _settle(
        self, claim: Claim, group: Group, events: Sequence[Event], error: Exception, done: Applied
    ) -> None:
        """Give events whose work failed their next date or their end."""
        endpoint = self.endpoints[group.endpoint]
        ids = [event.id for event in events]
        if isinstance(error, ClaimLost):
            log.warning("%s: a claim was lost to another worker; its lease ran out", group.endpoint)
            return
        if isinstance(error, Refetch):
            self.inbox.postpone(claim.no, ids, None, timedelta(0), counts=False)
            return
        said = summary(error)
        report(group, error)
        if isinstance(error, GiveUp | Unreadable):
            outcome = "unreadable" if isinstance(error, Unreadable) else "gave_up"
            self.inbox.finish(claim.no, ids, "dead", outcome, said)
            done.count(outcome, len(ids))
            return
        if isinstance(error, RateLimited):
            self.inbox.hold(group.endpoint, "rate_limited", account=group.account, until=error.after)
        counts = error.counts if isinstance(error, RetryLater) else True
        outcome = error.outcome if isinstance(error, RetryLater) else "handler_failed"
        for event in events:
            if counts and event.attempts >= endpoint.max_attempts:
                self.inbox.finish(claim.no, [event.id], "dead", outcome, said)
            else:
                after = error.after if isinstance(error, RetryLater) and error.after is not None else None
                wait = after if after is not None else backoff(event.attempts)
                self.inbox.postpone(claim.no, [event.id], outcome, wait, error=said, counts=counts)
        done.count(outcome, len(ids))


def _forget_threads(applier: Applier | None) -> None:
    if applier is not None:
        applier._flights = applier._beside = None


def _attempt(ask: Callable[[Group], Fetched], group: Group) -> Fetched | Exception:
    try:
        return ask(group)
    except Exception as error:  # noqa: BLE001 - settled like any other failure of the group
        return error
