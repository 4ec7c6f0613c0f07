"""Why copies were not what the providers have, and what an outage would cost: drift, simulate-outage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

import click
from rich.console import Console

from .. import providers
from ..operating import standing
from ..reconcile import CAUSES
from ..watch import simulate
from .asking import endpoint_name, endpoint_option, since_option
from .output import Answer, command, sentences, state, table

__all__ = ["drift", "simulate_outage"]

TASKS = ("reconcile", "full_sweep", "audit")
COLUMNS = ("endpoint", "task", "started_at", "seen", "missed", "healed", "causes", "error")
OBJECTS = ("endpoint", "started_at", "kind", "id", "cause", "fields")


@command()
@endpoint_option
@since_option("Only runs since.")
def drift(endpoint: str | None, since: datetime | None) -> Answer:
    """What reconcile, full sweeps and audits found: how many objects were not what the provider has, and why.

    Each cause says what to mend; the objects themselves have been mended. Field names are kept, their values are not:
    `reconcile --dry-run` shows those.
    """
    inbox = state()
    of = endpoint_name(inbox, endpoint)
    found = [
        run
        for run in standing.runs(inbox, endpoint=of)
        if run["task"] in TASKS and (since is None or run["started_at"] >= since)
    ]
    total: dict[str, int] = {}
    for run in found:
        for cause, number in (run["causes"] or {}).items():
            total[cause] = total.get(cause, 0) + number
    objects = [
        {"endpoint": run["endpoint"], "started_at": run["started_at"], **one}
        for run in found
        for one in (run["report"] or {}).get("drifts", [])
    ]
    statements = {
        run["endpoint"]: run["report"]["statement"]
        for run in found
        if run["task"] == "audit" and (run["report"] or {}).get("statement")
    }
    document = {"causes": total, "runs": found, "objects": objects, "audits": statements}

    def show(where: Console) -> None:
        drifted = [run for run in found if run["missed"]]
        table("", drifted, COLUMNS, empty=f"No drift in {len(found)} runs.")(where)
        if objects:
            table("", objects[-50:], OBJECTS, empty="")(where)
        sentences(_remarks(total, statements))(where)

    return Answer(document, show)


def _remarks(total: Mapping[str, int], statements: Mapping[str, Iterable[str]]) -> Iterator[str]:
    for cause, number in sorted(total.items(), key=lambda item: -item[1]):
        yield f"{number} {cause.replace('_', ' ')}: {CAUSES.get(cause, '')}"
    for name, lines in statements.items():
        yield from (f"{name}, last audit of {line}" for line in lines)


@command("simulate-outage", app=False)
@click.option(
    "--provider",
    "name",
    required=True,
    metavar="PROVIDER",
    help="The provider, as `flask webhooks providers` names it.",
)
@click.option(
    "--minutes", type=click.FloatRange(min=0, min_open=True), required=True, help="How long we are away."
)
def simulate_outage(name: str, minutes: float) -> Answer:
    """What an outage would cost: what is tried again, lost, disabled, and what recover brings back.

    Every number is from the provider's documentation, as its file quotes it; what that does not say is not guessed at.
    Needs no app.
    """
    said = simulate(providers.get(name), timedelta(minutes=minutes))
    document: dict[str, Any] = asdict(said)
    return Answer(document, sentences(said.sentences))
