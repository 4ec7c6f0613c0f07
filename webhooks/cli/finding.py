"""Find what deliveries did not bring: recover, reconcile, audit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console

from ..endpoints import Endpoint
from ..reconcile import SAMPLE, Drift, Run
from ..state import State
from .asking import endpoint_named, since_option
from .output import Answer, command, plain, sentences, state, steps, table

__all__ = ["audit", "reconcile", "recover"]

COLUMNS = ("endpoint", "task", "since", "seen", "missed", "healed", "skipped", "error")
NEVER = datetime.min.replace(tzinfo=UTC)
"""The `since` of a run that was skipped before it had one."""

NO_FETCH = "fetch is off for this endpoint, so there is nothing to compare with"

VALUE_SHOWN = 60
"""Characters of one side of a difference; `--json` has it all."""


@command()
@click.argument("endpoints", nargs=-1)
@since_option("Read the log since then, not since the last good run.")
@click.option(
    "--redeliver", is_flag=True, help="Also ask the provider to send again what it failed to deliver."
)
def recover(endpoints: Sequence[str], since: datetime | None, *, redeliver: bool) -> Answer:
    """Read the providers' own logs and record what deliveries did not bring. ENDPOINTS: those; without any, all.

    What is found goes through the inbox, like a delivery. Where the log does not reach back to the last good run, objects
    are compared instead. The exit code is 1 when a run had an error.
    """
    inbox = state()
    chosen = steps(_chosen(inbox, endpoints), "Recover")
    return _answer([_recovered(inbox, each, since, redeliver=redeliver) for each in chosen])


@command()
@click.argument("endpoints", nargs=-1)
@since_option("Ask what changed since then, not since the last good run.")
@click.option("--dry-run", is_flag=True, help="Only print the difference, field by field; mend nothing.")
@click.option("--kind", help="Only objects of this kind.")
@click.option(
    "--full",
    is_flag=True,
    help="Compare everything, not only what changed; finds deletions. Goes on where the last full sweep ended.",
)
def reconcile(
    endpoints: Sequence[str], since: datetime | None, *, dry_run: bool, kind: str | None, full: bool
) -> Answer:
    """Ask the providers which objects changed, compare them with our copies and mend the drift.

    ENDPOINTS: those; without any, all. What differs becomes an event in the inbox, like a delivery. The exit code is 1
    when a run had an error.
    """
    inbox = state()
    if full and (dry_run or kind or since):
        raise click.UsageError("--full compares everything and mends it; give it alone")
    chosen = steps(_chosen(inbox, endpoints), "Reconcile")
    if full:
        return _answer([_swept(inbox, each) for each in chosen])
    runs = [_reconciled(inbox, each, since, dry=dry_run, kind=kind) for each in chosen]
    return _answer(runs, dry=dry_run)


@command()
@click.argument("endpoints", nargs=-1)
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    default=SAMPLE,
    show_default=True,
    help="Objects that are fetched and compared.",
)
@click.option("--no-heal", is_flag=True, help="Only count what differs; mend nothing.")
def audit(endpoints: Sequence[str], *, sample: int, no_heal: bool) -> Answer:
    """Fetch a random sample of our copies, compare, and say what that supports. ENDPOINTS: those; without any, all.

    The exit code is 1 when a run had an error or a copy was not what the provider has.
    """
    inbox = state()
    chosen = steps(_chosen(inbox, endpoints), "Audit")
    runs = [_audited(inbox, each, sample, heal=not no_heal) for each in chosen]
    rows = [_row(run, dry=False) | {"causes": run.causes, "report": run.report} for run in runs]

    def show(where: Console) -> None:
        table("", rows, COLUMNS, empty="No endpoint is configured.")(where)
        sentences(f"{run.endpoint}: {line}" for run in runs for line in run.report.get("statement", []))(
            where
        )

    return Answer(rows, show, int(any(run.error or run.missed for run in runs)))


def _chosen(inbox: State, names: Sequence[str]) -> list[Endpoint]:
    return [endpoint_named(inbox, name) for name in names] or list(inbox.endpoints.values())


def _recovered(inbox: State, endpoint: Endpoint, since: datetime | None, *, redeliver: bool) -> Run:
    if endpoint.provider.list_events is None and endpoint.provider.redeliver is None:
        return _skipped(endpoint, "recover", since, f"{endpoint.provider.name} has no log that we could read")
    return _run(
        endpoint, "recover", since, lambda: inbox.reconciler.recover(endpoint, since, redeliver=redeliver)
    )


def _swept(inbox: State, endpoint: Endpoint) -> Run:
    if not endpoint.fetches:
        return _skipped(endpoint, "full_sweep", None, NO_FETCH)
    return _run(endpoint, "full_sweep", None, lambda: inbox.reconciler.full_sweep(endpoint))


def _audited(inbox: State, endpoint: Endpoint, sample: int, *, heal: bool) -> Run:
    if not endpoint.fetches:
        return _skipped(endpoint, "audit", None, NO_FETCH)
    return _run(endpoint, "audit", None, lambda: inbox.reconciler.audit(endpoint, sample=sample, heal=heal))


def _reconciled(
    inbox: State, endpoint: Endpoint, since: datetime | None, *, dry: bool, kind: str | None
) -> Run:
    if endpoint.provider.list_changed is None:
        return _skipped(
            endpoint, "reconcile", since, f"{endpoint.provider.name} cannot say which objects changed"
        )
    if not endpoint.fetches:
        return _skipped(
            endpoint,
            "reconcile",
            since,
            NO_FETCH,
        )
    return _run(
        endpoint,
        "reconcile",
        since,
        lambda: inbox.reconciler.reconcile(endpoint, since, dry=dry, kind=kind),
    )


def _run(endpoint: Endpoint, task: str, since: datetime | None, start: Callable[[], Run | None]) -> Run:
    missing = endpoint.missing
    if missing:
        return _skipped(
            endpoint, task, since, f"without the setting {' and '.join(missing)} the provider cannot be asked"
        )
    run = start()
    if run is None:
        return _skipped(endpoint, task, since, "another run of it is under way")
    return run


def _skipped(endpoint: Endpoint, task: str, since: datetime | None, why: str) -> Run:
    return replace(Run(endpoint.name, task, since or NEVER), skipped=why)


def _answer(runs: Sequence[Run], *, dry: bool = False) -> Answer:
    rows = [_row(run, dry=dry) for run in runs]

    def show(where: Console) -> None:
        table("", rows, COLUMNS, empty="No endpoint is configured.")(where)
        sentences(line for run in runs for drift in run.drifts for line in _drift_lines(drift))(where)

    return Answer(rows, show, int(any(run.error for run in runs)))


def _row(run: Run, *, dry: bool) -> dict[str, Any]:
    row = {
        "endpoint": run.endpoint,
        "task": run.task,
        "since": None if run.since == NEVER else run.since,
        "seen": run.seen,
        "missed": run.missed,
        "healed": run.healed,
        "skipped": run.skipped or None,
        "error": run.error or None,
    }
    if "gap" in run.report:
        row["gap"] = run.report["gap"]
    return row | {"drifts": [_drift(drift) for drift in run.drifts]} if dry else row


def _drift(drift: Drift) -> dict[str, Any]:
    return {
        "endpoint": drift.endpoint,
        "account": drift.account,
        "cause": drift.cause,
        "kind": drift.kind,
        "id": drift.id,
        "differences": [
            {"path": path, "ours": ours, "theirs": theirs} for path, ours, theirs in drift.differences
        ],
    }


def _drift_lines(drift: Drift) -> Iterator[str]:
    account = f" of {drift.account}" if drift.account else ""
    yield f"{drift.endpoint}: {drift.kind} {drift.id}{account}: {drift.cause.replace('_', ' ')}"
    for path, ours, theirs in drift.differences:
        yield f"  {path}: ours {_short(ours)}, theirs {_short(theirs)}"


def _short(value: Any) -> str:
    text = plain(repr(value))
    return text if len(text) <= VALUE_SHOWN else text[: VALUE_SHOWN - 1] + "…"
