"""End on SIGTERM and SIGINT, but only where nothing is left half done."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Stop"]

NAP = 0.1
"""Seconds. Not an Event: a handler that sets one, while its own thread is about to wait for it, waits for ever."""


class Stop:
    """While it is entered, the first SIGTERM or SIGINT asks to end; the second one ends the program at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def wait(self, seconds: float) -> bool:
        """Sleep for that long, or until asked to end; whether we are."""
        ends = time.monotonic() + seconds
        while not self.asked and (left := ends - time.monotonic()) > 0:
            time.sleep(min(left, NAP))
        return self.asked

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():  # elsewhere nobody may take signals
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
