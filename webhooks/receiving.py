"""What happens to one delivery, without any framework: verify, record, ring, reply. The blueprint and the front door
both end here."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from .answers import MARGIN, UNKNOWN_DEADLINE, Desk
from .apply import Applier, read_delivery, summary
from .endpoints import Endpoint, Endpoints
from .errors import InboxUnavailable, RequestError, SignatureError, TooLarge, Unreadable, Unsupported
from .inbox import PATIENCE, Inbox, Recorded
from .inbox.rejections import CHECKABLE, Refusal, Rejections
from .inbox.spool import Held, Spool
from .provider import Headers, Reply, Request
from .queue import Bell
from .signatures import fingerprint, is_probe

__all__ = ["Receiver", "delivery_of", "refuse"]

RETRY_AFTER = timedelta(seconds=30)
"""What a provider is told while the inbox cannot be written."""

SPOOLED_PATIENCE = timedelta(seconds=10)
"""What comes out of the spool is in no hurry, but must not keep deliveries from the door's connection."""

NOTE_EVERY = timedelta(minutes=1)
"""How often a process notes that a secret is in use."""

WORDS = {401: "unauthorized\n", 413: "too large\n", 415: "unsupported\n"}

log = logging.getLogger(__name__)


class Receiver:
    """What the blueprint needs of one app."""

    def __init__(
        self,
        endpoints: Endpoints,
        inbox: Inbox,
        bell: Bell,
        applier: Applier,
        desk: Desk,
        spool: Spool | None = None,
    ) -> None:
        self.endpoints = endpoints
        self._inbox = inbox
        self._bell = bell
        self._applier = applier
        self._desk = desk
        self._spool = spool
        self._noted: dict[tuple[str, str], float] = {}
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
        self._rejections.note(endpoint, _refusal(endpoint, delivery, refused))
        return refuse(endpoint, delivery, refused)

    def receive(self, endpoint: Endpoint, delivery: Request) -> Reply:
        """Verify and record a delivery; return what the provider should get to read.

        200: recorded, for the first time or again; also what nobody can read (a dead letter) and what nobody wants;
        and, while the database is away, what is safe in this host's spool because its provider would not come again.
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
        held, envelopes = read_delivery(endpoint, delivery, secret, datetime.now(UTC))
        held = replace(held, arrivals=self._inbox.sealer.sealed(held.arrivals))
        arrivals = held.arrivals
        answerer = self._desk.answerer(endpoint, envelopes)
        if answerer is not None:
            self._require_first_use(held, _patience(endpoint))
            return self._desk.answer(endpoint, answerer, envelopes[0], arrivals[0], started)
        recorded = self._recorded(endpoint, held)
        new = [r.id for r, a in zip(recorded, arrivals, strict=False) if a.state == "pending"]
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

    def record(self, held: Held) -> list[Recorded]:
        """Put a delivery that was kept in the spool into the inbox. Raises InboxUnavailable."""
        try:
            self._require_first_use(held, SPOOLED_PATIENCE)
        except SignatureError:
            log.warning("%s: a delivery that was kept in the spool is a replay; it is dropped", held.endpoint)
            return []
        arrivals = [replace(each, received_at=held.received_at) for each in held.arrivals]
        return self._inbox.record(arrivals, SPOOLED_PATIENCE)

    def _recorded(self, endpoint: Endpoint, held: Held) -> list[Recorded]:
        """What became of the arrivals; [] if the delivery waits in the spool."""
        within = _patience(endpoint)
        try:
            self._require_first_use(held, within)
            recorded = self._inbox.record(held.arrivals, within)
        except InboxUnavailable as error:
            if self._spool is None or not endpoint.spools or not held.arrivals:
                raise
            self._spool.put(held)
            log.warning("%s: a delivery is kept in the spool (%s)", endpoint.name, error)
            return []
        if self._spool is not None:
            self._spool.look()
        for secret in {each.secret for each in held.arrivals if each.secret}:
            self._note_use(endpoint.name, secret)
        return recorded

    def _note_use(self, endpoint: str, secret: str) -> None:
        """Note that a secret is in use, once a minute: whoever renews it wants to know when the old one is no longer."""
        now = time.monotonic()
        if now < self._noted.get((endpoint, secret), 0.0):
            return
        self._noted[endpoint, secret] = now + NOTE_EVERY.total_seconds()
        try:
            self._inbox.note_use(endpoint, secret)
        except InboxUnavailable as error:
            log.info("%s: the use of a secret could not be noted (%s)", endpoint, error)

    def _require_first_use(self, held: Held, within: timedelta) -> None:
        if not self._inbox.is_first_use(held, within):
            raise SignatureError("replayed", "what is signed was used before, for another event or body")

    def _apply(self, endpoint: Endpoint, ids: list[int], started: float) -> None:
        allowed = (endpoint.provider.policy.respond_within or UNKNOWN_DEADLINE) - MARGIN
        deadline = started + allowed.total_seconds()
        try:
            self._applier.apply_now(ids, deadline=deadline)
        except Exception as error:  # noqa: BLE001 - it is recorded; a worker or the sweep takes it from here
            log.warning("%s: not applied within the request (%s)", endpoint.name, type(error).__name__)


def _patience(endpoint: Endpoint) -> timedelta:
    """How long the door may wait for the database, so that its answer still counts."""
    respond_within = endpoint.provider.policy.respond_within
    return PATIENCE if respond_within is None else min(PATIENCE, respond_within / 2)


def _refusal(endpoint: Endpoint, delivery: Request, refused: RequestError) -> Refusal:
    length = delivery.headers.get("Content-Length", "")
    reason = refused.reason if isinstance(refused, SignatureError) else REASONS[type(refused)]
    return Refusal(
        reason,
        int(length) if length.isascii() and length.isdigit() and len(length) < 16 else len(delivery.body),
        hashlib.sha256(delivery.body).hexdigest(),
        delivery.headers.get("Content-Type", "")[:80],
        endpoint.seen_as(delivery) if reason in CHECKABLE and endpoint.keep_refused else None,
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
