"""Tell people: ask the providers about our endpoints, look at the inbox, keep one open issue per kind and endpoint."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import func, insert, select, update
from sqlalchemy.exc import IntegrityError

from .api import Apis
from .apply import summary
from .endpoints import Endpoint, Endpoints
from .errors import WebhooksError
from .inbox import Inbox
from .provider import Health

__all__ = ["Finding", "Watch"]

BACKLOG = timedelta(minutes=10)
"""An event that has been open and due for longer means that nobody applies."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Finding:
    """One thing that is, or is not, as it should be on an endpoint."""

    endpoint: str
    kind: str
    good: bool
    detail: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)


class Watch:
    """Checks for one app."""

    def __init__(self, inbox: Inbox, endpoints: Endpoints, apis: Apis) -> None:
        self.inbox, self.endpoints, self.apis = inbox, endpoints, apis

    def check(self) -> list[Finding]:
        """Look at every endpoint, open and close issues; return what was found."""
        found = [finding for endpoint in self.endpoints.values() for finding in self._check(endpoint)]
        for finding in found:
            self._enter(finding)
        return found

    def _check(self, endpoint: Endpoint) -> list[Finding]:
        name = endpoint.name
        health = self._health(endpoint)
        dead, oldest = self._numbers(endpoint)
        late = oldest is not None and oldest > BACKLOG
        return [
            Finding(name, "endpoint_disabled", health.state != "disabled", health.detail or health.state),
            Finding(name, "endpoint_missing", health.state != "missing", health.detail or health.state),
            Finding(name, "endpoint_failing", health.state != "failing", health.detail or health.state),
            Finding(name, "dead_letters", dead == 0, f"{dead} events are dead", {"dead": dead}),
            Finding(
                name,
                "backlog",
                not late,
                f"the oldest due event waits since {oldest}" if oldest else "nothing waits",
            ),
            self._effects(name),
        ]

    def _effects(self, name: str) -> Finding:
        """What only a person can settle; nobody else will."""
        c = self.inbox.tables.effects.c
        # An unknown effect that is due has a lookup, which may settle it yet.
        left = (c.state == "dead") | ((c.state == "unknown") & c.due_at.is_(None))
        # What the app promised outside of a handler is nobody's: every endpoint tells of it.
        mine = c.endpoint.in_([name, ""])
        with self.inbox.engine.connect() as connection:
            counted = select(c.state, func.count()).where(mine, left).group_by(c.state)
            numbers: dict[str, int] = {row[0]: row[1] for row in connection.execute(counted)}
        detail = ", ".join(f"{number} {state}" for state, number in sorted(numbers.items()))
        return Finding(name, "effects", not numbers, f"effects: {detail or 'none is left'}", numbers)

    def _health(self, endpoint: Endpoint) -> Health:
        ask = endpoint.provider.endpoint_health
        if ask is None or not endpoint.fetch:
            return Health("unknown", "the provider cannot be asked")
        try:
            return ask(self.apis.of(endpoint))
        except WebhooksError as error:
            return Health("unknown", summary(error))

    def _numbers(self, endpoint: Endpoint) -> tuple[int, timedelta | None]:
        events = self.inbox.tables.events
        mine = events.c.endpoint == endpoint.name
        with self.inbox.engine.connect() as connection:
            dead = connection.scalar(select(func.count()).where(mine, events.c.state == "dead"))
            oldest, now = connection.execute(
                select(func.min(events.c.due_at), self.inbox.moment()).where(
                    mine, events.c.state.in_(["pending", "applying"]), events.c.state == "pending"
                )
            ).one()
        if oldest is None:
            return int(dead or 0), None
        return int(dead or 0), max(now.replace(tzinfo=None) - oldest.replace(tzinfo=None), timedelta(0))

    def _enter(self, finding: Finding) -> None:
        """Open an issue once, close it once; in between it only stays."""
        issues = self.inbox.tables.issues
        mine = (
            (issues.c.endpoint == finding.endpoint)
            & (issues.c.kind == finding.kind)
            & (issues.c.state == "open")
        )
        now = self.inbox.moment()
        if finding.good:
            with self.inbox.transaction() as connection:
                closed = connection.execute(
                    update(issues).where(mine).values(state="closed", closed_at=now)
                ).rowcount
            if closed:
                log.warning("%s: %s is over", finding.endpoint, finding.kind)
            return
        try:
            with self.inbox.transaction() as connection:
                connection.execute(
                    insert(issues).values(
                        endpoint=finding.endpoint,
                        kind=finding.kind,
                        state="open",
                        opened_at=now,
                        evidence={"detail": finding.detail, **finding.evidence},
                    )
                )
        except IntegrityError:
            return  # it is open already
        log.error("%s: %s: %s", finding.endpoint, finding.kind, finding.detail)
