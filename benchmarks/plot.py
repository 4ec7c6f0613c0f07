"""Draws results/latest.json into docs/figures/: `python -m benchmarks.plot`, and `make bench` when it is done.

Each figure says one thing, as a ratio to a baseline of the same run where there is one; the line across a bar is the range
over the rounds. Figures of benchmarks that are not in the file stay as they are. The same file gives the same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from .machine import RESULTS

__all__ = ["draw"]

FOLDER = Path(__file__).parent.parent / "docs" / "figures"
OURS, THEIRS, LIMIT = "#2563a8", "#b8bec7", "#e0a458"
STYLE = {
    "svg.hashsalt": "flask-webhook-inbox",
    "svg.fonttype": "path",  # looks the same wherever it is read
    "font.size": 10,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
Variants = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Bar:
    """One variant: its median, and its range over the rounds."""

    label: str
    median: float
    low: float
    high: float
    color: str

    @classmethod
    def of(cls, label: str, found: Mapping[str, Any], color: str, *, by: float = 1.0) -> Bar:
        return cls(label, found["median"] / by, found["min"] / by, found["max"] / by, color)


@dataclass(frozen=True)
class Panel:
    """Bars with one axis."""

    title: str
    axis: str
    bars: Sequence[Bar]
    digits: int = 1


def draw(results: Mapping[str, Variants]) -> list[Path]:
    """Draw what the results hold; return the files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    drawn = []
    with mpl.rc_context(STYLE):
        for name, (benchmark, panels) in FIGURES.items():
            found = [panel for panel in panels(results.get(benchmark, {})) if panel.bars]
            if found:
                drawn.append(_save(name, found))
    return drawn


def _save(name: str, panels: Sequence[Panel]) -> Path:
    heights = [len(panel.bars) for panel in panels]
    figure = Figure(figsize=(8, 0.34 * sum(heights) + 1.0 * len(panels)), layout="constrained")
    for axes, panel in zip(
        figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0], panels, strict=True
    ):
        _bars(axes, panel)
    path = FOLDER / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    # Matplotlib leaves white space at ends of lines, which editors would take away.
    path.write_text(re.sub(r"[ \t]+$", "", path.read_text(), flags=re.MULTILINE))
    return path


def _bars(axes: Any, panel: Panel) -> None:
    bars = list(reversed(panel.bars))
    middle = [bar.median for bar in bars]
    ranges = [[bar.median - bar.low for bar in bars], [bar.high - bar.median for bar in bars]]
    axes.barh([bar.label for bar in bars], middle, color=[bar.color for bar in bars], height=0.68)
    axes.errorbar(
        middle, range(len(bars)), xerr=ranges, fmt="none", ecolor="#333333", elinewidth=1, capsize=2.5
    )
    most = max(bar.high for bar in bars)
    for row, bar in enumerate(bars):
        axes.text(bar.high + most * 0.015, row, f"{bar.median:,.{panel.digits}f}", va="center", fontsize=9)
    axes.set_xlim(0, most * 1.13)
    axes.set_title(panel.title, pad=8)
    axes.set_xlabel(panel.axis, fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")


def _color(label: str) -> str:
    if label.startswith(("pgbench", "bare", "Flask alone")):
        return LIMIT
    return OURS if label.startswith(("ours", "the bell", "listing")) else THEIRS


def _ratios(found: Variants, pattern: str, title: str, baseline: str) -> Panel:
    """A panel of all variants that match, as multiples of one of them; `(?P<label>)` names each."""
    matched = {m["label"]: variant for name, variant in found.items() if (m := re.fullmatch(pattern, name))}
    if baseline not in matched:
        return Panel(title, "", ())
    by = matched[baseline]["median"]
    bars = [Bar.of(label, variant, _color(label), by=by) for label, variant in matched.items()]
    bars.sort(key=lambda bar: bar.median)
    return Panel(title, f"times “{baseline}”", bars)


def _door(found: Variants) -> list[Panel]:
    pattern = r"32 connections, (?P<label>.+): "
    cpu = _ratios(found, pattern + "CPU", "The door: CPU of the server per delivery", "usual recipe")
    return [
        _ratios(found, pattern + "rate", "The door: deliveries per second, 32 connections", "usual recipe"),
        Panel(cpu.title, cpu.axis, cpu.bars, digits=2),
    ]


def _workers(found: Variants) -> list[Panel]:
    cases = list(dict.fromkeys(name.partition(": ")[0] for name in found))
    return [
        _ratios(
            found,
            re.escape(case) + ": (?P<label>.+), rate",
            f"One worker: events per second, {case}",
            "usual recipe",
        )
        for case in cases
    ]


def _reconcile(found: Variants) -> list[Panel]:
    panels = []
    for what, axis in (("memory", "MB more than with no objects"), ("time", "s")):
        pattern = rf"(?P<way>.+), (?P<size>[\d,]+) objects, {what}"
        matched = [(m, variant) for name, variant in found.items() if (m := re.fullmatch(pattern, name))]
        matched.sort(key=lambda each: (int(each[0]["size"].replace(",", "")), each[0]["way"]))
        bars = [
            Bar.of(f"{m['way']}, {m['size']} objects", variant, _color(m["way"])) for m, variant in matched
        ]
        panels.append(Panel(f"Reconcile: {what}", axis, bars))
    return panels


def _growth(found: Variants) -> list[Panel]:
    pattern = re.compile(r"(?P<step>.+), (?P<size>[\d,]+) rows / (?P<least>[\d,]+)")
    matched = [(m, variant) for name, variant in found.items() if (m := pattern.fullmatch(name))]
    matched.sort(key=lambda each: (each[0]["step"], int(each[0]["size"].replace(",", ""))))
    bars = [Bar.of(f"{m['step']}, {m['size']} rows", variant, OURS) for m, variant in matched]
    least = matched[0][0]["least"] if matched else ""
    return [Panel("Growth: cost per event as the inbox fills", f"times the cost with {least} rows", bars, 2)]


def _peers(found: Variants) -> list[Panel]:
    panels = []
    for what, title in (
        ("rate", "Peers: events per second, ours / theirs"),
        ("CPU", "Peers: CPU per event, ours / theirs"),
    ):
        pattern = re.compile(rf"(?P<mode>.+), ours / (?P<peer>.+): {what}")
        matched = [(m, variant) for name, variant in found.items() if (m := pattern.fullmatch(name))]
        bars = [Bar.of(f"{m['peer']}: {m['mode']}", variant, OURS) for m, variant in matched]
        axis = "more is better; 1 is the same" if what == "rate" else "less is better; 1 is the same"
        panels.append(Panel(title, axis, sorted(bars, key=lambda bar: bar.label), 2))
    return panels


FIGURES: dict[str, tuple[str, Callable[[Variants], list[Panel]]]] = {
    "door": ("ack", _door),
    "workers": ("apply", _workers),
    "reconcile": ("reconcile", _reconcile),
    "growth": ("growth", _growth),
    "peers": ("peers", _peers),
}
"""File → benchmark, and what of it is drawn."""


if __name__ == "__main__":
    for file in draw(json.loads((RESULTS / "latest.json").read_text())):
        print(f"docs/figures/{file.name}")
