"""What the door refused, and what of it was genuine after all: rejections, reverify."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

import click
from rich.console import Console
from sqlalchemy import func, select

from ..operating import queries
from .asking import endpoint_name, endpoint_named, endpoint_option, limit_option, rows_wanted, since_option
from .output import Answer, command, sentences, state, table

__all__ = ["rejections", "reverify"]


@command()
@endpoint_option
@since_option("Only what was refused since.")
@limit_option
def rejections(endpoint: str | None, since: datetime | None, limit: int | None) -> Answer:
    """What the door refused: how many for which reason, and the newest. At most 60 a minute are noted per process.

    `body kept` says whether `reverify` can check it again (the endpoint's option `keep_refused`).
    """
    inbox = state()
    of = endpoint_name(inbox, endpoint)
    c = inbox.tables.rejections.c
    wanted = queries.given((of, lambda: c.endpoint == of), (since, lambda: c.received_at >= since))
    counts = queries.rows(
        inbox,
        select(c.endpoint, c.reason, func.count().label("deliveries"), func.max(c.received_at).label("last"))
        .where(*wanted)
        .group_by(c.endpoint, c.reason)
        .order_by(c.endpoint, c.reason),
    )
    names = [c[name] for name in ("id", "endpoint", "received_at", "reason", "length", "digest")]
    newest = select(*names, c.body.is_not(None).label("body_kept")).where(*wanted)
    found = queries.rows(inbox, newest.order_by(c.id.desc()).limit(rows_wanted(limit)))[::-1]
    found = [row | {"body_kept": bool(row["body_kept"])} for row in found]

    def show(where: Console) -> None:
        table("", counts, ("endpoint", "reason", "deliveries", "last"), empty="Nothing was refused.")(where)
        if found:
            columns = ("id", "endpoint", "received_at", "reason", "length", "digest", "body_kept")
            table("The newest", found, columns, empty="")(where)

    return Answer({"counts": counts, "rejections": found}, show)


@command()
@click.argument("endpoint")
@since_option("Only what was refused since.")
@click.option("--dry-run", is_flag=True, help="Only say what would be recorded.")
def reverify(endpoint: str, since: datetime | None, *, dry_run: bool) -> Answer:
    """Check refused deliveries of ENDPOINT again, after its secret or a clock was mended, and record what was genuine.

    Each is checked against the time at which it came, and recorded once. Only those can be checked whose bodies were
    kept (`keep_refused`); the others are counted.
    """
    inbox = state()
    of = endpoint_named(inbox, endpoint)
    done = inbox.reconciler.reverify(of, since, dry=dry_run)
    would = "would be recorded" if dry_run else "are recorded"
    lines = [
        f"{done.checked} deliveries checked: {done.genuine} are genuine; {done.recorded} events that were missing {would}."
    ]
    if done.still_refused:
        said = ", ".join(f"{number} {reason}" for reason, number in sorted(done.still_refused.items()))
        lines.append(f"Still refused: {said}.")
    if done.not_kept:
        lines.append(
            f"{done.not_kept} more cannot be checked, because their bodies were not kept (`keep_refused`); "
            + (
                f"`flask webhooks recover {of.name}` reads the provider's log instead."
                if of.provider.list_events is not None
                else f"{of.provider.name} has no log that can be read; ask it to send them again, or reconcile."
            )
        )
    return Answer({"endpoint": of.name, "dry_run": dry_run, **asdict(done)}, sentences(lines))
