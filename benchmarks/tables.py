"""Write the tables of docs/why/speed.md out of `results/latest.json`: `python -m benchmarks.tables`.

The page has a pair of comments for each table, and text of its own between them. What was not measured is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .machine import RESULTS

__all__ = ["fill"]

PAGE = Path(__file__).parent.parent / "docs" / "why" / "speed.md"
Results = Mapping[str, Any]
TIMES = "\u00d7"
RECIPE, BLUEPRINT, FRONT, DATABASE = (
    "usual recipe",
    "ours, blueprint",
    "ours, front door",
    "pgbench, the same INSERT",
)


class _NotMeasured(Exception):
    """The results do not hold it."""


def fill(page: str, results: Results) -> str:
    """The page with its tables as the results have them."""
    for name, make in TABLES.items():
        try:
            lines = make(results)
        except _NotMeasured as what:
            lines = [f"*Not measured: {what}.*"]
        page = _between(
            page, f"<!-- {name}: by python -m benchmarks.tables -->", f"<!-- end of {name} -->", lines
        )
    return page


def _between(page: str, start: str, end: str, lines: Sequence[str]) -> str:
    before, found, rest = page.partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{PAGE.name} has no {start} … {end}")
    return "\n".join((before + start, "", *lines, "", end + after))


def _median(results: Results, benchmark: str, variant: str) -> float:
    try:
        return float(results[benchmark][variant]["median"])
    except KeyError:
        raise _NotMeasured(f"`{benchmark}`") from None


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def _n(value: float, digits: int = 0) -> str:
    return f"{value:,.{digits}f}"


def _cells(results: Results, benchmark: str, variants: Iterable[str], digits: int = 0) -> list[str]:
    return [_n(_median(results, benchmark, variant), digits) for variant in variants]


def _door(results: Results) -> list[str]:
    rows = []
    for connections in (16, 32, 64):

        def of(door: str, what: str, connections: int = connections) -> float:
            return _median(results, "ack", f"{connections} connections, {door}: {what}")

        recipe, blueprint, front, database = (
            of(door, "rate") for door in (RECIPE, BLUEPRINT, FRONT, DATABASE)
        )
        rows.append(
            [
                str(connections),
                _n(recipe),
                f"{_n(blueprint)} ({blueprint / recipe:.1f} {TIMES})",
                f"{_n(front)} ({front / recipe:.1f} {TIMES})",
                _n(database),
                f"{front / database:.2f}",
                " / ".join(_n(of(door, "CPU")) for door in (RECIPE, BLUEPRINT, FRONT)),
                " / ".join(_n(of(door, "p99"), 1) for door in (RECIPE, FRONT, DATABASE)),
            ]
        )
    head = ("connections", RECIPE, "blueprint", "front door", "pgbench", "front door / pgbench", "CPU", "p99")
    return _table(head, rows)


def _open_loop(results: Results) -> list[str]:
    rows = []
    for share in ("25%", "50%", "75%"):
        cells = [share]
        for door in (RECIPE, BLUEPRINT, FRONT):
            names = [f"open loop at {share}, {door}: {what}" for what in ("p50", "p99", "p99.9")]
            cells.append(" / ".join(_cells(results, "ack", names, 1)))
        rows.append(cells)
    return _table(("of its own saturation", RECIPE, "blueprint", "front door"), rows)


def _workers(results: Results) -> list[str]:
    rows = []
    variants = (RECIPE, "ours, with a handler", "ours, mirror")
    for case in dict.fromkeys(name.partition(": ")[0] for name in results.get("apply", ())):
        rates = [_median(results, "apply", f"{case}: {variant}, rate") for variant in variants]
        costs = [_median(results, "apply", f"{case}: {variant}, CPU") for variant in variants]
        ours = [
            f"{_n(rate)} ({rate / rates[0]:.1f} {TIMES}, CPU {costs[0] / cost:.1f} {TIMES})"
            for rate, cost in zip(rates[1:], costs[1:], strict=True)
        ]
        rows.append([case, _n(rates[0]), *ours, " / ".join(_n(cost) for cost in costs)])
    if not rows:
        raise _NotMeasured("`apply`")
    return _table(("case", RECIPE, "ours, with a handler", "ours, mirror", "CPU"), rows)


def _reconcile(results: Results) -> list[str]:
    rows = []
    for size in ("10,000", "100,000", "1,000,000"):
        cells = [size]
        for way in ("listing in the database", "dictionary"):
            cells += _cells(results, "reconcile", [f"{way}, {size} objects, time"], 1)
            cells += _cells(results, "reconcile", [f"{way}, {size} objects, memory"])
        rows.append(cells)
    return _table(("objects", "ours, s", "ours, MB more", "dictionary, s", "dictionary, MB more"), rows)


IN_ORDER = "record, ids in order"


def _growth(results: Results) -> list[str]:
    steps = ["record", "claim and apply", "deliver again"]
    sizes = sorted(
        {m[1] for name in results.get("growth", ()) if (m := re.search(r", ([\d,]+) rows$", name))},
        key=lambda size: int(size.replace(",", "")),
    )
    if not sizes:
        raise _NotMeasured("`growth`")
    if f"{IN_ORDER}, {sizes[0]} rows" in results["growth"]:
        steps.append(IN_ORDER)
    rows, first = [], 0.0
    for size in sizes:
        costs = [_median(results, "growth", f"{step}, {size} rows") for step in steps]
        whole = costs[0] + costs[1]
        first = first or whole
        rows.append([size, *(_n(cost) for cost in costs), f"{whole / first:.2f}"])
    return _table(("rows", *steps, "recorded and applied, of the smallest"), rows)


def _backlog(results: Results) -> list[str]:
    def lags(case: str) -> list[str]:
        names = [f"{case}: lag of new events, {what}" for what in ("p50", "worst")]
        return _cells(results, "backlog", names, 2)

    own = [
        [size, *_cells(results, "backlog", [f"{size} open: drain"]), *lags(f"{size} open")]
        for size in ("1,000", "100,000", "1,000,000")
    ]
    others = [
        [f"{case}, new ones of others", "", *lags(case)]
        for case in ("50,000 open of one account", "100,000 open of an account on hold")
    ]
    return _table(("open events", "drained, events/s", "lag of new events, p50, s", "worst, s"), own + others)


def _embedded(results: Results) -> list[str]:
    rows = []
    for variant in ("usual recipe alone", "usual recipe, a worker beside it", "ours, a worker beside it"):
        of = {
            what: _median(results, "embedded", f"{variant}: {what}") for what in ("rate", "p99", "not taken")
        }
        locked = _median(results, "embedded", f"{variant}: “database is locked” in the logs")
        rows.append([variant, _n(of["rate"]), _n(of["p99"], 1), _n(of["not taken"], 1), _n(locked)])
    return _table(
        ("SQLite, 8 connections", "deliveries/s", "p99, ms", "not taken per 1,000", "“locked”"), rows
    )


def _all(benchmark: str, only: str = ".*") -> Callable[[Results], list[str]]:
    """All variants of one benchmark whose names match, with their ranges."""

    def rows(results: Results) -> list[str]:
        found = [
            (name, each) for name, each in results.get(benchmark, {}).items() if re.fullmatch(only, name)
        ]
        if not found:
            raise _NotMeasured(f"`{benchmark}`")
        lines = [
            [name, f"{each['median']:,g}", f"{each['min']:,g} to {each['max']:,g}", each["unit"]]
            for name, each in sorted(found)
        ]
        return _table(("variant", "median", "range", "unit"), lines)

    return rows


def _peers(results: Results) -> list[str]:
    found = [m for name in results.get("peers", ()) if (m := re.fullmatch(r"(.+), ours / (.+): rate", name))]
    if not found:
        raise _NotMeasured("`peers`")
    rows = []
    for mode, peer in (m.groups() for m in found):
        rates = _cells(results, "peers", [f"{mode}, ours: rate", f"{mode}, {peer}: rate"])
        names = [f"{mode}, ours / {peer}: {what}" for what in ("rate", "p99", "CPU")]
        rows.append([mode, peer, *rates, *_cells(results, "peers", names, 2)])
    head = ("mode", "peer", "ours, events/s", "theirs", "rate, ours / theirs", "p99", "CPU")
    return _table(head, rows)


def _profile(results: Results) -> list[str]:
    pattern = re.compile(r"(door|whole way|whole way, refetch), ((?!refetch).+?): (.+)")
    found = [m for name in results.get("profile", ()) if (m := pattern.fullmatch(name))]
    if not found:
        raise _NotMeasured("`profile`")
    whose = sorted({m.groups()[:2] for m in found}, key=lambda pair: (pair[0], pair[1] != "ours", pair[1]))
    parts = sorted({m[3] for m in found}, reverse=True)
    lines = []
    for mode, name in whose:
        names = [f"{mode}, {name}: {part}" for part in parts]
        together = sum(_median(results, "profile", name) for name in names)
        lines.append([mode, name, *_cells(results, "profile", names), f"{together:,.0f}"])
    return _table(("CPU, µs per event", "whose", *parts, "together"), lines)


TABLES: dict[str, Callable[[Results], list[str]]] = {
    "door": _door,
    "open loop": _open_loop,
    "workers": _workers,
    "reconcile": _reconcile,
    "growth": _growth,
    "backlog": _backlog,
    "publish": _all("publish", r"Valkey, .+: CPU"),
    "embedded": _embedded,
    "answers": _all("answers"),
    "peers": _peers,
    "profile": _profile,
}


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text(), json.loads((RESULTS / "latest.json").read_text())))
    print("docs/why/speed.md")
