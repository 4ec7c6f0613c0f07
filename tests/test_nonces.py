"""Where a provider signs a token in place of the body, the token is good for the event that it first came with."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select

from webhooks import Webhooks, providers
from webhooks.extension import state
from webhooks.provider import Request, Sample

SECRET = "key-0123456789abcdef0123456789abcdef"


def app_with_mailgun(url: str, folder: Path) -> Flask:
    app = Flask("mail", instance_path=str(folder))
    app.config.update(
        SQLALCHEMY_DATABASE_URI=url,
        WEBHOOKS={"mailgun": {"secrets": [SECRET], "fetch": False}},
        CELERY={"broker_url": "memory://"},
    )
    db, webhooks = SQLAlchemy(app), Webhooks(app)
    app.register_blueprint(webhooks.blueprint, url_prefix="/webhooks")
    with app.app_context():
        db.create_all()
    return app


def rows(app: Flask) -> list[Any]:
    table = state(app).tables.events
    with state(app).inbox.engine.connect() as connection:
        return list(connection.execute(select(table.c.dedup_key, table.c.deliveries)))


def post(app: Flask, request: Request) -> int:
    answer = app.test_client().post("/webhooks/mailgun", data=request.body, headers=dict(request.headers))
    return answer.status_code


def test_a_token_that_was_used_for_another_body_is_refused_and_nothing_is_recorded(
    database_url: str, tmp_path: Path
) -> None:
    """A85."""
    app = app_with_mailgun(database_url, tmp_path)
    mailgun = providers.get("mailgun")
    assert mailgun.sample is not None
    now = datetime.now(UTC)
    genuine = mailgun.signature.sign(mailgun.sample(Sample("delivered", "first", now)), SECRET, now)
    assert post(app, genuine) == 200
    assert post(app, genuine) == 200  # the provider sends the same again
    forged = Request("POST", "", genuine.headers, genuine.body.replace(b"first", b"other"))
    assert forged.body != genuine.body
    assert post(app, forged) == 401
    ((_, deliveries),) = rows(app)
    assert deliveries == 2
    state(app).inbox.close_connections()
