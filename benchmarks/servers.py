"""The database that is measured: a real one, set up for what it is to do, as it is in production."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import psycopg

from tests.services import Postgres

__all__ = ["Database"]

SEGMENTS = 64
"""Files of the write-ahead log that are there from the start."""


class Database(Postgres):
    """PostgreSQL with memory for an inbox of some million events, and with files of its write-ahead log to use again.

    A database that is some hours old has those, up to `min_wal_size`. A new one makes each of them while everybody who
    commits waits for 16 MB of zeros, which would be most of what a p99 here says.
    """

    SETTINGS: ClassVar[Mapping[str, str]] = {
        "shared_buffers": "2GB",
        "min_wal_size": "2GB",
        "max_wal_size": "6GB",
    }

    def __enter__(self) -> Self:
        super().__enter__()
        with psycopg.connect(self.url().replace("+psycopg", ""), autocommit=True) as connection:
            for _ in range(SEGMENTS):
                connection.execute(
                    "SELECT pg_logical_emit_message(false, 'benchmarks', 'some'), pg_switch_wal()"
                )
            connection.execute("CHECKPOINT")
        return self
