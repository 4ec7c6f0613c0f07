"""What is public is said in `__all__`, and what the README shows works."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import webhooks
import workers

ROOT = Path(__file__).parent.parent


def modules() -> Iterator[str]:
    for package in (webhooks, workers):
        yield package.__name__
        for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            yield found.name


@pytest.fixture(params=list(modules()))
def module(request: pytest.FixtureRequest) -> ModuleType:
    """Every module that is shipped."""
    return importlib.import_module(request.param)


def test_all_is_true(module: ModuleType) -> None:
    names = module.__all__
    assert len(names) == len(set(names))
    assert [name for name in names if not hasattr(module, name)] == []


def test_a_star_import_brings_what_is_public_and_nothing_private(module: ModuleType) -> None:
    found: dict[str, object] = {}
    exec(f"from {module.__name__} import *", found)
    found.pop("__builtins__", None)
    assert set(found) == set(module.__all__)
    assert not [name for name in found if name.startswith("_")]


def test_importing_does_nothing(module: ModuleType) -> None:
    """Nothing happens on import: no thread, no connection, no app."""
    from flask import Flask
    from flask_sqlalchemy import SQLAlchemy
    from sqlalchemy import Engine

    assert not [
        name for name, value in vars(module).items() if isinstance(value, Flask | SQLAlchemy | Engine)
    ]


def test_what_the_package_offers_is_documented() -> None:
    for name in webhooks.__all__:
        assert getattr(webhooks, name).__doc__, name


README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("code", BLOCKS, ids=lambda code: code.strip().partition("\n")[0][:40])
def test_the_readmes_python_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block by itself, in an empty folder, with nothing configured."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLASK_INSTANCE_PATH", str(tmp_path))
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
