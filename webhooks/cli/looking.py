"""What is there: status, events, show, objects, unhandled, runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import click
from rich.console import Console
from sqlalchemy.exc import DBAPIError

from .. import jsontext
from ..errors import Unreadable
from ..inbox.spool import as_row
from ..models import OUTCOMES, STATES
from ..operating import queries, standing
from ..state import State
from .asking import endpoint_name, endpoint_option, event_named, limit_option, rows_wanted, since_option
from .output import Answer, as_json, command, document, plain, sentences, state, table, words

__all__ = ["events", "objects", "runs", "show", "status", "unhandled"]

SHOWN = (
    "id",
    "endpoint",
    "received_at",
    "origin",
    "type",
    "object",
    "deliveries",
    "state",
    "outcome",
    "attempts",
)
DATA_SHOWN = 80
"""Characters of an object's data in a table; `--json` has it all."""


@command()
def status() -> Answer:
    """How every endpoint is: events by state, lag, last delivery, last runs, issues, holds.

    The lag is how long the oldest event that is due has been waiting. The exit code is 0 however things are; `check`
    is the command for monitors.
    """
    try:
        found, spools = standing.status(state()), standing.spools(state())
    except DBAPIError:
        # What this host keeps meanwhile is what one wants to know now.
        own = state().spool
        for line in _spooled(as_row(own.state())) if own is not None else ():
            click.echo(line, err=True)
        raise

    def show(where: Console) -> None:
        columns = (
            "endpoint",
            "pending",
            "applying",
            "applied",
            "ignored",
            "dead",
            "lag",
            "last_delivery_at",
            "issues",
        )
        lines = [row | {"issues": [issue["kind"] for issue in row["issues"]]} for row in found]
        table("", lines, columns, empty="No endpoint is configured. Add one to WEBHOOKS.")(where)
        sentences([line for row in found for line in _remarks(row)])(where)
        sentences([line for row in spools for line in _spooled(row)])(where)

    return Answer({"endpoints": found, "spools": spools}, show)


def _spooled(row: Mapping[str, Any]) -> list[str]:
    """What is worth a line about one host's spool; nothing, if it is empty and in order."""
    where = f"spool of {row['host']}"
    if row["trouble"]:
        return [f"{where}: {row['path']} cannot be read ({row['trouble']})"]
    if not row["rows"]:
        return []
    since = f", the oldest since {words(row['oldest'])} UTC" if row["oldest"] is not None else ""
    return [
        f"{where}: {row['rows']} deliveries, {row['bytes']} bytes{since}; {row['failed']} could not be recorded"
    ]


def _remarks(row: Mapping[str, Any]) -> list[str]:
    name = row["endpoint"]
    lines = [
        f"{name}: {hold['reason'].replace('_', ' ')}{' for ' + hold['account'] if hold['account'] else ''}, "
        + (
            f"until {words(hold['until'])} UTC"
            if hold["until"]
            else f"until you say `flask webhooks resume {name}`"
        )
        for hold in row["holds"]
    ]
    lines += [
        f"{name}: {task} {words(run['started_at'])} UTC: seen {run['seen']}, missed {run['missed']}, healed {run['healed']}"
        + _causes(run["causes"])
        + (f"; {run['error']}" if run["error"] else "")
        for task, run in row["runs"].items()
    ]
    if len(row["secrets"]) > 1:
        lines += [
            f"{name}: secret {n} of {len(row['secrets'])} ({secret['fingerprint']}) was "
            + (f"last used {words(secret['last_used_at'])} UTC" if secret["last_used_at"] else "never used")
            for n, secret in enumerate(row["secrets"], 1)
        ]
    if row["provider"] is None:
        lines.append(f"{name}: is not in WEBHOOKS any more, so its open events wait for ever")
    return lines


def _causes(causes: Mapping[str, int] | None) -> str:
    said = ", ".join(
        f"{number} {cause.replace('_', ' ')}" for cause, number in sorted((causes or {}).items())
    )
    return f" ({said})" if said else ""


@command()
@endpoint_option
@click.option(
    "--state",
    "state_",
    type=click.Choice([*STATES, "open"]),
    help="Only this state; open: pending or applying.",
)
@click.option("--outcome", type=click.Choice(sorted(OUTCOMES)), help="Only this outcome.")
@click.option("--type", "type_", metavar="TYPE", help="Only this type; * stands for any text.")
@click.option(
    "--object", "about", metavar="OBJECT", help="Only about this object: its id, its kind, or kind:id."
)
@since_option("Only what was received since.")
@limit_option
def events(
    endpoint: str | None,
    state_: str | None,
    outcome: str | None,
    type_: str | None,
    about: str | None,
    since: datetime | None,
    limit: int | None,
) -> Answer:
    """The events in the inbox, the newest last."""
    inbox = state()
    of = endpoint_name(inbox, endpoint)
    states = queries.OPEN if state_ == "open" else (state_,) if state_ else ()
    found = queries.events(
        inbox,
        endpoint=of,
        states=states,
        outcome=outcome,
        type_=type_,
        about=about,
        since=since,
        limit=rows_wanted(limit),
    )
    lines = [row | {"object": _object(row)} for row in found]
    return Answer(found, table("", lines, SHOWN, empty="No event fits."))


