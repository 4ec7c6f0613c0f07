"""Flows: who decides what, what else the provider sends for the same fact, and what was decided last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
from rich.console import Console
from sqlalchemy import func, select

from ..handlers import Handler
from ..operating import queries
from ..provider import Provider
from ..state import State
from .output import Answer, command, sentences, state, table, words

__all__ = ["flows"]

LAST = 5


@command()
@click.option("--flow", help="Only this flow.")
def flows(*, flow: str | None) -> Answer:
    """Every flow: its trigger, the types that are ignored for it on purpose, and its last decisions.

    The counts are of the events that are still in the inbox.
    """
    inbox = state()
    owners = [handler for handler in inbox.handlers.flows() if flow in {None, handler.flow}]
    if flow is not None and not owners:
        names = ", ".join(sorted(str(h.flow) for h in inbox.handlers.flows())) or "none"
        raise click.ClickException(f"there is no flow {flow!r}; there are {names}")
    found = [_described(inbox, handler) for handler in owners]

    def show(where: Console) -> None:
        if not found:
            where.print(
                "No handler has a flow. Give one flow= and once_per=, where two events mean one fact."
            )
        for one in found:
            sentences(_lines(one))(where)
            table(
                "", one["last"], ("decided_at", "key", "event_id", "type"), empty="  Nothing is decided yet."
            )(where)

    return Answer(found, show)


def _described(inbox: State, handler: Handler) -> dict[str, Any]:
    assert handler.flow is not None
    providers = {e.provider.name: e.provider for e in inbox.endpoints.values() if handler.is_for(e)}
    endpoints = [e.name for e in inbox.endpoints.values() if handler.is_for(e)]
    known = [fact for provider in providers.values() if (fact := _fact(provider, handler)) is not None]
    authoritative = [(types, source) for types, source, _ in known]
    return {
        "flow": handler.flow,
        "handler": handler.name,
        "where": handler.where,
        "endpoints": endpoints,
        "triggers": list(handler.types),
        "once_per": _named(handler.once_per or "id"),
        "condition": handler.when is not None,
        "replaces": sorted(handler.replaces),
        "authoritative": [{"types": list(types), "source": source} for types, source in authoritative],
        "ignored": [
            row
            for _, _, companions in known
            for type_ in companions
            if (row := _ignored(inbox, handler, endpoints, type_)) is not None
        ],
        "decided": _count(inbox, handler.flow),
        "last": _last(inbox, handler.flow),
    }


def _fact(provider: Provider, handler: Handler) -> tuple[tuple[str, ...], str, tuple[str, ...]] | None:
    """What the provider says of this flow: by its name, or by what triggers it."""
    names = list(provider.authoritative)
    names.sort(key=lambda name: name != handler.flow)
    for name in names:
        types, source = provider.authoritative[name]
        companions = provider.companions.get(name, ())
        if name == handler.flow or {*handler.types} & {*types, *companions}:
            return types, source, tuple(t for t in (*types, *companions) if not handler.wants(t))
    return None


def _ignored(inbox: State, handler: Handler, endpoints: list[str], type_: str) -> dict[str, Any] | None:
    """A type that comes for the same fact and does not decide it; who else wants it, and how many came."""
    c = inbox.tables.events.c
    others = {
        other.name
        for endpoint in (inbox.endpoints[name] for name in endpoints)
        for other in inbox.handlers.ons(endpoint, type_)
        if other is not handler
    }
    came = queries.rows(
        inbox,
        select(func.count().label("number")).where(
            c.type == type_, c.endpoint.in_(endpoints), c.origin != "fresh"
        ),
    )[0]["number"]
    return {"type": type_, "other_handlers": sorted(others), "received": came}


def _count(inbox: State, flow: str) -> int:
    c = inbox.tables.flow_keys.c
    return int(queries.rows(inbox, select(func.count().label("number")).where(c.flow == flow))[0]["number"])


def _last(inbox: State, flow: str) -> list[dict[str, Any]]:
    c, e = inbox.tables.flow_keys.c, inbox.tables.events.c
    joined = inbox.tables.flow_keys.outerjoin(inbox.tables.events, e.id == c.event_id)
    return queries.rows(
        inbox,
        select(c.decided_at, c.key, c.event_id, c.handler, e.type, e.dedup_key)
        .select_from(joined)
        .where(c.flow == flow)
        .order_by(c.decided_at.desc(), c.key)
        .limit(LAST),
    )


def _named(key: Any) -> str:
    return key if isinstance(key, str) else f"{getattr(key, '__qualname__', key)}()"


def _lines(one: dict[str, Any]) -> Iterator[str]:
    condition = ", if its condition holds" if one["condition"] else ""
    yield f"{one['flow']}: once per {one['once_per']}{condition}, {one['decided']} decided"
    yield f"  decided by {one['handler']} ({one['where']}) on {' or '.join(one['triggers'])}"
    if one["replaces"]:
        yield f"  replaces {', '.join(one['replaces'])}: what it has decided counts"
    for fact in one["authoritative"]:
        yield f"  the provider names {' or '.join(fact['types'])} ({fact['source']})"
    for ignored in one["ignored"]:
        others = (
            f"; wanted by {words(ignored['other_handlers'])} for something else"
            if ignored["other_handlers"]
            else ""
        )
        yield f"  ignored on purpose: {ignored['type']} ({ignored['received']} received{others})"
