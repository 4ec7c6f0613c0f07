"""The Celery app of the workers: a host's own, or one made here."""

from __future__ import annotations

from celery import Celery
from celery.signals import worker_process_init
from flask import Flask

from webhooks.extension import celery_settings, state

from .beat import SCHEDULE
from .tasks import register

__all__ = ["adopt", "make_celery"]


def make_celery(app: Flask) -> Celery:
    """A Celery app with our tasks and schedule, configured from `app.config["CELERY"]`.

    Without a broker it uses one of files in the app's instance folder, which needs no server.
    """
    celery = Celery(app.import_name, set_as_current=False)
    celery.conf.update(celery_settings(app))
    return adopt(celery, app)


def adopt(celery: Celery, app: Flask) -> Celery:
    """Give an app's own Celery app our tasks, queues and beat schedule; returns it.

    Start its worker with `-Q celery,webhooks,webhooks-effects,webhooks-slow`, or a worker of its own for each queue.
    """
    state(app).check()
    register(celery, app)
    celery.conf.beat_schedule = {**SCHEDULE, **(celery.conf.beat_schedule or {})}
    app.extensions["celery"] = celery

    def drop_inherited_connections(**_: object) -> None:
        # A forked worker must not talk over its parent's connections.
        state(app).inbox.engine.dispose(close=False)

    worker_process_init.connect(drop_inherited_connections, weak=False)
    return celery
