"""What the next run must know: how far a sweep has come, when beat was last heard, how often a check was bad."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects import postgresql, sqlite

if TYPE_CHECKING:
    from . import Inbox

__all__ = ["EVERYWHERE", "SECRET", "Marks"]

SECRET = "secret:"  # noqa: S105 - a name
"""What the names of marks begin with that say when a secret, named by its fingerprint, was last used."""

EVERYWHERE = "(all)"
"""In place of an endpoint, for what is about none in particular."""


class Marks:
    """Small values by endpoint and name, in the database."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def get(self, endpoint: str, name: str) -> Any:
        """The value; None if there is none."""
        c = self._inbox.tables.marks.c
        with self._inbox.engine.connect() as connection:
            return connection.scalar(select(c.value).where(c.endpoint == endpoint, c.name == name))

    def beginning_with(self, endpoint: str, prefix: str) -> dict[str, Any]:
        """Name → value of the marks whose names begin so."""
        c = self._inbox.tables.marks.c
        wanted = (c.endpoint == endpoint) & c.name.startswith(prefix, autoescape=True)
        with self._inbox.engine.connect() as connection:
            return {row.name: row.value for row in connection.execute(select(c.name, c.value).where(wanted))}

    def times(self, prefix: str) -> dict[tuple[str, str], datetime]:
        """(Endpoint, name) → when it was last written, of the marks whose names begin so."""
        c = self._inbox.tables.marks.c
        wanted = select(c.endpoint, c.name, c.at).where(c.name.startswith(prefix, autoescape=True))
        with self._inbox.engine.connect() as connection:
            rows = connection.execute(wanted).all()
        return {
            (row.endpoint, row.name): row.at.replace(tzinfo=UTC) if row.at.tzinfo is None else row.at
            for row in rows
        }

    def at(self, endpoint: str, name: str) -> datetime | None:
        """When it was last written, by the database's clock."""
        c = self._inbox.tables.marks.c
        with self._inbox.engine.connect() as connection:
            found = connection.scalar(select(c.at).where(c.endpoint == endpoint, c.name == name))
        return found.replace(tzinfo=UTC) if found is not None and found.tzinfo is None else found

    def put(self, endpoint: str, name: str, value: Any) -> None:
        """Write the value over the old one."""
        with self._inbox.transaction() as connection:
            self.write(connection, endpoint, name, value)

    def write(self, connection: Connection, endpoint: str, name: str, value: Any) -> None:
        """The same within a transaction of the caller's."""
        table = self._inbox.tables.marks
        row = {"endpoint": endpoint, "name": name, "value": value, "at": self._inbox.moment()}
        made: Any = (sqlite if self._inbox.is_sqlite else postgresql).insert(table).values(row)
        written = made.on_conflict_do_update(
            index_elements=["endpoint", "name"], set_={"value": made.excluded.value, "at": made.excluded.at}
        )
        connection.execute(written)

    def drop(self, endpoint: str, name: str) -> None:
        """Forget it."""
        table = self._inbox.tables.marks
        with self._inbox.transaction() as connection:
            connection.execute(delete(table).where(table.c.endpoint == endpoint, table.c.name == name))
