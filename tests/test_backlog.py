"""A backlog: while one claim is written, the next one is made and its objects are fetched."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import func, select, update
from sqlalchemy.exc import OperationalError

from webhooks import Webhooks
from webhooks.apply import Applier, pace
from webhooks.apply.fetching import Fetched
from webhooks.extension import state
from webhooks.inbox import CLAIM_SIZE, claiming

from .apps import STRIPE, build, rows
from .test_fairness import put

CLAIM = 8
EVENTS = 6 * CLAIM


@dataclass
class Seen:
    """What the handler saw: the threads it ran in, the claim of each event, and those that others had at that moment."""

    threads: set[int] = field(default_factory=set)
    claims: list[int] = field(default_factory=list)
    ahead: set[int] = field(default_factory=set)
    customers: Counter[str] = field(default_factory=Counter)
    breaks_at: int = -1


@contextmanager
def backlog(
    url: str, *, events: int = EVENTS, patience: float = 0.0
) -> Iterator[tuple[Flask, Applier, Seen]]:
    """An app whose worker has that many events before it and knows that it is quick; at most so long its handler waits
    for another claim than its own to be there."""
    seen, webhooks = Seen(), Webhooks()

    @webhooks.sync("stripe", "customer")
    def see(event: Any, _customer: Any) -> None:
        seen.threads.add(threading.get_ident())
        seen.claims.append(event.claim_no)
        seen.customers[event.object.id] += 1
        ends = time.monotonic() + patience
        while not (others := _claims_of_others(app, event.claim_no)) and time.monotonic() < ends:
            time.sleep(0.005)
        seen.ahead |= others
        if len(seen.claims) == seen.breaks_at:
            raise SystemExit

    with build(url, {"stripe": STRIPE}, webhooks=webhooks) as app:
        applier = state(app).applier
        vars(applier)["_asking"] = lambda _deadline: _ask
        applier._pace.is_quick = True
        put(app, events)
        yield app, applier, seen


def _ask(group: Any) -> Fetched:
    return Fetched(asked=True, data={"id": group.object.id})


def _claims_of_others(app: Flask, claim_no: int) -> set[int]:
    events = state(app).inbox.tables.events.c
    with state(app).inbox.engine.connect() as connection:
        found = connection.execute(
            select(events.claim_no).where(events.state == "applying", events.claim_no != claim_no).distinct()
        )
        return set(found.scalars())


def _claim_and_die(applier: Applier) -> None:
    """A claim whose lease is over and whose worker is no more."""
    lost = applier.inbox.claim(applier.endpoints, limit=CLAIM)
    assert lost is not None
    events = applier.inbox.tables.events
    over = update(events).where(events.c.claim_no == lost.no).values(due_at=applier.inbox.moment())
    with applier.inbox.transaction() as connection:
        connection.execute(over)


def test_the_next_claim_is_there_while_one_is_written_and_handlers_stay_in_their_thread(
    fresh_postgres: str,
) -> None:
    with backlog(fresh_postgres, patience=0.5) as (app, applier, seen):
        done = applier.drain(limit=CLAIM)
        assert seen.threads == {threading.get_ident()}
        assert seen.ahead > set(seen.claims[CLAIM : -2 * CLAIM]), (
            "each was made while the one before was written"
        )
        assert seen.claims == sorted(seen.claims), "what was claimed first is written first"
        assert set(seen.customers.values()) == {1}
        assert (done.events, done.fetches) == (EVENTS, EVENTS)
        assert done.outcomes == {"applied": EVENTS}
        assert done.claims == len(set(seen.claims)) == EVENTS // CLAIM
        assert {row.state for row in rows(app, "events")} == {"applied"}


def test_sqlite_with_its_one_writer_is_claimed_from_in_turn(sqlite_url: str) -> None:
    with backlog(sqlite_url) as (app, applier, seen):
        assert applier.drain(limit=CLAIM).outcomes == {"applied": EVENTS}
        assert seen.ahead == set()
        assert {row.state for row in rows(app, "events")} == {"applied"}


def test_what_was_claimed_ahead_is_given_back_when_the_worker_ends(fresh_postgres: str) -> None:
    with backlog(fresh_postgres, patience=5) as (app, applier, seen):
        seen.breaks_at = CLAIM + 2
        with pytest.raises(SystemExit):
            applier.drain(limit=CLAIM)
        assert applier._beside is not None
        applier._beside.shutdown(wait=True)
        events = rows(app, "events")
        left = [event for event in events if event.state == "applying"]
        assert {event.claim_no for event in left} == {seen.claims[-1]}, "its own claim waits for its lease"
        ahead = [event for event in events if event.claim_no is not None and event.claim_no > seen.claims[-1]]
        assert ahead, "nothing was claimed ahead, so this shows nothing"
        assert {(event.state, event.attempts) for event in ahead} == {("pending", 0)}
        applier._beside = None
        seen.breaks_at = -1
        applier.drain(limit=CLAIM)
        assert {event.state for event in rows(app, "events") if event.id not in {e.id for e in left}} == {
            "applied"
        }


def test_a_claim_ahead_that_fails_takes_nothing_along(
    fresh_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with backlog(fresh_postgres) as (app, applier, seen):
        made, claim = [], applier.inbox.claim

        def failing(*given: Any, **named: Any) -> Any:
            made.append(1)
            if len(made) == 3:
                raise OperationalError("", None, Exception("the connection is gone"))
            return claim(*given, **named)

        monkeypatch.setattr(applier.inbox, "claim", failing)
        with pytest.raises(OperationalError):
            applier.drain(limit=CLAIM)
        assert Counter(event.state for event in rows(app, "events")) == {
            "applied": 2 * CLAIM,
            "pending": EVENTS - 2 * CLAIM,
        }
        applier.drain(limit=CLAIM)
        assert {event.state for event in rows(app, "events")} == {"applied"}
        assert set(seen.customers.values()) == {1}


def test_an_api_gets_no_more_requests_at_once_than_its_window_says(fresh_postgres: str) -> None:
    with backlog(fresh_postgres, events=200) as (_app, applier, _seen):
        lock, flying, most = threading.Lock(), [0], [0]

        def ask(group: Any) -> Fetched:
            with lock:
                flying[0] += 1
                most[0] = max(most[0], flying[0])
                assert applier._flights is not None
                allowed = applier._flights.windows.size("stripe")
            over = flying[0] > allowed + 1  # it may have been halved since
            time.sleep(0.002)
            with lock:
                flying[0] -= 1
            assert not over
            return _ask(group)

        vars(applier)["_asking"] = lambda _deadline: ask
        assert applier.drain(limit=20).outcomes == {"applied": 200}
        assert most[0] > 1, "nothing was asked at once, so this shows nothing"


def test_a_worker_that_is_slow_claims_nothing_ahead(
    fresh_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "SLOW", 0.0)
    with backlog(fresh_postgres) as (_app, applier, seen):
        applier._pace.is_quick = False
        assert applier.drain(limit=CLAIM).outcomes == {"applied": EVENTS}
        assert seen.ahead == set()
        assert not applier._pace.is_quick


def test_claims_grow_while_they_are_quick_and_shrink_while_they_are_slow() -> None:
    made = pace.Pace()
    sizes = []
    for seconds in (0.1, 0.1, 0.1, 1.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0):
        made.took(seconds)
        sizes.append(made.size)
    assert sizes[:4] == [2 * CLAIM_SIZE, 4 * CLAIM_SIZE, pace.MOST, pace.MOST]
    assert sizes[4:] == sorted(sizes[4:], reverse=True)
    assert made.size == pace.LEAST > 0
    assert not made.is_quick


def test_a_backlog_is_claimed_in_ever_larger_parts(fresh_postgres: str) -> None:
    with backlog(fresh_postgres, events=4 * CLAIM_SIZE) as (app, applier, _seen):
        vars(applier)["_has_handler"] = lambda *_: False
        done = applier.drain()
        assert done.outcomes == {"applied": 4 * CLAIM_SIZE}
        claims = state(app).inbox.tables.events.c.claim_no
        with state(app).inbox.engine.connect() as connection:
            sizes = (
                connection.execute(select(func.count(claims)).group_by(claims).order_by(claims))
                .scalars()
                .all()
            )
        assert sizes[0] == CLAIM_SIZE < max(sizes)


def test_what_a_dead_worker_left_is_taken_in_the_middle_of_a_backlog_and_at_its_end(
    fresh_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with backlog(fresh_postgres) as (app, applier, seen):
        _claim_and_die(applier)
        monkeypatch.setattr(claiming, "LOOK_EVERY", 3600.0)
        applier.drain(limit=CLAIM)
        assert {row.state for row in rows(app, "events")} == {"applied"}, "at its end"
        assert sorted(seen.customers.values()) == [1] * EVENTS

        put(app, EVENTS)
        _claim_and_die(applier)
        monkeypatch.setattr(claiming, "LOOK_EVERY", 0.0)
        found = applier.inbox.claim(applier.endpoints, limit=CLAIM)
        assert found is not None
        assert {event.attempts for group in found.groups for event in group.events} == {2}, "in its middle"
        assert found.size == 1, "one that kills its worker takes no others along"


def test_where_no_next_claim_can_be_begun_nothing_more_is_asked_for(fresh_postgres: str) -> None:
    with backlog(fresh_postgres, events=40) as (_app, applier, seen):
        asked: list[str] = []

        def ask(group: Any) -> Fetched:
            asked.append(group.object.id)
            time.sleep(0.02)
            return _ask(group)

        vars(applier)["_asking"] = lambda _deadline: ask
        prepare = applier._prepare

        def last(*given: Any) -> Any:
            done = prepare(*given)
            assert applier._beside is not None
            applier._beside.shutdown(wait=False)
            return done

        vars(applier)["_prepare"] = last
        with pytest.raises(RuntimeError):
            applier.drain(limit=30)
        sent = len(asked)
        time.sleep(0.2)
        assert len(asked) <= sent + 2 < 30, "what was in flight, and no more"
        assert not seen.claims


def test_a_child_of_a_worker_that_has_fetched_has_threads_of_its_own(sqlite_url: str) -> None:
    with backlog(sqlite_url, events=8) as (_app, applier, _seen):
        applier.drain()
        assert applier._flights is not None
        child = os.fork()
        if child == 0:
            os._exit(0 if applier._flights is None and applier._beside is None else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert applier._flights is not None
