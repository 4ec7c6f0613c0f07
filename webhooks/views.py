"""The public blueprint: Flask's request in, Flask's response out; what lies between is `receiving`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from flask import Blueprint, Flask, Response, abort, request

from .errors import TooLarge
from .receiving import Receiver, delivery_of

if TYPE_CHECKING:
    from flask import Request

__all__ = ["BLUEPRINT", "blueprint", "prepare"]

BLUEPRINT = "webhooks"

View = Callable[[str], Response]


def blueprint(receiver: Callable[[], Receiver]) -> tuple[Blueprint, View]:
    """The blueprint with one route per endpoint, `/<endpoint>`, with and without a trailing slash, never a redirect; and
    its view, by which `prepare` knows our requests: a host may give the blueprint another name or put it into its own."""
    made = Blueprint(BLUEPRINT, __name__)

    def receive(endpoint: str) -> Response:
        """One delivery.

        200 recorded, first or again (the body is the provider's handshake, if it has one) · 401 not signed by one of
        our secrets · 404 no such endpoint · 411 a body without an end · 413 over the endpoint's limit · 415 compressed
        · 503 the inbox cannot be written, with Retry-After. GET and HEAD: 200 and nothing happens. No answer says why.
        """
        found = receiver().endpoints.at(endpoint)
        if found is None:
            abort(404)
        http = _current()
        if http.method not in found.provider.methods:
            return Response("", 200 if http.method in {"GET", "HEAD"} else 405, mimetype="text/plain")
        if _endless(http):
            return Response("", 411, mimetype="text/plain")
        if (http.content_length or 0) > found.max_body:
            reply = receiver().refused(found, delivery_of(http.environ, b""), TooLarge("by its own account"))
        else:
            delivery = delivery_of(http.environ, http.get_data(cache=True))
            reply = receiver().respond(found, delivery)
        return Response(reply.body, reply.status, dict(reply.headers), content_type=reply.content_type)

    for rule in ("/<endpoint>", "/<endpoint>/"):
        # No redirect from one to the other or away from a doubled slash: a provider would not follow it.
        made.add_url_rule(
            rule,
            "receive",
            receive,
            methods=["POST", "GET", "HEAD"],
            provide_automatic_options=False,
            merge_slashes=False,
        )
    return made, receive


def prepare(app: Flask, receiver: Receiver, ours: View) -> None:
    """Before any of the host's own hooks: read the body while it is still there, and lift what is not meant for us.

    A hook that reads `request.form` leaves nothing for a signature to be checked against; the host's size limits are
    for its own forms; its CSRF protection has nothing to say to a server.
    """
    http = _current()
    if app.view_functions.get(http.endpoint or "") is not ours:
        return
    csrf = app.extensions.get("csrf")
    if csrf is not None:
        csrf.exempt(ours)
    endpoint = receiver.endpoints.at((http.view_args or {}).get("endpoint", ""))
    if endpoint is None or http.method not in endpoint.provider.methods:
        return
    # One byte more than is accepted: a body whose length is not told beforehand is cut there, and so seen to be too long.
    http.max_content_length = endpoint.max_body + 1
    http.max_form_memory_size = endpoint.max_body
    http.max_form_parts = 10_000
    if (http.content_length or 0) <= endpoint.max_body:  # else the view says so, in our words
        http.get_data(cache=True)


def _current() -> Request:
    """The request itself: each look through Flask's proxy costs a microsecond."""
    return request._get_current_object()  # type: ignore[attr-defined, no-any-return]


def _endless(http: Request) -> bool:
    """A chunked body that the server does not mark as ended would read as empty; better to say so."""
    coding = http.headers.get("Transfer-Encoding", "").lower()
    return "chunked" in coding and not http.environ.get("wsgi.input_terminated")
