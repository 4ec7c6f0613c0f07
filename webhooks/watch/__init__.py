"""Tell people: ask the providers about our endpoints, look at the inbox, keep one open issue per kind and endpoint."""

from __future__ import annotations

import logging
from datetime import timedelta

from sqlalchemy import func, select

from ..api import Apis
from ..apply import summary
from ..endpoints import Endpoint, Endpoints
from ..errors import WebhooksError
from ..inbox import Inbox
from ..issues import Finding, Issues
from ..provider import Health

__all__ = ["Finding", "Watch"]

BACKLOG = timedelta(minutes=10)
"""An event that has been open and due for longer means that nobody applies."""

log = logging.getLogger(__name__)


class Watch:
    """Checks for one app."""

    def __init__(self, inbox: Inbox, endpoints: Endpoints, apis: Apis, issues: Issues) -> None:
        self.inbox, self.endpoints, self.apis, self.issues = inbox, endpoints, apis, issues

    def check(self) -> list[Finding]:
        """Look at every endpoint, open and close issues; return what was found."""
        found = [finding for endpoint in self.endpoints.values() for finding in self._check(endpoint)]
        self.issues.enter(found)
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
        ]

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
