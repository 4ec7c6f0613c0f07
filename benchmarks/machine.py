"""What the figures were measured on, and where they go."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = ["RESULTS", "ROUNDS", "Figures", "describe", "figure", "write"]

ROUNDS = int(os.environ.get("BENCHMARK_ROUNDS", "5"))
"""How often each variant is measured."""

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("flask", "sqlalchemy", "psycopg", "celery", "msgspec", "urllib3", "granian")

Figures = Mapping[str, Mapping[str, Any]]
"""Variant → {"median", "min", "max", "unit"}."""


def figure(samples: Sequence[float], unit: str) -> dict[str, Any]:
    """The median and the range of several rounds."""
    return {
        "median": round(statistics.median(samples), 3),
        "min": round(min(samples), 3),
        "max": round(max(samples), 3),
        "unit": unit,
        "rounds": len(samples),
    }


def describe() -> dict[str, Any]:
    """The machine and the versions; no name, no path."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "load": os.getloadavg()[0],
    }


def write(results: Mapping[str, Figures]) -> Path:
    """Put these benchmarks into `results/latest.json`; others that are there stay."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "latest.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    known.update({name: dict(figures) for name, figures in results.items()})
    known["machine"] = describe()
    path.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
    return path
