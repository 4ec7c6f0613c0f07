"""A small app whose handlers promise effects, and the other side that they call: what the tests of effects run against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from flask import Flask
from flask.testing import FlaskClient
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import String, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from webhooks import Webhooks
from webhooks.extension import state
from webhooks.provider import Request
from webhooks.state import State
from webhooks.testing import Simulator


class Crash(BaseException):
    """The process is gone: nothing after this line of it happens, not even error handling."""


@dataclass
class OtherSide:
    """Whoever is called: it remembers every call, and honours keys if it is told to."""

    honours_keys: bool = False
    calls: list[str] = field(default_factory=list)
    """Keys, in the order of the calls."""
    happened: list[str] = field(default_factory=list)
    """Keys of what really happened there: refunds that were paid, mails that were sent."""
    behave: Callable[[str], None] = lambda _key: None
    """Called in the middle of each call: it may raise."""

    def call(self, key: str) -> dict[str, str]:
        self.calls.append(key)
        if not (self.honours_keys and key in self.happened):
            self.happened.append(key)
        self.behave(key)
        return {"id": f"re_{key[:8]}"}


class Till:
    """An app with one Stripe endpoint, a table of its own, and what `build` registers."""

    def __init__(
        self,
        url: str,
        folder: Path,
        build: Callable[[Till], None],
        *,
        endpoints: dict[str, Any] | None = None,
        create: bool = True,
        **config: Any,
    ) -> None:
        self.simulator = Simulator("stripe")
        self.simulator.start()
        self.db = db = SQLAlchemy(model_class=type("Base", (DeclarativeBase,), {}))
        self.webhooks = Webhooks()
        self.other = OtherSide()

        class Row(db.Model):  # type: ignore[name-defined, misc]
            """One row for each thing that a handler did."""

            id: Mapped[int] = mapped_column(primary_key=True)
            what: Mapped[str] = mapped_column(String(255))

        class Balance(db.Model):  # type: ignore[name-defined, misc]
            """Credits of an account: what an increment writes."""

            account: Mapped[str] = mapped_column(String(64), primary_key=True)
            credits: Mapped[int]

        self.Row, self.Balance = Row, Balance
        build(self)
        self.app = app = Flask("till", instance_path=str(folder))
        stripe = {"stripe": {**self.simulator.config, "max_attempts": 1000}}
        app.config.update(
            SQLALCHEMY_DATABASE_URI=url,
            WEBHOOKS=stripe if endpoints is None else endpoints,
            **{"CELERY": {"broker_url": "memory://"}, **config},
        )
        db.init_app(app)
        self.webhooks.init_app(app)
        app.register_blueprint(self.webhooks.blueprint, url_prefix="/webhooks")
        if create:
            with app.app_context():
                db.drop_all()
                db.create_all()
        self.simulator._send = self.receive

    @property
    def state(self) -> State:
        return state(self.app)

    @property
    def client(self) -> FlaskClient:
        return self.app.test_client()

    def receive(self, request: Request) -> int | None:
        return self.client.post(
            "/webhooks/stripe", data=request.body, headers=dict(request.headers)
        ).status_code

    # -- what happens

    def deliver(self) -> None:
        self.simulator.deliver(all_due=True)

    def apply(self) -> None:
        """Apply what is open, also what is postponed or whose worker is dead."""
        self._make_due(self.state.tables.events)
        self.state.applier.drain()

    def call(self) -> None:
        """Call what is due."""
        self.state.caller.drain()

    def all_leases_run_out(self) -> None:
        self._make_due(self.state.tables.effects)

    def _make_due(self, table: Any) -> None:
        with self.state.inbox.transaction() as connection:
            due = table.c.due_at.is_not(None)
            connection.execute(update(table).where(due).values(due_at=self.state.inbox.moment()))

    def time_passes(self, span: timedelta) -> None:
        """For the effects: everything was so much longer ago."""
        effects = self.state.tables.effects
        with self.state.inbox.transaction() as connection:
            rows = connection.execute(select(effects)).all()
            for row in rows:
                shifted = {
                    name: getattr(row, name) - span
                    for name in ("due_at", "recorded_at", "first_started_at", "started_at", "finished_at")
                    if getattr(row, name) is not None
                }
                mine = effects.c.idempotency_key == row.idempotency_key
                connection.execute(update(effects).where(mine).values(**shifted))

    # -- what there is

    def effects(self) -> list[Any]:
        table = self.state.tables.effects
        with self.state.inbox.engine.connect() as connection:
            return list(connection.execute(select(table).order_by(table.c.recorded_at)))

    def states(self) -> list[str]:
        return [effect.state for effect in self.effects()]

    def events(self) -> list[Any]:
        table = self.state.tables.events
        with self.state.inbox.engine.connect() as connection:
            return list(connection.execute(select(table).order_by(table.c.id)))

    def outcomes(self) -> list[tuple[str, str, str]]:
        return [(event.type, event.state, event.outcome) for event in self.events()]

    def rows(self) -> list[str]:
        with self.app.app_context():
            return sorted(self.db.session.scalars(select(self.Row.what)))

    def credits(self, account: str = "ada") -> int:
        with self.app.app_context():
            found = self.db.session.get(self.Balance, account)
            return 0 if found is None else found.credits

    def close(self) -> None:
        self.simulator.stop()
        self.state.inbox.close_connections()
        with self.app.app_context():
            self.db.session.remove()
            self.db.engine.dispose()
