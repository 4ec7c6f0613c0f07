"""Whether all is well, and what to do where it is not: check, doctor, issues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import click
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from flask import current_app
from rich.console import Console
from sqlalchemy import Table, inspect

from ..endpoints import Endpoint
from ..errors import WebhooksError
from ..inbox.marks import EVERYWHERE, Marks
from ..issues import KINDS, Finding
from ..operating import standing
from ..reconcile import Run
from ..state import State
from ..watch import BEAT
from . import probing
from .asking import endpoint_name, endpoint_named, endpoint_option
from .output import Answer, command, sentences, state, table, waiting

__all__ = ["check", "doctor", "issues", "test_alert"]

TODO = {
    "tables": "run `flask db upgrade` (in your own app `flask db migrate` before it), or db.create_all() where the app uses no "
    "migrations",
    "migrations": "run `flask db upgrade`",
    "workers": "start a Celery worker on the queues webhooks and webhooks-slow",
    "probe": "see its detail: the door did not take a delivery that is signed with our own secret",
    "api_version": "set the same version at the provider's endpoint and in WEBHOOKS[{endpoint!r}]",
    "broker": "start the broker, or correct CELERY's broker_url; until then only `flask webhooks work` applies events",
    "blueprint": 'call app.register_blueprint(webhooks.blueprint, url_prefix="/webhooks")',
    "configuration": "correct WEBHOOKS[{endpoint!r}]",
}
"""What to do about a finding of the set-up that is not good; for what can be an issue, its kind says it."""

ALL = EVERYWHERE
"""For findings that are about no endpoint in particular."""

ROUTE = "webhooks.receive"


@command()
@endpoint_option
@click.option(
    "--fix",
    is_flag=True,
    help="Enable what the provider has disabled or removed, where its API allows that; then recover and reconcile at once.",
)
def check(endpoint: str | None, *, fix: bool) -> Answer:
    """Ask the providers about our endpoints and look at the inbox; open and close issues.

    Nothing is changed at a provider without --fix. The exit code is 1, with a list of what to do, when anything is not
    good.
    """
    inbox = state()
    only = None if endpoint is None else endpoint_named(inbox, endpoint)
    with waiting("Asking the providers"):
        found = inbox.watch.check(only)
    if not fix:
        return _report(found)
    fixed = [_fixed(inbox, finding) for finding in found if not finding.good and finding.kind in FIXABLE]
    with waiting("Asking the providers again"):
        found = inbox.watch.check(only) if fixed else found
    return _report(found, fixed)


@command()
@click.option(
    "--public",
    is_flag=True,
    help="Send the signed probe over the network to `public_url`, as a provider would: redirects, proxies, certificates.",
)
def doctor(*, public: bool) -> Answer:
    """What `check` looks at, and the set-up around it: tables, migrations, broker, workers, beat, blueprint,
    configuration, and a signed probe of each endpoint, of which nothing is recorded.

    The exit code is 1, with a list of what to do, when anything is not good. Changes nothing at the provider.
    """
    inbox = state()
    tables = _tables(inbox)
    found = [
        tables,
        *_migrations(inbox),
        _broker(inbox),
        *_workers(inbox),
        _blueprint(),
        *map(_configuration, inbox.endpoints.values()),
    ]
    if tables.good:
        found.append(_beat(inbox))
        found += probing.probe_all(inbox, public=public)
        with waiting("Asking the providers"):
            found += inbox.watch.check()
    return _report(found)


@command("test-alert")
def test_alert() -> Answer:
    """Open an issue of kind `test` and close it: whoever is to be told must now have heard twice."""
    inbox = state()
    for good in (False, True):
        inbox.issues.enter([Finding(ALL, "test", good, "somebody tried whether alerts arrive")])
    said = "Two alerts were sent: one that the test is open, one that it is over. See the log for what could not be sent."
    return Answer({"sent": True}, sentences([said]))


@command()
@endpoint_option
@click.option("--all", "all_", is_flag=True, help="Also those that are over.")
@click.option(
    "--close",
    "close",
    type=int,
    metavar="ID",
    help="Close this issue by hand; it opens again if it is still bad.",
)
def issues(endpoint: str | None, *, all_: bool, close: int | None) -> Answer:
    """The open issues: one of a kind on an endpoint, opened and closed by `check`, the oldest first."""
    inbox = state()
    of = endpoint_name(inbox, endpoint)
    if close is not None and not inbox.issues.close(close):
        raise click.ClickException(f"there is no open issue {close}")
    found = [
        row | {"todo": _todo(row["kind"], row["endpoint"])}
        for row in standing.issues(inbox, endpoint=of, closed=all_)
    ]
    lines = [row | {"detail": (row["evidence"] or {}).get("detail")} for row in found]
    columns = ("id", "endpoint", "kind", "state", "opened_at", "closed_at", "detail", "todo")
    return Answer(
        found, table("", lines, columns, empty="No issue is open." if not all_ else "There was no issue yet.")
    )


FIXABLE = {"endpoint_disabled", "endpoint_missing"}
"""What a provider file's `enable` may mend: Shopify removes a subscription where others disable it."""


