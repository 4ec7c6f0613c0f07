"""What most simulated providers share: an object is what it was made of, changes bring a new time, deliveries are the
provider file's own samples."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, ClassVar

from ...provider import Provider, Request, Sample
from .world import Answer, Call, Happening, Key, World

__all__ = ["MISSING", "PlainService", "found", "iso", "window"]

MISSING = Answer(404, {"message": "simulated: there is no such thing"})


class PlainService:
    """A provider without an API, whose objects are what its deliveries carry. The others override what they have."""

    provider: ClassVar[Provider]
    settings: ClassVar[dict[str, str]] = {}
    kinds: tuple[str, ...] = ()
    secret: str = ""
    account: str = ""

    def new(self, world: World, kind: str, id_: str, fields: dict[str, Any]) -> dict[str, Any]:
        """The first state of an object."""
        at = iso(world.clock())
        return {"id": id_, "created_at": at, "updated_at": at, **fields}

    def id_of(self, kind: str, number: int) -> str:
        return f"{kind[:4].lower()}_sim{number:08d}"

    def changed(self, world: World, data: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
        """Its next state."""
        return {**data, "updated_at": iso(world.clock()), **fields}

    def event_type(self, kind: str, what: str, data: dict[str, Any]) -> str:
        return f"{kind}.{what}"

    def deletable(self, kind: str) -> bool:
        """Whether the demo may delete it: where only a delivery tells, a lost one could not be healed."""
        return False

    def request(
        self, happening_id: str, type_: str, at: datetime, key: Key, snapshot: dict[str, Any]
    ) -> Request:
        """The delivery of one event, unsigned."""
        assert self.provider.sample is not None
        return self.provider.sample(Sample(type_, happening_id, at, self.carried(key, snapshot), key[0]))

    def carried(self, key: Key, snapshot: dict[str, Any]) -> dict[str, Any]:
        """The object as a delivery carries it."""
        return snapshot

    def signed_at(self, happening: Happening, now: datetime) -> datetime:
        return now

    def answer(self, world: World, call: Call) -> Answer:
        return MISSING


def iso(moment: datetime) -> str:
    """ISO 8601 in UTC, with microseconds and Z."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def found(world: World, key: Key) -> dict[str, Any] | None:
    """The object as the API shows it; None where it does not."""
    return world.shown(key)[1]


def window(items: Iterable[Any], offset: int, size: int) -> tuple[list[Any], bool]:
    """A page of a list, and whether there is more behind it."""
    every = list(items)
    return every[offset : offset + size], len(every) > offset + size
