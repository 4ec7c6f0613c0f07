"""What is done with events: work, sweep, redrive, replay, pause, resume, purge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import click

from ..apply import Applied, Applier
from ..effects import Called, Caller
from ..handlers import Handler
from ..models import OUTCOMES
from ..operating import holding, queries, redriving
from ..queue import Bell
from ..state import State
from .asking import endpoint_name, endpoint_named, event_named, handler_entries
from .output import Answer, command, duration, sentences, state, table, waiting
from .stopping import Stop

__all__ = ["pause", "purge", "redrive", "replay", "resume", "sweep", "work"]


LOOK = timedelta(seconds=1)
"""`work` looks into the inbox at least so often: nobody rings for it."""

STINT = timedelta(seconds=1)
"""It applies for so long before it heeds a signal."""

ONE = timedelta(0)


@command()
@click.option(
    "--until-empty", is_flag=True, help="End when nothing is due and nothing will be within --wait."
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="With --until-empty: wait for postponed events that are due within so many seconds.",
)
@click.option(
    "--sleep",
    type=click.FloatRange(min=0.01),
    help="Seconds between two looks when nothing is due; at most 1.",
)
def work(*, until_empty: bool, wait: float, sleep: float | None) -> Answer:
    """Apply events and call effects here and now, in the foreground: what a worker does, without Celery and without a
    broker.

    Ends with Ctrl-C or SIGTERM, after the claim that is being applied or the effect that is being called. It does not recover, reconcile or check; run
    those commands, or beat, beside it.
    """
    inbox = state()
    # Nobody needs to be woken by it, and there may be no broker.
    applier = replace(inbox.applier, bell=Bell(lambda: None))
    caller = replace(inbox.caller, bell=applier.bell)
    done, called = Applied(), Called()
    longest = LOOK if sleep is None else min(LOOK, timedelta(seconds=sleep))
    said_of = 0
    with Stop() as stop:
        inbox.drain_spool()
        while not stop.asked:
            if _apply_some(applier, done) or _call_one(caller, called) or inbox.drain_spool():
                continue
            soon = timedelta(seconds=wait)
            left = queries.open_within(inbox, soon) + inbox.outbox.due(soon) if until_empty else 0
            if until_empty and left == 0:
                break
            next_ = inbox.inbox.next_due(inbox.endpoints)
            if left not in {0, said_of}:
                click.echo(_waits_for(left, next_, soon), err=True)
            said_of = left
            stop.wait(
                min(longest, longest if next_ is None else next_ + timedelta(milliseconds=10)).total_seconds()
            )
    document = {
        "events": done.events,
        "claims": done.claims,
        "fetches": done.fetches,
        "outcomes": done.outcomes,
        "effects": called.states,
        "open": queries.open_count(inbox),
    }
    said = ", ".join(f"{number} {outcome}" for outcome, number in sorted(done.outcomes.items()))
    lines = [
        f"{done.events} events in {done.claims} claims with {done.fetches} fetches"
        + (f": {said}." if said else ".")
    ]
    if called.states:
        calls = ", ".join(f"{number} {ended}" for ended, number in sorted(called.states.items()))
        lines.append(f"{called.effects} effects: {calls}.")
    lines += (
        [f"{document['open']} events are still open: see `flask webhooks events --state open`."]
        if document["open"]
        else []
    )
    return Answer(document, sentences(lines))


def _waits_for(left: int, next_: timedelta | None, soon: timedelta) -> str:
    """A sign of life, to stderr, whenever the number of those that are waited for has changed."""
    when = f", the next in {duration(next_)}" if next_ is not None and next_ > timedelta(seconds=1) else ""
    return f"Waiting for {left} that are due within {duration(soon)}{when}; Ctrl-C ends it."


def _apply_some(applier: Applier, done: Applied) -> bool:
    """Apply for a second, so that a signal is heeded after it; whether there was anything."""
    some = applier.drain(shift=STINT)
    done.add(some)
    return some.claims > 0


def _call_one(caller: Caller, called: Called) -> bool:
    """Call one effect; whether there was one."""
    one = caller.drain(shift=ONE)
    for ended, number in one.states.items():
        called.states[ended] = called.states.get(ended, 0) + number
    return one.effects > 0


@command()
def sweep() -> Answer:
    """Drain this host's spool, then ring for the events and effects that are due, so that a worker looks for them.
    Beat does this every 30 seconds."""
    due = state().sweep()
    rung = [f"{number} {what} are due; a worker was rung for." for what, number in due.items() if number]
    return Answer({"due": due["events"], "effects": due["effects"]}, sentences(rung or ["Nothing is due."]))


@command()
@click.argument("events", nargs=-1)
@click.option(
    "--all", "all_", is_flag=True, help="All dead events; narrow them with --endpoint and --outcome."
)
@click.option("--endpoint", metavar="NAME", help="With --all: only this endpoint.")
@click.option("--outcome", type=click.Choice(sorted(OUTCOMES)), help="With --all: only this outcome.")
def redrive(events: Sequence[str], *, all_: bool, endpoint: str | None, outcome: str | None) -> Answer:
    """Try dead events again, with all their attempts. EVENTS are ids or dedup keys.

    What was unreadable is read again first; if it still cannot be read it stays dead. The exit code is 1 if one does.
    """
    inbox = state()
    if bool(events) == all_:
        raise click.UsageError("give EVENTS or --all, one of them")
    of = endpoint_name(inbox, endpoint)
    if all_:
        chosen = queries.events(inbox, endpoint=of, states=("dead",), outcome=outcome)
    else:
        chosen = [event_named(inbox, text, of) for text in events]
    rows = redriving.redrive(inbox, chosen)
    show = table("", rows, ("id", "endpoint", "type", "redriven", "reason"), empty="No event is dead.")
    return Answer(rows, show, int(any(row["dead"] for row in rows)))


@command()
@click.argument("events", nargs=-1, required=True)
@click.option(
    "--handler",
    metavar="NAME",
    help="Only this handler: the ledger rows of the others stay, so those do not run.",
)
@click.option("--dry-run", is_flag=True, help="Only say which handlers would run.")
def replay(events: Sequence[str], *, handler: str | None, dry_run: bool) -> Answer:
    """Apply again, on purpose, what was applied. EVENTS are ids or dedup keys.

    The object is fetched anew; `sync` handlers run in any case, `on` handlers because their ledger rows are forgotten.
    What has decided a flow does not decide it again.
    """
    inbox = state()
    entries = handler_entries(inbox, handler) if handler is not None else None
    rows = [_replayed(inbox, event_named(inbox, text), entries) for text in events]
    if not dry_run:
        inbox.inbox.replay([row["id"] for row in rows if row["replayed"]], entries)
        inbox.reconciler.sweep()
    else:
        rows = [row | {"replayed": False, "would_replay": row["replayed"]} for row in rows]
    columns = ("id", "endpoint", "type", "would_replay" if dry_run else "replayed", "handlers", "reason")
    return Answer(rows, table("", rows, columns, empty=""))


def _replayed(inbox: State, row: dict[str, Any], entries: Sequence[str] | None) -> dict[str, Any]:
    answer = {
        "id": row["id"],
        "endpoint": row["endpoint"],
        "type": row["type"],
        "replayed": True,
        "handlers": [],
        "reason": None,
    }
    endpoint = inbox.endpoints.get(row["endpoint"])
    if endpoint is None:
        return answer | {"replayed": False, "reason": "its endpoint is not in WEBHOOKS any more"}
    if row["state"] in queries.OPEN:
        return answer | {"replayed": False, "reason": f"is {row['state']}: it will be applied anyway"}
    if row["outcome"] == "unreadable":
        return answer | {"replayed": False, "reason": "could not be read; `redrive` reads it again"}
    had = {entry["handler"] for entry in queries.ledger(inbox, [row["id"]])}
    syncs = inbox.handlers.syncs(endpoint, row["object_kind"]) if row["object_kind"] else []
    ons = [
        wanted
        for wanted in inbox.handlers.ons(endpoint, row["type"])
        if entries is None or wanted.entry in entries or wanted.entry not in had
    ]
    flows = [wanted.flow for wanted in ons if wanted.flow is not None and _decided(inbox, row["id"], wanted)]
    reason = f"has decided {', '.join(flows)}, which is decided once" if flows else None
    return answer | {"handlers": [wanted.entry for wanted in (*syncs, *ons)], "reason": reason}


def _decided(inbox: State, event_id: int, handler: Handler) -> bool:
    return any(flow["flow"] == handler.flow for flow in queries.flows(inbox, event_id))


@command()
@click.argument("endpoint")
def pause(endpoint: str) -> Answer:
    """Apply nothing of ENDPOINT until `resume`. Its deliveries are still recorded and answered."""
    inbox = state()
    of = endpoint_named(inbox, endpoint)
    holding.pause(inbox, of)
    said = f"{of.name} is paused. Deliveries are recorded; nothing is applied until `flask webhooks resume {of.name}`."
    return Answer({"endpoint": of.name, "paused": True}, sentences([said]))


@command()
@click.argument("endpoint")
def resume(endpoint: str) -> Answer:
    """Apply events of ENDPOINT again, beginning with those that came while it was paused."""
    inbox = state()
    of = endpoint_named(inbox, endpoint)
    released, due = holding.resume(inbox, of)
    said = f"{of.name} goes on; {due} of its events are due." if released else f"{of.name} was not paused."
    return Answer({"endpoint": of.name, "paused": False, "released": released, "due": due}, sentences([said]))


@command()
def purge() -> Answer:
    """Drop what is old: bodies first, whole events much later, claims in between. Beat does this once a day.

    Open and dead events are kept however old they are.
    """
    inbox = state()
    with waiting("Dropping what is old"):
        gone = inbox.purge()
    return Answer(
        gone, sentences(f"{number} {what.replace('_', ' ')} dropped." for what, number in gone.items())
    )
