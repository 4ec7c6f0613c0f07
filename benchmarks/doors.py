"""The doors that are compared: WSGI apps that take a signed delivery and answer 200. Which one, DOOR says.

The usual recipe is what most tutorials for Flask and Celery do, written with care: the signature is checked in constant
time, a row is added and committed, and a task is queued for it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from celery import Celery
from flask import Flask, Response, abort, request
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import DateTime, LargeBinary, String, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from webhooks import Webhooks

__all__ = ["DOORS", "HOOK", "HOOK_PATH", "HOOK_SECRET", "PATH", "SECRET"]

SECRET = "whsec_benchmark_secret_of_the_door"
PATH = "/webhooks/stripe"

HOOK = "a hook of Supabase Auth"
HOOK_SECRET = "v1,whsec_YmVuY2htYXJrLXNlY3JldC1vZi10aGUtYXV0aC1ob29rISE="
HOOK_PATH = "/webhooks/supabase"


def bare() -> Callable[..., Iterable[bytes]]:
    """Reads the body and answers: what the server itself costs."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "0")])
        return [b""]

    return answer


def flask_alone() -> Flask:
    """Reads the body and answers, through Flask."""
    made = Flask("bare")

    @made.post(PATH)
    def receive() -> Response:
        request.get_data()
        return Response("", 200, mimetype="text/plain")

    return made


def recipe(*, task: bool = True) -> Flask:
    """The usual recipe."""
    made = Flask("recipe")
    made.config["SQLALCHEMY_DATABASE_URI"] = os.environ["DATABASE_URL"]
    db = SQLAlchemy(model_class=type("Base", (DeclarativeBase,), {}))
    celery = Celery("recipe", broker=os.environ.get("REDIS_URL"), set_as_current=False)
    celery.conf.task_ignore_result = True

    class Event(db.Model):  # type: ignore[name-defined, misc]
        id: Mapped[str] = mapped_column(String(255), primary_key=True)
        type: Mapped[str] = mapped_column(String(255))
        body: Mapped[bytes] = mapped_column(LargeBinary)
        received_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))

    @celery.task(name="recipe.apply")
    def apply(event_id: str) -> None:
        """Never run here: only what the door costs is measured."""

    db.init_app(made)
    _create(made, db)

    @made.post(PATH)
    def receive() -> Response:
        body = request.get_data()
        if not _signed(request.headers.get("Stripe-Signature", ""), body):
            abort(400)
        event = request.get_json()
        if db.session.get(Event, event["id"]) is None:
            db.session.add(
                Event(id=event["id"], type=event["type"], body=body, received_at=datetime.now(UTC))
            )
            db.session.commit()
            if task:
                apply.delay(event["id"])
        return Response("", 200, mimetype="text/plain")

    return made


def _signed(header: str, body: bytes) -> bool:
    parts = dict(part.partition("=")[::2] for part in header.split(","))
    if abs(time.time() - int(parts.get("t", 0))) > 300:
        return False
    expected = hmac.new(SECRET.encode(), parts["t"].encode() + b"." + body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected, parts.get("v1", ""))


def ours(*, front: bool, bell: bool = True) -> Flask:
    """This package: through the blueprint, or through the door before Flask."""
    made = Flask("ours", instance_path=os.environ["INSTANCE"])
    made.config.update(
        SQLALCHEMY_DATABASE_URI=os.environ["DATABASE_URL"],
        CELERY={"broker_url": os.environ["REDIS_URL"]} if "REDIS_URL" in os.environ else {},
        WEBHOOKS={"stripe": {"secrets": [SECRET], "fetch": False}},
        WEBHOOKS_FRONT_DOOR=front,
    )
    db, webhooks = SQLAlchemy(made), Webhooks()
    webhooks.init_app(made)
    made.register_blueprint(webhooks.blueprint, url_prefix="/webhooks")
    _create(made, db)
    if not bell:
        from webhooks.queue import Bell  # noqa: PLC0415 - only for this variant

        Bell.ring = lambda _self: None  # type: ignore[method-assign]
    return made


def answering() -> Flask:
    """This package with a hook that looks something up and notes something down."""
    made = Flask("answering", instance_path=os.environ["INSTANCE"])
    made.config.update(
        SQLALCHEMY_DATABASE_URI=os.environ["DATABASE_URL"],
        CELERY={"broker_url": os.environ["REDIS_URL"]},
        WEBHOOKS={"supabase": {"secrets": [HOOK_SECRET], "fetch": False}},
    )
    db, webhooks = SQLAlchemy(model_class=type("Base", (DeclarativeBase,), {})), Webhooks()

    class User(db.Model):  # type: ignore[name-defined, misc]
        id: Mapped[str] = mapped_column(String(255), primary_key=True)
        is_banned: Mapped[bool]

    @webhooks.answer("supabase", "before-user-created", on_error="refuse")
    def admit(event: Any) -> None:
        if db.session.get(User, event.dedup_key) is None:
            db.session.add(User(id=event.dedup_key, is_banned=False))

    db.init_app(made)
    webhooks.init_app(made)
    made.register_blueprint(webhooks.blueprint, url_prefix="/webhooks")
    _create(made, db)
    return made


def _create(app: Flask, db: SQLAlchemy) -> None:
    """Make the tables; of several processes one."""
    with app.app_context(), db.engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(1)"))
        db.metadata.create_all(connection)


DOORS: dict[str, Callable[[], Any]] = {
    "bare server": bare,
    "Flask alone": flask_alone,
    "usual recipe": recipe,
    "usual recipe without its task": lambda: recipe(task=False),
    "ours, blueprint": lambda: ours(front=False),
    "ours, front door": lambda: ours(front=True),
    "ours, front door without its bell": lambda: ours(front=True, bell=False),
}


def __getattr__(name: str) -> Any:
    """`benchmarks.doors:app` and `:celery`, made when a server or a worker asks for them."""
    if name == "celery":
        from workers import make_celery  # noqa: PLC0415 - only for a worker

        return make_celery(ours(front=True))
    if name != "app":
        raise AttributeError(name)
    return {**DOORS, HOOK: answering}[os.environ["DOOR"]]()
