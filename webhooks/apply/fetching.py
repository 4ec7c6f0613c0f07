"""Fetch the current objects of a claim: many at once, none while a transaction is open."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from queue import SimpleQueue

from ..api import Apis
from ..endpoints import Endpoint
from ..errors import NotFetchable, NotVisibleYet, RetryLater
from ..inbox import Event, Group, read_version, write_version
from ..jsontext import Json

__all__ = [
    "FAR",
    "Fetched",
    "Windows",
    "fetch",
    "fetch_all",
    "is_behind",
    "older",
    "regresses",
    "require_visible",
]

CONCURRENCY = 16
"""Requests in flight per worker process and endpoint."""

FAR_FROM = 0.03
"""Seconds. An API that takes longer is waited for, not computed with."""

FAR = 64
"""Requests in flight to such an API."""

FETCH_LIMIT = timedelta(seconds=60)
"""For all requests of one fetch together; one alone may take 20 s."""

VISIBLE_AFTER = timedelta(seconds=30)
"""A 404 for an object that we never saw, or an object that was deleted, is taken for a lagging replica for so long after
its event, then for an answer."""

LAG_LIMIT = timedelta(minutes=10)
"""An API that after so long still shows an older version than its event said is taken at its word."""


@dataclass(frozen=True)
class Fetched:
    """What the provider said about an object. `asked=False`: there is no way to ask."""

    asked: bool
    data: Json = field(default=None, repr=False)

    @property
    def gone(self) -> bool:
        return self.asked and self.data is None


def fetch(apis: Apis, endpoint: Endpoint, group: Group, *, deadline: float | None = None) -> Fetched:
    """Ask the provider for the group's object as it is now. Raises RetryLater or GiveUp."""
    if not endpoint.fetches or group.object is None or endpoint.provider.fetch is None:
        return Fetched(asked=False)
    ends = time.monotonic() + FETCH_LIMIT.total_seconds()
    try:
        again = all(event.attempts > 1 for event in group.events)
        api = apis.of(
            endpoint,
            group.account,
            deadline=min(ends, deadline or ends),
            priority="retry" if again else "live",
        )
        found = endpoint.provider.fetch(api, group.object)
    except NotFetchable:
        return Fetched(asked=False)
    if found is not None and not isinstance(found, dict):
        # It must not replace a good copy: something between us and the API has answered.
        raise RetryLater(f"the API of {endpoint.provider.name} answered with something that is no object")
    return Fetched(asked=True, data=found)


class Windows:
    """How many requests each endpoint's API is sent at once; what is learned holds from claim to claim.

    Slow start: one request first, then one more in flight for every answer, half as many after every failure. A provider
    that has had enough is not asked a dozen times at the same moment, and costs the others of a claim nothing. An API
    that answers at once gains nothing from more than `CONCURRENCY` of them, one that takes its time gets `FAR`.
    """

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self._seconds: dict[str, float] = {}

    def size(self, endpoint: str) -> int:
        """How many may be in flight."""
        return self._sizes.get(endpoint, 1)

    def answered(self, endpoint: str, seconds: float) -> None:
        usual = self._seconds.get(endpoint, seconds)
        self._seconds[endpoint] = usual = usual + (seconds - usual) / 8
        most = FAR if usual > FAR_FROM else CONCURRENCY
        self._sizes[endpoint] = min(self.size(endpoint) + 1, most)

    def failed(self, endpoint: str) -> None:
        self._sizes[endpoint] = max(self.size(endpoint) // 2, 1)


def fetch_all(
    groups: Iterable[Group], ask: Callable[[Group], Fetched], pool: ThreadPoolExecutor, windows: Windows
) -> Iterator[tuple[Group, Fetched | Exception]]:
    """Each group with what came back, as it comes back."""
    waiting: dict[str, deque[Group]] = {}
    for group in groups:
        waiting.setdefault(group.endpoint, deque()).append(group)
    # One queue for all answers: to wait for any of many futures costs each of them a look, for every answer.
    answers: SimpleQueue[_Answer] = SimpleQueue()
    in_flight = dict.fromkeys(waiting, 0)
    flying = 0
    while waiting or flying:
        for endpoint, queue in list(waiting.items()):
            while queue and in_flight[endpoint] < windows.size(endpoint):
                pool.submit(_ask, ask, queue.popleft(), answers)
                in_flight[endpoint] += 1
                flying += 1
            if not queue:
                del waiting[endpoint]
        answer = answers.get()
        flying -= 1
        in_flight[answer.group.endpoint] -= 1
        if isinstance(answer.said, Fetched):
            windows.answered(answer.group.endpoint, answer.seconds)
        elif isinstance(answer.said, Exception):
            windows.failed(answer.group.endpoint)
        else:
            raise answer.said
        yield answer.group, answer.said


@dataclass(frozen=True)
class _Answer:
    group: Group
    said: Fetched | BaseException
    seconds: float


def _ask(ask: Callable[[Group], Fetched], group: Group, answers: SimpleQueue[_Answer]) -> None:
    started = time.perf_counter()
    said: Fetched | BaseException
    try:
        said = ask(group)
    except BaseException as error:  # noqa: BLE001 - raised where the answers are taken
        said = error
    answers.put(_Answer(group, said, time.perf_counter() - started))


def require_visible(group: Group, fetched: Fetched, now: datetime, *, known: bool) -> None:
    """Raise NotVisibleYet for an answer that comes too soon after its event to be believed: there is no such object,
    after it was made; here it is, after it was deleted."""
    happened = [(event.occurred_at or event.received_at, event.gone) for event in group.events]
    latest = max((at for at, _ in happened), default=now)
    if now - latest >= VISIBLE_AFTER:
        return
    deleted = any(gone for _, gone in happened)
    if fetched.gone and not known and not deleted:
        raise NotVisibleYet("the API does not know the object yet", timedelta(seconds=2))
    if not fetched.gone and (latest, True) in happened:
        raise NotVisibleYet(
            "the API still shows the object, which its event says is gone", timedelta(seconds=2)
        )


def is_behind(endpoint: Endpoint, event: Event, fetched: Fetched, now: datetime) -> bool:
    """Whether the API shows an older version of the object than the event says there is."""
    version = endpoint.provider.version
    if version is None or event.object is None or event.version is None or fetched.data is None:
        return False
    shown = read_version(write_version(version(event.object, fetched.data)))
    return older(shown, read_version(event.version)) and now - event.received_at < LAG_LIMIT


def regresses(events: Sequence[Event], version: str | None, stored: str | None, now: datetime) -> bool:
    """Whether the API shows an older version than we already have, of an object whose events are recent."""
    recent = all(now - event.received_at < LAG_LIMIT for event in events)
    return recent and older(read_version(version), read_version(stored))


def older(one: Json, other: Json) -> bool:
    """Whether one version is older than the other; unknown or incomparable is not."""
    return isinstance(one, type(other)) and one is not None and other is not None and bool(one < other)
