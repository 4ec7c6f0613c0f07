"""Effects by hand: list, show, settle what is unknown, redrive what is dead."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click
from rich.console import Console
from sqlalchemy import select

from ..models import EFFECT_STATES
from ..operating import queries, settling
from ..state import State
from .asking import endpoint_name, endpoint_option, limit_option, rows_wanted
from .output import Answer, command, document, plain, sentences, state, table, words

__all__ = ["effects"]

SHOWN = ("idempotency_key", "name", "per", "endpoint", "event_id", "state", "attempts", "due_at", "error")
OPEN = ("recorded", "started", "unknown")


@click.group()
def effects() -> None:
    """Side effects: what is promised, what happened, and what a person has to decide."""


@command("list")
@click.option(
    "--state",
    "wanted",
    type=click.Choice([*EFFECT_STATES, "open"]),
    help="Only this state; open is recorded, started or unknown.",
)
@click.option("--name", help="Only the effect of this name.")
@endpoint_option
@limit_option
def list_(*, wanted: str | None, name: str | None, endpoint: str | None, limit: int | None) -> Answer:
    """The newest effects, in the order in which they were promised."""
    inbox = state()
    c = inbox.tables.effects.c
    of = endpoint_name(inbox, endpoint)
    conditions = queries.given(
        (wanted, lambda: c.state.in_(OPEN) if wanted == "open" else c.state == wanted),
        (name, lambda: c.name == name),
        (of, lambda: c.endpoint == of),
    )
    statement = (
        select(inbox.tables.effects).where(*conditions).order_by(c.recorded_at.desc(), c.idempotency_key)
    )
    found = queries.rows(inbox, statement.limit(rows_wanted(limit)))[::-1]

    def show(where: Console) -> None:
        table("", found, SHOWN, empty="No effect fits. Handlers promise them with `.later(…)`.")(where)
        unregistered = sorted(
            {row["name"] for row in found if row["state"] in OPEN} - set(inbox.caller.effects)
        )
        sentences(
            f"{missing}: no effect of that name is registered in this app, so nobody calls it."
            for missing in unregistered
        )(where)

    return Answer([_described(inbox, row) for row in found], show)


@command()
@click.argument("key")
def show(*, key: str) -> Answer:
    """Everything about the effect with this idempotency key, and what to do about its state."""
    inbox = state()
    described = _described(inbox, _named(inbox, key))

    def write(where: Console) -> None:
        for name, value in described.items():
            where.print(f"{name.replace('_', ' ')}: {words(value)}", soft_wrap=True)

    return Answer(described, write)


@command()
@click.argument("key")
@click.option(
    "--done", "done", flag_value=True, type=bool, default=None, help="It happened: nothing is called."
)
@click.option("--again", "done", flag_value=False, type=bool, help="It did not happen: call it again.")
def settle(*, key: str, done: bool | None) -> Answer:
    """Decide what became of an unknown effect. Look at the other side first: --again calls it once more."""
    if done is None:
        raise click.UsageError("say --done if it happened, or --again if it did not")
    inbox = state()
    row = _named(inbox, key)
    if not settling.settle(inbox, key, done=done):
        raise click.ClickException(f"it is {row['state']}, not unknown: {EFFECT_STATES[row['state']]}")
    after = _named(inbox, key)
    said = "it happened; nothing is called." if done else "it is called again."
    return Answer(_described(inbox, after), sentences([f"{row['name']} {key}: {said}"]))


@command()
@click.argument("keys", nargs=-1)
@click.option("--all", "all_", is_flag=True, help="All dead effects; narrow them with --name.")
@click.option("--name", help="With --all: only the effect of this name.")
def redrive(*, keys: Sequence[str], all_: bool, name: str | None) -> Answer:
    """Call dead effects again, with all their attempts, under their keys."""
    inbox = state()
    if bool(keys) == all_:
        raise click.UsageError("give KEYS, or --all")
    c = inbox.tables.effects.c
    wanted = [_named(inbox, key)["idempotency_key"] for key in keys]
    if all_:
        dead = select(c.idempotency_key).where(
            c.state == "dead", *queries.given((name, lambda: c.name == name))
        )
        wanted = [row["idempotency_key"] for row in queries.rows(inbox, dead)]
    redriven = sum(
        inbox.outbox.redrive(wanted[start : start + queries.MANY])
        for start in range(0, len(wanted), queries.MANY)
    )
    if redriven:
        inbox.caller.bell.ring_in(timedelta(0))
    left = len(wanted) - redriven
    lines = [f"{redriven} effects are called again."] + ([f"{left} were not dead."] if left else [])
    return Answer({"redriven": redriven, "not_dead": left}, sentences(lines), exit_code=1 if left else 0)


def _named(inbox: State, key: str) -> dict[str, Any]:
    c = inbox.tables.effects.c
    found = queries.rows(inbox, select(inbox.tables.effects).where(c.idempotency_key == key))
    if not found:
        raise click.ClickException(
            f"there is no effect {plain(key)!r}; give a key as `flask webhooks effects list` shows it"
        )
    return found[0]


def _described(inbox: State, row: dict[str, Any]) -> dict[str, Any]:
    definition = inbox.caller.effects.get(row["name"])
    return {
        **document({name: value for name, value in row.items() if name != "call_no"}),
        "registered": definition is not None,
        "idempotent": None if definition is None else definition.idempotent,
        "what_to_do": EFFECT_STATES[row["state"]],
    }


for _made in (list_, show, settle, redrive):
    effects.add_command(_made)
