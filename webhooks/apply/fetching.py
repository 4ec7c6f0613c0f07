"""Fetch the current object, never while a transaction is open; and whether what came back can be believed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ..api import Apis
from ..endpoints import Endpoint
from ..errors import NotFetchable, NotVisibleYet, RetryLater
from ..inbox import Event, Group, read_version, write_version
from ..jsontext import Json

__all__ = [
    "Fetched",
    "fetch",
    "is_behind",
    "older",
    "regresses",
    "require_visible",
]

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
