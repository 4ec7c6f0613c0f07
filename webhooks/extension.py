"""`class Webhooks`: the extension that an app creates, decorates its handlers with and initialises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import flask
from celery import Celery
from flask import Blueprint, Flask, current_app, request_started
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Engine, event
from sqlalchemy.orm import Session

from . import endpoints as _endpoints
from .alerts import AppriseTeller
from .api import Apis
from .api.budget import Budget
from .apply import Applier, refuse_commit
from .errors import ConfigError
from .handlers import Handler, Handlers, Late, Schemas, named, texts
from .inbox import LEASE, Inbox
from .issues import Issue, Issues, Teller
from .models import tables
from .queue import Bell, broker_settings
from .state import EXTENSION, State
from .views import Receiver, blueprint, prepare

__all__ = ["Webhooks", "celery_settings", "state"]

_RECEIVER = "webhooks.receiver"
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T", bound=Teller)


class Webhooks:
    """An inbox for inbound webhooks.

    >>> webhooks = Webhooks()
    >>> webhooks.init_app(app)
    >>> app.register_blueprint(webhooks.blueprint, url_prefix="/webhooks")
    """

    def __init__(self, app: Flask | None = None) -> None:
        self.handlers = Handlers()
        self._told: list[Teller] = []
        self.blueprint: Blueprint = blueprint(lambda: _receiver(current_app))
        """POST /<endpoint>; register it under whatever prefix the providers call."""
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Read `app.config["WEBHOOKS"]` (and FLASK_WEBHOOKS__… of the environment), join the app's database and CLI.

        Raises ConfigError naming every mistake in the configuration at once.
        """
        db = app.extensions.get("sqlalchemy")
        if not isinstance(db, SQLAlchemy):
            raise ConfigError(
                "call db.init_app(app) before webhooks.init_app(app): the inbox lives in your database"
            )
        config = _merged(app.config.get("WEBHOOKS", {}), _from_environment(app))
        app.config["WEBHOOKS"] = config
        found = _endpoints.read(config)
        lease = app.config.get("WEBHOOKS_LEASE", LEASE)
        inbox = Inbox(
            _engine_of(app, db),
            tables(db.metadata),
            lease=lease if isinstance(lease, timedelta) else timedelta(seconds=float(lease)),
        )
        apis = Apis(budget=Budget(inbox._engine, inbox.tables))
        bell = Bell(lambda: celery_of(app))
        applier = Applier(inbox, found, self.handlers, apis, bell, _scope_of(app, db))
        receiver = Receiver(found, inbox, bell, applier)
        app.extensions[_RECEIVER] = receiver
        issues = Issues(inbox, _tellers(app, self._told))
        app.extensions[EXTENSION] = State(app, db, found, self.handlers, inbox, apis, bell, applier, issues)
        event.listen(db.session, "before_commit", refuse_commit)

        def before_everything(sender: Flask, **_: Any) -> None:
            prepare(sender, receiver, self.blueprint)

        request_started.connect(before_everything, app, weak=False)

    def on_issue(self, function: T) -> T:
        """Call `function(issue)` once when an issue opens and once when it is over, in whichever process notices.

        It runs in an app context. What it raises is logged and stops nobody.
        """
        self._told.append(function)
        return function

    # -- what the app does with events

    def sync(
        self, source: str, *kinds: str, schema: Schemas = None, name: str | None = None
    ) -> Callable[[F], F]:
        """Copy state: `function(event, object)` gets the object as it is now, or None when it is gone.

        Level-triggered: it may run any number of times, once for many events, and must only say what is. `source` is an
        endpoint's or a provider's name. It runs in our transaction through `db.session`; a commit raises.
        """

        def register(function: F) -> F:
            own, where = named(function, name)
            self.handlers.add(
                Handler(
                    function=function,
                    name=own,
                    verb="sync",
                    source=source,
                    kinds=kinds,
                    schema=schema,
                    where=where,
                )
            )
            return function

        if not kinds:
            raise ConfigError(f"sync({source!r}) needs at least one kind of object")
        return register

    def on(
        self,
        source: str,
        *types: str,
        flow: str | None = None,
        once_per: str | Callable[[Any], Any] | None = None,
        when: Callable[[Any], bool] | None = None,
        schema: Schemas = None,
        late: Late | None = None,
        name: str | None = None,
    ) -> Callable[[F], F]:
        """React to an occasion: `function(event, object)` runs once per event, with the object as it is now.

        With `flow` it runs once per key (`once_per`, a path in the object or a function of it; by default its `id`),
        whatever events arrive. `when(object)` decides on the fetched object. A second trigger for a flow raises
        ConfigError naming both places.
        """

        def register(function: F) -> F:
            own, where = named(function, name)
            self.handlers.add(
                Handler(
                    function=function,
                    name=own,
                    verb="on",
                    source=source,
                    types=tuple(texts(types)),
                    flow=flow or (own if once_per is not None else None),
                    once_per=once_per,
                    when=when,
                    schema=schema,
                    late=late,
                    where=where,
                )
            )
            return function

        if not types:
            raise ConfigError(f"on({source!r}) needs at least one event type")
        return register


