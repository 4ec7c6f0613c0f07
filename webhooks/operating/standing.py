"""How things are: what runs did, what issues are open, what is held, and every endpoint at a glance. Nothing here writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, or_, select

from ..errors import InboxUnavailable
from ..inbox.marks import EVERYWHERE, SECRET, Marks
from ..inbox.spool import MARK, as_row
from ..provider import instant
from ..state import State
from .queries import OPEN, given, now, rows

__all__ = ["RUN_COLUMNS", "holds", "issues", "runs", "spools", "status"]

RUN_COLUMNS = (
    "id",
    "endpoint",
    "task",
    "since",
    "started_at",
    "finished_at",
    "seen",
    "missed",
    "healed",
    "causes",
    "report",
    "error",
)


def runs(
    state: State, *, endpoint: str | None = None, task: str | None = None, limit: int | None = None
) -> list[dict[str, Any]]:
    """The last runs, oldest first."""
    c = state.tables.runs.c
    wanted = given((endpoint, lambda: c.endpoint == endpoint), (task, lambda: c.task == task))
    names = [c[name] for name in RUN_COLUMNS]
    return rows(state, select(*names).where(*wanted).order_by(c.id.desc()).limit(limit))[::-1]


def issues(state: State, *, endpoint: str | None = None, closed: bool = False) -> list[dict[str, Any]]:
    """The open issues, and with `closed` those of the past too; oldest first."""
    c = state.tables.issues.c
    wanted = given((endpoint, lambda: c.endpoint == endpoint), (not closed, lambda: c.state == "open"))
    names = [c[name] for name in ("id", "endpoint", "kind", "state", "opened_at", "closed_at", "evidence")]
    return rows(state, select(*names).where(*wanted).order_by(c.opened_at, c.id))


def holds(state: State) -> list[dict[str, Any]]:
    """What may not be claimed at the moment."""
    c = state.tables.holds.c
    active = or_(c.until.is_(None), c.until > state.inbox.moment())
    return rows(
        state, select(c.endpoint, c.account, c.reason, c.since, c.until).where(active).order_by(c.endpoint)
    )


def status(state: State) -> list[dict[str, Any]]:
    """Each endpoint: events by state, lag, last delivery, last runs, open issues, holds.

    Endpoints that have events but are not configured any more are there too, without a provider.
    """
    c, moment = state.tables.events.c, now(state)
    counts = rows(
        state, select(c.endpoint, c.state, func.count().label("events")).group_by(c.endpoint, c.state)
    )
    due = select(c.endpoint, func.min(c.due_at).label("first"), func.count().label("due")).where(
        c.state.in_(OPEN), c.due_at <= state.inbox.moment()
    )
    oldest = {row["endpoint"]: row for row in rows(state, due.group_by(c.endpoint))}
    last = (
        select(c.endpoint, func.max(c.last_delivery_at).label("at"))
        .where(c.deliveries > 0)
        .group_by(c.endpoint)
    )
    delivered = {row["endpoint"]: row["at"] for row in rows(state, last)}
    run = state.tables.runs.c
    newest = select(func.max(run.id)).where(run.finished_at.is_not(None)).group_by(run.endpoint, run.task)
    last_runs = rows(
        state, select(*(run[name] for name in RUN_COLUMNS)).where(run.id.in_(newest)).order_by(run.task)
    )
    open_issues, held = issues(state), holds(state)
    used = Marks(state.inbox).times(SECRET)
    unknown = {row["endpoint"] for row in counts} - set(state.endpoints)
    found = []
    for name in [*state.endpoints, *sorted(unknown)]:
        waiting = oldest.get(name)
        of = {row["state"]: row["events"] for row in _of(name, counts)}
        found.append(
            {
                "endpoint": name,
                "provider": state.endpoints[name].provider.name if name in state.endpoints else None,
                **{each: of.get(each, 0) for each in ("pending", "applying", "applied", "ignored", "dead")},
                "due": waiting["due"] if waiting else 0,
                "lag": max(moment - waiting["first"], timedelta(0)) if waiting else None,
                "last_delivery_at": delivered.get(name),
                "secrets": _secrets(state, name, used),
                "runs": {row["task"]: _without(row, "endpoint", "task") for row in _of(name, last_runs)},
                "issues": [_without(row, "endpoint") for row in _of(name, open_issues)],
                "holds": [_without(row, "endpoint") for row in _of(name, held)],
            }
        )
    return found


def _secrets(state: State, name: str, used: Mapping[tuple[str, str], datetime]) -> list[dict[str, Any]]:
    """The configured secrets by fingerprint, the current one first, and when each was last used (to the minute)."""
    try:
        known = state.endpoints[name].fingerprints() if name in state.endpoints else []
    except InboxUnavailable:
        known = []
    return [{"fingerprint": each, "last_used_at": used.get((name, SECRET + each))} for each in known]


def spools(state: State) -> list[dict[str, Any]]:
    """What hosts keep of the time when the database was away: this host's spool as it is, the others' as they said last."""
    marks = Marks(state.inbox).beginning_with(EVERYWHERE, MARK)
    found = {name.removeprefix(MARK): dict(value) for name, value in marks.items()}
    for row in found.values():
        row["oldest"] = instant(row["oldest"])
        row.pop("drained", None)
    if state.spool is not None:
        own = as_row(state.spool.state())
        found[own["host"]] = own
    return [found[host] for host in sorted(found)]


def _of(endpoint: str, found: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [row for row in found if row["endpoint"] == endpoint]


def _without(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}
