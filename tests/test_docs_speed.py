"""The tables of docs/why/speed.md: what benchmarks/results/latest.json holds, and nothing that was not measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tables import TABLES, fill

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "why" / "speed.md").read_text()


@pytest.fixture
def results() -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / "latest.json").read_text())


def test_the_page_says_what_was_measured(results: Any) -> None:
    assert fill(PAGE, results) == PAGE


def test_another_run_changes_the_page(results: Any) -> None:
    rate = results["ack"]["32 connections, usual recipe: rate"]
    rate["median"] = 123.0
    assert "| 32 | 123 |" in fill(PAGE, results)


def test_what_was_not_measured_is_said_to_be_missing() -> None:
    assert fill(PAGE, {}).count("*Not measured: ") == len(TABLES)


def test_a_page_without_the_place_of_a_table_is_refused(results: Any) -> None:
    with pytest.raises(ValueError, match="end of door"):
        fill(PAGE.replace("<!-- end of door -->", ""), results)
