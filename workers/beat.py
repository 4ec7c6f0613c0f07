"""What beat rings, and how often. Two beats do no harm: a run that was just done, or is under way, is left out."""

from __future__ import annotations

from typing import Any

from webhooks import queue
from webhooks.reconcile import EVERY

__all__ = ["SCHEDULE"]

_TASKS = {
    "sweep": (queue.SWEEP, queue.QUEUE),
    "recover": (queue.RECOVER, queue.SLOW_QUEUE),
    "check": (queue.CHECK, queue.SLOW_QUEUE),
    "reconcile": (queue.RECONCILE, queue.SLOW_QUEUE),
    "full_sweep": (queue.FULL_SWEEP, queue.SLOW_QUEUE),
    "audit": (queue.AUDIT, queue.SLOW_QUEUE),
    "purge": (queue.PURGE, queue.SLOW_QUEUE),
}

SCHEDULE: dict[str, dict[str, Any]] = {
    f"webhooks-{name}": {
        "task": task,
        "schedule": EVERY[name].total_seconds(),
        # Expired: a worker that was away for an hour has nothing to catch up here, the next one does it all.
        "options": {"queue": where, "expires": EVERY[name].total_seconds(), "ignore_result": True},
    }
    for name, (task, where) in _TASKS.items()
}
