"""The public blueprint: verify, record, ring, reply. Nothing else happens while a provider waits."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import quote

from flask import Blueprint, Flask, Response, abort, request
from werkzeug.exceptions import RequestEntityTooLarge

from .apply import Applier
from .endpoints import Endpoint, Endpoints
from .errors import InboxUnavailable, RequestError, SignatureError, TooLarge, Unreadable, Unsupported
from .inbox import Arrival, Inbox, arrival, unreadable
from .inbox.rejections import Refusal, Rejections
from .provider import Envelope, Headers, Reply, Request
from .queue import Bell
from .signatures import fingerprint, is_probe

if TYPE_CHECKING:
    from werkzeug.wrappers import Request as WerkzeugRequest

__all__ = ["BLUEPRINT", "Receiver", "blueprint", "prepare"]

BLUEPRINT = "webhooks"
RETRY_AFTER = timedelta(seconds=30)
"""What a provider is told while the inbox cannot be written."""

UNKNOWN_DEADLINE = timedelta(seconds=10)
"""For `apply="request"` where the provider publishes none: most cut the line after 10 to 30 s."""

MARGIN = timedelta(seconds=1)
"""Kept of the provider's deadline for the way back."""

log = logging.getLogger(__name__)


class Receiver:
    """What the blueprint needs of one app."""

    def __init__(self, endpoints: Endpoints, inbox: Inbox, bell: Bell, applier: Applier) -> None:
        self.endpoints = endpoints
        self._inbox = inbox
        self._bell = bell
        self._applier = applier
        self._rejections = Rejections(inbox)

    def receive(self, endpoint: Endpoint, delivery: Request) -> Reply:
        """Verify and record a delivery; return what the provider should get to read.

        204: our own probe, of which nothing is kept. 200: recorded, for the first time or again; also what nobody can read (a dead letter) and what nobody wants.
        Raises SignatureError (401), TooLarge (413), Unsupported (415), InboxUnavailable (503, with Retry-After).
        """
        started = time.monotonic()
        provider = endpoint.provider
        delivery = endpoint.seen_as(delivery)
        if delivery.headers.get("Content-Encoding", "identity").strip().lower() not in {"", "identity"}:
            raise Unsupported("no provider compresses")
        if len(delivery.body) > endpoint.max_body:
            raise TooLarge(f"{len(delivery.body)} bytes")
        signed_by = provider.signature.verify(delivery, endpoint.secrets, datetime.now(UTC))
        if is_probe(delivery, signed_by):
            return Reply(204)
        secret = fingerprint(signed_by)
        arrivals = self._arrivals(endpoint, delivery, secret)
        recorded = self._inbox.record(arrivals)
        new = [r.id for r, a in zip(recorded, arrivals, strict=True) if a.state == "pending"]
        if new and endpoint.apply == "request":
            self._apply(endpoint, new, started)
        if new:
            self._bell.ring()
        try:
            return provider.reply(delivery)
        except Unreadable:
            return Reply()

    def _arrivals(self, endpoint: Endpoint, delivery: Request, secret: str) -> list[Arrival]:
        try:
            envelopes = endpoint.provider.parse(delivery)
        except Unreadable as reason:
            return [unreadable(endpoint.name, endpoint.provider, delivery, secret, str(reason))]
        for envelope in envelopes:
            if envelope.nonce and not self._is_first_use(endpoint, envelope, delivery):
                raise SignatureError("replayed", "what is signed was used before, for another event or body")
        return [arrival(endpoint.name, endpoint.provider, e, delivery, secret=secret) for e in envelopes]

    def _is_first_use(self, endpoint: Endpoint, envelope: Envelope, delivery: Request) -> bool:
        digest = hashlib.sha256(delivery.body).hexdigest()
        return self._inbox.use_nonce(endpoint.name, envelope.nonce, envelope.dedup_key, digest)

    def note_refusal(self, endpoint: Endpoint, refusal: Refusal) -> None:
        """Log a refused delivery and keep a note of it, as far as there are not too many. Never raises."""
        log.warning(
            "%s: refused a delivery (%s): %d bytes, sha256 %s, content type %r",
            endpoint.name,
            refusal.reason,
            refusal.length,
            refusal.digest,
            refusal.content_type,
        )
        self._rejections.note(endpoint.name, refusal)

    def _apply(self, endpoint: Endpoint, ids: list[int], started: float) -> None:
        allowed = (endpoint.provider.policy.respond_within or UNKNOWN_DEADLINE) - MARGIN
        deadline = started + allowed.total_seconds()
        try:
            self._applier.apply_now(ids, deadline=deadline)
        except Exception as error:  # noqa: BLE001 - it is recorded; a worker or the sweep takes it from here
            log.warning("%s: not applied within the request (%s)", endpoint.name, type(error).__name__)


