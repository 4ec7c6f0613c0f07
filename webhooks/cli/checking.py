"""Whether all is well, and what to do where it is not: check, doctor, issues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import click
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from flask import current_app
from rich.console import Console
from sqlalchemy import Table, inspect

from ..endpoints import Endpoint
from ..issues import KINDS, Finding
from ..state import State
from . import standing
from .asking import endpoint_name, endpoint_option
from .output import Answer, command, sentences, state, table, waiting

__all__ = ["check", "doctor", "issues"]

TODO = {
    "tables": "run `flask db upgrade`; in your own app run `flask db migrate` before it",
    "migrations": "run `flask db upgrade`",
    "broker": "start the broker, or correct CELERY's broker_url; until then only `flask webhooks work` applies events",
    "blueprint": 'call app.register_blueprint(webhooks.blueprint, url_prefix="/webhooks")',
    "configuration": "correct WEBHOOKS[{endpoint!r}]",
}
"""What to do about a finding of the set-up that is not good; for what can be an issue, its kind says it."""

ALL = "(all)"
"""For findings that are about no endpoint in particular."""

ROUTE = "webhooks.receive"


@command()
def check() -> Answer:
    """Ask the providers about our endpoints and look at the inbox; open and close issues.

    The exit code is 1, with a list of what to do, when anything is not good.
    """
    inbox = state()
    with waiting("Asking the providers"):
        found = inbox.watch.check()
    return _report(found)


@command()
def doctor() -> Answer:
    """What `check` looks at, and the set-up around it: tables, migrations, broker, blueprint, configuration.

    The exit code is 1, with a list of what to do, when anything is not good. Changes nothing at the provider.
    """
    inbox = state()
    tables = _tables(inbox)
    found = [
        tables,
        *_migrations(inbox),
        _broker(inbox),
        _blueprint(),
        *map(_configuration, inbox.endpoints.values()),
    ]
    if tables.good:
        with waiting("Asking the providers"):
            found += inbox.watch.check()
    return _report(found)


@command()
@endpoint_option
@click.option("--all", "all_", is_flag=True, help="Also those that are over.")
def issues(endpoint: str | None, *, all_: bool) -> Answer:
    """The open issues: one of a kind on an endpoint, opened and closed by `check`, the oldest first."""
    inbox = state()
    of = endpoint_name(inbox, endpoint)
    found = [
        row | {"todo": _todo(row["kind"], row["endpoint"])}
        for row in standing.issues(inbox, endpoint=of, closed=all_)
    ]
    lines = [row | {"detail": (row["evidence"] or {}).get("detail")} for row in found]
    columns = ("id", "endpoint", "kind", "state", "opened_at", "closed_at", "detail", "todo")
    return Answer(
        found, table("", lines, columns, empty="No issue is open." if not all_ else "There was no issue yet.")
    )


def _report(found: Sequence[Finding]) -> Answer:
    rows = [
        {
            "endpoint": finding.endpoint,
            "kind": finding.kind,
            "good": finding.good,
            "detail": finding.detail,
            "evidence": finding.evidence,
            "todo": None if finding.good else _todo(finding.kind, finding.endpoint),
        }
        for finding in found
    ]
    good = all(finding.good for finding in found)

    def show(where: Console) -> None:
        lines = [row | {"state": "good" if row["good"] else "bad"} for row in rows]
        table("", lines, ("endpoint", "kind", "state", "detail"), empty="No endpoint is configured.")(where)
        sentences(_what_to_do(rows))(where)

    return Answer({"good": good, "findings": rows}, show, 0 if good else 1)


def _what_to_do(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    bad = [row for row in rows if not row["good"]]
    yield "What to do:" if bad else "All is well."
    for row in bad:
        yield f"- {row['endpoint']}, {row['kind']}: {row['todo']}"


def _todo(kind: str, endpoint: str) -> str:
    todo = KINDS[kind].todo if kind in KINDS else TODO.get(kind, "see its detail")
    return todo.format(endpoint=endpoint)


# -- the set-up


def _tables(inbox: State) -> Finding:
    """Whether the database has all our tables with all their columns."""
    inspector = inspect(inbox.inbox.engine)
    there = set(inspector.get_table_names())
    missing = []
    ours: list[Table] = list(vars(inbox.tables).values())
    for each in ours:
        if each.name not in there:
            missing.append(each.name)
        else:
            columns = {column["name"] for column in inspector.get_columns(each.name)}
            missing += [f"{each.name}.{column.name}" for column in each.columns if column.name not in columns]
    return Finding(
        ALL, "tables", not missing, f"missing: {', '.join(missing)}" if missing else "all are there"
    )


def _migrations(inbox: State) -> list[Finding]:
    """Whether the host's migrations have all been run; nothing where it uses none."""
    migrate = current_app.extensions.get("migrate")
    if migrate is None:
        return []
    script = ScriptDirectory(str(migrate.directory))
    heads = set(script.get_heads())
    if not heads:
        return [Finding(ALL, "migrations", True, "the app has none")]  # noqa: FBT003 - the verdict
    with inbox.inbox.engine.connect() as connection:
        current = set(MigrationContext.configure(connection).get_current_heads())
    detail = f"the database is at {_named(current)}, the newest is {_named(heads)}"
    return [Finding(ALL, "migrations", current == heads, detail)]


def _named(revisions: Iterable[str]) -> str:
    return ", ".join(sorted(revisions)) or "nothing"


def _broker(inbox: State) -> Finding:
    trouble = inbox.bell.trouble()
    return Finding(ALL, "broker", trouble is None, trouble or "can be reached")


def _blueprint() -> Finding:
    rules = (
        sorted(str(rule) for rule in current_app.url_map.iter_rules(ROUTE))
        if ROUTE in current_app.view_functions
        else []
    )
    return Finding(
        ALL,
        "blueprint",
        bool(rules),
        f"deliveries come to {rules[0]}" if rules else "no URL of the app takes deliveries",
    )


def _configuration(endpoint: Endpoint) -> Finding:
    wrong = []
    if endpoint.public_url is not None and urlsplit(endpoint.public_url).scheme != "https":
        wrong.append("public_url is not https, so secrets of other systems and bodies travel in the clear")
    blank = (
        [name for name in endpoint.provider.required if not endpoint.setting(name)]
        if endpoint.fetches
        else []
    )
    wrong += [f"the setting {name} is empty, so nothing can be fetched" for name in blank]
    how = "fetches the current object" if endpoint.fetches else "applies what deliveries carry"
    number = len(endpoint.secrets)
    good = f"{endpoint.provider.name}, {number} secret{'s' if number > 1 else ''}, {how}, applied by the {endpoint.apply}"
    return Finding(endpoint.name, "configuration", not wrong, "; ".join(wrong) or good)
