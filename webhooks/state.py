"""What the extension makes for one app, for those above the layers that know no framework."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .api import Apis
from .apply import Applier
from .effects import Caller, Outbox
from .endpoints import Endpoints
from .handlers import Handlers
from .inbox import Inbox
from .inbox.spool import Spool
from .issues import Issues
from .models import Tables
from .queue import Bell
from .reconcile import KEEP_EVENTS, Reconciler
from .watch import Watch

__all__ = ["EXTENSION", "State"]

EXTENSION = "webhooks"
"""The key in `app.extensions`."""


@dataclass
class State:
    """All parts of one app's inbox, joined."""

    app: Any
    """The Flask app; nothing below this knows what that is."""
    db: Any
    endpoints: Endpoints
    handlers: Handlers
    inbox: Inbox
    apis: Apis
    bell: Bell
    applier: Applier
    caller: Caller
    issues: Issues
    spool: Spool | None = None
    _checked: bool = field(default=False, repr=False)

    @property
    def tables(self) -> Tables:
        return self.inbox.tables

    @property
    def outbox(self) -> Outbox:
        return self.caller.outbox

    @property
    def reconciler(self) -> Reconciler:
        return Reconciler(self.inbox, self.endpoints, self.apis, self.bell, self.applier, self.issues)

    @property
    def watch(self) -> Watch:
        return Watch(self.inbox, self.endpoints, self.apis, self.handlers, self.issues, spool=self.spool)

    def sweep(self) -> dict[str, int]:
        """Drain this host's spool, then ring for what is due; return how many events and effects that are."""
        self.drain_spool()
        return {"events": self.reconciler.sweep(), "effects": self.caller.sweep()}

    def drain_spool(self) -> int:
        """Put what this host kept while the database was away into the inbox; return how many deliveries that were."""
        return self.spool.drain() if self.spool is not None else 0

    def purge(self) -> dict[str, int]:
        """Drop what is old; return how many rows of each kind that were."""
        return {**self.reconciler.purge(), "effects": self.outbox.purge(KEEP_EVENTS)}

    def check(self) -> None:
        """Once, when everything is imported: every handler is for something that is configured. Raises ConfigError."""
        if not self._checked:
            self.handlers.check(self.endpoints)
            self._checked = True
