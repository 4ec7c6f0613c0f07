"""Silence with evidence: what is unusually quiet is first asked about, and an issue only if the provider has something.

The bound: a stop is noticed when `EXPECTED` events should have come, at the next check (15 minutes). With 20 events an
hour that is half an hour after the first one that is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from sqlalchemy import func, select

from ..api import Apis
from ..endpoints import Endpoint
from ..errors import NotFetchable, WebhooksError
from ..inbox import Inbox
from ..inbox.marks import Marks
from ..inbox.rows import aware, stored_key
from ..issues import Finding
from ..provider import instant
from .cadence import EXPECTED, WEEKS, Cadence

__all__ = ["Probe", "Silence", "probe"]

log = logging.getLogger(__name__)

LEARN_EVERY = timedelta(days=1)
TYPES = 50
"""Types per endpoint whose cadence is learned, the most frequent ones."""

NEWEST = 20_000
"""Events among which the last one of each type is looked for; of a type that is not there the learned one counts."""

AGAIN = 1_000
"""Events from before the last learning that are looked at as well: to be delivered once more is a sign of life, too."""

LOOKED_AT = 200
"""Entries of a log or a list that are looked at: it only matters whether there is one."""

ON_THE_WAY = timedelta(minutes=3)
"""What is younger may still arrive."""

CALM = timedelta(hours=3)
"""An issue closes when nothing has been bad for so long, or for three times `max_silence`: not with every delivery."""

Probe = Callable[[Endpoint, datetime, datetime], dict[str, Any] | None]
"""What the provider has since an instant and did not deliver by another: {} nothing, None it cannot be asked. Raises
WebhooksError where it could be asked and did not answer."""


@dataclass
class Silence:
    """Watches the endpoints of one inbox for silence."""

    inbox: Inbox
    ask: Probe

    def of(self, endpoint: Endpoint, now: datetime) -> list[Finding]:
        """A finding, if it is sure that it is too quiet or that all is well; nothing in between."""
        marks = Marks(self.inbox)
        learned = self._cadence(endpoint.name, now)
        last = self._last(endpoint.name)
        newest = max(last.values(), default=None)
        if newest is None:
            return []
        found = self._too_long(endpoint, newest, now)
        if found is None:
            found = self._unusual(endpoint, learned, last, newest, now)
        if found is None:
            detail = f"the last delivery came at {newest:%Y-%m-%d %H:%M} UTC"
            found = [Finding(endpoint.name, "silence", good=True, detail=detail)]
        if any(not finding.good for finding in found):
            marks.put(endpoint.name, "silent", now.isoformat())
            return found
        was = instant(marks.get(endpoint.name, "silent"))
        calm = max(3 * (endpoint.max_silence or timedelta(0)), CALM)
        return [] if was is not None and now - was < calm else found

    def _too_long(self, endpoint: Endpoint, newest: datetime, now: datetime) -> list[Finding] | None:
        limit = endpoint.max_silence
        if limit is None or now - newest <= limit:
            return None
        detail = (
            f"nothing has come since {newest:%Y-%m-%d %H:%M} UTC, which is longer than max_silence allows"
        )
        evidence = {"since": newest.isoformat()}
        return [Finding(endpoint.name, "silence", good=False, detail=detail, evidence=evidence)]

    def _unusual(
        self,
        endpoint: Endpoint,
        learned: dict[str, Cadence],
        last: dict[str, datetime],
        newest: datetime,
        now: datetime,
    ) -> list[Finding] | None:
        """What the provider says about an unusual silence; nothing between two questions, None if it is not unusual."""
        quiet = [
            type_ for type_, cadence in learned.items() if type_ in last and cadence.is_late(last[type_], now)
        ]
        together = Cadence.together(learned.values())
        whole = together.is_late(newest, now)
        if not quiet and not whole:
            return None
        since = newest if whole else min(last[type_] for type_ in quiet)
        if not self._asks_again(endpoint.name, since, now, together):
            return []
        try:
            lacking = self.ask(endpoint, since, now - ON_THE_WAY)
        except WebhooksError as error:
            log.info("%s: a silence could not be asked about: %s", endpoint.name, error)
            return []  # neither good nor bad; the next check asks again
        self._note_asked(endpoint.name, since, now)
        what = "deliveries" if whole else ", ".join(quiet[:5])
        name = endpoint.provider.name
        if lacking:
            detail = (
                f"{what} stopped at {since:%Y-%m-%d %H:%M} UTC, and since then {name} has {lacking['count']} that it did not "
                "deliver"
            )
            evidence = {"since": since.isoformat(), "types": quiet, **lacking}
            return [Finding(endpoint.name, "silence", good=False, detail=detail, evidence=evidence)]
        why = (
            f"{name} has nothing that we lack"
            if lacking is not None
            else f"{name} cannot be asked why; set max_silence to be told when it lasts"
        )
        detail = f"it is quieter than usual ({what} since {since:%Y-%m-%d %H:%M} UTC), and {why}"
        return [Finding(endpoint.name, "silence", good=True, detail=detail)]

    def _asks_again(self, endpoint: str, since: datetime, now: datetime, usual: Cadence) -> bool:
        """Whether enough should have come since the provider was last asked about this silence: a night after a holiday
        needs no question every quarter of an hour."""
        asked = Marks(self.inbox).get(endpoint, "asked") or {}
        at = instant(asked.get("at"))
        same = asked.get("since") == since.isoformat()
        return not (same and at is not None and at <= now and usual.expected(at, now) < EXPECTED)

    def _note_asked(self, endpoint: str, since: datetime, now: datetime) -> None:
        Marks(self.inbox).put(endpoint, "asked", {"since": since.isoformat(), "at": now.isoformat()})

    # -- what is usual

    def _cadence(self, endpoint: str, now: datetime) -> dict[str, Cadence]:
        """The cadence of each type, learned once a day and kept as a mark."""
        marks = Marks(self.inbox)
        kept = marks.get(endpoint, "cadence")
        learned_at = instant(kept["at"]) if kept else None
        if learned_at is None or not timedelta(0) <= now - learned_at < LEARN_EVERY:
            kept = self._learn(endpoint, now)
            marks.put(endpoint, "cadence", kept)
        return {type_: Cadence.from_json(value) for type_, value in kept["types"].items()}

    def _learn(self, endpoint: str, now: datetime) -> dict[str, Any]:
        e = self.inbox.tables.events.c
        begin = now - timedelta(weeks=WEEKS, hours=1)
        hour = (
            func.strftime("%Y-%m-%dT%H:00:00", e.received_at)
            if self.inbox.is_sqlite
            else func.to_char(func.timezone("UTC", e.received_at), 'YYYY-MM-DD"T"HH24:00:00')
        ).label("hour")
        mine = (e.endpoint == endpoint) & (e.deliveries > 0) & (e.received_at < now)
        with self.inbox.engine.connect() as connection:
            upto = connection.scalar(select(func.coalesce(func.max(e.id), 0)))
            first = connection.scalar(select(func.min(e.received_at)).where(mine))
            rows = connection.execute(
                select(e.type, hour, func.count().label("events"), func.max(e.received_at).label("last"))
                .where(mine, e.received_at >= begin)
                .group_by(e.type, hour)
            ).all()
        counts: dict[str, dict[datetime, int]] = {}
        last: dict[str, str] = {}
        for row in rows:
            at = instant(row.hour)
            if at is not None:
                counts.setdefault(row.type, {})[at] = row.events
                last[row.type] = max(last.get(row.type, ""), aware(_moment(row.last)).isoformat())
        frequent = sorted(counts, key=lambda type_: -sum(counts[type_].values()))[:TYPES]
        began = aware(_moment(first)) if first is not None else now
        types = {type_: Cadence.learn(counts[type_], now, began).as_json() for type_ in frequent}
        newest = {type_: last[type_] for type_ in frequent}
        return {"at": now.isoformat(), "types": types, "last": newest, "upto": upto}

    def _last(self, endpoint: str) -> dict[str, datetime]:
        """When each type was last delivered."""
        kept = Marks(self.inbox).get(endpoint, "cadence") or {"last": {}}
        found = {type_: at for type_, text in kept["last"].items() if (at := instant(text)) is not None}
        e = self.inbox.tables.events.c
        newest = select(func.coalesce(func.max(e.id), 0) - NEWEST).scalar_subquery()
        after = kept.get("upto", 0) - AGAIN
        with self.inbox.engine.connect() as connection:
            rows = connection.execute(
                select(e.type, func.max(e.last_delivery_at).label("last"))
                .where(e.endpoint == endpoint, e.deliveries > 0, e.id > newest, e.id > after)
                .group_by(e.type)
            ).all()
        for row in rows:
            at = aware(_moment(row.last))
            found[row.type] = max(at, found.get(row.type, at))
        return found


def _moment(value: Any) -> datetime:
    """SQLite's functions give out texts."""
    found = instant(value)
    assert found is not None
    return found


