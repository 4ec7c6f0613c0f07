"""The group commit at the door: what happens to those who wait for another one's write."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.engine import make_url

from webhooks.errors import InboxUnavailable
from webhooks.inbox.door import Door
from webhooks.inbox.rows import Arrival, Recorded

from .apps import build
from .services import Postgres

WAITERS = 12
STRIPE = {"stripe": {"secrets": ["whsec_test_of_the_group_commit"], "fetch": False}}


@pytest.fixture
def engine(fresh_postgres: str) -> Iterator[Engine]:
    """An engine on a database that has the tables."""
    with build(fresh_postgres, STRIPE):
        made = create_engine(fresh_postgres)
        yield made
        made.dispose()


def arrival(key: str, *, type: str = "customer.updated", headers: str = "{}") -> Arrival:  # noqa: A002 - the column
    return Arrival(
        endpoint="stripe",
        dedup_key=key,
        origin="delivery",
        type=type,
        body=b"{}",
        headers=headers,
    )


def recorded_keys(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        found = connection.execute(text("SELECT dedup_key FROM webhook_events ORDER BY dedup_key"))
        return list(found.scalars())


class Crowd:
    """Threads that record at the door while the table is locked, so that all of them but the first wait together."""

    def __init__(self, door: Door, engine: Engine) -> None:
        self._door, self._engine = door, engine
        self.results: dict[str, list[Recorded] | Exception] = {}

    def record(
        self, arrivals: list[Arrival], while_waiting: Callable[[], None] = lambda: None
    ) -> dict[str, list[Recorded] | Exception]:
        """What each of them got."""
        dsn = make_url(str(self._engine.url.render_as_string(hide_password=False))).set(
            drivername="postgresql"
        )
        with psycopg.connect(dsn.render_as_string(hide_password=False)) as other:
            other.execute("LOCK TABLE webhook_events IN ACCESS EXCLUSIVE MODE")
            threads = [threading.Thread(target=self._one, args=(each,), daemon=True) for each in arrivals]
            threads[0].start()
            until(self._door._writing.locked)
            for thread in threads[1:]:
                thread.start()
            until(lambda: len(self._door._waiting) == len(arrivals) - 1)
            while_waiting()
            other.rollback()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        return self.results

    def _one(self, one: Arrival) -> None:
        try:
            self.results[one.dedup_key] = self._door.record([one])
        except InboxUnavailable as error:
            self.results[one.dedup_key] = error


def until(condition: Callable[[], bool]) -> None:
    """Wait for it, at most ten seconds."""
    pause = threading.Event()
    for _ in range(1000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not happen")


def test_all_who_wait_are_written_by_one_statement(engine: Engine) -> None:
    door = Door(lambda: engine)
    sizes: list[int] = []
    write = door._write
    door._write = lambda batch: (sizes.append(len(batch)), write(batch))[1]  # type: ignore[method-assign]
    arrivals = [arrival(f"evt_{n:02}") for n in range(WAITERS)]
    found = Crowd(door, engine).record(arrivals)
    assert all(isinstance(each, list) and each[0].new for each in found.values())
    assert sizes == [1, WAITERS - 1]
    assert recorded_keys(engine) == [each.dedup_key for each in arrivals]
    door.close()


def test_one_bad_row_fails_alone(engine: Engine) -> None:
    door = Door(lambda: engine)
    arrivals = [arrival(f"evt_{n:02}") for n in range(WAITERS)]
    arrivals[5] = arrival("evt_05", headers="{no json")
    found = Crowd(door, engine).record(arrivals)
    bad = found.pop("evt_05")
    assert isinstance(bad, InboxUnavailable)
    assert len(found) == WAITERS - 1
    assert all(isinstance(each, list) and each[0].new for each in found.values())
    assert recorded_keys(engine) == sorted(found)
    door.close()


def test_of_the_same_event_in_one_batch_exactly_one_is_new(engine: Engine) -> None:
    door = Door(lambda: engine)
    results: list[bool] = []
    first = arrival("evt_first")
    same = [dataclasses.replace(arrival("evt_same")) for _ in range(WAITERS)]
    crowd = Crowd(door, engine)
    crowd._one = lambda one: results.append(door.record([one])[0].new)  # type: ignore[method-assign]
    crowd.record([first, *same])
    assert sorted(results) == [False] * (WAITERS - 1) + [True, True]
    with engine.connect() as connection:
        deliveries = connection.execute(
            text("SELECT deliveries FROM webhook_events WHERE dedup_key = 'evt_same'")
        )
        assert deliveries.scalar_one() == WAITERS
    door.close()


def test_one_who_writes_for_all_and_is_torn_away_leaves_nobody_waiting(engine: Engine) -> None:
    """As a worker's time limit or Ctrl-C would: an exception out of nowhere, in the middle of the write."""
    door = Door(lambda: engine)
    write = door._write
    torn: list[int] = []

    def tear(batch: Any) -> None:
        if len(batch) > 1 and not torn:
            torn.append(len(batch))
            raise KeyboardInterrupt
        write(batch)

    door._write = tear  # type: ignore[method-assign]
    results: dict[str, object] = {}

    def one(each: Arrival) -> None:
        try:
            results[each.dedup_key] = door.record([each])
        except BaseException as error:  # noqa: BLE001 - the interrupt too
            results[each.dedup_key] = error

    crowd = Crowd(door, engine)
    crowd._one = one  # type: ignore[method-assign]
    crowd.record([arrival(f"evt_{n:02}") for n in range(WAITERS)])
    errors = [each for each in results.values() if isinstance(each, BaseException)]
    assert torn == [WAITERS - 1]
    assert len(results) == WAITERS
    assert sorted(type(each).__name__ for each in errors) == ["InboxUnavailable"] * (WAITERS - 2) + [
        "KeyboardInterrupt"
    ]
    # The door goes on, and who comes again is recorded once.
    again = [door.record([arrival(f"evt_{n:02}")])[0].new for n in range(WAITERS)]
    assert again == [False] + [True] * (WAITERS - 1)
    door.close()


