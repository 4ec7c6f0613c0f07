"""What people type: times, endpoints, events, handlers. Bad input gets an error that names what there is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from ..endpoints import Endpoint
from ..operating import queries
from ..provider import instant
from ..state import State
from .output import as_json

__all__ = [
    "endpoint_name",
    "endpoint_named",
    "endpoint_option",
    "event_named",
    "handler_entries",
    "limit_option",
    "rows_wanted",
    "since_option",
]

UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_RELATIVE = re.compile(r"-?(\d{1,9})\s*(s|m|min|h|d|w)", re.ASCII)

PEOPLE_READ = 50
"""Rows that are shown to people where they name no --limit."""


class _Moment(click.ParamType[datetime]):
    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        text = str(value).strip()
        relative = _RELATIVE.fullmatch(text)
        if relative is not None:
            try:
                return datetime.now(UTC) - timedelta(seconds=int(relative[1]) * UNITS[relative[2]])
            except OverflowError:
                self.fail(f"{value!r} is before the beginning of time", param, ctx)
        found = instant(text if "T" in text or " " in text else f"{text}T00:00:00")
        if found is None:
            self.fail(f"{value!r} is no time; write -2h, -30m, -3d or 2026-12-01T08:00:00Z", param, ctx)
        return found


def since_option(help_: str) -> Callable[[Any], Any]:
    """`--since`, an instant or a length of time before now."""
    return click.option(
        "--since", type=_Moment(), metavar="TIME", help=f"{help_} TIME is -2h, -3d or ISO 8601."
    )


def endpoint_option(function: Any) -> Any:
    """`--endpoint`, checked against those that there are by `endpoint_named`."""
    return click.option("--endpoint", metavar="NAME", help="Only this endpoint.")(function)


def limit_option(function: Any) -> Any:
    """`--limit`; without it people get the newest rows and programs all."""
    text = f"At most so many, the newest; 0 for all. Without it {PEOPLE_READ}, and all with --json."
    return click.option("--limit", type=click.IntRange(min=0), help=text)(function)


def rows_wanted(limit: int | None) -> int | None:
    """How many rows a `--limit` means; None: all."""
    if limit is None:
        return None if as_json() else PEOPLE_READ
    return limit or None


def endpoint_named(state: State, name: str) -> Endpoint:
    """The endpoint of that name or alias."""
    found = state.endpoints.at(name)
    if found is None:
        raise click.ClickException(f"there is no endpoint {name!r}; there are {_listed(state.endpoints)}")
    return found


def endpoint_name(state: State, name: str | None) -> str | None:
    """The name under which that endpoint's rows are kept; None for None."""
    return None if name is None else endpoint_named(state, name).name


def event_named(state: State, text: str, endpoint: str | None = None) -> dict[str, Any]:
    """The event with that id or dedup key."""
    found = queries.events_named(state, text, endpoint)
    if not found:
        raise click.ClickException(
            f"there is no event {text!r}; give an id or a dedup key as `flask webhooks events` shows it"
        )
    if len(found) > 1:
        several = ", ".join(f"{row['id']} ({row['endpoint']})" for row in found)
        raise click.ClickException(
            f"{text!r} is the dedup key of several events: {several}; give the id, or --endpoint"
        )
    return found[0]


def handler_entries(state: State, name: str) -> list[str]:
    """What the ledger calls the handlers of that name, which may begin with `sync:` or `on:`."""
    entries = [h.entry for h in state.handlers if name in {h.entry, h.name}]
    if not entries:
        raise click.ClickException(
            f"there is no handler {name!r}; there are {_listed(sorted({h.name for h in state.handlers}))}"
        )
    return entries


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
