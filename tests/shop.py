"""A small app with handlers, as a user would write it: what the tests of the whole way run against."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from flask import Flask
from flask.testing import FlaskClient
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import JSON, String, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from webhooks import Webhooks
from webhooks.extension import state
from webhooks.provider import Request
from webhooks.state import State
from webhooks.testing import Simulator


class Shop:
    """An app that copies customers and issues, and notes each occasion once."""

    def __init__(
        self,
        url: str,
        endpoints: dict[str, Any],
        folder: Path,
        *,
        build: Callable[[Shop], None] = lambda _shop: None,
        create: bool = True,
        **config: Any,
    ) -> None:
        """`build` registers more than copies and notes; `create=False` where another process has made the tables."""
        self.db = db = SQLAlchemy(model_class=type("Base", (DeclarativeBase,), {}))
        self.webhooks = webhooks = Webhooks()

        class Copy(db.Model):  # type: ignore[name-defined, misc]
            """What `sync` copied."""

            kind: Mapped[str] = mapped_column(String(64), primary_key=True)
            key: Mapped[str] = mapped_column(String(64), primary_key=True)
            data: Mapped[Any] = mapped_column(JSON)

        class Noted(db.Model):  # type: ignore[name-defined, misc]
            """One row for each time an `on` handler ran: its key is no event's, so that a second time would show."""

            id: Mapped[int] = mapped_column(primary_key=True)
            event: Mapped[str] = mapped_column(String(255))
            type: Mapped[str] = mapped_column(String(255))

        self.Copy, self.Noted = Copy, Noted
        self.before_commit: Callable[[], None] = lambda: None

        def copy(event: Any, thing: Any) -> None:
            key = (event.object.kind, event.object.id)
            row = db.session.get(Copy, key)
            if thing is None:
                if row is not None:
                    db.session.delete(row)
            elif row is None:
                db.session.add(Copy(kind=key[0], key=key[1], data=thing))
            else:
                row.data = thing
            db.session.flush()
            self.before_commit()

        def note(event: Any, _thing: Any) -> None:
            db.session.add(Noted(event=event.dedup_key, type=event.type))

        build(self)
        webhooks.sync("stripe", "customer", "product", "subscription", "checkout.session", name="copy")(copy)
        webhooks.sync("github", "issue", "pull_request", name="copy_github")(copy)
        webhooks.on("stripe", "customer.*", "product.*", "checkout.*", name="note")(note)
        webhooks.on("github", "issues.*", "pull_request.*", name="note_github")(note)
        sources = {endpoint.get("provider", name) for name, endpoint in endpoints.items()} | set(endpoints)
        webhooks.handlers._handlers[:] = [h for h in webhooks.handlers if h.source in sources]

        self.app = app = Flask("shop", instance_path=str(folder))
        app.config.update(
            SQLALCHEMY_DATABASE_URI=url,
            WEBHOOKS=endpoints,
            **{"CELERY": {"broker_url": "memory://"}, **config},
        )
        db.init_app(app)
        webhooks.init_app(app)
        app.register_blueprint(webhooks.blueprint, url_prefix="/webhooks")
        if create:
            with app.app_context():
                db.create_all()

    @property
    def state(self) -> State:
        return state(self.app)

    @property
    def client(self) -> FlaskClient:
        return self.app.test_client()

    def receiver(self, endpoint: str) -> Callable[[Request], int | None]:
        """For a simulator's `send`: deliver within this process."""

        def send(request: Request) -> int | None:
            path = f"/webhooks/{endpoint}"
            return self.client.open(
                path, method=request.method, data=request.body, headers=dict(request.headers)
            ).status_code

        return send

    def copies(self) -> dict[tuple[str, str], Any]:
        with self.app.app_context():
            return {(row.kind, row.key): row.data for row in self.db.session.scalars(select(self.Copy))}

    def noted(self) -> list[str]:
        """The dedup keys of the events that `on` handlers ran for, sorted: a double one stands twice."""
        with self.app.app_context():
            return sorted(self.db.session.scalars(select(self.Noted.event)))

    def events(self) -> list[Any]:
        table = self.state.tables.events
        with self.state.inbox.engine.connect() as connection:
            return list(connection.execute(select(table).order_by(table.c.id)))

    def objects(self) -> list[Any]:
        with self.state.inbox.engine.connect() as connection:
            return list(connection.execute(select(self.state.tables.objects)))

    def close(self) -> None:
        self.state.inbox.close_connections()
        with self.app.app_context():
            self.db.session.remove()
            self.db.engine.dispose()


def truth(simulator: Simulator) -> dict[tuple[str, str], Any]:
    """What `Shop.copies` must be: every object that exists at the provider, as it is."""
    return {(key[1], key[2]): data for key, data in simulator.world.truth().items() if data is not None}


NO_LEASE = {"WEBHOOKS_LEASE": timedelta(microseconds=1)}
"""A crashed worker's claim is due again at once."""
