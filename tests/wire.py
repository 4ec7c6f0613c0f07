"""An HTTP server of a few lines that says exactly the bytes it is told to, and remembers what it was asked."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from webhooks.provider import Headers

__all__ = ["Asked", "Wire", "answer"]


class Asked:
    """One request as it came."""

    def __init__(self, head: bytes, body: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        self.method, self.target, _ = first.split(" ", 2)
        self.headers = Headers(
            [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        )
        self.body = body

    def __repr__(self) -> str:
        return f"{self.method} {self.target}"


def answer(
    status: int = 200, json_: Any = None, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> bytes:
    """A whole HTTP response."""
    said = json.dumps(json_).encode() if body is None else body
    lines = [
        f"HTTP/1.1 {status} Said",
        f"Content-Length: {len(said)}",
        "Content-Type: application/json",
        "Connection: close",
    ]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + said


class Wire:
    """Answers each request with the next of the given answers, then with the last one for ever; closes each time."""

    def __init__(self, *answers: bytes | Callable[[Asked], bytes | Iterable[bytes]]) -> None:
        self.answers = list(answers) or [answer(json_={})]
        self.asked: list[Asked] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._serve, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._talk, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as incoming:
            try:
                head = b"".join(iter(incoming.readline, b"\r\n")).rstrip(b"\r\n")
                if not head:
                    return
                asked = Asked(head, b"")
                asked.body = incoming.read(int(asked.headers.get("Content-Length", "0")))
                self.asked.append(asked)
                said = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if not isinstance(said, bytes):
                    said = said(asked)
                for piece in [said] if isinstance(said, bytes) else said:
                    connection.sendall(piece)
            except OSError:
                return  # the client has hung up
