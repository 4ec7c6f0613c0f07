"""What waking a worker costs: a message per event, as most tutorials do, beside the doorbell. `python -m benchmarks publish`.

CPU is the publishing process's own, per event; messages are what the broker is given, per event. A burst is so many events,
one after the other; between bursts a process is quiet for longer than the bell's pause, so that each is rung for anew.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery import Celery

from tests.services import Valkey
from webhooks.queue import APPLY, QUEUE, QUIET, Bell, broker_settings

from .machine import ROUNDS, Figures, figure

__all__ = ["run"]

TOTAL = 2_000
"""Events per measurement, at least one burst."""
BURSTS = (1, 10, 100, 1_000)
MOST_BURSTS = 40
"""A measurement waits between bursts, and must end."""
FEW_BURSTS = (1, 1_000)
"""Where each event is a message, a burst only keeps the caches warm."""


@dataclass
class Publisher:
    """One way to wake a worker."""

    wake: Callable[[], None]
    settle: Callable[[], None]
    """Returns when everything that was asked for has been published."""
    messages: Callable[[], int]


def run() -> Figures:
    """Microseconds of CPU per event, and messages per event, on Valkey and on the broker of files."""
    samples: dict[str, tuple[str, list[float]]] = {}
    with Valkey() as broker, tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            for name, url in (("Valkey", broker.url()), ("files", None)):
                for way, make in WAYS.items():
                    for burst in BURSTS if way == "the bell" else FEW_BURSTS:
                        with _celery(url, Path(folder)) as celery:
                            cpu, messages = _measure(make(celery), burst)
                        label = f"{name}, {way}, bursts of {burst:,}"
                        samples.setdefault(f"{label}: CPU", ("us per event", []))[1].append(cpu)
                        samples.setdefault(f"{label}: messages", ("per event", []))[1].append(messages)
    return {name: figure(taken, unit) for name, (unit, taken) in samples.items()}


def _measure(publisher: Publisher, burst: int) -> tuple[float, float]:
    publisher.wake()  # connects, and loads what is loaded at the first message
    publisher.settle()
    bursts = min(max(TOTAL // burst, 1), MOST_BURSTS)
    sent, used = publisher.messages(), 0.0
    for _ in range(bursts):
        time.sleep(2 * QUIET.total_seconds())
        before = time.process_time()
        for _ in range(burst):
            publisher.wake()
        publisher.settle()
        used += time.process_time() - before
    return used / (burst * bursts) * 1e6, (publisher.messages() - sent) / (burst * bursts)


def _delay(celery: Celery) -> Publisher:
    """`task.delay()`, as the usual recipe has it."""
    sent = [0]

    @celery.task(name=APPLY)
    def apply(event_id: str) -> None:
        """Never run here."""

    def wake() -> None:
        apply.delay("evt_0001")
        sent[0] += 1

    return Publisher(wake, lambda: None, lambda: sent[0])


def _kept_producer(celery: Celery) -> Publisher:
    """One producer, kept, and a message per event."""
    producer: Any = celery.amqp.Producer(celery.connection_for_write(), auto_declare=False)
    sent = [0]

    def wake() -> None:
        celery.send_task(APPLY, ["evt_0001"], queue=QUEUE, producer=producer, ignore_result=True)
        sent[0] += 1

    return Publisher(wake, lambda: None, lambda: sent[0])


def _bell(celery: Celery) -> Publisher:
    """Ours. A bell that nobody heard lies in the broker of files only once, so here a worker hears each."""
    bell = Bell(lambda: celery)

    def settle() -> None:
        while not bell.is_silent:
            time.sleep(0.001)
        _hear(celery)

    return Publisher(bell.ring, settle, lambda: bell.rung)


def _hear(celery: Celery) -> None:
    folder = (celery.conf.broker_transport_options or {}).get("data_folder_out")
    for message in Path(folder).glob("*.msg") if folder else ():
        message.unlink()


WAYS: dict[str, Callable[[Celery], Publisher]] = {
    "task.delay() per event": _delay,
    "a kept producer, a message per event": _kept_producer,
    "the bell": _bell,
}


@contextmanager
def _celery(url: str | None, folder: Path) -> Iterator[Celery]:
    celery = Celery("publish", set_as_current=False)
    celery.conf.update(broker_settings(url, folder))
    try:
        yield celery
    finally:
        _hear(celery)
        with celery.connection_for_write() as connection:
            connection.default_channel.queue_purge(QUEUE)
        celery.close()