def _tellers(app: Flask, told: Sequence[Teller]) -> list[Teller]:
    """Who is told of issues: the addresses in WEBHOOKS_ALERTS (a list, or a function that returns one), then the app."""

    def urls() -> Sequence[str]:
        given = app.config.get("WEBHOOKS_ALERTS", ())
        found: Any = given() if callable(given) else given
        return [found] if isinstance(found, str) else list(found)

    def tell_the_app(issue: Issue) -> None:
        with app.app_context():
            for function in told:
                try:
                    function(issue)
                except Exception as error:  # noqa: BLE001 - one that fails must not keep the others from hearing it
                    app.logger.warning(
                        "on_issue: %s (%s)", getattr(function, "__name__", "?"), type(error).__name__
                    )

    return [AppriseTeller(urls), tell_the_app]


def _receiver(app: Flask) -> Receiver:
    state(app).check()
    found = app.extensions[_RECEIVER]
    assert isinstance(found, Receiver)
    return found


def state(app: Flask | None = None) -> State:
    """What the extension made for this app (by default the current one). Raises ConfigError if it was not initialised."""
    found = (app or current_app).extensions.get(EXTENSION)
    if not isinstance(found, State):
        raise ConfigError("call webhooks.init_app(app) first")
    return found


def celery_of(app: Flask) -> Celery:
    """The Celery app to ring: the one that `make_celery` or the host put into `app.extensions`, or one that only rings."""
    found = app.extensions.get("celery")
    if not isinstance(found, Celery):
        found = Celery(app.import_name, set_as_current=False)
        found.conf.update(celery_settings(app))
        app.extensions["celery"] = found
    return found


def celery_settings(app: Flask) -> dict[str, Any]:
    """`app.config["CELERY"]` over our defaults; without a broker, one of files in the instance folder."""
    given: dict[str, Any] = dict(app.config.get("CELERY", {}))
    defaults = broker_settings(given.get("broker_url"), Path(app.instance_path))
    return defaults | given


def _from_environment(app: Flask) -> dict[str, Any]:
    scratch = flask.Config(app.root_path)
    scratch.from_prefixed_env("FLASK")
    found = scratch.get("WEBHOOKS", {})
    return found if isinstance(found, dict) else {}


def _merged(below: Any, above: dict[str, Any]) -> Any:
    """The environment's values over the app's, at every depth."""
    if not isinstance(below, dict):
        return above or below
    merged = dict(below)
    for key, value in above.items():
        merged[key] = _merged(merged[key], value) if isinstance(value, dict) and key in merged else value
    return merged


def _engine_of(app: Flask, db: SQLAlchemy) -> Callable[[], Engine]:
    made: list[Engine] = []

    def engine() -> Engine:
        if not made:
            if flask.has_app_context() and current_app._get_current_object() is app:  # type: ignore[attr-defined]
                found = db.engine
            else:
                with app.app_context():
                    found = db.engine
            if found.dialect.name == "sqlite":
                _prepare_sqlite(found)
            made.append(found)
        return made[0]

    return engine


def _prepare_sqlite(engine: Engine) -> None:
    """Readers beside a writer, and writers that wait for each other: SQLite's own defaults answer "database is locked"."""

    def on_connect(connection: Any, _record: Any = None) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA busy_timeout = 30000")
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = NORMAL")
        cursor.close()

    if engine.url.database not in {None, "", ":memory:"}:
        event.listen(engine, "connect", on_connect)
        engine.dispose()  # connections that were opened before do not have it


def _scope_of(app: Flask, db: SQLAlchemy) -> Callable[[], Any]:
    @contextmanager
    def scope() -> Iterator[Session]:
        with app.app_context():
            yield db.session()

    return scope
