"""The reference deployment: `flask --app wsgi`, `celery -A wsgi:celery worker`, `granian --interface wsgi wsgi:app`.

Every setting comes from FLASK_… variables; DATABASE_URL and REDIS_URL are shorthands. With no handlers of its own it
mirrors what the providers have into `webhook_objects`.
"""

from __future__ import annotations

import os
from typing import Any

from flask import Flask
from flask_migrate import Migrate
from flask_sqlalchemy import SQLAlchemy
from werkzeug.middleware.proxy_fix import ProxyFix

from webhooks import Webhooks
from workers import make_celery

db = SQLAlchemy()
webhooks = Webhooks()


def create_app(config: dict[str, Any] | None = None) -> Flask:
    """The app, configured from the environment and, above it, from `config`."""
    app = Flask("wsgi", instance_path=os.environ.get("FLASK_INSTANCE_PATH"), instance_relative_config=True)
    os.makedirs(app.instance_path, exist_ok=True)
    app.config.from_mapping(WEBHOOKS={}, CELERY={}, PROXY_HOPS=0)
    app.config.from_prefixed_env()
    app.config.from_mapping(config or {})
    if "SQLALCHEMY_DATABASE_URI" not in app.config:
        app.config["SQLALCHEMY_DATABASE_URI"] = _database_url(os.environ.get("DATABASE_URL") or "sqlite:///webhooks.db")
    if os.environ.get("REDIS_URL") and "broker_url" not in app.config["CELERY"]:
        app.config["CELERY"] = {**app.config["CELERY"], "broker_url": os.environ["REDIS_URL"]}
    hops = int(app.config["PROXY_HOPS"])
    if hops:
        app.wsgi_app = ProxyFix(app.wsgi_app, x_for=hops, x_proto=hops, x_host=hops)  # type: ignore[method-assign]
    db.init_app(app)
    Migrate(app, db, directory=os.path.join(os.path.dirname(__file__), "migrations"))
    webhooks.init_app(app)
    app.register_blueprint(webhooks.blueprint, url_prefix="/webhooks")
    return app


def _database_url(url: str) -> str:
    """The URL with our driver, where it names none: hosting companies hand out `postgres://`."""
    scheme, _, rest = url.partition("://")
    return f"postgresql+psycopg://{rest}" if scheme in {"postgres", "postgresql"} else url


app = create_app()
celery = make_celery(app)
