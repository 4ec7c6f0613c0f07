"""`flask webhooks providers`: what every provider does and offers, as its file says."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console

from .. import providers as _providers
from ..provider import Disables, Provider
from .matrix import providers_page
from .output import Answer, command, plain, table, words

__all__ = ["describe", "providers"]

COLUMNS = (
    "name",
    "signs",
    "dedup_guard",
    "respond_within",
    "retries",
    "retry_window",
    "log_window",
    "kinds",
    "offers",
    "settings",
)


@command(app=False)
@click.argument("name", required=False)
@click.option("--markdown", is_flag=True, help="Print the page of the reference, in Markdown.")
def providers(name: str | None, *, markdown: bool) -> Answer | None:
    """What the providers sign, promise and offer: one table of all, or everything about the one called NAME.

    `unknown` means that the provider's documentation does not say it. Needs no app.
    """
    found = [_providers.get(each) for each in ([name] if name else _providers.names())]
    if markdown:
        click.echo(providers_page(found), nl=False)
        return None
    rows = [describe(each) for each in found]
    if name:
        return Answer(rows[0], lambda where: _one(where, rows[0], found[0]))
    lines = [row | _said(each) | {"kinds": len(row["kinds"])} for row, each in zip(rows, found, strict=True)]
    return Answer(rows, table("", lines, COLUMNS, empty="There is no provider."))


def describe(provider: Provider) -> dict[str, Any]:
    """The facts of a provider file as a document; None is what the provider's documentation does not say."""
    signature, policy = provider.signature, provider.policy
    return {
        "name": provider.name,
        "docs": provider.docs,
        "signs": {"body": signature.signs_body, "time": signature.signs_time, "id": signature.signs_id},
        "dedup_guard": "body" if provider.guards_body else "id",
        "checked": policy.checked.isoformat(),
        "respond_within": policy.respond_within,
        "retries": policy.retries,
        "retry_window": policy.retry_window,
        "log_window": policy.log_window,
        "disables": _disables(policy.disables),
        "max_body": policy.max_body,
        "ordered": policy.ordered,
        "kinds": provider.kinds,
        "fetch": provider.fetch is not None,
        "version": provider.version is not None,
        "list_changed": provider.list_changed is not None,
        "list_events": provider.list_events is not None,
        "redeliver": provider.redeliver is not None,
        "endpoint_health": provider.endpoint_health is not None,
        "subscriptions": provider.subscriptions is not None,
        "enable": provider.enable is not None,
        "untold": dict(provider.untold),
        "settings": provider.settings,
        "required": provider.required,
        "sample_types": provider.sample_types,
        "flows": {flow: types for flow, (types, _) in provider.authoritative.items()},
        "sources": policy.sources,
    }


def _disables(disables: Disables | None) -> dict[str, Any] | None:
    if disables is None:
        return None
    return {"after": disables.after, "after_failures": disables.after_failures, "how": disables.how or None}


def _said(provider: Provider) -> dict[str, Any]:
    """The facts as people read them in a table."""
    signature, policy = provider.signature, provider.policy
    signs = {"body": signature.signs_body, "time": signature.signs_time, "id": signature.signs_id}
    offers = {
        "fetch": provider.fetch,
        "list": provider.list_changed,
        "log": provider.list_events,
        "redeliver": provider.redeliver,
        "health": provider.endpoint_health,
        "endpoints": provider.subscriptions,
        "enable": provider.enable,
    }
    retries = (
        "unknown"
        if policy.retries is None
        else "never"
        if policy.never_retries
        else f"{len(policy.retries)} times"
    )
    return {
        "signs": [part for part, signed in signs.items() if signed],
        "dedup_guard": "id and body" if provider.guards_body else "id",
        "respond_within": policy.respond_within or "unknown",
        "retries": retries,
        "retry_window": "unknown" if policy.retry_window is None else policy.retry_window,
        "log_window": policy.log_window,
        "offers": [name for name, offered in offers.items() if offered is not None],
        "settings": [
            f"{name} (required)" if name in provider.required else name for name in provider.settings
        ],
    }


def _one(where: Console, row: dict[str, Any], provider: Provider) -> None:
    for name, value in (row | _said(provider)).items():
        where.print(f"{plain(name).replace('_', ' ')}: ", words(value), sep="", soft_wrap=True)
