"""`class Webhooks`: the extension that an app creates, decorates its handlers with and initialises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import flask
from celery import Celery
from flask import Blueprint, Flask, current_app, request_started
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Engine, event
from sqlalchemy.orm import Session, SessionTransaction

from . import endpoints as _endpoints
from .alerts import AppriseTeller, addresses
from .answers import Desk
from .api import Apis
from .api.budget import Budget
from .apply import Applier, Copy, Running, ensure_fresh, refuse_commit, refuse_second_connection
from .dashboard import Guard, dashboard
from .effects import KEY_LIFETIME, LOOKUP_AFTER, MAX_ATTEMPTS, Effect, Effects, Outbox, idempotency_key
from .effects import LEASE as CALL_LEASE
from .effects.calling import Caller
from .errors import ConfigError
from .front import FrontDoor
from .handlers import Handler, Handlers, Key, Late, OnError, Schemas, named, texts
from .inbox import LEASE, Inbox
from .inbox.sealing import Sealer, key_problem
from .inbox.spool import MAX_BYTES, MAX_ROWS, Spool, note_drained
from .issues import Issue, Issues, Teller
from .models import tables
from .queue import EFFECTS, EFFECTS_QUEUE, Bell, broker_settings
from .receiving import Receiver
from .state import EXTENSION, State
from .views import blueprint, prepare

__all__ = ["Webhooks", "celery_settings", "state"]

_RECEIVER = "webhooks.receiver"

SPOOL = "webhooks-spool.sqlite"
"""The spool's file in the instance folder."""

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
        self.effects = Effects()
        self._told: list[Teller] = []
        made, self._view = blueprint(lambda: _receiver(current_app))
        self.blueprint: Blueprint = made
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
        inbox = Inbox(
            _engine_of(app, db),
            tables(db.metadata),
            lease=_seconds(app, "WEBHOOKS_LEASE", LEASE),
            sealer=_sealer_of(app),
        )
        apis = Apis(budget=Budget(inbox._engine, inbox.tables))
        bell = Bell(lambda: celery_of(app))
        applier = Applier(inbox, found, self.handlers, apis, bell, _scope_of(app, db))
        effects_bell = Bell(lambda: celery_of(app), task=EFFECTS, queue=EFFECTS_QUEUE)
        outbox = Outbox(inbox, lease=_seconds(app, "WEBHOOKS_EFFECT_LEASE", CALL_LEASE))
        caller = Caller(outbox, self.effects, effects_bell, _scope_of(app, db))
        desk = Desk(inbox, found, self.handlers, bell, _scope_of(app, db))
        spool = _spool_of(app, inbox, bell)
        receiver = Receiver(found, inbox, bell, applier, desk, spool)
        app.extensions[_RECEIVER] = receiver
        issues = Issues(inbox, _tellers(app, self._told))
        app.extensions[EXTENSION] = State(
            app, db, found, self.handlers, inbox, apis, bell, applier, caller, issues, spool
        )
        event.listen(db.session, "before_commit", refuse_commit)
        event.listen(db.session, "after_transaction_end", _ring_after(effects_bell))

        def before_everything(sender: Flask, **_: Any) -> None:
            prepare(sender, receiver, self._view)

        request_started.connect(before_everything, app, weak=False)
        if app.config.get("WEBHOOKS_FRONT_DOOR"):
            app.wsgi_app = FrontDoor(  # type: ignore[method-assign]
                app.wsgi_app, lambda: _receiver(app), lambda: _prefixes(app, self._view)
            )

    def dashboard(self, *, guard: Guard) -> Blueprint:
        """The pages for operators, as a blueprint to register: `app.register_blueprint(webhooks.dashboard(guard=…),
        url_prefix="/admin/webhooks")`.

        `guard()` is asked before every page and action: True lets in; a response, such as a redirect to your login
        page, is sent as it is; anything else is 403. Actions need the app's SECRET_KEY; without it one can only read.
        """
        return dashboard(guard)

    def on_issue(self, function: T) -> T:
        """Call `function(issue)` once when an issue opens and once when it is over, in whichever process notices.

        It runs in an app context. What it raises is logged and stops nobody.
        """
        self._told.append(function)
        return function

    # -- what the app does with events

    def sync(
        self,
        source: str,
        *kinds: str,
        schema: Schemas = None,
        time_limit: timedelta | None = None,
        name: str | None = None,
    ) -> Callable[[F], F]:
        """Copy state: `function(event, object)` gets the object as it is now, or None when it is gone.

        Level-triggered: it may run any number of times, once for many events, and must only say what is. `source` is an
        endpoint's or a provider's name. It runs in our transaction through `db.session`; a commit raises.
        A call that takes longer than `time_limit` (by default the endpoint's, 60 s) is stopped and counts as failed.
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
                    time_limit=_limit(source, time_limit),
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
        once_per: Key | None = None,
        when: Callable[[Any], bool] | None = None,
        replaces: Mapping[str, Key] | None = None,
        schema: Schemas = None,
        late: Late | None = None,
        time_limit: timedelta | None = None,
        name: str | None = None,
    ) -> Callable[[F], F]:
        """React to an occasion: `function(event, object)` runs once per event, with the object as it is now.

        With `flow` it runs once per key (`once_per`, a path in the object or a function of it; by default its `id`),
        whatever events arrive. `when(object)` decides on the fetched object. A second trigger for a flow raises
        ConfigError naming both places. To hand a flow over to another trigger, give the new one another name and
        `replaces={"old flow": where the old one's key is in our object}`: what either has decided counts for both.
        A call that takes longer than `time_limit` (by default the endpoint's, 60 s) is stopped and counts as failed.
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
                    replaces=dict(replaces or {}),
                    when=when,
                    schema=schema,
                    late=late,
                    time_limit=_limit(source, time_limit),
                    where=where,
                )
            )
            return function

        if not types:
            raise ConfigError(f"on({source!r}) needs at least one event type")
        if replaces and flow is None:
            raise ConfigError(f"on({source!r}, replaces=…) needs the name of its own flow=")
        if flow is not None and flow in (replaces or {}):
            raise ConfigError(f"the flow {flow!r} cannot replace itself; give the new one another name")
        return register

    def answer(
        self,
        source: str,
        *types: str,
        on_error: OnError,
        within: timedelta | None = None,
        schema: Schemas = None,
        reply_schema: Schemas = None,
        name: str | None = None,
    ) -> Callable[[F], F]:
        """Decide within the request, while the provider waits: `function(event)` returns the answer, or None for
        whatever changes nothing, or raises `Refuse(message)`.

        It runs at most once per dedup key; its answer is stored with its work, and repeated when the same call comes
        again. It has the provider's deadline less a margin (or `within`, if that is less). What happens when it raises,
        is late, or the inbox cannot be written is `on_error`: "allow" or "refuse", which has no default.

        It runs in a transaction through `db.session`; a commit raises. Nothing is fetched for it. `schema` checks the
        event's data before, `reply_schema` the answer after it.
        """

        def register(function: F) -> F:
            own, where = named(function, name)
            self.handlers.add(
                Handler(
                    function=function,
                    name=own,
                    verb="answer",
                    source=source,
                    types=tuple(texts(types)),
                    on_error=on_error,
                    within=within,
                    schema=schema,
                    reply_schema=reply_schema,
                    where=where,
                )
            )
            return function

        if not types:
            raise ConfigError(f"answer({source!r}) needs at least one event type")
        if on_error not in {"allow", "refuse"}:
            raise ConfigError(f"answer({source!r}, on_error={on_error!r}): it is 'allow' or 'refuse'")
        return register

    # -- what it does outside the database

    def effect(
        self,
        *,
        idempotent: bool = False,
        key_lifetime: timedelta = KEY_LIFETIME,
        lookup: Callable[..., Any] | None = None,
        lookup_after: timedelta = LOOKUP_AFTER,
        max_attempts: int = MAX_ATTEMPTS,
        schema: Schemas = None,
        name: str | None = None,
    ) -> Callable[[Callable[..., Any]], Effect]:
        """Make an effect of `function(key, **arguments)`: promise it with `.later(…)` in a handler.

        It is called after the commit, never if there is none. `idempotent=True`: the callee honours the key, so it may
        be called again under the same one while the callee remembers it (`key_lifetime`). Otherwise a crash or an
        exception in the middle leaves it `unknown`, which nobody repeats silently: `lookup(key, **arguments)` may ask
        the other side, or a person decides (`flask webhooks effects settle`). RetryLater says that it did not happen;
        GiveUp, that it did not and will not.
        """

        def register(function: Callable[..., Any]) -> Effect:
            own, where = named(function, name)
            return self.effects.add(
                Effect(
                    function=function,
                    name=own,
                    idempotent=idempotent,
                    key_lifetime=key_lifetime,
                    lookup=lookup,
                    lookup_after=lookup_after,
                    max_attempts=max_attempts,
                    schema=schema,
                    where=where,
                    outside=_outside,
                )
            )

        return register

    idempotency_key = staticmethod(idempotency_key)

    # -- what it asks for

    def ensure_fresh(
        self,
        endpoint: str,
        kind: str,
        id: str,  # noqa: A002 - the column's name
        *,
        within: timedelta = timedelta(seconds=5),
        account: str = "",
        flow: str | None = None,
    ) -> Copy:
        """See to it that our copy is what the provider has now; return it, at the latest after `within`.

        The same claim, fetch and ledger as in a worker. What waits in the inbox for the object is applied; a claim that
        is running is waited for; else one fetch is made. With `flow`, that flow is decided too, if its condition holds:
        a success page need not wait for the delivery, which then finds it decided. Raises ConfigError if there is no
        such endpoint, or nobody keeps a copy of that kind.
        """
        return ensure_fresh(state().applier, endpoint, kind, id, within=within, account=account, flow=flow)


