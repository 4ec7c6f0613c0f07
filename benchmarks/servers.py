"""The database that is measured: a real one, with as much memory as one gives to it where it matters."""

from __future__ import annotations

from typing import ClassVar

from tests.services import Postgres

__all__ = ["Database"]


class Database(Postgres):
    """PostgreSQL with 2 GB of buffers, so that an inbox of some million events is in memory, as it is in production."""

    BUFFERS: ClassVar[str] = "2GB"
