"""Call what is promised: marked as started and committed first, so that a crash in between is never hidden."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session

from .. import jsontext
from ..apply import backoff, summary, within
from ..errors import GiveUp, RetryLater
from ..jsontext import Json
from ..queue import Bell
from .outbox import Outbox, Taken

if TYPE_CHECKING:
    from . import Effect, Effects

__all__ = ["Called", "Caller"]

RING_AHEAD = timedelta(seconds=60)
"""Effects that are due within this are rung for; the sweep finds the others."""

MAX_LOOKS = 20
"""An other side that so often cannot tell will not; a person decides."""

MAX_RESULT = 10_000
"""Bytes of JSON that are kept of what a call returned."""

log = logging.getLogger(__name__)


@dataclass
class Called:
    """What one pass did: the number of effects that ended up in each state."""

    states: dict[str, int] = field(default_factory=dict)

    @property
    def effects(self) -> int:
        return sum(self.states.values())


@dataclass
class Caller:
    """Calls the effects of one outbox, for one app."""

    outbox: Outbox
    effects: Effects
    bell: Bell
    scope: Callable[[], AbstractContextManager[Session]]
    """A fresh session of the host's, inside an app context."""
    at: Callable[[str], None] = lambda _step: None
    """Called at each step (`started`, `called`, `finished`); tests end the process there."""

    def drain(self, *, shift: timedelta | None = None) -> Called:
        """Call until nothing is due, or until the shift is over, then ring for whoever comes next."""
        done = Called()
        ends = None if shift is None else time.monotonic() + shift.total_seconds()
        while True:
            before = time.monotonic()
            taken = self.outbox.take(self.effects.values())
            if taken is None:
                self._ring_for_later()
                return done
            if done.effects == 0 and self.outbox.due():
                self.bell.ring()  # one at a time each, so idle workers may join in
            state = self._look(taken) if taken.what == "lookup" else self._call(taken, before)
            done.states[state] = done.states.get(state, 0) + 1
            if ends is not None and time.monotonic() > ends:
                self.bell.ring()
                return done

    def sweep(self) -> int:
        """Ring for what is due; return how many effects that are."""
        due = self.outbox.due()
        if due:
            self.bell.ring_in(timedelta(0))
        return due

    def _ring_for_later(self) -> None:
        wait = self.outbox.next_due()
        if wait is not None and wait <= RING_AHEAD:
            self.bell.ring_in(wait + timedelta(milliseconds=100))

    # -- one effect

    @property
    def _limit(self) -> timedelta:
        """Shortly before the lease is over: then somebody else would call it too."""
        return self.outbox.lease * 0.9

    def _call(self, taken: Taken, before: float) -> str:
        self.at("started")
        effect = self.effects[taken.name]
        try:
            if time.monotonic() - before > self.outbox.lease.total_seconds() / 2:
                raise RetryLater("the worker was held up before it called")
            arguments = effect.loaded(taken.arguments)
            with self.scope():
                result = within(self._limit, lambda: effect.function(taken.key, **arguments), taken.name)
        except Exception as error:  # noqa: BLE001 - every error has a place: called again, dead, or unknown
            return self._failed(effect, taken, error)
        self.at("called")
        if not self.outbox.done(taken, _kept(result)):
            log.error(
                "%s %s was settled otherwise while it was called; it may have happened twice",
                taken.name,
                taken.key,
            )
        self.at("finished")
        return "done"

    def _failed(self, effect: Effect, taken: Taken, error: Exception) -> str:
        said = summary(error)
        log.warning("%s %s: %s", taken.name, taken.key, said)
        if isinstance(error, GiveUp):
            return self.outbox.dead(taken, effect, said)
        if isinstance(error, RetryLater):  # the function says that this call did nothing
            if error.counts and taken.attempts >= effect.max_attempts:
                return self.outbox.dead(taken, effect, said)
            wait = error.after if error.after is not None else backoff(taken.attempts)
            self.outbox.not_yet(taken, said, wait, counts=error.counts)
            return "recorded"
        if effect.idempotent and taken.attempts < effect.max_attempts:
            self.outbox.again(taken, said, backoff(taken.attempts))
            return "recorded"
        self.outbox.unknown(taken, effect, said)
        return "unknown"

    def _look(self, taken: Taken) -> str:
        """Ask the other side whether it happened."""
        effect = self.effects[taken.name]
        lookup = effect.lookup
        assert lookup is not None
        try:
            arguments = effect.loaded(taken.arguments)
            with self.scope():
                found = within(self._limit, lambda: lookup(taken.key, **arguments), taken.name)
        except Exception as error:  # noqa: BLE001 - an error is no answer; it stays unknown
            found, said = None, summary(error)
        else:
            said = "the other side could not tell"
        if found is None:
            after = backoff(taken.looks) if taken.looks < MAX_LOOKS else None
            self.outbox.look_again(taken, said, after)
            return "unknown"
        if found is False:
            said = "the other side says that it did not happen"
            if taken.attempts >= effect.max_attempts:
                return self.outbox.dead(taken, effect, said)
            self.outbox.never_happened(
                taken, said, timedelta(0) if taken.attempts == 1 else backoff(taken.attempts)
            )
            return "recorded"
        self.outbox.done(taken, _kept(found))
        return "done"


def _kept(result: Any) -> Json:
    """What a call returned, as far as it is a small JSON document."""
    try:
        text = jsontext.dumps(result)
        return jsontext.loads(text) if len(text) <= MAX_RESULT else None
    except Exception:  # noqa: BLE001 - it is a note for people, nothing depends on it
        return None
