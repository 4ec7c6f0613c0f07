"""Check refused deliveries again, after a secret or a clock was mended, against the time at which they came."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, select

from ..apply import read_delivery
from ..endpoints import Endpoint
from ..errors import SignatureError
from ..inbox import PATIENCE, Inbox
from ..inbox.rejections import CHECKABLE, rebuilt
from ..inbox.rows import aware
from ..signatures import fingerprint

__all__ = ["Reverified", "reverify"]

BATCH = 50


@dataclass
class Reverified:
    """What came of it."""

    checked: int = 0
    genuine: int = 0
    """Deliveries that one of our secrets signed."""
    recorded: int = 0
    """Events out of them that the inbox did not have."""
    still_refused: dict[str, int] = field(default_factory=dict)
    """Reason → deliveries; they stay, until they expire."""
    not_kept: int = 0
    """Deliveries that may have been genuine and cannot be checked: their bodies were not kept."""


def reverify(inbox: Inbox, endpoint: Endpoint, since: datetime | None, *, dry: bool) -> Reverified:
    """Check every kept delivery of the endpoint; record what is genuine, with the time at which it came.

    Its note goes when its events are committed, so that each counts once; a crash in between finds them in the inbox.
    """
    r = inbox.tables.rejections
    done, last = Reverified(), 0
    wanted = [r.c.endpoint == endpoint.name, r.c.reason.in_(CHECKABLE)]
    if since is not None:
        wanted.append(r.c.received_at >= since)
    with inbox.engine.connect() as connection:
        without = select(func.count()).select_from(r).where(*wanted, r.c.body.is_(None))
        done.not_kept = int(connection.scalar(without) or 0)
    while True:
        some = select(r).where(*wanted, r.c.body.is_not(None), r.c.id > last).order_by(r.c.id).limit(BATCH)
        with inbox.engine.connect() as connection:
            rows = connection.execute(some).all()
        if not rows:
            return done
        for row in rows:
            _check(inbox, endpoint, row, done, dry=dry)
        last = rows[-1].id


def _check(inbox: Inbox, endpoint: Endpoint, row: Any, done: Reverified, *, dry: bool) -> None:
    done.checked += 1
    body = inbox.sealer.open(bytes(row.body), row.sealed)
    delivery, came = rebuilt(row.headers or {}, body), aware(row.received_at)
    try:
        signed_by = endpoint.provider.signature.verify(delivery, endpoint.secrets, came)
        held, _ = read_delivery(endpoint, delivery, fingerprint(signed_by), came)
        if not dry and not inbox.is_first_use(held, PATIENCE):
            raise SignatureError("replayed")
    except SignatureError as refused:
        done.still_refused[refused.reason] = done.still_refused.get(refused.reason, 0) + 1
        return
    done.genuine += 1
    if dry:
        known = {each.dedup_key for each in held.arrivals}
        done.recorded += len(inbox.missing(endpoint.name, known))
        return
    recorded = inbox.record([replace(each, received_at=came) for each in held.arrivals])
    done.recorded += sum(each.new for each in recorded)
    rejections = inbox.tables.rejections
    with inbox.transaction() as connection:
        connection.execute(delete(rejections).where(rejections.c.id == row.id))
