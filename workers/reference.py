"""The reference deployment: an app that is configured by its environment alone, and mirrors what the providers have.

Every setting comes from FLASK_… variables; DATABASE_URL and REDIS_URL are shorthands. With no handlers of its own it
keeps every object in `webhook_objects`, which is useful before the first line of code.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from hmac import compare_digest
from pathlib import Path
from typing import Any

from flask import Flask, Response, request
from flask_migrate import Migrate
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError
from werkzeug.middleware.proxy_fix import ProxyFix

from webhooks import ConfigError, Webhooks

__all__ = ["create_app"]

CONNECT = 4
"""Seconds. libpq waits for two minutes, GitHub for ten seconds."""

SHORTEST = 12
"""Characters of the dashboard's password."""


def create_app(config: dict[str, Any] | None = None, *, migrations: Path | str = "migrations") -> Flask:
    """The app, configured from the environment and, above it, from `config`. Raises ConfigError with every mistake."""
    app = Flask("wsgi", instance_path=os.environ.get("FLASK_INSTANCE_PATH"))
    app.config.from_mapping(WEBHOOKS={}, CELERY={}, PROXY_HOPS=0)
    app.config.from_prefixed_env()
    app.config.from_mapping(config or {})
    Path(app.instance_path).mkdir(parents=True, exist_ok=True)
    if "SQLALCHEMY_DATABASE_URI" not in app.config:
        app.config["SQLALCHEMY_DATABASE_URI"] = _database_url(
            os.environ.get("DATABASE_URL") or "sqlite:///webhooks.db"
        )
    if os.environ.get("REDIS_URL") and "broker_url" not in app.config["CELERY"]:
        app.config["CELERY"] = {**app.config["CELERY"], "broker_url": os.environ["REDIS_URL"]}
    hops = app.config["PROXY_HOPS"]
    if not isinstance(hops, int) or hops < 0:
        raise ConfigError(f"FLASK_PROXY_HOPS must be a number of proxies, not {hops!r}")
    if hops:
        # Forwarded headers count only where somebody said how many proxies there are.
        app.wsgi_app = ProxyFix(app.wsgi_app, x_for=hops, x_proto=hops, x_host=hops)  # type: ignore[method-assign]
    db, webhooks = SQLAlchemy(app), Webhooks()
    Migrate(app, db, directory=str(migrations))
    webhooks.init_app(app)
    app.register_blueprint(webhooks.blueprint, url_prefix="/webhooks")
    password = app.config.get("DASHBOARD_PASSWORD")
    if password is not None:
        app.register_blueprint(webhooks.dashboard(guard=_asks_for(str(password))), url_prefix="/dashboard")
    return app


def _asks_for(password: str) -> Callable[[], bool | Response]:
    """A guard of the dashboard: HTTP Basic, any user name. Your own app has accounts; ask them instead."""
    if len(password) < SHORTEST:
        raise ConfigError(f"FLASK_DASHBOARD_PASSWORD needs at least {SHORTEST} characters")

    def guard() -> bool | Response:
        given = request.authorization.password if request.authorization is not None else None
        if compare_digest((given or "").encode(), password.encode()):
            return True
        return Response(
            "unauthorized\n", 401, {"WWW-Authenticate": 'Basic realm="webhooks"'}, mimetype="text/plain"
        )

    return guard


def _database_url(url: str) -> str:
    """The URL with our driver, where it names none: hosting companies hand out `postgres://`. And with a limit to how
    long connecting may take, where it names none: a delivery must get its 503 before the provider hangs up."""
    scheme, colon, rest = url.partition("://")
    if colon and scheme in {"postgres", "postgresql"}:
        url = f"postgresql+psycopg://{rest}"
    try:
        backend = make_url(url).get_backend_name()
    except ArgumentError:
        backend = ""
    if backend not in {"postgresql", "sqlite"}:
        # Never the URL itself: it holds a password.
        raise ConfigError(
            "DATABASE_URL must be the URL of a PostgreSQL or SQLite database, such as postgresql://user:password@host/name or "
            "sqlite:///webhooks.db; unset it for a SQLite database in the instance folder"
        )
    if url.startswith("postgresql+psycopg:") and "connect_timeout=" not in url:
        url += f"{'&' if '?' in url else '?'}connect_timeout={CONNECT}"
    return url