def _object(row: Mapping[str, Any]) -> str:
    return f"{row['object_kind']} {row['object_id']}" if row["object_id"] else ""


@command()
@click.argument("event")
@click.option(
    "--endpoint", metavar="NAME", help="The event's endpoint, where several have had this dedup key."
)
@click.option(
    "--raw", is_flag=True, help="Write the body's bytes to stdout, as they were received, and nothing else."
)
def show(event: str, endpoint: str | None, *, raw: bool) -> Answer | None:
    """One event with its kept headers and its body. EVENT is an id or a dedup key.

    Of the headers those are kept that are needed to read the body again; never a signature.
    """
    inbox = state()
    of = endpoint_name(inbox, endpoint)
    row = event_named(inbox, event, of)
    body, headers = queries.kept(inbox, row["id"])
    if raw:
        if as_json():
            raise click.UsageError("--raw writes bytes, --json a document; give one of them")
        if body is None:
            raise click.ClickException(f"the body of event {row['id']} has been dropped")
        click.echo(body, nl=False)
        return None
    decoded, answer = _decoded(body), queries.answer(inbox, row["id"])

    def write(where: Console) -> None:
        for name, value in row.items():
            where.print(f"{name.replace('_', ' ')}: ", words(value), sep="", soft_wrap=True)
        for name, value in headers.items():
            where.print(f"{plain(name)}: {plain(value)}", soft_wrap=True)
        if answer is not None:
            where.print(f"answer: {answer['status']} {plain(answer['body'])}", soft_wrap=True)
            if answer["error"]:
                where.print(f"given by on_error: {plain(answer['error'])}", soft_wrap=True)
        if body is None:
            where.print("Its body has been dropped; the event itself is kept.")
        else:
            text = decoded if isinstance(decoded, str) else json.dumps(decoded, indent=2, ensure_ascii=False)
            where.print(plain(text), soft_wrap=True)

    return Answer(
        row | {"headers": headers, "body": decoded, "length": body and len(body), "answer": answer}, write
    )


def _decoded(body: bytes | None) -> Any:
    if body is None:
        return None
    try:
        return jsontext.loads(body)
    except Unreadable:
        return document(body)


@command()
@endpoint_option
@click.option("--kind", help="Only objects of this kind.")
@click.option("--id", "id_", help="Only the object with this id.")
@limit_option
def objects(endpoint: str | None, kind: str | None, id_: str | None, limit: int | None) -> Answer:
    """Our copies of the providers' objects: how fresh each is, and its data where the endpoint keeps it.

    `claim no` is the claim whose fetch wrote the copy, `as of` the moment of that claim.
    """
    inbox = state()
    of = endpoint_name(inbox, endpoint)
    found = queries.objects(inbox, endpoint=of, kind=kind, id_=id_, limit=rows_wanted(limit))
    columns = ("endpoint", "account", "kind", "id", "claim_no", "as_of", "version", "deleted_at", "data")
    lines = [row | {"data": _cut(row["data"])} for row in found]
    return Answer(found, table("", lines, columns, empty="There is no copy of such an object."))


def _cut(data: Any) -> str | None:
    if data is None:
        return None
    text = json.dumps(data, ensure_ascii=False)
    return text if len(text) <= DATA_SHOWN else text[: DATA_SHOWN - 1] + "…"


@command()
@endpoint_option
@since_option("Only what was received since.")
def unhandled(endpoint: str | None, since: datetime | None) -> Answer:
    """Types of events that were received and that no handler of the app wants now.

    Register a handler for a type, or unsubscribe from it at the provider: every delivery costs both of you something.
    """
    inbox = state()
    of = endpoint_name(inbox, endpoint)
    found = [
        row
        for row in queries.types_received(inbox, endpoint=of, since=since)
        if row["endpoint"] in inbox.endpoints and not _wanted(inbox, row)
    ]
    totals: dict[str, int] = {}
    for row in found:
        totals[row["endpoint"]] = totals.get(row["endpoint"], 0) + row["events"]

    def write(where: Console) -> None:
        columns = ("endpoint", "type", "object_kind", "events", "last_received_at")
        table("", found, columns, empty="Every type that was received has a handler.")(where)
        sentences(f"{name}: {number} events that nobody wants" for name, number in totals.items())(where)

    return Answer(found, write)


def _wanted(inbox: State, row: Mapping[str, Any]) -> bool:
    endpoint = inbox.endpoints[row["endpoint"]]
    kept = row["object_kind"] is not None and inbox.applier.wants_kind(endpoint, row["object_kind"])
    return kept or bool(inbox.handlers.ons(endpoint, row["type"]))


@command()
@endpoint_option
@click.option(
    "--task", type=click.Choice(["recover", "reconcile", "full_sweep", "audit"]), help="Only this task."
)
@limit_option
def runs(endpoint: str | None, task: str | None, limit: int | None) -> Answer:
    """The last runs of recover, reconcile, full sweep and audit, the newest last: since when they looked, what was missed and healed."""
    inbox = state()
    of = endpoint_name(inbox, endpoint)
    found = standing.runs(inbox, endpoint=of, task=task, limit=rows_wanted(limit))
    columns = [name for name in standing.RUN_COLUMNS if name != "report"]
    return Answer(found, table("", found, columns, empty="There was no run yet."))
