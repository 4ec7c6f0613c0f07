"""Many objects fetched at once: as many as each API takes, whichever claims they are of."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor

from ..errors import RetryLater
from ..inbox import Group
from .fetching import Fetched

__all__ = ["Flight", "Flights", "Windows"]

NEAR_TO = 0.002
"""Seconds. An API that can answer sooner is on this host or beside it: what a request takes is our own computing."""

NEAR = 4
"""Requests in flight to such an API: more threads than that only take the interpreter from each other."""

CONCURRENCY = 16
"""Requests in flight to any other, per worker process and endpoint."""

FAR_FROM = 0.03
"""Seconds. An API that usually takes longer is waited for, not computed with."""

FAR = 64
"""Requests in flight to such an API."""

FORGET = 1.02
"""With every answer the fastest one of before counts as so much slower: after some hundred it is forgotten."""

CHUNK = 8
"""Answers that whoever waits for them is woken for; to be woken costs as much as a good part of a request."""

SOON = 0.02
"""Seconds after which fewer will do."""

Ask = Callable[[Group], Fetched]


class Windows:
    """How many requests each endpoint's API is sent at once; what is learned holds from claim to claim.

    Slow start: one request first, then one more in flight for every answer, half as many after every failure. A provider
    that has had enough is not asked a dozen times at the same moment, and costs the others of a claim nothing. How many
    there may be at the most depends on how long the API takes: `NEAR`, `CONCURRENCY` or `FAR`.
    """

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self._usual: dict[str, float] = {}
        self._soonest: dict[str, float] = {}

    def size(self, endpoint: str) -> int:
        """How many may be in flight."""
        return self._sizes.get(endpoint, 1)

    def answered(self, endpoint: str, seconds: float) -> None:
        """A request to that endpoint's API took so long."""
        usual = self._usual.get(endpoint, seconds)
        self._usual[endpoint] = usual = usual + (seconds - usual) / 8
        # The fastest of late; where many are in flight, most of what the others take is waiting for each other.
        self._soonest[endpoint] = soonest = min(self._soonest.get(endpoint, seconds) * FORGET, seconds)
        most = FAR if usual > FAR_FROM else NEAR if soonest < NEAR_TO else CONCURRENCY
        self._sizes[endpoint] = min(self.size(endpoint) + 1, most)

    def failed(self, endpoint: str) -> None:
        """A request to it failed."""
        self._sizes[endpoint] = max(self.size(endpoint) // 2, 1)


class Flight:
    """The requests of one claim: each group with what came back, as it comes back. Iterated once, by one thread."""

    def __init__(self, flights: Flights, ask: Ask, lock: threading.Lock) -> None:
        self.ask = ask
        self.left = 0
        """Groups that are neither answered nor called off; like `answers`, only touched under the lock."""
        self.answers: list[tuple[Group, Fetched | BaseException]] = []
        self.changed = threading.Condition(lock)
        self._flights = flights

    def __iter__(self) -> Generator[tuple[Group, Fetched | Exception], None, None]:
        try:
            while True:
                with self.changed:
                    if not self.answers and not self.left:
                        return
                    self.changed.wait_for(self.is_worth_waking, timeout=SOON)
                    answers, self.answers = self.answers, []
                for group, said in answers:
                    if isinstance(said, Fetched | Exception):
                        yield group, said
                    else:
                        raise said
        finally:
            self.close()

    def is_worth_waking(self) -> bool:
        return len(self.answers) >= CHUNK or not self.left

    def close(self) -> None:
        """Ask for nothing more. What is in flight comes to its end, and nobody looks at it."""
        self._flights.call_off(self)


class Flights:
    """All requests of a worker process; a thread of the pool takes one after the other for as long as there are any.

    Nobody hands each request to a thread, nor is woken for each answer: both cost more than the request itself costs the
    interpreter.
    """

    def __init__(self) -> None:
        self.windows = Windows()
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[tuple[Flight, Group]]] = {}
        """By endpoint; whose turn comes next stands first."""
        self._in_flight: dict[str, int] = {}
        self._pool = ThreadPoolExecutor(FAR, thread_name_prefix="webhooks-fetch")

    def begin(self, groups: Iterable[Group], ask: Ask) -> Flight:
        """Have the groups asked for, behind those that wait already."""
        flight = Flight(self, ask, self._lock)
        with self._lock:
            for group in groups:
                self._waiting.setdefault(group.endpoint, deque()).append((flight, group))
                flight.left += 1
            self._launch()
        return flight

    def call_off(self, flight: Flight) -> None:
        """Take out of the queue what is still in it."""
        with self._lock:
            if not flight.left:
                return
            flight.left = 0
            for endpoint, queue in list(self._waiting.items()):
                kept = deque(one for one in queue if one[0] is not flight)
                if kept:
                    self._waiting[endpoint] = kept
                else:
                    del self._waiting[endpoint]

    def _launch(self) -> None:
        while (one := self._next()) is not None:
            refused = threading.Event()
            try:
                self._pool.submit(self._fly, *one, refused)
            except RuntimeError as error:
                # The pool queues before it begins a thread: what it refused may still come to run.
                refused.set()
                ends = str(error).startswith("cannot schedule new futures")
                why = SystemExit("the process ends") if ends else RetryLater("no thread can be begun for it")
                self._put(*one, why, 0.0)

    def _next(self) -> tuple[Flight, Group] | None:
        """Whose turn it is, of those whose API takes one more."""
        if (
            sum(self._in_flight.values()) >= FAR
        ):  # no thread for it: it would wait behind all that comes later
            return None
        for endpoint, queue in self._waiting.items():
            flying = self._in_flight.get(endpoint, 0)
            if flying < self.windows.size(endpoint):
                one = queue.popleft()
                del self._waiting[endpoint]
                if queue:
                    self._waiting[endpoint] = queue  # behind the others
                self._in_flight[endpoint] = flying + 1
                return one
        return None

    def _fly(self, flight: Flight, group: Group, refused: threading.Event) -> None:
        with self._lock:
            if refused.is_set():
                return
        one: tuple[Flight, Group] | None = (flight, group)
        while one is not None:
            started = time.perf_counter()
            said: Fetched | BaseException
            try:
                said = one[0].ask(one[1])
            except BaseException as error:  # noqa: BLE001 - raised where the answers are taken
                said = error
            one = self._landed(*one, said, time.perf_counter() - started)

    def _landed(
        self, flight: Flight, group: Group, said: Fetched | BaseException, seconds: float
    ) -> tuple[Flight, Group] | None:
        """Put the answer where it belongs, and take the next one."""
        with self._lock:
            self._put(flight, group, said, seconds)
            following = self._next()
            self._launch()  # the window may have grown
            return following

    def _put(self, flight: Flight, group: Group, said: Fetched | BaseException, seconds: float) -> None:
        self._in_flight[group.endpoint] -= 1
        if isinstance(said, Fetched):
            self.windows.answered(group.endpoint, seconds)
        elif isinstance(said, Exception):
            self.windows.failed(group.endpoint)
        if flight.left:
            flight.left -= 1
            flight.answers.append((group, said))
            if flight.is_worth_waking():
                flight.changed.notify()
