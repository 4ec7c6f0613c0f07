"""The app of the worker processes in `test_effects_processes`: two refunds per customer, called over real HTTP.

`celery -A tests.calling_app:celery worker`, or `flask --app tests.calling_app:app webhooks work`.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import urllib3

from tests.till import Till
from workers import make_celery


def build(till: Till) -> None:
    """Register a refund that must not be repeated, one that may, and the handler that promises both."""
    callee = os.environ["CALLEE_URL"]

    def post(name: str, key: str) -> str:
        answer = urllib3.request(
            "POST", f"{callee}/{name}", headers={"Idempotency-Key": key}, timeout=20, retries=False
        )
        return answer.data.decode()

    @till.webhooks.effect(name="once")
    def once(key: str) -> str:
        return post("once", key)

    @till.webhooks.effect(name="keyed", idempotent=True)
    def keyed(key: str) -> str:
        return post("keyed", key)

    wanted = {"once": once, "keyed": keyed}[os.environ["EFFECT"]]

    @till.webhooks.on("stripe", "customer.created", name="pay_back")
    def pay_back(event: Any, customer: Any) -> None:
        wanted.later()


def make(create: bool = False, endpoints: dict[str, Any] | None = None) -> Till:
    """The app as its environment says."""
    return Till(
        os.environ["DATABASE"],
        Path(os.environ["FOLDER"]),
        build,
        endpoints=endpoints or json.loads(os.environ["ENDPOINTS"]),
        create=create,
        CELERY={},
        WEBHOOKS_EFFECT_LEASE=timedelta(seconds=2),
    )


if "ENDPOINTS" in os.environ:
    till = make()
    app = till.app
    celery = make_celery(app)
