"""What a page shows: filters out of the query, texts cut to a length that a page can hold."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from .. import jsontext
from ..errors import Unreadable
from ..models import OUTCOMES, STATES
from ..operating import queries
from ..operating.words import plain, utc
from ..state import State

__all__ = ["FILTERS", "Page", "body_shown", "data_shown", "headers_shown", "page_of", "shown", "when"]

FILTERS = ("at", "state", "outcome", "type", "about")
"""`at` is the endpoint: `url_for` has a use of its own for that word."""
PER_PAGE = 50
SHOWN = 20_000
"""Characters of a body or of an object's data."""


@dataclass(frozen=True)
class Page:
    """Some events, newest first."""

    wanted: Mapping[str, str]
    before: int | None = None
    last: list[int] = field(default_factory=list)

    def rows(self, inbox: State) -> list[dict[str, Any]]:
        """At most PER_PAGE events; `older` then says whether there are more."""
        state = self.wanted.get("state")
        found = queries.events(
            inbox,
            endpoint=self.wanted.get("at"),
            states=() if state is None else queries.OPEN if state == "open" else (state,),
            outcome=self.wanted.get("outcome"),
            type_=self.wanted.get("type"),
            about=self.wanted.get("about"),
            before=self.before,
            limit=PER_PAGE + 1,
        )[::-1]
        if len(found) > PER_PAGE:
            self.last.append(int(found[PER_PAGE - 1]["id"]))
        return found[:PER_PAGE]

    @property
    def older(self) -> dict[str, Any] | None:
        """The query of the next page; None: this is the last one. Known after `rows`."""
        return {**self.wanted, "before": self.last[-1]} if self.last else None


def page_of(query: Mapping[str, str], endpoints: Collection[str]) -> Page:
    """What a query asks for; what it cannot mean is left out."""
    allowed: dict[str, Collection[str]] = {
        "at": endpoints,
        "state": {*STATES, "open"},
        "outcome": OUTCOMES,
    }
    wanted = {name: query.get(name, "").strip()[:255] for name in FILTERS}
    wanted = {name: value for name, value in wanted.items() if value and value in allowed.get(name, {value})}
    before = query.get("before", "")
    number = int(before) if before.isascii() and before.isdigit() and len(before) < 19 else None
    return Page(wanted, number)


def body_shown(body: bytes | None) -> str | None:
    """A body as text: JSON indented, bytes that are no text replaced; None if it was not kept."""
    if body is None:
        return None
    try:
        text = json.dumps(jsontext.loads(body), indent=2, ensure_ascii=False)
    except (Unreadable, ValueError):
        text = body.decode(errors="replace")
    return _cut(text)


def data_shown(data: Any) -> str:
    """An object's data, indented."""
    return "" if data is None else _cut(json.dumps(data, indent=2, ensure_ascii=False))


def headers_shown(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """The headers that were kept, none of which is a signature."""
    return sorted((plain(name), plain(value)) for name, value in headers.items())


def shown(value: Any) -> Any:
    """The value with nothing in its texts that could turn a line around or is no character."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, Mapping):
        return {shown(key): shown(item) for key, item in value.items()}
    return [shown(item) for item in value] if isinstance(value, list) else value


def when(moment: datetime | None) -> str:
    """An instant to the second, in UTC."""
    found = utc(moment)
    return f"{found:%Y-%m-%d %H:%M:%S}" if found is not None else "-"


def _cut(text: str) -> str:
    text = plain(text)
    return text if len(text) <= SHOWN else text[:SHOWN] + f"\n… {len(text) - SHOWN} more characters"