def _fixed(inbox: State, finding: Finding) -> str:
    """Enable the endpoint, then catch up at once; what was done, or why it was not."""
    endpoint = inbox.endpoints[finding.endpoint]
    try:
        inbox.watch.enable(endpoint)
    except WebhooksError as why:
        return f"{endpoint.name}: not enabled: {why}"
    done = [f"{endpoint.name}: enabled"]
    if endpoint.provider.list_events is not None or endpoint.provider.redeliver is not None:
        run = inbox.reconciler.recover(endpoint, redeliver=endpoint.provider.redeliver is not None)
        done.append(_said("recovered", run))
    if endpoint.provider.list_changed is not None and endpoint.fetches:
        done.append(_said("reconciled", inbox.reconciler.reconcile(endpoint)))
    return ", ".join(done)


def _said(what: str, run: Run | None) -> str:
    if run is None:
        return f"another run has already {what} it"
    return f"{what} ({run.healed} of {run.seen})" + (f" until an error: {run.error}" if run.error else "")


def _report(found: Sequence[Finding], fixed: Sequence[str] = ()) -> Answer:
    rows = [
        {
            "endpoint": finding.endpoint,
            "kind": finding.kind,
            "good": finding.good,
            "state": _state(finding),
            "detail": finding.detail,
            "evidence": finding.evidence,
            "todo": None if finding.good else _todo(finding.kind, finding.endpoint),
        }
        for finding in found
    ]
    good = all(finding.good for finding in found)

    def show(where: Console) -> None:
        table("", rows, ("endpoint", "kind", "state", "detail"), empty="No endpoint is configured.")(where)
        sentences([*fixed, *_what_to_do(rows)])(where)

    document = {"good": good, "findings": rows} | ({"fixed": list(fixed)} if fixed else {})
    return Answer(document, show, 0 if good else 1)


def _state(finding: Finding) -> str:
    """`good`, `bad`, or `unknown`: nothing bad was seen, and not everything could be looked at."""
    if not finding.good:
        return "bad"
    return "unknown" if finding.evidence.get("unknown") else "good"


def _what_to_do(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    rows = list(rows)
    bad = [row for row in rows if not row["good"]]
    unknown = [row for row in rows if row["state"] == "unknown"]
    if bad:
        yield "What to do:"
        for row in bad:
            yield f"- {row['endpoint']}, {row['kind']}: {row['todo']}"
    else:
        yield "Nothing is wrong with what could be looked at." if unknown else "All is well."
    if unknown:
        yield "Not known:"
        for row in unknown:
            yield f"- {row['endpoint']}, {row['kind']}: {row['detail']}"


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
    try:
        script = ScriptDirectory(str(migrate.directory))
    except CommandError:  # Flask-Migrate is there, and nobody has run `flask db init`
        return [Finding(ALL, "migrations", good=True, detail="the app has none")]
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


def _workers(inbox: State) -> list[Finding]:
    """Whether workers answer; nothing where the broker has no way to ask them (then beat's sweeps say it)."""
    number = inbox.bell.workers()
    if number is None:
        return []
    return [Finding(ALL, "workers", number > 0, f"{number} workers answer")]


def _beat(inbox: State) -> Finding:
    """Whether beat was ever heard; `check` says whether it still is."""
    heard = Marks(inbox.inbox).at(ALL, BEAT)
    if heard is None:
        detail = "not heard yet: start `celery beat` and a worker, or nothing is swept, recovered or checked by itself"
        return Finding(ALL, "beat", good=True, detail=detail, evidence={"unknown": [detail]})
    return Finding(ALL, "beat", good=True, detail=f"heard last at {heard:%Y-%m-%d %H:%M:%S} UTC")


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
