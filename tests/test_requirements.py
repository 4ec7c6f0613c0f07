"""What `make` installs is pinned, by hash, and says nothing of where it came from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "requirements").glob("*.txt"))


def pins(file: Path) -> dict[str, tuple[str, str]]:
    """Name and marker of each pin → its version and hashes."""
    logical = re.sub(r"\\\n", " ", file.read_text())
    lines = [line for line in logical.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    found = {}
    for line in lines:
        match = re.fullmatch(
            r"([a-z0-9-]+)(?:\[[a-z,]+\])?==(\S+)( ; .+?)?\s+(--hash=\S+(?:\s+--hash=\S+)*)\s*", line
        )
        assert match, f"{file.name}: {line[:80]}"
        found[f"{match[1]}{match[3] or ''}"] = (match[2], match[4])
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_line_is_one_version_with_its_hashes(file: Path) -> None:
    assert pins(file)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_index_and_no_path_is_named(file: Path) -> None:
    text = file.read_text()
    assert "://" not in text
    assert "--index" not in text
    assert "--extra-index" not in text
    assert "--find-links" not in text
    assert not re.search(r"(^|\s)/\w", text)


def test_the_files_agree_with_each_other() -> None:
    """They are installed into one environment."""
    seen: dict[str, set[str]] = {}
    for file in FILES:
        for key, (version, _) in pins(file).items():
            name, _, marker = key.partition(" ; ")
            # One file may hold two versions of a package, for different Pythons.
            seen.setdefault(f"{name} ; {marker}" if "python_full_version" in marker else name, set()).add(
                version
            )
    assert {name: versions for name, versions in seen.items() if len(versions) > 1} == {}
