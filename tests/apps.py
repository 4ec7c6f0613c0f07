"""Apps for tests: a database, the extension and its blueprint; signed deliveries to them; the rows that come of it.

>>> with build(database_url, {"stripe": STRIPE}) as app:
...     answer = deliver(app, "stripe", "customer.updated", id="evt_1", object={"id": "cus_1", "object": "customer"})
...     apply(app)
...     assert [row.outcome for row in rows(app, "events")] == ["applied"]
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Row, select
from werkzeug.test import TestResponse

from webhooks import Webhooks
from webhooks.apply import Applied
from webhooks.extension import state
from webhooks.provider import Provider, Request, Sample

__all__ = ["GITHUB", "STRIPE", "apply", "build", "deliver", "post", "rows", "signed"]

STRIPE: dict[str, Any] = {
    "provider": "stripe",
    "secrets": ["whsec_0123456789abcdef"],
    "api_key": "sk_test_0123456789",
    "api_base_url": "http://127.0.0.1:9",  # nobody listens there
}
GITHUB: dict[str, Any] = {
    "provider": "github",
    "secrets": ["a github secret"],
    "token": "ghp_0123456789",
    "repositories": "acme/widgets",
    "hook_id": "1",
    "api_base_url": "http://127.0.0.1:9",
}

_ids = itertools.count(1)

front_door: bool = False
"""Whether `build` puts the front door before the app; tests of the door run both ways."""


@contextmanager
def build(
    database_url: str,
    endpoints: Mapping[str, Any],
    *,
    webhooks: Webhooks | None = None,
    db: SQLAlchemy | None = None,
    app: Flask | None = None,
    prefix: str = "/webhooks",
    **config: Any,
) -> Iterator[Flask]:
    """An app with these endpoints and all tables, its doorbell rung in memory; handlers are on the `webhooks` given.

    `app` is a host app to add all this to; `config` are further Flask settings.
    """
    # A thread of the app may still look into its spool there.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        app = app or Flask("tests.apps", instance_path=folder)
        db, webhooks = db or SQLAlchemy(), webhooks or Webhooks()
        app.config.from_mapping(
            TESTING=True,
            SQLALCHEMY_DATABASE_URI=database_url,
            WEBHOOKS=dict(endpoints),
            CELERY={"broker_url": "memory://"},
            WEBHOOKS_FRONT_DOOR=front_door,
        )
        app.config.from_mapping(config)
        db.init_app(app)
        webhooks.init_app(app)
        app.register_blueprint(webhooks.blueprint, url_prefix=prefix)
        with app.app_context():
            db.create_all()
        try:
            yield app
        finally:
            with app.app_context():
                db.session.remove()
                for engine in db.engines.values():
                    engine.dispose()


def signed(
    provider: Provider,
    secret: str,
    type_: str,
    *,
    id: str | None = None,  # noqa: A002 - the provider's word for it
    object: dict[str, Any] | None = None,  # noqa: A002 - likewise
    account: str = "",
    at: datetime | None = None,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Request:
    """A delivery, signed now, of what happened at `at`; `body` and `headers` replace the provider's own before that."""
    now = datetime.now(UTC)
    assert provider.sample is not None
    made = provider.sample(Sample(type_, id or f"evt_{next(_ids):06d}", at or now, object, account))
    made = Request(made.method, made.url, made.headers, made.body if body is None else body)
    return provider.signature.sign(made.with_headers(headers or {}), secret, now)


def post(
    app: Flask, url: str, request: Request, headers: Mapping[str, str | None] | None = None
) -> TestResponse:
    """Send the request as it is to this URL; `headers` are added after signing, one that is None is left out."""
    given = {**request.headers, **(headers or {})}
    sent = [(name, value) for name, value in given.items() if value is not None]
    return app.test_client().open(url, method=request.method, data=request.body, headers=sent)


def deliver(
    app: Flask,
    endpoint: str,
    type_: str,
    *,
    url: str | None = None,
    secret: str | None = None,
    sent_headers: Mapping[str, str | None] | None = None,
    **what: Any,
) -> TestResponse:
    """Deliver one event to an endpoint, signed with its current secret (or another one); `what` goes to `signed`."""
    found = state(app).endpoints[endpoint]
    request = signed(found.provider, found.secrets[0] if secret is None else secret, type_, **what)
    return post(app, url or f"/webhooks/{endpoint}", request, sent_headers)


def rows(app: Flask, table: str) -> list[Row[Any]]:
    """All rows of one of our tables, in the order of its key."""
    found = getattr(state(app).tables, table)
    with state(app).inbox.engine.connect() as connection:
        return list(connection.execute(select(found).order_by(*found.primary_key.columns)))


def apply(app: Flask) -> Applied:
    """What a worker does: apply until nothing is due."""
    return state(app).applier.drain()
