"""The doorbell: a burst is rung for a few times, nothing that came is left without a ring, and nobody waits for a broker."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest
from celery import Celery

from webhooks import queue
from webhooks.queue import QUIET, Bell


class Broker:
    """Stands for a Celery app: notes when and in which thread it was given a message."""

    def __init__(self) -> None:
        self.conf: dict[str, Any] = {"broker_url": "redis://localhost"}
        self.heard: list[float] = []
        self.threads: set[int] = set()
        self.refusals = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def send_task(self, *_: Any, **__: Any) -> None:
        self.threads.add(threading.get_ident())
        self.meanwhile()
        if self.refusals:
            self.refusals -= 1
            raise ConnectionError
        self.heard.append(time.monotonic())


def bell(broker: Broker) -> Bell:
    return Bell(lambda: cast("Celery", broker))


def wait(until: Callable[[], object]) -> None:
    ends = time.monotonic() + 10
    while not until():
        assert time.monotonic() < ends
        time.sleep(0.002)


def test_a_burst_is_rung_for_at_its_beginning_and_after_its_end() -> None:
    broker = Broker()
    made = bell(broker)
    assert made.is_silent
    began = time.monotonic()
    for _ in range(1000):
        made.ring()
    ended = time.monotonic()
    assert not made.is_silent or broker.heard
    wait(lambda: made.is_silent)
    pauses = (ended - began) / QUIET.total_seconds()
    assert 1 <= len(broker.heard) <= pauses + 2
    assert broker.heard[-1] >= began
    assert made.rung == len(broker.heard)
    assert broker.threads.isdisjoint({threading.get_ident()})


def test_what_comes_while_it_rings_is_rung_for_again() -> None:
    broker = Broker()
    made = bell(broker)
    came: list[float] = []

    def once() -> None:
        broker.meanwhile = lambda: None
        made.ring()
        came.append(time.monotonic())

    broker.meanwhile = once
    made.ring()
    wait(lambda: len(broker.heard) == 2)
    assert broker.heard[1] > came[0]
    assert broker.heard[1] - broker.heard[0] > QUIET.total_seconds() / 2
    assert len(broker.threads) == 1, "one thread rings for all of a burst"


def test_a_broker_that_refuses_is_tried_until_it_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "BROKEN", timedelta(seconds=0.02))
    broker = Broker()
    broker.refusals = 3
    made = bell(broker)
    made.ring()
    wait(lambda: broker.heard)
    wait(lambda: made.is_silent)
    assert made.rung == 1


def test_an_app_that_cannot_be_made_now_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "BROKEN", timedelta(seconds=0.02))
    broker, asked = Broker(), []

    def made_late() -> Celery:
        asked.append(1)
        if len(asked) < 3:
            raise OSError("the disk is full")
        return cast("Celery", broker)

    made = Bell(made_late)
    made.ring()
    wait(lambda: broker.heard)
    made.ring()
    wait(lambda: len(broker.heard) == 2)


def test_where_no_thread_can_be_begun_it_raises_nothing_and_the_next_event_is_rung_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    broker = Broker()
    made = bell(broker)
    with monkeypatch.context() as out_of_threads:
        out_of_threads.setattr(threading.Thread, "start", refuse)
        made.ring()
    made.ring()
    wait(lambda: broker.heard)


def test_its_thread_ends_in_a_pause_and_the_next_event_is_rung_for_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue, "LINGER", timedelta(seconds=0.01))
    broker = Broker()
    made = bell(broker)
    for number in range(1, 4):
        made.ring()
        wait(lambda number=number: len(broker.heard) == number)
        wait(lambda: not made._has_ringer)
    assert made.rung == 3


def test_a_child_of_a_process_that_has_rung_rings_itself() -> None:
    broker = Broker()
    made = bell(broker)
    made.ring()
    wait(lambda: broker.heard)
    assert made._has_ringer
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        broker.meanwhile = lambda: os._exit(os.write(write, b"rung") - 4)
        made.ring()
        time.sleep(10)
        os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b"rung"
    os.waitpid(child, 0)