def probe(inbox: Inbox, apis: Apis) -> Probe:
    """Ask the provider's log, or its list, for something since then that was not delivered to us."""

    def ask(endpoint: Endpoint, since: datetime, until: datetime) -> dict[str, Any] | None:
        try:
            api = apis.of(endpoint, priority="reconcile")
            if endpoint.provider.list_events is not None:
                entries = islice(endpoint.provider.list_events(api, since), LOOKED_AT)
                keys = {
                    stored_key(e.dedup_key): e.occurred_at
                    for e in entries
                    if e.dedup_key and e.occurred_at is not None and since < e.occurred_at <= until
                }
                return _evidence([keys[key] for key in _undelivered(inbox, endpoint.name, list(keys))])
            if endpoint.provider.list_changed is not None and endpoint.fetches:
                changes = islice(endpoint.provider.list_changed(api, since), LOOKED_AT)
                times = [
                    change.changed_at
                    for change in changes
                    if change.changed_at is not None
                    and since < change.changed_at <= until
                    and not _was_delivered(inbox, endpoint.name, change.object.kind, change.object.id, since)
                ]
                return _evidence(times)
        except NotFetchable:
            return None
        return None

    return ask


def _evidence(times: list[datetime]) -> dict[str, Any]:
    if not times:
        return {}
    return {
        "count": len(times),
        "oldest": min(times).astimezone(UTC).isoformat(),
        "newest": max(times).astimezone(UTC).isoformat(),
    }


def _undelivered(inbox: Inbox, endpoint: str, keys: list[str]) -> set[str]:
    """Those that no delivery has brought, whether or not recover has found them since."""
    e = inbox.tables.events.c
    with inbox.engine.connect() as connection:
        found = connection.scalars(
            select(e.dedup_key).where(e.endpoint == endpoint, e.dedup_key.in_(keys), e.deliveries > 0)
        )
        return set(keys) - set(found)


def _was_delivered(inbox: Inbox, endpoint: str, kind: str, id_: str, since: datetime) -> bool:
    e = inbox.tables.events.c
    wanted = select(e.id).where(
        e.endpoint == endpoint,
        e.object_kind == kind,
        e.object_id == stored_key(id_),
        e.deliveries > 0,
        e.last_delivery_at > since,
    )
    with inbox.engine.connect() as connection:
        return connection.execute(wanted.limit(1)).first() is not None
