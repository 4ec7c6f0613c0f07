"""Try dead events again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..state import State
from . import queries, rereading

__all__ = ["redrive"]


def redrive(inbox: State, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make these dead events due again, with all their attempts, and ring; what became of each.

    What was unreadable is read again first; if it still cannot be read it stays `dead`.
    """
    found = [_redriven(inbox, row) for row in rows]
    ready = [row["id"] for row in found if row["redriven"]]
    for start in range(0, len(ready), queries.MANY):
        inbox.inbox.redrive(ready[start : start + queries.MANY])
    if ready:
        inbox.reconciler.sweep()
    return found


def _redriven(inbox: State, row: dict[str, Any]) -> dict[str, Any]:
    answer = {
        "id": row["id"],
        "endpoint": row["endpoint"],
        "type": row["type"],
        "redriven": True,
        "dead": False,
        "reason": None,
    }
    if row["state"] != "dead":
        return answer | {
            "redriven": False,
            "reason": f"is {row['state']}, not dead; `replay` applies again what was applied",
        }
    if row["endpoint"] not in inbox.endpoints:
        return answer | {
            "redriven": False,
            "dead": True,
            "reason": "its endpoint is not in WEBHOOKS any more",
        }
    if row["outcome"] != "unreadable":
        return answer
    reread = rereading.read(inbox, row)
    return answer | {
        "redriven": reread.ready,
        "dead": reread.dead,
        "type": reread.type,
        "reason": reread.reason,
    }
