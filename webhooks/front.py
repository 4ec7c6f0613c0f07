"""A front door for deliveries: the same endpoints as the blueprint's, without Flask's request machinery.

A WSGI callable before the app. What is not plainly a delivery (another path, method or endpoint) goes to the app, whose
blueprint answers it; both ends in `receiving`, so the answers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from .endpoints import Endpoint
from .errors import TooLarge
from .provider import Reply
from .receiving import Receiver, delivery_of

__all__ = ["FrontDoor"]

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
Wsgi = Callable[[Environ, StartResponse], Iterable[bytes]]

STATUSES = {status.value: f"{status.value} {status.phrase}" for status in HTTPStatus}


class FrontDoor:
    """Takes deliveries to `prefix/<endpoint>` before `app` sees them."""

    def __init__(
        self, app: Wsgi, receiver: Callable[[], Receiver], prefixes: Callable[[], tuple[str, ...]]
    ) -> None:
        """`prefixes` are the paths under which the blueprint is registered, asked for at the first request."""
        self._app, self._receiver, self._find_prefixes = app, receiver, prefixes
        self._prefixes: tuple[str, ...] | None = None

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        endpoint = self._endpoint(environ["PATH_INFO"])
        if (
            endpoint is None
            or environ["REQUEST_METHOD"] not in endpoint.provider.methods
            or _is_chunked(environ)
        ):
            return self._app(environ, start_response)
        reply = self._respond(endpoint, environ)
        body = reply.body.encode()
        headers = [
            ("Content-Type", reply.content_type),
            ("Content-Length", str(len(body))),
            *reply.headers.items(),
        ]
        start_response(STATUSES[reply.status], headers)
        return [body]

    def _endpoint(self, path: str) -> Endpoint | None:
        if self._prefixes is None:
            self._prefixes = self._find_prefixes()
        for prefix in self._prefixes:
            if path.startswith(prefix):
                return self._receiver().endpoints.at(path[len(prefix) :].removesuffix("/"))
        return None

    def _respond(self, endpoint: Endpoint, environ: Environ) -> Reply:
        length = _length(environ)
        if length > endpoint.max_body:
            return self._receiver().refused(endpoint, delivery_of(environ, b""), TooLarge("told so"))
        body = environ["wsgi.input"].read(length) if length else b""
        if len(body) < length:
            return Reply(400, "cut short\n")  # the client hung up in the middle; it will not read this
        return self._receiver().respond(endpoint, delivery_of(environ, body))


def _is_chunked(environ: Environ) -> bool:
    return bool(environ.get("HTTP_TRANSFER_ENCODING"))


def _length(environ: Environ) -> int:
    text = environ.get("CONTENT_LENGTH") or "0"
    return int(text) if text.isascii() and text.isdigit() else 0
