"""What our own rows say: backlog, dead letters, refusals, events that come twice, beat that is not heard."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import func, select

from ..endpoints import Endpoint, Endpoints
from ..inbox import Inbox
from ..inbox.marks import EVERYWHERE, Marks
from ..inbox.rows import aware
from ..inbox.spool import MARK, Spool, as_row
from ..issues import Finding
from ..provider import instant

__all__ = ["BEAT", "Rows"]

BACKLOG = timedelta(minutes=10)
"""An event that has been open and due for longer means that nobody applies."""

BEAT = "beat"
"""The mark that every sweep makes: beat has rung, and a worker has heard it."""

BEAT_SILENT = timedelta(minutes=5)
"""Ten sweeps that nobody has heard."""

HELD = timedelta(minutes=10)
"""What is in a spool for longer is not on its way."""

FORGOTTEN = timedelta(days=7)
"""A host that was not heard of for so long is probably no more, and nothing can be done about its spool from here."""

REFUSALS = timedelta(hours=1)
"""Refusals that are older say nothing about now."""

CLOCK_REFUSALS = 5
SECRET_REFUSALS = 3
"""So many refusals of one kind, and no delivery that was good: not a stranger's try, but our provider."""

SKEW = timedelta(seconds=30)
"""Providers that sign their time allow five minutes; this is early enough to be told."""

NEWEST = 5_000
"""Events among which those that came twice are looked for."""

TWICE = 3
TWICE_SHARE = 0.2
"""At least so many, and this share of the newest: a rotated secret makes a few by itself."""


