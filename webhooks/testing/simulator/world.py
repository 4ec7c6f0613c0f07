"""What a simulated provider holds: its objects with their history, its event log, its deliveries."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from ...jsontext import Json
from ...provider import Request

__all__ = ["Answer", "Attempt", "Call", "Happening", "Key", "Other", "World", "now"]

Key = tuple[str, str, str]
"""(account, kind, id)"""


def now() -> datetime:
    """The machine's clock."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Call:
    """One request to the simulated API."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes = field(default=b"", repr=False)

    def one(self, name: str, default: str = "") -> str:
        """The first value of a query parameter."""
        return self.query.get(name, [default])[0]


@dataclass(frozen=True)
class Answer:
    """What the simulated API answers."""

    status: int = 200
    json: Json = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Attempt:
    """One delivery of an event to the receiver."""

    id: int
    happening: Happening
    at: datetime
    redelivery: bool
    http_status: int | None = None
    """None: the receiver was not reached."""

    @property
    def ok(self) -> bool:
        return self.http_status is not None and 200 <= self.http_status < 300


@dataclass
class Happening:
    """One entry of the provider's event log."""

    id: str
    type: str
    account: str
    at: datetime
    key: Key
    snapshot: dict[str, Any] = field(repr=False)
    request: Request = field(repr=False)
    """The delivery, unsigned: it is signed anew for each attempt."""
    attempts: list[Attempt] = field(default_factory=list, repr=False)

    @property
    def delivered(self) -> bool:
        return any(attempt.ok for attempt in self.attempts)


@dataclass(frozen=True)
class Other:
    """Another endpoint of the same account: an old one that was never deleted, somebody else's."""

    id: str
    url: str
    types: tuple[str, ...] = ("*",)


@dataclass
class World:
    """The provider's truth. Safe for the threads that deliver and those that serve the API."""

    clock: Callable[[], datetime] = now
    lag: timedelta = timedelta(0)
    """How old the state is that the API shows: a replica that lags behind."""
    enabled: bool = True
    """Whether the endpoint is enabled at the provider; while it is not, nothing is sent."""
    url: str = ""
    """Where the endpoint sends to, as the API shows it."""
    subscribed: tuple[str, ...] = ("*",)
    api_version: str = ""
    """What deliveries are said to be of, where the API shows that; empty: what the provider file asks for."""
    others: list[Other] = field(default_factory=list)
    log_window: timedelta | None = None
    """How far back the log that the API shows reaches."""
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    history: dict[Key, list[tuple[datetime, dict[str, Any] | None]]] = field(default_factory=dict, repr=False)
    log: list[Happening] = field(default_factory=list, repr=False)
    attempts: list[Attempt] = field(default_factory=list, repr=False)

    again: Callable[[Happening], None] = field(default=lambda _happening: None, repr=False)
    """Send this event once more (a redelivery that was asked for)."""

    def logged(self) -> list[Happening]:
        """The log as the API shows it, oldest first."""
        with self.lock:
            return [each for each in self.log if self._shows(each.at)]

    def attempted(self) -> list[Attempt]:
        """The log of deliveries as the API shows it, oldest first."""
        with self.lock:
            return [each for each in self.attempts if self._shows(each.at)]

    def _shows(self, at: datetime) -> bool:
        return self.log_window is None or at >= self.clock() - self.log_window

    def put(self, key: Key, data: dict[str, Any] | None) -> None:
        """The object is so from now on; None: it is deleted."""
        with self.lock:
            self.history.setdefault(key, []).append((self.clock(), copy.deepcopy(data)))

    def get(self, key: Key) -> dict[str, Any] | None:
        """The object as it is; None if it was deleted or never was."""
        with self.lock:
            versions = self.history.get(key)
            return copy.deepcopy(versions[-1][1]) if versions else None

    def shown(self, key: Key) -> tuple[bool, dict[str, Any] | None]:
        """What the API shows of the object: whether it knows of it, and its state (None: deleted)."""
        with self.lock:
            until = self.clock() - self.lag
            seen = [data for at, data in self.history.get(key, []) if at <= until or not self.lag]
            return bool(seen), copy.deepcopy(seen[-1]) if seen else None

    def objects(self, account: str, kind: str) -> Iterator[dict[str, Any]]:
        """The objects of a kind that the API shows, oldest first."""
        with self.lock:
            keys = [key for key in self.history if key[:2] == (account, kind)]
        for key in keys:
            _, data = self.shown(key)
            if data is not None:
                yield data

    def truth(self) -> dict[Key, dict[str, Any] | None]:
        """Every object that ever was, as it is now."""
        with self.lock:
            return {key: copy.deepcopy(versions[-1][1]) for key, versions in self.history.items()}