def _outside() -> Running:
    """Where an effect is promised that no handler asks for: the current app's own session."""
    return Running(state().db.session(), state().inbox, None, "")


def _ring_after(bell: Bell) -> Callable[[Session, SessionTransaction], None]:
    def ring(session: Session, transaction: SessionTransaction) -> None:
        # After a rollback there is nothing to call, and nothing happens.
        if transaction.parent is None and session.info.pop("webhooks_promised", False):
            bell.ring()

    return ring


def _limit(source: str, given: timedelta | None) -> timedelta | None:
    if given is not None and given <= timedelta(0):
        raise ConfigError(f"a handler for {source!r} cannot work with a time_limit of {given}")
    return given


def _seconds(app: Flask, name: str, default: timedelta) -> timedelta:
    given = app.config.get(name, default)
    try:
        found = given if isinstance(given, timedelta) else timedelta(seconds=float(given))
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{name} must be a number of seconds, not {given!r}") from None
    if found <= timedelta(0):
        raise ConfigError(f"{name} must be more than 0 seconds, not {given!r}")
    return found


def _sealer_of(app: Flask) -> Sealer:
    """What WEBHOOKS_BODY_KEYS makes of bodies; nothing, without it. Raises ConfigError."""
    given = app.config.get("WEBHOOKS_BODY_KEYS")
    if given is None:
        return Sealer()
    return Sealer(_endpoints.keyring("WEBHOOKS_BODY_KEYS", given, key_problem))


