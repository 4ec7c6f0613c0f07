"""What happens to one delivery, without any framework: verify, record, ring, reply. The blueprint and the front door
both end here."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from .answers import MARGIN, UNKNOWN_DEADLINE, Desk
from .apply import Applier, summary
from .endpoints import Endpoint, Endpoints
from .errors import InboxUnavailable, RequestError, SignatureError, TooLarge, Unreadable, Unsupported
from .inbox import Arrival, Inbox, arrival, unreadable
from .inbox.rejections import Refusal, Rejections
from .provider import Envelope, Headers, Reply, Request
from .queue import Bell
from .signatures import fingerprint, is_probe

__all__ = ["Receiver", "delivery_of", "refuse"]

RETRY_AFTER = timedelta(seconds=30)
"""What a provider is told while the inbox cannot be written."""

WORDS = {401: "unauthorized\n", 413: "too large\n", 415: "unsupported\n"}

log = logging.getLogger(__name__)


class Receiver:
    """What the blueprint needs of one app."""

    def __init__(self, endpoints: Endpoints, inbox: Inbox, bell: Bell, applier: Applier, desk: Desk) -> None:
        self.endpoints = endpoints
        self._inbox = inbox
        self._bell = bell
        self._applier = applier
        self._desk = desk
        self._rejections = Rejections(inbox)

    def respond(self, endpoint: Endpoint, delivery: Request) -> Reply:
        """`receive`, with its errors as what the provider gets to read; never says why, and never raises them."""
        try:
            return self.receive(endpoint, delivery)
        except RequestError as refused:
            return self.refused(endpoint, delivery, refused)
        except InboxUnavailable as error:
            log.error("%s: a delivery could not be recorded (%s)", endpoint.name, error)
            return Reply(
                503, "try again later\n", headers={"Retry-After": str(int(RETRY_AFTER.total_seconds()))}
            )

    def refused(self, endpoint: Endpoint, delivery: Request, refused: RequestError) -> Reply:
        """The answer to a refused delivery; it is logged, and noted as far as there are not too many."""
        self._rejections.note(endpoint.name, _refusal(delivery, refused))
        return refuse(endpoint, delivery, refused)

    def receive(self, endpoint: Endpoint, delivery: Request) -> Reply:
        """Verify and record a delivery; return what the provider should get to read.

        200: recorded, for the first time or again; also what nobody can read (a dead letter) and what nobody wants.
        204: our own probe, of which nothing is kept. Where an `answer` handler decides, its answer, whatever becomes of the record.
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
        arrivals, envelopes = self._arrivals(endpoint, delivery, secret)
        answerer = self._desk.answerer(endpoint, envelopes)
        if answerer is not None:
            return self._desk.answer(endpoint, answerer, envelopes[0], arrivals[0], started)
        recorded = self._inbox.record(arrivals)
        new = [r.id for r, a in zip(recorded, arrivals, strict=True) if a.state == "pending"]
        if new and endpoint.apply == "request":
            self._apply(endpoint, new, started)
        if new:
            self._bell.ring()
        try:
            return provider.reply(delivery)
        except Exception as error:  # noqa: BLE001 - it is recorded, so the answer is yes
            if not isinstance(error, Unreadable):
                log.error("%s: no reply could be made: %s", endpoint.name, summary(error))
            return Reply()

    def _arrivals(
        self, endpoint: Endpoint, delivery: Request, secret: str
    ) -> tuple[list[Arrival], list[Envelope]]:
        try:
            envelopes = endpoint.provider.parse(delivery)
            arrivals = [
                arrival(endpoint.name, endpoint.provider, e, delivery, secret=secret) for e in envelopes
            ]
        except Unreadable as reason:
            return [unreadable(endpoint.name, endpoint.provider, delivery, secret, str(reason))], []
        except Exception as error:  # noqa: BLE001 - a mistake in a provider file must not turn deliveries away
            why = f"the provider file stumbled: {summary(error)}"
            log.error("%s: %s", endpoint.name, why)
            return [unreadable(endpoint.name, endpoint.provider, delivery, secret, why)], []
        for envelope in envelopes:
            if envelope.nonce and not self._is_first_use(endpoint, envelope, delivery):
                raise SignatureError("replayed", "what is signed was used before, for another event or body")
        return arrivals, envelopes

    def _is_first_use(self, endpoint: Endpoint, envelope: Envelope, delivery: Request) -> bool:
        digest = hashlib.sha256(delivery.body).hexdigest()
        return self._inbox.use_nonce(endpoint.name, envelope.nonce, envelope.dedup_key, digest)

    def _apply(self, endpoint: Endpoint, ids: list[int], started: float) -> None:
        allowed = (endpoint.provider.policy.respond_within or UNKNOWN_DEADLINE) - MARGIN
        deadline = started + allowed.total_seconds()
        try:
            self._applier.apply_now(ids, deadline=deadline)
        except Exception as error:  # noqa: BLE001 - it is recorded; a worker or the sweep takes it from here
            log.warning("%s: not applied within the request (%s)", endpoint.name, type(error).__name__)


def _refusal(delivery: Request, refused: RequestError) -> Refusal:
    length = delivery.headers.get("Content-Length", "")
    return Refusal(
        refused.reason if isinstance(refused, SignatureError) else REASONS[type(refused)],
        int(length) if length.isascii() and length.isdigit() and len(length) < 16 else len(delivery.body),
        hashlib.sha256(delivery.body).hexdigest(),
        delivery.headers.get("Content-Type", "")[:80],
    )


REASONS: dict[type[RequestError], str] = {TooLarge: "too_large", Unsupported: "unsupported"}


def refuse(endpoint: Endpoint, delivery: Request, refused: RequestError) -> Reply:
    """The short answer to a refused delivery, and a line in the log: what is needed to tell a wrong secret from a
    changed body; never the body, the signature or a secret."""
    log.warning(
        "%s: refused a delivery (%s): %s bytes, sha256 %s, content type %r",
        endpoint.name,
        refused.reason if isinstance(refused, SignatureError) else type(refused).__name__,
        delivery.headers.get("Content-Length", "")[:20] or len(delivery.body),
        hashlib.sha256(delivery.body).hexdigest(),
        delivery.headers.get("Content-Type", "")[:80],
    )
    return Reply(refused.http_status, WORDS[refused.http_status])


def delivery_of(environ: Mapping[str, Any], body: bytes) -> Request:
    """The delivery of a WSGI request whose body was read."""
    return Request(environ["REQUEST_METHOD"], _url(environ), Headers(_headers(environ)), body)


def _headers(environ: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in environ.items():
        if name.startswith("HTTP_"):
            yield name[5:].replace("_", "-"), value
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            yield name.replace("_", "-"), environ[name]


def _url(environ: Mapping[str, Any]) -> str:
    """The URL as it was called: path and query untouched, as far as the server hands them over; a port that goes without
    saying is left out."""
    raw = environ.get("RAW_URI") or environ.get("REQUEST_URI") or ""
    if not raw.startswith("/"):
        path = (environ.get("SCRIPT_NAME", "") + environ["PATH_INFO"]).encode("latin-1")
        query = environ.get("QUERY_STRING", "")
        raw = quote(path) + (f"?{query}" if query else "")
    scheme = environ["wsgi.url_scheme"]
    host = environ.get("HTTP_HOST") or f"{environ['SERVER_NAME']}:{environ['SERVER_PORT']}"
    return f"{scheme}://{host.removesuffix(PORTS.get(scheme, ':'))}{raw}"


PORTS = {"http": ":80", "https": ":443"}
