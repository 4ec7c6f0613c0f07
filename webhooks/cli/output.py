"""How every command talks: one JSON document for programs, tables and sentences for people, errors that say what to do."""

from __future__ import annotations

import base64
import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TextIO, TypeVar

import click
from flask import current_app
from flask.cli import with_appcontext
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text
from sqlalchemy.exc import DBAPIError

from ..errors import WebhooksError
from ..operating.words import ago, duration, iso, plain, utc
from ..state import EXTENSION, State

__all__ = [
    "Answer",
    "ago",
    "as_json",
    "command",
    "document",
    "duration",
    "emit",
    "iso",
    "plain",
    "sentences",
    "state",
    "stdout",
    "steps",
    "table",
    "utc",
    "waiting",
    "words",
]

PIPED_WIDTH = 240
"""Columns where the output is no terminal: wide enough that nothing is folded which a script would look for."""

COLOURS = {
    "applied": "green",
    "ignored": "bright_black",
    "pending": "yellow",
    "applying": "cyan",
    "dead": "red",
    "open": "red",
    "closed": "bright_black",
    "good": "green",
    "bad": "red",
}

STDOUT = "webhooks.stdout"
"""Where the click context keeps the real stdout while it is redirected."""

MISSING_TABLES = {"UndefinedTable", "UndefinedColumn"}
T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """What a command found or did: the document for `--json`, how people see it, and the exit code."""

    document: Any
    show: Callable[[Console], None]
    exit_code: int = 0


def command(
    name: str | None = None, *, app: bool = True
) -> Callable[[Callable[..., Answer | None]], click.Command]:
    """A command with `--json`. Its function returns an Answer, or None if it has written its output itself.

    With `--json` whatever else is printed on the way, by the app's handlers too, goes to stderr. `app=False`: it needs
    no app.
    """

    def register(function: Callable[..., Answer | None]) -> click.Command:
        @functools.wraps(function)
        def run(**options: Any) -> None:
            machine = options.pop("as_json")
            click.get_current_context().meta[STDOUT] = sys.stdout
            with _errors_in_words():
                with redirect_stdout(sys.stderr) if machine else nullcontext():
                    answer = function(**options)
                if answer is None:
                    return
                if machine:
                    emit(answer.document)
                else:
                    answer.show(console())
            if answer.exit_code:
                raise click.exceptions.Exit(answer.exit_code)

        option = click.option(
            "--json", "as_json", is_flag=True, help="Print one JSON document and nothing else."
        )
        return click.command(name or function.__name__)(option(with_appcontext(run) if app else run))

    return register


def as_json() -> bool:
    """Whether the running command was asked for JSON."""
    return bool(click.get_current_context().params.get("as_json"))


def stdout() -> TextIO:
    """Where the command's document goes, also while everything else that is printed goes to stderr."""
    found: TextIO = click.get_current_context().meta[STDOUT]
    return found


def state() -> State:
    """The parts of the app's inbox. Raises ConfigError if a handler is for nothing that is configured."""
    found = current_app.extensions.get(EXTENSION)
    if not isinstance(found, State):
        raise click.ClickException("call webhooks.init_app(app) first: this app has no inbox")
    found.check()
    return found


@contextmanager
def _errors_in_words() -> Iterator[None]:
    try:
        yield
    except WebhooksError as error:
        raise click.ClickException(str(error)) from error
    except DBAPIError as error:
        original = error.orig
        if (
            type(original).__name__ in MISSING_TABLES
            or "no such table" in str(original)
            or "no such column" in str(original)
        ):
            raise click.ClickException(
                "the inbox's tables are missing or old; run `flask db upgrade` (in your own app `flask db migrate` before it), "
                "or db.create_all() where the app uses no migrations"
            ) from error
        if type(original).__name__ in {
            "OperationalError",
            "InterfaceError",
            "AdminShutdown",
            "ConnectionTimeout",
        }:
            raise click.ClickException(
                f"the database does not answer ({type(original).__name__}); is it up, and is its URL right?"
            ) from error
        raise


# -- for programs


def emit(value: Any) -> None:
    """Write one JSON document to stdout."""
    click.echo(json.dumps(document(value), indent=2 if sys.stdout.isatty() else None))


def document(value: Any) -> Any:
    """The value in terms of JSON: instants in ISO 8601 with Z, durations in seconds, bytes as text or base64."""
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(key): document(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [document(item) for item in value]
    return value


# -- for people


def console(*, error: bool = False) -> Console:
    """Where people read; colours and the terminal's width only on a terminal. Text of others is never markup."""
    stream = sys.stderr if error else sys.stdout
    width = None if stream.isatty() else int(os.environ.get("COLUMNS") or PIPED_WIDTH)
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)


def table(
    title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, empty: str
) -> Callable[[Console], None]:
    """How to show these columns of the rows; `empty` is the sentence for none."""

    def show(where: Console) -> None:
        if not rows:
            where.print(empty)
            return
        made = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
        for column in columns:
            number = all(isinstance(row.get(column), int) or row.get(column) is None for row in rows)
            made.add_column(column.replace("_", " "), justify="right" if number else "left", overflow="fold")
        for row in rows:
            made.add_row(*(words(row.get(column)) for column in columns))
        where.print(made)

    return show


def sentences(lines: Iterable[str]) -> Callable[[Console], None]:
    """How to show one sentence a line."""

    def show(where: Console) -> None:
        for line in lines:
            where.print(Text(plain(line)), soft_wrap=True)

    return show


def words(value: Any) -> Text:
    """One cell: instants to the second, durations in units, states in colour."""
    if value is None or value == "":
        return Text("-", style="bright_black")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, datetime):
        found = utc(value)
        assert found is not None
        return Text(found.strftime("%Y-%m-%d %H:%M:%S"))
    if isinstance(value, timedelta):
        return Text(duration(value))
    if isinstance(value, list | tuple):
        return Text(", ".join(plain(item) for item in value) or "-")
    if isinstance(value, dict):
        return Text(plain(json.dumps(document(value), ensure_ascii=False)))
    return Text(plain(value), style=COLOURS.get(str(value), ""))


def steps(items: Sequence[T], label: str) -> Iterable[T]:
    """The items, with a progress bar on a terminal."""
    where = console(error=True)
    return (
        track(items, label, console=where, transient=True) if where.is_terminal and len(items) > 1 else items
    )


def waiting(label: str) -> AbstractContextManager[Any]:
    """A sign of life while something without steps is under way, on a terminal."""
    where = console(error=True)
    return where.status(label) if where.is_terminal else nullcontext()
