"""A provider on loopback: its API, its signature, its retries, and everything that goes wrong on the way.

>>> with Simulator("stripe") as stripe:
...     stripe.send_to("http://127.0.0.1:5000/webhooks/stripe")
...     customer = stripe.create("customer", email="ada@example.test")
...     stripe.update(customer, email="lovelace@example.test")
...     stripe.deliver()

Point the endpoint's `api_base_url` at `stripe.api_url`, and its secrets and settings at `stripe.config`.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any, Protocol, Self

import urllib3
from urllib3.exceptions import HTTPError

from ... import providers
from ...provider import Policy, Request
from .server import ApiServer, pause
from .world import Answer, Attempt, Call, Happening, Key, Other, World, now

__all__ = [
    "Answer",
    "ApiFaults",
    "Attempt",
    "Call",
    "DeliveryFaults",
    "Happening",
    "Key",
    "Other",
    "Simulator",
    "World",
    "schedule",
]

DEFAULT_RETRIES = tuple(timedelta(seconds=seconds) for seconds in (60, 300, 1800, 7200, 21600))
"""For providers that do not publish theirs; the last of them again and again where they say for how long they go on."""


def schedule(policy: Policy) -> tuple[timedelta, ...]:
    """The waiting times between the attempts of one delivery; where the provider says when the last one is, it is then."""
    if policy.retries is not None:
        return policy.retries
    window = policy.retry_window
    if window is None:
        return DEFAULT_RETRIES
    steps: list[timedelta] = []
    for step in itertools.chain(DEFAULT_RETRIES, itertools.repeat(DEFAULT_RETRIES[-1])):
        left = window - sum(steps, timedelta(0))
        steps.append(min(step, left))
        if step >= left:
            break
    return tuple(steps)


class Service(Protocol):
    """What the simulator must know of a provider beyond its file."""

    settings: dict[str, str]
    kinds: tuple[str, ...]
    secret: str
    account: str
    """What its events name as their account unless another one is asked for."""

    def new(self, world: World, kind: str, id_: str, fields: dict[str, Any]) -> dict[str, Any]: ...
    def id_of(self, kind: str, number: int) -> str: ...
    def changed(self, world: World, data: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]: ...
    def event_type(self, kind: str, what: str, data: dict[str, Any]) -> str: ...
    def deletable(self, kind: str) -> bool: ...
    def request(
        self, happening_id: str, type_: str, at: datetime, key: Key, snapshot: dict[str, Any]
    ) -> Request: ...
    def signed_at(self, happening: Happening, now: datetime) -> datetime:
        """The time that an attempt carries."""

    def answer(self, world: World, call: Call) -> Answer: ...


@dataclass
class ApiFaults:
    """What the API does to those who ask."""

    latency: float = 0.0
    """Seconds."""
    script: list[Answer | None] = field(default_factory=list)
    """Answers for the next calls, in order; None: that one is answered as usual."""
    rate: int | None = None
    """Calls per second before it answers 429 with Retry-After: 1."""


@dataclass
class DeliveryFaults:
    """What happens to deliveries on the way; each number is a share between 0 and 1."""

    duplicates: float = 0.0
    lost: float = 0.0
    """Never sent, and never sent again: the provider takes them for delivered, or has given up."""
    reordered: float = 0.0
    unanswered: float = 0.0
    """Arrives and is applied, but the provider does not hear the answer and sends it again."""


@dataclass
class Counts:
    """What the simulator did."""

    changes: int = 0
    deliveries: int = 0
    duplicates: int = 0
    reordered: int = 0
    lost: int = 0
    failed: int = 0
    api_calls: int = 0


@dataclass(order=True)
class _Due:
    at: datetime
    order: int
    happening: Happening = field(compare=False)
    tries: int = field(compare=False, default=0)


class Simulator:
    """One account at a simulated provider. Deterministic for a seed, except for what threads do."""

    def __init__(
        self,
        provider: str,
        *,
        seed: int = 0,
        clock: Callable[[], datetime] = now,
        send: Callable[[Request], int | None] | None = None,
    ) -> None:
        """`send` delivers a signed request and returns the HTTP status, or None where nobody answered."""
        self.provider = providers.get(provider)
        self.service: Service = import_module(f".{provider.replace('-', '_')}", __name__).service
        self.world = World(clock, again=self._again, log_window=self.provider.policy.log_window)
        self.api = ApiFaults()
        self.delivery = DeliveryFaults()
        self.counts = Counts()
        self.before_reply: Callable[[Call, Answer], None] = lambda _call, _answer: None
        """Called when an answer is decided and not yet sent; a test that waits here makes a slow answer of old state."""
        self.calls: list[Call] = []
        """Every call of the API, for tests that count."""
        self.chance = random.Random(seed)
        self._send = send
        self._numbers = itertools.count(1)
        self._attempts = itertools.count(1)
        self._order = itertools.count(1)
        self._due: list[_Due] = []
        self._seed = seed
        self._server: ApiServer | None = None
        self._recent: list[float] = []

    # -- life

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Serve the API on a free port of loopback."""
        self._server = ApiServer(self._answer)
        self._server.start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    @property
    def api_url(self) -> str:
        """Where the API is. Raises RuntimeError before `start`."""
        if self._server is None:
            raise RuntimeError("start the simulator first: `with Simulator(...) as it:`")
        return self._server.url

    @property
    def config(self) -> dict[str, Any]:
        """The endpoint's configuration for `WEBHOOKS`."""
        return {
            "provider": self.provider.name,
            "secrets": [self.service.secret],
            "api_base_url": self.api_url,
            "api_rate": 100_000,  # it has the limit that `api.rate` says, and no other
            **self.service.settings,
        }

    def send_to(self, url: str, *, timeout: float = 30.0) -> None:
        """Deliver over HTTP to this URL."""
        pool = urllib3.PoolManager(maxsize=16)
        self.world.url = self.world.url or url

        def send(request: Request) -> int | None:
            try:
                answer = pool.request(
                    request.method,
                    url,
                    body=request.body,
                    headers=dict(request.headers),
                    timeout=timeout,
                    retries=False,
                    redirect=False,
                )
            except HTTPError:
                return None
            return int(answer.status)

        self._send = send

    # -- what happens at the provider

    def create(
        self, kind: str, *, account: str = "", id_: str | None = None, silent: bool = False, **fields: Any
    ) -> Key:
        """A new object; `silent` makes no event of it."""
        key = (account or self.service.account, kind, id_ or self.service.id_of(kind, next(self._numbers)))
        data = self.service.new(self.world, kind, key[2], fields)
        self._change(key, data, "created", data, silent=silent)
        return key

    def update(self, key: Key, *, silent: bool = False, **fields: Any) -> None:
        """Change an object."""
        data = self.world.get(key)
        if data is None:
            raise LookupError(f"{key} was deleted")
        data = self.service.changed(self.world, data, fields)
        self._change(key, data, "updated", data, silent=silent)

    def delete(self, key: Key, *, silent: bool = False) -> None:
        """Delete an object."""
        data = self.world.get(key)
        if data is None:
            raise LookupError(f"{key} was deleted already")
        self._change(key, None, "deleted", data, silent=silent)

    def emit(self, type_: str, key: Key) -> Happening:
        """One more event about an object as it is: several events about one fact are the rule."""
        data = self.world.get(key)
        if data is None:
            raise LookupError(f"{key} was deleted")
        return self._happen(type_, key, data)

    def _change(
        self, key: Key, data: dict[str, Any] | None, what: str, snapshot: dict[str, Any], *, silent: bool
    ) -> None:
        self.counts.changes += 1
        with self.world.lock:
            self.world.put(key, data)
            if not silent:
                self._happen(self.service.event_type(key[1], what, snapshot), key, snapshot)

    def _happen(self, type_: str, key: Key, snapshot: dict[str, Any]) -> Happening:
        at = self.world.clock()
        number = next(self._numbers)
        id_ = f"evt_{self._seed:04d}_{number:08d}"
        request = self.service.request(id_, type_, at, key, snapshot)
        happening = Happening(id_, type_, key[0], at, key, snapshot, request)
        with self.world.lock:
            self.world.log.append(happening)
            if self.world.enabled:
                self._plan(happening)
        return happening

    # -- deliveries

    def _plan(self, happening: Happening) -> None:
        faults = self.delivery
        if self.chance.random() < faults.lost:
            self.counts.lost += 1
            self._attempted(happening, None, redelivery=False)
            return
        self._due.append(_Due(happening.at, next(self._order), happening))
        if self.chance.random() < faults.duplicates:
            self.counts.duplicates += 1
            self._due.append(_Due(happening.at, next(self._order), happening))

    def _again(self, happening: Happening) -> None:
        with self.world.lock:
            self._due.append(_Due(self.world.clock(), next(self._order), happening))

    def deliver(self, *, all_due: bool = False) -> int:
        """Send what is due; return how many deliveries that were. `all_due`: also what is due later, at once."""
        with self.world.lock:
            moment = self.world.clock()
            ready = sorted(due for due in self._due if all_due or due.at <= moment)
            self._due = [due for due in self._due if not (all_due or due.at <= moment)]
        self._shuffle(ready)
        for due in ready:
            self._deliver(due)
        return len(ready)

    def _shuffle(self, ready: list[_Due]) -> None:
        for position in range(len(ready) - 1):
            if self.chance.random() < self.delivery.reordered:
                other = self.chance.randrange(position + 1, len(ready))
                ready[position], ready[other] = ready[other], ready[position]
                self.counts.reordered += 1

    def _deliver(self, due: _Due) -> None:
        status = self.send(due.happening)
        lost_answer = self.chance.random() < self.delivery.unanswered
        if status is not None and 200 <= status < 300 and not lost_answer:
            return
        self.counts.failed += 1
        steps = schedule(self.provider.policy)
        if due.tries < len(steps):
            if lost_answer:
                self.counts.duplicates += 1
            again = _Due(
                self.world.clock() + steps[due.tries], next(self._order), due.happening, due.tries + 1
            )
            with self.world.lock:
                self._due.append(again)

    def send(self, happening: Happening) -> int | None:
        """One delivery now, signed at this moment; the HTTP status, or None where nobody answered."""
        if self._send is None:
            raise RuntimeError("say where to: `send_to(url)`, or `send=`")
        request = replace(happening.request, url=self.world.url)  # some schemes sign the URL
        signed = self.provider.signature.sign(
            request, self.service.secret, self.service.signed_at(happening, self.world.clock())
        )
        status = self._send(signed)
        self._attempted(happening, status, redelivery=bool(happening.attempts))
        self.counts.deliveries += 1
        return status

    def _attempted(self, happening: Happening, status: int | None, *, redelivery: bool) -> None:
        with self.world.lock:
            attempt = Attempt(next(self._attempts), happening, self.world.clock(), redelivery, status)
            happening.attempts.append(attempt)
            self.world.attempts.append(attempt)

    @property
    def waiting(self) -> int:
        """Deliveries that are planned."""
        return len(self._due)

    @property
    def next_at(self) -> datetime | None:
        """When the next of them is due; None: it has given up, or everything was taken."""
        with self.world.lock:
            return min((due.at for due in self._due), default=None)

    # -- the API

    def _answer(self, call: Call) -> Answer:
        with self.world.lock:
            self.calls.append(call)
            self.counts.api_calls += 1
            scripted = self.api.script.pop(0) if self.api.script else None
            limited = self._is_limited()
        pause(self.api.latency)
        if scripted is not None:
            return scripted
        if limited:
            return Answer(
                429, {"error": {"code": "rate_limit", "message": "slow down"}}, {"Retry-After": "1"}
            )
        try:
            answer = self.service.answer(self.world, call)
        except ValueError:  # a parameter that is none
            answer = Answer(400, {"error": {"code": "parameter_invalid", "message": "simulated"}})
        self.before_reply(call, answer)
        return answer

    def _is_limited(self) -> bool:
        if self.api.rate is None:
            return False
        moment = time.monotonic()
        self._recent = [at for at in self._recent if moment - at < 1.0]
        if len(self._recent) >= self.api.rate:
            return True
        self._recent.append(moment)
        return False

    # -- the verdict

    def drift(self, rows: Sequence[Any]) -> list[str]:
        """How a copy differs from the truth; rows are those of `webhook_objects`: account, kind, id, data, deleted_at."""
        ours = {
            (row.account, row.kind, row.id): None if row.deleted_at is not None else row.data for row in rows
        }
        found = []
        for key, truth in self.world.truth().items():
            if key not in ours and truth is not None:
                found.append(f"{key[1]} {key[2]}: we have no copy")
            elif ours.get(key) != truth:
                found.append(f"{key[1]} {key[2]}: our copy differs")
        found += [
            f"{key[1]} {key[2]}: the provider never had it" for key in ours if key not in self.world.history
        ]
        return found
