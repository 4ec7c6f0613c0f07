"""The pages of the reference that are made of the provider objects and of the closed list of outcomes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from ..models import EFFECT_STATES, OUTCOMES
from ..provider import Policy, Provider
from .output import duration

__all__ = ["FIGURES", "outcomes_page", "providers_page"]

UNKNOWN = "not published"
NOTHING = "-"
NO_SUCH_THING = "The provider offers no such thing."
NO_FIGURE = "no one figure"
"""Of a limit that is not published, or that differs from plan to plan or method to method: then the answers tell."""

FIGURES = ("respond_within", "retries", "retry_window", "log_window", "disables", "max_body")
"""The fields of a policy that are figures, each of which needs a source."""

NAMES = {
    "respond_within": "Deadline of an answer",
    "retries": "Retries",
    "retry_window": "From the first attempt to the last",
    "log_window": "Its log reaches back",
    "disables": "When we keep failing",
    "max_body": "Largest body",
}

OFFERS = {
    "list_changed": "Listing what changed",
    "list_events": "Its own log",
    "redeliver": "Redelivery",
    "endpoint_health": "The endpoint's health",
    "subscriptions": "Its endpoints",
    "enable": "Enabling an endpoint (`check --fix`)",
}

HEAD = """\
# Providers

What each provider signs, promises and offers, as its file in `webhooks/providers/` says it. This page is made from those
files: `flask webhooks providers --markdown` prints it, and a test fails when it is out of date. `{unknown}` means that the
provider's documentation gives no figure: we do not guess. Each figure stands with its source further down.

