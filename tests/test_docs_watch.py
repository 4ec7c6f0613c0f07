"""The pages about recover and watch name what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from webhooks.cli import COMMANDS
from webhooks.handlers import Late
from webhooks.issues import KINDS
from webhooks.reconcile import CAUSES

DOCS = Path(__file__).parent.parent / "docs"
PAGES = ["how-to/recover.md", "how-to/watch.md", "reference/issues.md"]


def test_every_kind_of_issue_is_in_the_reference_and_nothing_else() -> None:
    text = (DOCS / "reference/issues.md").read_text()
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == set(KINDS)


def test_every_cause_and_every_late_policy_is_explained() -> None:
    text = (DOCS / "how-to/recover.md").read_text()
    assert all(f"| `{cause}` |" in text for cause in CAUSES)
    assert all(f'`"{policy}"`' in text for policy in Late.__args__)  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_that_are_named_exist(page: str) -> None:
    text = (DOCS / page).read_text()
    for name in re.findall(r"flask webhooks ([a-z-]+)", text):
        assert name in COMMANDS, name
