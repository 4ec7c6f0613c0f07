"""The app of every process of the deployment: a shop that copies, notes each occasion once, and calls somebody.

`granian --interface wsgi tests.faults.site:app`, `celery -A tests.faults.site:celery worker`, `… beat`. A file `kill/<step>` in
its folder ends, with SIGKILL, the first process that reaches that step; `clock` there is by how many seconds its clock is wrong.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import urllib3

from tests.shop import Shop
from webhooks.extension import state
from workers import make_celery

LEASE = timedelta(seconds=1.5)
"""Of a claim and of an effect: shorter than some tasks here on purpose."""

STEPS = (
    "recording",
    "recorded",
    "claimed",
    "fetched",
    "committing",
    "written",
    "started",
    "called",
    "finished",
)
"""Where a process can be ended: at the door, around the transaction of an object, around the call of an effect."""

SWEEP = 1.0
"""Seconds; the schedule says 30."""


def build(shop: Shop) -> None:
    """Two effects: one that the callee does once per key, and one that must never be repeated."""
    callee = os.environ["CALLEE_URL"]

    def post(name: str, key: str, event: str) -> str:
        headers = {"Idempotency-Key": key, "X-Event": event}
        answer = urllib3.request("POST", f"{callee}/{name}", headers=headers, timeout=20, retries=False)
        if answer.status != 200:
            raise RuntimeError(f"the callee says {answer.status}")
        return answer.data.decode()

    @shop.webhooks.effect(name="keyed", idempotent=True)
    def keyed(key: str, *, event: str) -> str:
        return post("keyed", key, event)

    @shop.webhooks.effect(name="once")
    def once(key: str, *, event: str) -> str:
        return post("once", key, event)

    @shop.webhooks.on("stripe", "customer.updated", name="tell")
    def tell(event: Any, _thing: Any) -> None:
        keyed.later(event=event.dedup_key)

    @shop.webhooks.on("stripe", "customer.created", name="pay")
    def pay(event: Any, _thing: Any) -> None:
        once.later(event=event.dedup_key)

    @shop.webhooks.on("stripe", "product.created", name="break")
    def break_(event: Any, thing: Any) -> None:
        if thing is not None and thing.get("title") == os.environ.get("BREAK_AT", ""):
            raise RuntimeError(f"{thing} {event.data}")


def make(*, create: bool = False, **config: Any) -> Shop:
    """The app as its environment says, with further Flask settings."""
    beat = {
        "webhooks-sweep": {
            "task": "webhooks.sweep",
            "schedule": SWEEP,
            "options": {"queue": "webhooks", "expires": 5},
        }
    }
    return Shop(
        os.environ["DATABASE_URL"],
        json.loads(os.environ["FLASK_WEBHOOKS"]),
        Path(os.environ["FLASK_INSTANCE_PATH"]),
        build=build,
        create=create,
        CELERY={"broker_url": os.environ["REDIS_URL"], "beat_schedule": beat, "beat_max_loop_interval": 1},
        WEBHOOKS_LEASE=LEASE,
        WEBHOOKS_EFFECT_LEASE=LEASE,
        WEBHOOKS_FRONT_DOOR=os.environ.get("FRONT_DOOR") == "1",
        **config,
    )


def watch_steps(shop: Shop, folder: Path) -> None:
    """End this process where somebody has asked for it."""

    def at(step: str) -> None:
        with suppress(FileNotFoundError):
            (folder / "kill" / step).unlink()  # of all processes, one can do that
            os.kill(os.getpid(), signal.SIGKILL)

    parts = state(shop.app)
    parts.applier.at = parts.caller.at = at
    shop.before_commit = lambda: at("committing")
    record = parts.inbox.record

    def recorded(*arrivals: Any) -> Any:
        at("recording")
        done = record(*arrivals)
        at("recorded")
        return done

    parts.inbox.record = recorded  # type: ignore[method-assign]


def shift_clock(path: Path) -> None:
    """Let every module of ours read a clock that is wrong by what this file says."""

    class Kind(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, datetime)

    class Shifted(datetime, metaclass=Kind):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            with suppress(FileNotFoundError, ValueError):
                return datetime.now(tz or UTC) + timedelta(seconds=float(path.read_text()))
            return datetime.now(tz or UTC)

    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in {"webhooks", "workers"} and getattr(module, "datetime", None) is datetime:
            module.datetime = Shifted  # type: ignore[attr-defined]


if "CALLEE_URL" in os.environ:
    shop = make()
    _folder = Path(os.environ["FLASK_INSTANCE_PATH"])
    watch_steps(shop, _folder)
    if os.environ.get("WRONG_CLOCK"):
        shift_clock(_folder / "clock")
    app = shop.app
    celery = make_celery(app)
