from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutations.table import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]

LONGEST = 240
"""Seconds for the few tests of one mutation. Tests that hang have noticed nothing."""

TESTS_FAILED = 1


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the tests run on; the work tree is never touched."""
    for name in ("webhooks", "workers", "tests", "migrations"):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "mutations", "faults")
        )
    for name in ("pyproject.toml", "wsgi.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def outcome_of(mutation: Mutation, tree: Path) -> tuple[int, str]:
    """How pytest ends when it runs its tests in the copy, and what it says."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COVERAGE_", "COV_"))}
    only = "not slow" if mutation.on == "postgres" else "not slow and not postgres"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        only,
        *mutation.noticed_by,
    ]
    done = subprocess.run(
        command,
        cwd=tree,
        env=environment | {"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    return done.returncode, done.stdout[-3000:] + done.stderr[-1000:]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_the_text_to_be_broken_stands_there_exactly_once(mutation: Mutation) -> None:
    assert (ROOT / mutation.file).read_text().count(mutation.old) == 1
    assert mutation.new != mutation.old
    for test in mutation.noticed_by:
        file, _, name = test.partition("::")
        assert (ROOT / file).exists()
        assert not name or f"def {name.partition('[')[0]}(" in (ROOT / file).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_the_suite_notices_that(mutation: Mutation, tree: Path) -> None:
    path = tree / mutation.file
    path.write_text(path.read_text().replace(mutation.old, mutation.new))
    outcome, said = outcome_of(mutation, tree)
    assert outcome == TESTS_FAILED, f"nobody noticed that {mutation.what}\n{said}"
    assert "ImportError" not in said, "it must break while it runs, not when it is imported"
