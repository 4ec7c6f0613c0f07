"""End on SIGTERM and SIGINT, but only where nothing is left half done."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Stop"]


class Stop:
    """While it is entered, the first SIGTERM or SIGINT asks to end; the second one ends the program at once."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._before: dict[signal.Signals, Any] = {}

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep for that long, or until asked to end; whether we are."""
        return self._asked.wait(seconds)

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
        self._asked.set()
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
