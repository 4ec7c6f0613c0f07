"""The simulated API on loopback, over real HTTP with kept-alive connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from ... import jsontext
from ...provider import Headers
from .world import Answer, Call

__all__ = ["ApiServer"]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no news."""


class ApiServer:
    """Serves `answer` on 127.0.0.1, on a free port."""

    def __init__(self, answer: Callable[[Call], Answer]) -> None:
        self._server = _Server(("127.0.0.1", 0), _handler(answer))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(answer: Callable[[Call], Answer]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body go out in one piece; otherwise the kernel waits for an acknowledgement in between.
        wbufsize = -1
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def do_PATCH(self) -> None:
            self._serve()

        def do_DELETE(self) -> None:
            self._serve()

        def _serve(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            query = parse_qs(parts.query, keep_blank_values=True)
            headers = Headers(list(self.headers.items()))
            said = answer(Call(self.command, unquote(parts.path), query, headers, self.rfile.read(length)))
            body = b"" if said.json is None else jsontext.dumps(said.json)
            self.send_response(said.status)
            for name, value in {"Content-Type": "application/json", **said.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
            """Quiet."""

    return Handler


def pause(seconds: float) -> None:
    """The provider takes its time."""
    if seconds > 0:
        time.sleep(seconds)
