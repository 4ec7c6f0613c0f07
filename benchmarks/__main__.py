"""`make bench`, or `python -m benchmarks [NAME …]`: run benchmarks, print them, write results/latest.json."""

from __future__ import annotations

import sys
from importlib import import_module

from rich.console import Console
from rich.table import Table

from .machine import Figures, write

BENCHMARKS = (
    "verify",
    "answers",
    "ack",
    "apply",
    "publish",
    "reconcile",
    "growth",
    "backlog",
    "embedded",
    "peers",
    "profile",
)


def main(names: list[str]) -> None:
    console = Console()
    for name in names or BENCHMARKS:
        if name not in BENCHMARKS:
            sys.exit(f"there is no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
        found: Figures = import_module(f"benchmarks.{name}").run()
        path = write({name: found})  # at once: the next one may take an hour, and fail
        table = Table("variant", "median", "range", "unit", title=name, title_justify="left")
        for variant, figures in found.items():
            table.add_row(
                variant,
                f"{figures['median']:,}",
                f"{figures['min']:,} to {figures['max']:,}",
                figures["unit"],
            )
        console.print(table)
        console.print(f"written to {path.relative_to(path.parent.parent.parent)}\n")


main(sys.argv[1:])
