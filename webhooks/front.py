"""A front door for deliveries: the same endpoints as the blueprint's, without Flask's request machinery.

A WSGI callable before the app. What is not plainly a delivery (another path, method or endpoint) goes to the app, whose
blueprint answers it; both ends in `receiving`, so the answers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from .endpoints import Endpoint
from .errors import TooLarge
from .provider import Headers, Reply, Request
from .receiving import Receiver

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
        headers = Headers(_headers(environ))
        if length > endpoint.max_body:
            return self._receiver().refused(
                endpoint, Request(environ["REQUEST_METHOD"], _url(environ), headers, b""), TooLarge("told so")
            )
        body = environ["wsgi.input"].read(length) if length else b""
        if len(body) < length:
            return Reply(400, "cut short\n")  # the client hung up in the middle; it will not read this
        return self._receiver().respond(
            endpoint, Request(environ["REQUEST_METHOD"], _url(environ), headers, body)
        )


def _is_chunked(environ: Environ) -> bool:
    return bool(environ.get("HTTP_TRANSFER_ENCODING"))


def _length(environ: Environ) -> int:
    text = environ.get("CONTENT_LENGTH") or "0"
    return int(text) if text.isascii() and text.isdigit() else 0


def _headers(environ: Environ) -> Iterator[tuple[str, str]]:
    for name, value in environ.items():
        if name.startswith("HTTP_"):
            yield name[5:].replace("_", "-"), value
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            yield name.replace("_", "-"), environ[name]


def _url(environ: Mapping[str, Any]) -> str:
    """The URL as it was called: path and query untouched, as far as the server hands them over."""
    raw = environ.get("RAW_URI") or environ.get("REQUEST_URI") or ""
    if not raw.startswith("/"):
        path = (environ.get("SCRIPT_NAME", "") + environ["PATH_INFO"]).encode("latin-1")
        query = environ.get("QUERY_STRING", "")
        raw = quote(path) + (f"?{query}" if query else "")
    host = environ.get("HTTP_HOST") or f"{environ['SERVER_NAME']}:{environ['SERVER_PORT']}"
    return f"{environ['wsgi.url_scheme']}://{host}{raw}"
