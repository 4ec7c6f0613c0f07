"""A wire between two processes that can be slow, cut, stuck or down."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import Literal, Self

__all__ = ["Proxy"]

Mode = Literal["pass", "refuse", "hang", "cut", "say"]


class Proxy:
    """Passes bytes on to a port of loopback, in the way that its mode says.

    `refuse` closes every connection at once, `hang` takes it and says nothing, `cut` closes it after the first `cut_after` bytes of
    the answer, `say` answers with `said` whatever was asked. A change is for new connections; `drop()` ends those that are open.
    """

    def __init__(self, port: int) -> None:
        self.target = port
        self.mode: Mode = "pass"
        self.delay = 0.0
        """Seconds that each piece takes, in either direction."""
        self.cut_after = 60
        self.said = b""
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()

    def heal(self) -> None:
        """Pass everything on again, and end what is stuck."""
        self.mode, self.delay = "pass", 0.0
        self.drop()

    def drop(self) -> None:
        """End every connection that is open."""
        with self._lock:
            ending = list(self._open)
            self._open.clear()
        for each in ending:
            _end(each)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        if self.mode == "refuse":
            _end(client)
            return
        with self._lock:
            self._open.add(client)
        if self.mode == "hang":
            return
        if self.mode == "say":
            with suppress(OSError):
                client.recv(65536)
                client.sendall(self.said)
            self._close(client)
            return
        try:
            server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
        except OSError:
            self._close(client)
            return
        server.settimeout(None)
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open.add(server)
        limit = self.cut_after if self.mode == "cut" else None
        threading.Thread(target=self._pump, args=(client, server, None), daemon=True).start()
        self._pump(server, client, limit)

    def _pump(self, source: socket.socket, sink: socket.socket, limit: int | None) -> None:
        passed = 0
        with suppress(OSError):
            while piece := source.recv(65536):
                if self.delay:
                    time.sleep(self.delay)
                if limit is not None:
                    piece = piece[: max(limit - passed, 0)]
                    passed += len(piece)
                if piece:
                    sink.sendall(piece)
                if limit is not None and passed >= limit:
                    break
        self._close(source)
        self._close(sink)

    def _close(self, each: socket.socket) -> None:
        with self._lock:
            self._open.discard(each)
        _end(each)


def _end(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
