"""Connections whose answers begin in time: a head that only drips is cut off, where a limit for each packet would not."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

__all__ = ["pool_manager", "watched"]

LOOK = 0.25
"""Seconds between two looks at the connections that are waiting for the head of an answer."""


class _Watched(threading.local):
    ends = float("inf")
    """time.monotonic() seconds at which this thread's request must have its answer."""


watched = _Watched()


class _Watch:
    """One thread for all connections of the process; it sleeps while none is waiting."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._waiting: dict[int, tuple[float, socket.socket]] = {}
        self._changed = threading.Condition()
        self._runs = False

    def begin(self, sock: socket.socket, ends: float) -> None:
        with self._changed:
            self._waiting[id(sock)] = (ends, sock)
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="webhooks-watch", daemon=True).start()
            elif len(self._waiting) == 1:
                self._changed.notify()

    def end(self, sock: socket.socket) -> None:
        with self._changed:
            self._waiting.pop(id(sock), None)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                now = time.monotonic()
                late = [sock for ends, sock in self._waiting.values() if now > ends]
                for sock in late:
                    del self._waiting[id(sock)]
                    with suppress(OSError):  # it has just ended by itself
                        sock.shutdown(socket.SHUT_RDWR)
            time.sleep(LOOK)


_watch = _Watch()


class _Waits:
    """Waits for the head of an answer no longer than the thread's `watched.ends`."""

    sock: Any

    def getresponse(self) -> Any:
        sock = self.sock
        _watch.begin(sock, watched.ends)
        try:
            return super().getresponse()  # type: ignore[misc]
        finally:
            _watch.end(sock)


class _Plain(_Waits, HTTPConnection):
    pass


class _Secure(_Waits, HTTPSConnection):
    pass


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _Plain


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _Secure


def pool_manager() -> urllib3.PoolManager:
    """Kept-alive connections of one process."""
    made = urllib3.PoolManager(num_pools=32, maxsize=64, block=False, retries=False)
    made.pool_classes_by_scheme = {"http": _PlainPool, "https": _SecurePool}
    return made