def blueprint(receiver: Callable[[], Receiver]) -> Blueprint:
    """The blueprint with one route per endpoint, `/<endpoint>`, with and without a trailing slash, never a redirect."""
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
        if request.method not in found.provider.methods:
            return Response("", 200 if request.method in {"GET", "HEAD"} else 405, mimetype="text/plain")
        if _endless(request):
            return Response("", 411, mimetype="text/plain")
        try:
            delivery = Request(
                request.method, _url(request), Headers(request.headers.items()), _body(request, found)
            )
            reply = receiver().receive(found, delivery)
        except RequestError as refused:
            receiver().note_refusal(found, _refusal(refused))
            return Response(f"{_WORDS[refused.http_status]}\n", refused.http_status, mimetype="text/plain")
        except InboxUnavailable as error:
            log.error("%s: a delivery could not be recorded (%s)", found.name, error)
            headers = {"Retry-After": str(int(RETRY_AFTER.total_seconds()))}
            return Response("try again later\n", 503, headers, mimetype="text/plain")
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
    return made


_WORDS = {401: "unauthorized", 413: "too large", 415: "unsupported"}


def prepare(app: Flask, receiver: Receiver, ours: Blueprint) -> None:
    """Before any of the host's own hooks: read the body while it is still there, and lift what is not meant for us.

    A hook that reads `request.form` leaves nothing for a signature to be checked against; the host's size limits are
    for its own forms; its CSRF protection has nothing to say to a server.
    """
    if request.blueprint != BLUEPRINT:
        return
    csrf = app.extensions.get("csrf")
    if csrf is not None:
        csrf.exempt(ours)
    endpoint = receiver.endpoints.at((request.view_args or {}).get("endpoint", ""))
    if endpoint is None or request.method not in endpoint.provider.methods:
        return
    request.max_content_length = endpoint.max_body
    request.max_form_memory_size = endpoint.max_body
    request.max_form_parts = 10_000
    try:
        request.get_data(cache=True)
    except RequestEntityTooLarge:
        return  # the view says so, in our words


def _body(http: WerkzeugRequest, endpoint: Endpoint) -> bytes:
    if (http.content_length or 0) > endpoint.max_body:
        raise TooLarge(f"{http.content_length} bytes")
    try:
        return http.get_data(cache=True)
    except RequestEntityTooLarge:
        raise TooLarge("more than the limit") from None


def _endless(http: WerkzeugRequest) -> bool:
    """A chunked body that the server does not mark as ended would read as empty; better to say so."""
    return "chunked" in http.headers.get("Transfer-Encoding", "") and not http.environ.get(
        "wsgi.input_terminated"
    )


def _url(http: WerkzeugRequest) -> str:
    """The URL as it was called: path and query untouched, as far as the server hands them over."""
    raw = http.environ.get("RAW_URI") or http.environ.get("REQUEST_URI") or ""
    if not raw.startswith("/"):
        query = http.query_string.decode("latin-1")
        raw = quote(http.root_path.rstrip("/") + http.path) + (f"?{query}" if query else "")
    return f"{http.scheme}://{http.host}{raw}"


def _refusal(refused: RequestError) -> Refusal:
    """What is needed to tell a wrong secret from a changed body; never the body, the signature or a secret."""
    body = b"" if isinstance(refused, TooLarge) else request.get_data(cache=True)
    return Refusal(
        refused.reason if isinstance(refused, SignatureError) else _REASONS[type(refused)],
        request.content_length or len(body),
        hashlib.sha256(body).hexdigest(),
        (request.content_type or "")[:80],
    )


_REASONS: dict[type[RequestError], str] = {TooLarge: "too_large", Unsupported: "unsupported"}