def test_one_who_gives_up_waiting_is_not_waited_for(engine: Engine) -> None:
    door = Door(lambda: engine)

    def impatient() -> None:
        with pytest.raises(InboxUnavailable):
            door.record([arrival("evt_impatient")], timedelta(milliseconds=50))

    found = Crowd(door, engine).record([arrival(f"evt_{n:02}") for n in range(WAITERS)], impatient)
    assert all(isinstance(each, list) and each[0].new for each in found.values())
    assert recorded_keys(engine) == sorted(found)
    door.close()


def test_a_database_that_was_restarted_is_noticed_by_nobody(own_postgres: Postgres) -> None:
    with build(own_postgres.url(), STRIPE):
        engine = create_engine(own_postgres.url())
        door = Door(lambda: engine)
        assert door.record([arrival("evt_before")])[0].new
        own_postgres.restart()
        assert door.record([arrival("evt_after")])[0].new
        engine.dispose()
        assert recorded_keys(engine) == ["evt_after", "evt_before"]
        door.close()
        engine.dispose()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_process_has_a_door_of_its_own(engine: Engine, tmp_path: Path) -> None:
    """Pre-fork servers may have used the door before they fork, and while others wait at it."""
    door = Door(lambda: engine)
    door.record([arrival("evt_parent")])
    backends: list[int] = []

    def child() -> None:
        pid = os.fork()
        if not pid:
            try:
                engine.dispose(close=False)
                door.record([arrival("evt_child")], timedelta(seconds=5))
                connection: Any = door._connection
                (tmp_path / "backend").write_text(str(connection.driver_connection.info.backend_pid))
            finally:
                os._exit(0)
        backends.append(pid)

    found = Crowd(door, engine).record([arrival(f"evt_{n:02}") for n in range(WAITERS)], child)
    os.waitpid(backends[0], 0)
    assert all(isinstance(each, list) and each[0].new for each in found.values())
    assert recorded_keys(engine) == [*sorted(found), "evt_child", "evt_parent"]
    connection: Any = door._connection
    assert int((tmp_path / "backend").read_text()) != connection.driver_connection.info.backend_pid
    door.close()


def test_it_commits_as_the_host_has_it(fresh_postgres: str) -> None:
    """The door adds no setting of its own to how durable a commit is."""
    with build(fresh_postgres, STRIPE):
        engine = create_engine(fresh_postgres, connect_args={"options": "-c synchronous_commit=local"})
        asked: list[str] = []
        event.listen(engine, "before_cursor_execute", lambda *said: asked.append(said[2]))
        door = Door(lambda: engine)
        door.record([arrival("evt_1")])
        connection: Any = door._connection
        shown = connection.driver_connection.execute("SHOW synchronous_commit").fetchone()
        assert shown == ("local",)
        assert not [statement for statement in asked if "synchronous_commit" in statement]
        door.close()
        engine.dispose()
