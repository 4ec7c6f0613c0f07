"""Task names and the doorbell. A broker that is down is no error: the sweep finds what was not rung for."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from celery import Celery
from kombu import Queue
from kombu.transport import TRANSPORT_ALIASES

__all__ = [
    "APPLY",
    "AUDIT",
    "CHECK",
    "EFFECTS",
    "EFFECTS_QUEUE",
    "FULL_SWEEP",
    "PURGE",
    "QUEUE",
    "RECONCILE",
    "RECOVER",
    "SLOW_QUEUE",
    "SWEEP",
    "Bell",
    "broker_settings",
]

APPLY = "webhooks.apply"
EFFECTS = "webhooks.effects"
SWEEP = "webhooks.sweep"
RECOVER = "webhooks.recover"
CHECK = "webhooks.check"
RECONCILE = "webhooks.reconcile"
FULL_SWEEP = "webhooks.full_sweep"
AUDIT = "webhooks.audit"
PURGE = "webhooks.purge"

QUEUE = "webhooks"
"""Doorbells and sweeps: short, and wanted at once."""
EFFECTS_QUEUE = "webhooks-effects"
"""Side effects: as slow as those whom they call, and never in the way of a doorbell."""
SLOW_QUEUE = "webhooks-slow"
"""Recover, reconcile, full sweep, audit, check, purge: long, and never in the way of a doorbell."""

QUIET = timedelta(milliseconds=50)
"""A process rings at most so often; a worker that was rung for applies whatever came meanwhile."""

LINGER = timedelta(seconds=1)
"""The thread that rings waits so long for the next event before it ends; in a burst it need not be started each time."""

BROKEN = timedelta(seconds=5)
"""A broker that refused is tried again after so long."""

FILES = "webhooks-files"
"""The scheme of our broker of files. Named here, loaded only where it is used."""
TRANSPORT_ALIASES[FILES] = "webhooks.broker:Transport"

log = logging.getLogger(__name__)


def broker_settings(url: str | None, folder: Path) -> dict[str, Any]:
    """Celery settings for a broker URL; without one, for a broker of files in that folder, which needs no server."""
    settings: dict[str, Any] = {
        "task_ignore_result": True,
        "task_default_queue": QUEUE,
        "task_queues": [Queue(QUEUE), Queue(EFFECTS_QUEUE), Queue(SLOW_QUEUE)],
        "broker_connection_retry_on_startup": True,
        "worker_prefetch_multiplier": 1,
        "broker_transport_options": {},
    }
    if url and not url.startswith("filesystem:"):
        if url.startswith(("redis", "rediss")):
            # The default waits for ever for a server that does not answer.
            settings["broker_transport_options"] = {
                "socket_timeout": 2,
                "socket_connect_timeout": 1,
                "max_retries": 1,
            }
        return settings | {"broker_url": url}
    messages = folder / "broker"
    messages.mkdir(parents=True, exist_ok=True)
    control = folder / "broker-control"
    control.mkdir(parents=True, exist_ok=True)
    settings["broker_transport_options"] = {
        "data_folder_in": str(messages),
        "data_folder_out": str(messages),
        "control_folder": str(control),
        "polling_interval": 0.2,
    }
    return settings | {
        "broker_url": f"{FILES}://localhost/",
        # Answers and events of workers would be files that nobody reads.
        "worker_enable_remote_control": False,
        "worker_send_task_events": False,
    }


class Bell:
    """Wakes the workers: at most one message per process and QUIET, however many events come."""

    def __init__(self, celery: Callable[[], Celery | None], *, task: str = APPLY, queue: str = QUEUE) -> None:
        self._celery, self._task, self._queue = celery, task, queue
        self._reset()
        os.register_at_fork(after_in_child=self._reset)
        self.rung = 0
        """Messages that this process has published."""

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._due: float | None = None
        """time.monotonic() seconds at which the ringer rings; None: nothing is to be rung for."""
        self._last = 0.0
        self._has_ringer = self._sends = False

    def ring(self) -> None:
        """See to it that a worker looks into the inbox soon. Never raises, never waits for a broker."""
        # The first event after a pause is rung for at once, the rest of a burst when the pause is over.
        self._plan(self._last + QUIET.total_seconds() - time.monotonic())

    def ring_now(self) -> bool:
        """Ring before this returns, which may take as long as a broker takes to refuse; whether it was heard."""
        return self._send()

    def ring_in(self, delay: timedelta) -> None:
        """Ring once more after that time, for events that were postponed."""
        self._send(countdown=delay.total_seconds())

    def trouble(self) -> str | None:
        """Why the broker cannot be reached; None: it can. Waits for it, but not long: for people who ask."""
        celery = self._celery()
        if celery is None:
            return "there is no Celery app to ring"
        try:
            with celery.connection_for_write(connect_timeout=BROKEN.total_seconds()) as connection:
                connection.ensure_connection(max_retries=1, interval_start=0, timeout=BROKEN.seconds)
        except Exception as error:  # noqa: BLE001 - whatever a broker raises; never its text, which may hold the URL
            return f"the broker cannot be reached ({type(error).__name__})"
        return None

    def workers(self) -> int | None:
        """How many workers answer within a second; None: this broker has no way to ask them."""
        celery = self._celery()
        if celery is None or _scheme(celery.conf) in {FILES, "filesystem", "memory"}:
            return None
        try:
            return len(celery.control.ping(timeout=1.0) or [])
        except Exception as error:  # noqa: BLE001 - whatever a broker raises
            log.info("workers cannot be asked (%s)", type(error).__name__)
            return None

    @property
    def is_silent(self) -> bool:
        """Whether nothing is left to be rung for."""
        with self._changed:
            return self._due is None and not self._sends

    def _plan(self, wait: float) -> None:
        with self._changed:
            if self._due is not None:
                return
            self._due = time.monotonic() + wait
            if self._has_ringer:
                self._changed.notify()
                return
            self._has_ringer = True
        try:
            threading.Thread(target=self._ringer, name="webhooks-bell", daemon=True).start()
        except RuntimeError:  # no thread to be had; the next event tries again, and the sweep finds this one
            with self._changed:
                self._due, self._has_ringer = None, False

    def _ringer(self) -> None:
        """Ring when it is time, in a thread that ends when nothing was to be rung for in a while."""
        while self._wait_until_due():
            if not self._send():
                self._plan(BROKEN.total_seconds())

    def _wait_until_due(self) -> bool:
        with self._changed:
            self._sends = False
            if self._due is None:
                self._changed.wait(LINGER.total_seconds())
            if self._due is None:
                self._has_ringer = False
                return False
            while (left := self._due - time.monotonic()) > 0:
                self._changed.wait(left)
            self._due, self._last, self._sends = None, time.monotonic(), True
            return True

    def _send(self, **options: Any) -> bool:
        """Publish; False if the broker did not take it."""
        try:
            celery = self._celery()
            if celery is None:
                return True
            if options or not _already_rung(celery.conf, self._queue):
                celery.send_task(self._task, queue=self._queue, ignore_result=True, retry=False, **options)
                self.rung += 1
        except Exception as error:  # noqa: BLE001 - whatever a broker raises, the event is safe in the inbox
            log.warning("the doorbell is out of order (%s); the sweep finds the events", type(error).__name__)
            return False
        return True


def _already_rung(conf: Mapping[str, Any], queue: str) -> bool:
    """With a broker of files, whether a bell lies there unheard: without a worker they must not pile up."""
    if _scheme(conf) not in {FILES, "filesystem"}:
        return False
    folder = Path((conf.get("broker_transport_options") or {}).get("data_folder_out", ""))
    if not folder.is_dir():  # somebody has cleared it; the next message makes it anew
        return False
    with os.scandir(folder) as entries:
        return any(f".{queue}.msg" in entry.name for entry in entries)


def _scheme(conf: Mapping[str, Any]) -> str:
    return str(conf.get("broker_url") or "").partition(":")[0]
