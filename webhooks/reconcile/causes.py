"""Why a copy was not what the provider has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import func, select

from .. import jsontext
from ..endpoints import Endpoint
from ..inbox import Inbox
from ..inbox.rows import aware, stored_key
from ..jsontext import Json
from ..provider import ObjectRef
from .limits import RACY

__all__ = ["CAUSES", "cause_of", "events_about"]

CAUSES: Mapping[str, str] = {
    "never_delivered": "No event of the change has reached us. Look at the provider's side: is the type subscribed, is the "
    "endpoint enabled?",
    "delivered_but_dead": "Its event was delivered and is a dead letter. Mend the reason, then redrive it.",
    "delivered_but_ignored": "Its event was delivered and nobody wanted it. Register a handler for it.",
    "rejected_at_the_door": "Deliveries were refused in that time. See the issues `secret_wrong` and `clock_skew`.",
    "applied_then_changed_locally": "Our copy was changed after it was written. Find who writes `webhook_objects`.",
    "provider_lag": "The provider's API showed an older state when we fetched. Nothing to do, unless it is often.",
}
"""Each cause and what to do about it."""

UNWANTED = ("no_handler", "condition_not_met", "duplicate_body", "paused")


def events_about(
    inbox: Inbox, endpoint: str, account: str, ref: ObjectRef, since: datetime | None
) -> Sequence[Any]:
    """The events about an object that came since; newest first."""
    e = inbox.tables.events.c
    wanted = select(e.state, e.outcome, e.received_at, e.origin).where(
        e.endpoint == endpoint,
        e.account == account,
        e.object_kind == ref.kind,
        e.object_id == stored_key(ref.id),
    )
    if since is not None:
        wanted = wanted.where(e.received_at >= since)
    with inbox.engine.connect() as connection:
        return connection.execute(wanted.order_by(e.id.desc()).limit(50)).all()


def cause_of(
    inbox: Inbox, endpoint: Endpoint, account: str, ref: ObjectRef, stored: Any, current: Json
) -> str:
    """The cause of a drift, as far as our own rows tell; `stored` is our row, None if there is none."""
    if (
        stored is not None
        and stored.data is not None
        and stored.digest is not None
        and jsontext.digest(stored.data) != stored.digest
    ):
        return "applied_then_changed_locally"
    since = None if stored is None else aware(stored.as_of)
    events = events_about(inbox, endpoint.name, account, ref, since)
    if any(event.state == "dead" for event in events):
        return "delivered_but_dead"
    if any(event.state == "ignored" and event.outcome in UNWANTED for event in events):
        return "delivered_but_ignored"
    changed = _changed_at(endpoint, ref, current)
    if since is not None and changed is not None and since > changed + RACY:
        return "provider_lag"  # it had changed when we fetched, and we were shown the old state
    if _was_refused(inbox, endpoint.name, since or changed):
        return "rejected_at_the_door"
    return "never_delivered"


def _changed_at(endpoint: Endpoint, ref: ObjectRef, current: Json) -> datetime | None:
    if current is None or endpoint.provider.version is None:
        return None
    version = endpoint.provider.version(ref, current)
    return version if isinstance(version, datetime) else None


def _was_refused(inbox: Inbox, endpoint: str, since: datetime | None) -> bool:
    r = inbox.tables.rejections.c
    wanted = select(func.count()).where(r.endpoint == endpoint)
    if since is not None:
        wanted = wanted.where(r.received_at >= since)
    with inbox.engine.connect() as connection:
        return bool(connection.scalar(wanted))
