"""The pages of the reference say what the code says; each figure has a source."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from webhooks import providers
from webhooks.cli.matrix import FIGURES, outcomes_page, providers_page

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
OURS = [
    name
    for name in providers.names()
    if (Path(providers.__file__).parent / f"{name.replace(chr(45), chr(95))}.py").exists()
]
"""Without those that other installed packages register."""


def test_the_page_about_providers_is_what_their_files_say() -> None:
    page = providers_page([providers.get(name) for name in OURS])
    assert (REFERENCE / "providers.md").read_text() == page, (
        "run: flask webhooks providers --markdown > docs/reference/providers.md"
    )


def test_the_page_about_outcomes_is_what_the_models_say() -> None:
    assert (REFERENCE / "outcomes.md").read_text() == outcomes_page(), (
        "run: python -c 'from webhooks.cli.matrix import *; print(outcomes_page(), end=\"\")' > docs/reference/outcomes.md"
    )


@pytest.mark.parametrize("name", OURS)
def test_every_figure_has_a_source(name: str) -> None:
    policy = providers.get(name).policy
    figures = {field for field in FIGURES if getattr(policy, field) is not None}
    assert figures <= set(policy.sources), figures - set(policy.sources)
    assert set(policy.sources) <= figures, "a source for something that the policy does not say"
    assert all(source.startswith("https://") for source in policy.sources.values())


@pytest.mark.parametrize("name", OURS)
def test_every_flow_has_a_source_and_what_is_offered_says_what_it_misses(name: str) -> None:
    provider = providers.get(name)
    assert all(types and source.startswith("https://") for types, source in provider.authoritative.values())
    for offered in (provider.list_changed, provider.list_events):
        assert offered is None or "Misses" in (offered.__doc__ or "")


@pytest.mark.parametrize("name", OURS)
def test_what_an_api_cannot_tell_about_our_endpoints_is_said_with_the_reason(name: str) -> None:
    provider = providers.get(name)
    asks = ("endpoint_health", "subscriptions", "enable")
    assert set(provider.untold) == {each for each in asks if getattr(provider, each) is None}
    assert all(why.endswith(".") for why in provider.untold.values())


def test_the_command_prints_the_page_of_one_provider() -> None:
    command = [sys.executable, "-m", "flask", "webhooks", "providers", "paddle", "--markdown"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "| Deadline of an answer | 5 s | <https://developer.paddle.com/" in done.stdout
    assert "## stripe" not in done.stdout
