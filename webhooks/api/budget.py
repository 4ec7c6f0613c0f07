"""One budget of calls per account at a provider, shared by all workers through the database.

Live events are never asked to wait for it: what they spend is counted, and everybody else leaves them their share.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from sqlalchemy import Connection, Engine, func, literal, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from ..endpoints import Endpoint
from ..models import Tables
from ..provider import Rate

__all__ = ["RESERVE", "Budget", "Priority"]

Priority = Literal["live", "retry", "reconcile", "audit"]

RESERVE: dict[Priority, float] = {"live": 0.0, "retry": 0.1, "reconcile": 0.5, "audit": 0.75}
"""The share of the budget that must be left for whoever goes first."""

GRANT = 0.05
"""Whoever may wait takes this share of the budget at once, so that not every call costs a statement."""

FLUSH_CALLS = 20
FLUSH_AFTER = 1.0
"""Seconds. What live events spend is written at the latest when so many calls, or GRANT of the budget if that is more, or so
much time have gone by."""

log = logging.getLogger(__name__)


@dataclass
class _Purse:
    """What this process knows of one account."""

    unwritten: int = 0
    written_at: float = 0.0
    granted: int = 0
    granted_until: float = 0.0


class Budget:
    """The budgets of all accounts, in one database."""

    def __init__(
        self, engine: Callable[[], Engine], tables: Tables, *, clock: Callable[[], datetime] | None = None
    ) -> None:
        """`clock` replaces the database's."""
        self._engine, self._table, self._clock = engine, tables.budgets, clock
        self._lock = threading.Lock()
        self._purses: dict[tuple[str, Priority], _Purse] = {}

    def spend(self, endpoint: Endpoint, account: str) -> None:
        """Count a live call. Never waits and never fails."""
        rate = rate_of(endpoint)
        if rate is None:
            return
        name = account_key(endpoint, account)
        with self._lock:
            purse = self._purses.setdefault((name, "live"), _Purse(written_at=time.monotonic()))
            purse.unwritten += 1
            late = time.monotonic() - purse.written_at >= FLUSH_AFTER
            if purse.unwritten < max(FLUSH_CALLS, rate.calls * GRANT) and not late:
                return
            calls, purse.unwritten, purse.written_at = purse.unwritten, 0, time.monotonic()
        try:
            with self._row(name) as (connection, row, now):
                self._write(connection, name, now, spent=_level(row, rate, now) + calls)
        except SQLAlchemyError as error:
            log.warning("what an API was asked could not be counted (%s)", type(error).__name__)

    def take(self, endpoint: Endpoint, account: str, priority: Priority) -> timedelta:
        """Take one call; how long to wait before it may be taken, zero if it was."""
        name = account_key(endpoint, account)
        with self._lock:
            purse = self._purses.setdefault((name, priority), _Purse())
            if purse.granted > 0 and time.monotonic() < purse.granted_until:
                purse.granted -= 1
                return timedelta(0)
        rate = rate_of(endpoint)
        size = 1 if rate is None else max(int(rate.calls * GRANT), 1)
        with self._row(name) as (connection, row, now):
            wait = self._wait(row, rate, now, priority, size)
            if wait <= timedelta(0) and rate is not None:
                self._write(connection, name, now, spent=_level(row, rate, now) + size)
        if wait > timedelta(0):
            return wait
        with self._lock:
            purse.granted, purse.granted_until = size - 1, time.monotonic() + FLUSH_AFTER
        return timedelta(0)

    def block(self, endpoint: Endpoint, account: str, wait: timedelta) -> None:
        """The provider asked to wait: nobody but live events, which have their own brake, asks before that."""
        with self._row(account_key(endpoint, account)) as (connection, row, now):
            until = max(now + wait, _aware(row.blocked_until) or now)
            self._write(connection, account_key(endpoint, account), now, blocked_until=until)
        self._forget(account_key(endpoint, account))

    def learn(self, endpoint: Endpoint, account: str, share: float, until: timedelta) -> None:
        """The provider's headers say what share of its limit is left, and when it is whole again."""
        with self._row(account_key(endpoint, account)) as (connection, _, now):
            self._write(connection, account_key(endpoint, account), now, share=share, share_until=now + until)
        if share <= max(RESERVE.values()):
            self._forget(account_key(endpoint, account))

    def _forget(self, name: str) -> None:
        with self._lock:
            for purse in (purse for (account, _), purse in self._purses.items() if account == name):
                purse.granted = 0

    def _wait(self, row: Any, rate: Rate | None, now: datetime, priority: Priority, size: int) -> timedelta:
        waits = [timedelta(0), (_aware(row.blocked_until) or now) - now]
        share_until = _aware(row.share_until)
        if row.share is not None and share_until is not None and row.share < RESERVE[priority]:
            waits.append(share_until - now)
        if rate is not None:
            allowed = max(rate.calls * (1 - RESERVE[priority]), size)
            over = _level(row, rate, now) + size - allowed
            waits.append(timedelta(seconds=over * rate.per.total_seconds() / rate.calls))
        return max(waits)

    @contextmanager
    def _row(self, name: str) -> Iterator[tuple[Connection, Any, datetime]]:
        """The account's row, locked, and the time now."""
        engine, c = self._engine(), self._table.c
        is_sqlite = engine.dialect.name == "sqlite"
        now = self._clock() if self._clock else datetime.now(UTC)
        first = {"account": name, "spent": 0.0, "since": now}
        make: Any = (sqlite if is_sqlite else postgresql).insert(self._table).values(first)
        with engine.connect() as connection:
            if is_sqlite and not getattr(connection.connection.driver_connection, "in_transaction", False):
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            connection.execute(make.on_conflict_do_nothing())
            clock = literal(None) if is_sqlite or self._clock else func.clock_timestamp()
            row = connection.execute(
                select(self._table, clock.label("database_now")).where(c.account == name).with_for_update()
            ).one()
            yield connection, row, now if row.database_now is None else row.database_now
            connection.commit()

    def _write(self, connection: Connection, name: str, now: datetime, **values: Any) -> None:
        if "spent" in values:
            values["since"] = now
        connection.execute(update(self._table).where(self._table.c.account == name).values(**values))


def rate_of(endpoint: Endpoint) -> Rate | None:
    """What the endpoint's configuration or the provider's documentation allows; None: neither says."""
    if endpoint.api_rate is not None:
        return Rate(max(int(endpoint.api_rate * 10), 1), timedelta(seconds=10), "WEBHOOKS")
    return endpoint.provider.api.rate if endpoint.provider.api is not None else None


def account_key(endpoint: Endpoint, account: str) -> str:
    """The same for all endpoints that ask with the same credentials for the same account; holds none of them."""
    provider = endpoint.provider
    asked_with = [provider.name, endpoint.api_base_url or "", account]
    asked_with += [endpoint.setting(name) for name in provider.required or provider.settings]
    return f"{provider.name}:" + hashlib.sha256("\0".join(asked_with).encode()).hexdigest()[:32]


def _level(row: Any, rate: Rate, now: datetime) -> float:
    """The calls that still count: what was spent, less what time has given back since."""
    since = _aware(row.since) or now
    back = max((now - since).total_seconds(), 0.0) * rate.calls / rate.per.total_seconds()
    return max(float(row.spent) - back, 0.0)


def _aware(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment
