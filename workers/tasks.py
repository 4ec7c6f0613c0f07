"""The tasks that beat and the doorbell ring by name; each is one line of work."""

from __future__ import annotations

from celery import Celery
from flask import Flask

from webhooks import queue
from webhooks.apply import SHIFT
from webhooks.extension import state

__all__ = ["register"]


def register(celery: Celery, app: Flask) -> None:
    """Give this Celery app our tasks."""

    @celery.task(name=queue.APPLY, ignore_result=True)
    def apply() -> None:
        state(app).applier.drain(shift=SHIFT)

    @celery.task(name=queue.EFFECTS, ignore_result=True)
    def effects() -> None:
        state(app).caller.drain(shift=SHIFT)

    @celery.task(name=queue.SWEEP, ignore_result=True)
    def sweep() -> None:
        state(app).watch.alive()
        state(app).sweep()

    @celery.task(name=queue.RECOVER, ignore_result=True)
    def recover() -> None:
        state(app).reconciler.recover_all()

    @celery.task(name=queue.CHECK, ignore_result=True)
    def check() -> None:
        state(app).watch.check()

    @celery.task(name=queue.RECONCILE, ignore_result=True)
    def reconcile() -> None:
        state(app).reconciler.reconcile_all()

    @celery.task(name=queue.FULL_SWEEP, ignore_result=True)
    def full_sweep() -> None:
        state(app).reconciler.full_sweep_all()

    @celery.task(name=queue.AUDIT, ignore_result=True)
    def audit() -> None:
        state(app).reconciler.audit_all()

    @celery.task(name=queue.PURGE, ignore_result=True)
    def purge() -> None:
        state(app).purge()
