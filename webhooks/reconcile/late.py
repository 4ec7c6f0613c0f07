"""Flows that no event will decide any more: their `late` policy says what becomes of them.

An object that reconciliation mends was, as far as we know, the subject of an event that we never had. Of the handlers
that react to such events only those can be made up for that (a) own a flow, so that a key keeps them from running twice,
(b) have a `when`, so that the object itself tells whether the occasion has come, and (c) are for a type whose events are
about this kind of object.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

from sqlalchemy import select

from .. import jsontext
from ..endpoints import Endpoint
from ..errors import WebhooksError
from ..handlers import Handler, Handlers, late_type
from ..inbox import Arrival, Inbox
from ..inbox.rows import stored_key
from ..jsontext import Json
from ..provider import ObjectRef, Provider, Sample

__all__ = ["Late", "kinds_of"]

log = logging.getLogger(__name__)


def kinds_of(handler: Handler, provider: Provider) -> frozenset[str]:
    """The kinds of object that this handler's events are about, as the provider file writes and reads such events."""
    types = {type_ for type_ in handler.types if not set("*?[") & set(type_)}
    types |= {t for t in provider.sample_types if any(fnmatchcase(t, wanted) for wanted in handler.types)}
    return frozenset(kind for type_ in types if (kind := _kind_of(provider, type_)))


def _kind_of(provider: Provider, type_: str) -> str:
    if provider.sample is None:
        return ""
    try:
        envelopes = provider.parse(
            provider.sample(Sample(type_, "sample0001", datetime(2026, 1, 1, tzinfo=UTC)))
        )
    except (WebhooksError, ValueError, LookupError):
        return ""
    ref = envelopes[0].object if envelopes else None
    return ref.kind if ref is not None else ""


@dataclass
class Late:
    """Finds undecided flows of one app."""

    inbox: Inbox
    handlers: Handlers
    _kinds: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict, repr=False)

    def arrivals(self, endpoint: Endpoint, account: str, ref: ObjectRef, current: Json) -> Iterator[Arrival]:
        """An event for each flow that this object should have decided and has not: due, or waiting for a person."""
        for handler in self.handlers.flows_for(endpoint):
            policy = handler.late or endpoint.late
            if policy == "skip" or ref.kind not in self._kinds_of(handler, endpoint.provider):
                continue
            key = _key(handler, current)
            if key is None or self._is_decided(handler, key):
                continue
            assert handler.flow is not None
            yield Arrival(
                endpoint.name,
                stored_key(f"late:{handler.flow}:{key}"),
                origin="reconcile",
                type=late_type(handler.flow),
                object=ref,
                account=account,
                body=jsontext.dumps({"flow": handler.flow, "kind": ref.kind, "id": ref.id}),
                state="pending" if policy == "run" else "dead",
                outcome=None if policy == "run" else "late",
                error=None
                if policy == "run"
                else f"the flow {handler.flow!r} was never decided for this {ref.kind}; redrive this event to run it now",
            )

    def _kinds_of(self, handler: Handler, provider: Provider) -> frozenset[str]:
        found = self._kinds.get((handler.name, provider.name))
        if found is None:
            found = self._kinds[handler.name, provider.name] = kinds_of(handler, provider)
        return found

    def _is_decided(self, handler: Handler, key: str) -> bool:
        f = self.inbox.tables.flow_keys.c
        with self.inbox.engine.connect() as connection:
            wanted = select(f.flow).where(f.flow == handler.flow, f.key == key)
            return connection.execute(wanted).first() is not None


def _key(handler: Handler, current: Json) -> str | None:
    """The business key, if the object tells that the occasion has come; None otherwise."""
    if handler.when is None or current is None:
        return None
    try:
        return _key_of(handler, current) if handler.when(current) else None
    except Exception as error:  # noqa: BLE001 - a function of the app that was written for other objects
        log.warning("%s: its condition failed on an object (%s)", handler.name, type(error).__name__)
        return None


def _key_of(handler: Handler, current: Any) -> str:
    return handler.keys(current, current)[-1][1]
