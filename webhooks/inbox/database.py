"""One database: its engine, its clock, its transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, DateTime, Engine, Interval, func, literal
from sqlalchemy.sql import ColumnElement

from ..models import Tables

__all__ = ["Database"]


class Database:
    """Where the inbox is. Every method of those who build on it is a transaction of its own."""

    def __init__(self, engine: Callable[[], Engine], tables: Tables) -> None:
        self._engine = engine
        self.tables = tables

    @property
    def engine(self) -> Engine:
        return self._engine()

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction that writes first. SQLite takes its write lock at once, so that it never fails half-way."""
        with self.engine.connect() as connection:
            if self.is_sqlite and not _in_transaction(connection):
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection
            connection.commit()

    def moment(self, offset: timedelta = timedelta(0)) -> ColumnElement[datetime]:
        """The database's clock now, or that much later: one clock for all hosts."""
        if self.is_sqlite:  # the database is in this process, and so is its clock
            return literal(datetime.now(UTC) + offset, DateTime(timezone=True))
        return func.clock_timestamp() + literal(offset, Interval) if offset else func.clock_timestamp()


def _in_transaction(connection: Connection) -> bool:
    return bool(getattr(connection.connection.driver_connection, "in_transaction", False))
