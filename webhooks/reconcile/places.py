"""How far a listing has come, so that the next run goes on there when one was killed or broke off."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from sqlalchemy import Connection

from ..inbox import Inbox
from ..inbox.marks import Marks
from ..jsontext import Json
from ..provider import instant
from .limits import PLACE_KEEPS
from .runs import Run

__all__ = ["Place"]

AHEAD = timedelta(minutes=1)
"""A mark that is from later than that was made by a clock that has been set back."""


@dataclass
class Place:
    """The place in one listing: of which run, in which account, at which cursor of the provider's file."""

    inbox: Inbox
    endpoint: str
    task: str
    listing: int
    """The run that began it."""
    since: datetime
    """How far it looks back."""
    keeps: bool = True
    """False: nothing is noted, so that the next run begins anew."""
    size: int = 0
    """Items that were taken in."""
    account: str | None = None
    """None: it has not begun."""
    cursor: Json = None
    read: bool = False
    """All was listed; what is left is to compare it."""
    resumed: bool = False

    @classmethod
    def of(cls, inbox: Inbox, run: Run, *, keeps: bool = True) -> Self:
        """Where this run begins: at the place where one before it broke off, or at the beginning.

        Then the run looks back as far as that one did and counts from when that one started: what changed in between may be
        on a page that is not read again, and is the next run's.
        """
        made = cls(inbox, run.endpoint, run.task, run.id, keeps=keeps, since=run.since)
        mark = Marks(inbox).get(run.endpoint, made._name) if made.keeps else None
        if mark:
            started, since = instant(mark["started"]), instant(mark["since"])
            assert started is not None
            assert since is not None
            age = datetime.now(UTC) - started
            if -AHEAD <= age < PLACE_KEEPS and (run.watermark is None or started > run.watermark):
                run.started, run.since = started, since
                made.listing, made.size, made.read = mark["listing"], mark["size"], mark["read"]
                made.since = since
                made.account, made.cursor, made.resumed = mark["account"], mark["cursor"], True
                run.report["went_on"] = {"run": made.listing, "behind": made.size}
            else:
                run.report["began_again"] = "the place where the run before broke off is too old"
        return made

    @property
    def _name(self) -> str:
        return f"place:{self.task}"

    def piece(self, since: datetime) -> None:
        """The next piece of a log begins."""
        self.since, self.account, self.cursor = since, None, None

    def begin_again(self, run: Run, why: str) -> None:
        """The provider does not know the cursor any more."""
        run.report["began_again"] = f"the cursor of the run before has expired: {why}"
        self.account, self.cursor = None, None

    def write(self, connection: Connection, run: Run) -> None:
        """Note the place, together with what was taken in up to it."""
        if not self.keeps:
            return
        assert run.started is not None
        value: dict[str, Any] = {
            "listing": self.listing,
            "started": run.started.isoformat(),
            "since": self.since.isoformat(),
            "size": self.size,
            "account": self.account,
            "cursor": self.cursor,
            "read": self.read,
        }
        Marks(self.inbox).write(connection, self.endpoint, self._name, value)

    def save(self, run: Run) -> None:
        """The same in a transaction of its own."""
        with self.inbox.transaction() as connection:
            self.write(connection, run)

    def drop(self) -> None:
        """The listing is done."""
        if self.keeps:
            Marks(self.inbox).drop(self.endpoint, self._name)
