"""`flask webhooks tail`: the inbox as it fills."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import click
from rich.text import Text

from ..operating import queries
from ..state import State
from .asking import endpoint_name, endpoint_option
from .output import COLOURS, as_json, command, console, document, plain, state, stdout, words
from .stopping import Stop

__all__ = ["tail"]

Row = dict[str, Any]


@command()
@endpoint_option
@click.option(
    "--lines",
    "-n",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Begin with so many events.",
)
@click.option("--limit", type=click.IntRange(min=1), help="End after so many lines.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.05),
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
def tail(endpoint: str | None, lines: int, limit: int | None, interval: float) -> None:
    """Follow the inbox: a line for every new event, and one more whenever an open event's state or outcome changes.

    Ends with Ctrl-C. With --json it writes one list, an entry at a time, and closes it at the end.
    """
    inbox = state()
    of = endpoint_name(inbox, endpoint)
    with Stop() as stop:
        found = islice(_followed(inbox, of, lines, interval, stop), limit)
        if as_json():
            _write_list(found)
            return
        where = console()
        for row in found:
            where.print(_line(row), soft_wrap=True)


def _followed(inbox: State, endpoint: str | None, lines: int, interval: float, stop: Stop) -> Iterator[Row]:
    """Events as they come and change, until stopped."""
    newest = queries.events(inbox, limit=1)
    last = newest[-1]["id"] if newest else 0
    watched: dict[int, Row] = {}
    found = queries.events(inbox, endpoint=endpoint, limit=lines) if lines else []
    while True:
        for row in found:
            watched[row["id"]] = row
            if row["state"] not in queries.OPEN:
                del watched[row["id"]]
            yield row
            last = max(last, row["id"])
        if stop.wait(interval):
            return
        changed = [
            row
            for row in queries.events_with_ids(inbox, list(watched))
            if _mark(row) != _mark(watched[row["id"]])
        ]
        found = changed + queries.events(inbox, endpoint=endpoint, after=last)


def _mark(row: Row) -> tuple[Any, ...]:
    return row["state"], row["outcome"], row["error"]


def _line(row: Row) -> Text:
    said = row["state"] + (f" ({row['outcome']})" if row["outcome"] else "")
    about = f"{row['object_kind']} {row['object_id']}" if row["object_id"] else ""
    parts = [words(row["received_at"]).plain, f"#{row['id']}", row["endpoint"], row["type"], about]
    line = Text(plain("  ".join(part for part in parts if part)) + "  ")
    line.append(plain(said), style=COLOURS.get(row["state"], ""))
    return line.append(plain(f"  {row['error']}") if row["error"] else "")


def _write_list(found: Iterator[Row]) -> None:
    """A list with one entry a line, each line whole as soon as it is there."""
    out, separator = stdout(), ""
    out.write("[\n")
    for row in found:
        out.write(f"{separator}{json.dumps(document(row))}\n")
        out.flush()
        separator = ","
    out.write("]\n")
    out.flush()