What a scheme does not sign decides what else guards an endpoint: where the **id** is not signed, the digest of the body is
a second key beside it; where the **body** is not signed, a delivery is a hint, and what it says is fetched or read in the
log; where the **time** is not signed, only the ledger stops a replay. Adyen signs named fields of each item, Mailgun a token
and a time; what `generic-hmac` signs is what you configure (shown is the default).
"""


def providers_page(providers: Sequence[Provider]) -> str:
    """The page about these providers, in Markdown."""
    parts = [
        HEAD.format(unknown=UNKNOWN),
        "## What is signed\n",
        _table(
            ("provider", "body", "time", "id", "dedup guard"),
            (
                (
                    _link(p),
                    *map(_mark, (p.signature.signs_body, p.signature.signs_time, p.signature.signs_id)),
                    "id, and digest of the body" if p.guards_body else "id",
                )
                for p in providers
            ),
        ),
        "## How it delivers\n",
        _table(
            ("provider", "deadline", "retries", "window", "log window", "when we keep failing"),
            (
                (
                    _link(p),
                    *(
                        _figure(p.policy, name)
                        for name in ("respond_within", "retries", "retry_window", "log_window", "disables")
                    ),
                )
                for p in providers
            ),
        ),
        "## What its API gives back\n",
        _table(
            (
                "provider",
                "fetch",
                "version",
                "list",
                "log",
                "redeliver",
                "health",
                "its endpoints",
                "enable",
                "API rate",
            ),
            (
                (
                    _link(p),
                    f"{len(p.kinds)} kind{'s' * (len(p.kinds) > 1)}" if p.fetch else NOTHING,
                    *map(
                        _mark,
                        (
                            p.version,
                            p.list_changed,
                            p.list_events,
                            p.redeliver,
                            p.endpoint_health,
                            p.subscriptions,
                            p.enable,
                        ),
                    ),
                    _rate(p),
                )
                for p in providers
            ),
        ),
        *(_section(p) for p in providers),
    ]
    return "\n".join(parts)


def outcomes_page() -> str:
    """The page about outcomes and the states of effects, in Markdown."""
    return "\n".join(
        (
            "# Outcomes\n",
            "Every event says why it did what it did: `flask webhooks explain ID` shows it, and the column `outcome` holds",
            "one of these and nothing else. This page is made from `webhooks/models.py`; a test fails when it is out of date.\n",
            _table(("outcome", "what it means, and what to do"), _coded(OUTCOMES)),
            "## States of an effect\n",
            _table(("state", "what it means, and what to do"), _coded(EFFECT_STATES)),
        )
    )


def _coded(meanings: dict[str, str]) -> Iterator[tuple[str, str]]:
    return ((f"`{name}`", meaning) for name, meaning in meanings.items())


def _section(provider: Provider) -> str:
    policy = provider.policy
    rate = provider.api.rate if provider.api is not None else None
    figures = [(NAMES[name], _figure(policy, name), _source(policy, name)) for name in FIGURES]
    figures.append(("Calls of its API", _rate(provider), f"<{rate.source}>" if rate else NOTHING))
    lines = [
        f"## {provider.name}\n",
        f"[Documentation]({provider.docs}); checked on {policy.checked}.\n",
        _table(("figure", "value", "source"), figures),
    ]
    if provider.kinds:
        lines.append(f"**Fetches**: {_list(provider.kinds)}.\n")
    for name, title in OFFERS.items():
        function: Callable[..., Any] | None = getattr(provider, name)
        untold = f"Cannot be done: {provider.untold[name]}" if name in provider.untold else NO_SUCH_THING
        said = inspect.getdoc(function) if function is not None else untold
        lines.append(f"**{title}**: {_flat(said or 'Yes.')}\n")
    if provider.final:
        lines.append(
            f"**Read again until their last state**: {_list(provider.final)}; their lists only know when they were created.\n"
        )
    if provider.authoritative:
        lines.append("**What should decide a flow**\n")
        lines.append(
            _table(
                ("flow", "authoritative", "also sent, should not decide", "source"),
                (
                    (
                        f"`{flow}`",
                        _list(types),
                        _list(provider.companions.get(flow, ())) or NOTHING,
                        f"<{source}>",
                    )
                    for flow, (types, source) in provider.authoritative.items()
                ),
            )
        )
    if provider.sample_types:
        lines.append(
            f"**`flask webhooks send {provider.name} TYPE`** knows {_list(provider.sample_types)}.\n"
        )
    return "\n".join(lines)


def _figure(policy: Policy, name: str) -> str:
    value = getattr(policy, name)
    if name == "retries":
        return _retries(policy)
    if name == "disables":
        return _disables(policy)
    if value is None:
        return "no log in its API" if name == "log_window" else UNKNOWN
    if isinstance(value, timedelta):
        return _span(value)
    return f"{value / 1024 / 1024:g} MiB"


def _span(length: timedelta) -> str:
    """Exact, unlike what a table in a terminal shows: a figure must be found again at its source."""
    seconds = length.total_seconds()
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            whole, rest = divmod(seconds, size)
            return f"{whole:g} {unit}" + (f" {_span(timedelta(seconds=rest))}" if rest else "")
    return duration(length)


def _retries(policy: Policy) -> str:
    if policy.retries is None:
        return UNKNOWN
    return "never" if policy.never_retries else f"after {', '.join(map(_span, policy.retries))}"


def _disables(policy: Policy) -> str:
    found = policy.disables
    if found is None:
        return "nothing is said"
    after = [
        f"after {_span(found.after)}" if found.after else "",
        f"after {found.after_failures} failures" if found.after_failures else "",
    ]
    return ": ".join(filter(None, (*after, found.how)))


def _rate(provider: Provider) -> str:
    rate = provider.api.rate if provider.api is not None else None
    if rate is None:
        return NOTHING if provider.api is None else NO_FIGURE
    return f"{rate.calls:,} in {_span(rate.per)}"


def _source(policy: Policy, name: str) -> str:
    return f"<{policy.sources[name]}>" if name in policy.sources else NOTHING


def _link(provider: Provider) -> str:
    return f"[{provider.name}](#{provider.name})"


def _mark(value: object) -> str:
    return "yes" if value else NOTHING


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _flat(text: str) -> str:
    return " ".join(text.split())


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