class Rows:
    """Looks at one inbox."""

    def __init__(self, inbox: Inbox, endpoints: Endpoints, spool: Spool | None = None) -> None:
        self._inbox, self._endpoints, self._marks, self._spool = inbox, endpoints, Marks(inbox), spool

    def of(self, endpoint: Endpoint) -> Iterator[Finding]:
        """What is to be said about one endpoint."""
        yield from self._events(endpoint.name)
        yield from self._refused(endpoint.name)
        yield self._limited(endpoint.name)
        yield from self._effects(endpoint.name)
        yield self._twice(endpoint)

    def everywhere(self) -> Iterator[Finding]:
        """What is to be said about none in particular."""
        heard = self._marks.at(EVERYWHERE, BEAT)
        if heard is not None:
            quiet = self._now() - heard
            yield Finding(
                EVERYWHERE,
                "beat_silent",
                quiet <= BEAT_SILENT,
                f"the last sweep was at {heard:%Y-%m-%d %H:%M:%S} UTC",
                {"heard": heard.isoformat()},
            )
        yield self._held()
        apart = abs(self._now() - datetime.now(UTC))
        yield Finding(
            EVERYWHERE,
            "clock_skew",
            apart <= SKEW,
            f"this machine's clock and the database's are {apart.total_seconds():.0f} s apart",
        )

    def _held(self) -> Finding:
        """Deliveries that wait on some host although the database, which we are asking, is there."""
        marks = self._marks.beginning_with(EVERYWHERE, MARK)
        heard = self._marks.times(MARK)
        old = self._now() - FORGOTTEN
        states = {
            name.removeprefix(MARK): dict(value)
            for name, value in marks.items()
            if heard.get((EVERYWHERE, name), old) > old
        }
        if self._spool is not None:
            own = as_row(self._spool.state())
            states[own["host"]] = {**own, "oldest": own["oldest"] and own["oldest"].isoformat()}
        now = datetime.now(UTC)
        told = []
        for host, state in sorted(states.items()):
            oldest = instant(state["oldest"])
            if state["rows"] and oldest is not None and now - oldest > HELD:
                told.append(f"{host}: {state['rows']} deliveries since {oldest:%Y-%m-%d %H:%M} UTC")
            elif state["trouble"]:
                told.append(f"{host}: {state['path']} cannot be read ({state['trouble']})")
        evidence = {"hosts": {h: s for h, s in states.items() if s["rows"] or s["trouble"]}}
        return Finding(EVERYWHERE, "spool", not told, "; ".join(told) or "nothing is held", evidence)

    def _now(self) -> datetime:
        found = self._one(select(self._inbox.moment()))
        return aware(found[0])

    def _one(self, wanted: Any) -> Any:
        with self._inbox.engine.connect() as connection:
            return connection.execute(wanted).one()

    def _events(self, name: str) -> Iterator[Finding]:
        e = self._inbox.tables.events.c
        mine = e.endpoint == name
        dead = self._one(select(func.count()).where(mine, e.state == "dead"))[0]
        yield Finding(name, "dead_letters", dead == 0, f"{dead} events are dead", {"dead": dead})
        open_ = e.state.in_(["pending", "applying"])
        oldest, number, now = self._one(
            select(func.min(e.due_at), func.count(), self._inbox.moment()).where(
                mine, open_, e.due_at <= self._inbox.moment()
            )
        )
        waits = aware(now) - aware(oldest) if oldest is not None else timedelta(0)
        detail = f"{number} events are due, the oldest for {_minutes(waits)}" if number else "nothing waits"
        yield Finding(
            name, "backlog", waits <= BACKLOG, detail, {"due": number, "seconds": waits.total_seconds()}
        )

    def _refused(self, name: str) -> Iterator[Finding]:
        r, e = self._inbox.tables.rejections.c, self._inbox.tables.events.c
        since = self._inbox.moment(-REFUSALS)
        with self._inbox.engine.connect() as connection:
            rows = connection.execute(
                select(r.reason, func.count(), func.max(r.received_at))
                .where(r.endpoint == name, r.received_at >= since)
                .group_by(r.reason)
            ).all()
            good = connection.scalar(
                select(func.count()).where(e.endpoint == name, e.deliveries > 0, e.last_delivery_at >= since)
            )
        counts = {reason: number for reason, number, _ in rows}
        most = counts.get("clock", 0) > sum(counts.values()) / 2
        told = ", ".join(f"{number} {reason}" for reason, number in sorted(counts.items())) or "none"
        detail = f"refused within the last hour: {told}; accepted: {good}"
        evidence = {"refused": counts, "accepted": good}
        yield Finding(name, "clock_skew", not (most and counts["clock"] >= CLOCK_REFUSALS), detail, evidence)
        wrong = counts.get("mismatch", 0) + counts.get("no_secret", 0)
        yield Finding(name, "secret_wrong", wrong < SECRET_REFUSALS or bool(good), detail, evidence)

    def _limited(self, name: str) -> Finding:
        h = self._inbox.tables.holds.c
        with self._inbox.engine.connect() as connection:
            rows = connection.execute(
                select(h.account, h.until).where(
                    h.endpoint == name, h.reason == "rate_limited", h.until > self._inbox.moment()
                )
            ).all()
        until = max((aware(row.until) for row in rows), default=None)
        detail = f"asked to wait until {until:%H:%M:%S} UTC" if until else "not asked to wait"
        return Finding(name, "rate_limited", not rows, detail, {"accounts": [row.account for row in rows]})

    def _effects(self, name: str) -> Iterator[Finding]:
        """What only a person can settle; nobody else will."""
        c = self._inbox.tables.effects.c
        # An unknown effect that is due has a lookup, which may settle it yet.
        left = (c.state == "dead") | ((c.state == "unknown") & c.due_at.is_(None))
        # What the app promised outside of a handler is nobody's: every endpoint tells of it.
        counted = select(c.state, func.count()).where(c.endpoint.in_([name, ""]), left).group_by(c.state)
        with self._inbox.engine.connect() as connection:
            numbers: dict[str, int] = {row[0]: row[1] for row in connection.execute(counted)}
        for kind, state in (("effects", "dead"), ("unknown_effect", "unknown")):
            number = numbers.get(state, 0)
            detail = f"effects: {f'{number} {state}' if number else 'none is left'}"
            yield Finding(name, kind, number == 0, detail, {state: number} if number else {})

    def _twice(self, endpoint: Endpoint) -> Finding:
        """Events that two secrets have verified, or that came to another endpoint of ours as well."""
        events = self._inbox.tables.events
        e, other = events.c, events.alias().c
        newest = select(func.coalesce(func.max(e.id), 0) - NEWEST).scalar_subquery()
        mine = (e.endpoint == endpoint.name) & (e.id > newest) & (e.deliveries > 0)
        seen = self._one(select(func.count()).where(mine))[0]
        secrets = self._one(select(func.count()).where(mine, e.secret.contains(",")))[0]
        siblings = [
            each.name
            for each in self._endpoints.values()
            if each.provider.name == endpoint.provider.name and each.name != endpoint.name
        ]
        with self._inbox.engine.connect() as connection:
            elsewhere = connection.execute(
                select(other.endpoint, func.count())
                .select_from(events)
                .where(
                    mine, other.endpoint.in_(siblings), other.dedup_key == e.dedup_key, other.deliveries > 0
                )
                .group_by(other.endpoint)
            ).all()
        enough = max(TWICE, TWICE_SHARE * seen)
        at = {name: number for name, number in elsewhere if number >= enough}
        parts = [f"{number} of the newest {seen} events also came to {name}" for name, number in at.items()]
        if secrets >= enough:
            parts.append(f"{secrets} of the newest {seen} events came signed with two secrets")
        return Finding(
            endpoint.name,
            "duplicate_endpoints",
            not parts,
            "; ".join(parts) or "nothing comes twice",
            {"two_secrets": secrets, "elsewhere": at} if parts else {},
        )


def _minutes(length: timedelta) -> str:
    return f"{length.total_seconds() / 60:.0f} min"