def _spool_of(app: Flask, inbox: Inbox, bell: Bell) -> Spool | None:
    """This host's spool, in the instance folder or where WEBHOOKS_SPOOL says; None: it is switched off."""
    given = app.config.get("WEBHOOKS_SPOOL", True)
    if given is False:
        return None
    if given is not True and not (isinstance(given, str | Path) and str(given).strip()):
        raise ConfigError(f"WEBHOOKS_SPOOL must be True, False or the path of a file, not {given!r}")
    path = Path(app.instance_path) / SPOOL if given is True else Path(given)

    def drained(number: int) -> None:
        note_drained(inbox, made.state(), number)
        bell.ring()

    made = Spool(
        path,
        lambda held: _receiver(app).record(held),
        inbox.is_up,
        max_rows=_whole(app, "WEBHOOKS_SPOOL_MAX_ROWS", MAX_ROWS),
        max_bytes=_whole(app, "WEBHOOKS_SPOOL_MAX_BYTES", MAX_BYTES),
        drained=drained,
    )
    return made


def _whole(app: Flask, name: str, default: int) -> int:
    given = app.config.get(name, default)
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ConfigError(f"{name} must be a whole number and at least 1, not {given!r}")
    return given


def _prefixes(app: Flask, view: Callable[[str], Any]) -> tuple[str, ...]:
    """The paths before the endpoint's name, of every place where the blueprint is registered."""
    ours = {name for name, function in app.view_functions.items() if function is view}
    rules = (rule.rule for rule in app.url_map.iter_rules() if rule.endpoint in ours)
    return tuple(sorted({rule.partition("<endpoint>")[0] for rule in rules}, key=len, reverse=True))


def _tellers(app: Flask, told: Sequence[Teller]) -> list[Teller]:
    """Who is told of issues: the addresses in WEBHOOKS_ALERTS (a list, or a function that returns one), then the app."""

    def urls() -> Sequence[str]:
        given = app.config.get("WEBHOOKS_ALERTS", ())
        return addresses(given() if callable(given) else given)

    if not callable(app.config.get("WEBHOOKS_ALERTS", ())):
        urls()  # a function is asked when there is something to tell

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
    said = app.config.get("CELERY") or {}
    if not isinstance(said, Mapping):
        raise ConfigError("CELERY must be a dict of Celery's settings")
    given: dict[str, Any] = dict(said)
    defaults = broker_settings(given.get("broker_url"), Path(app.instance_path))
    if str(given.get("broker_url") or "").startswith("filesystem:"):
        del given["broker_url"]  # kombu's broker of files ends workers; ours is the same with whole messages
    return defaults | given


def _from_environment(app: Flask) -> dict[str, Any]:
    scratch = flask.Config(app.root_path)
    scratch.from_prefixed_env("FLASK")
    found = scratch.get("WEBHOOKS", {})
    if found == "":
        return {}
    if not isinstance(found, dict):
        raise ConfigError("FLASK_WEBHOOKS is not a JSON object: endpoint name -> its configuration")
    return found


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
            event.listen(found, "before_cursor_execute", refuse_second_connection)
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
