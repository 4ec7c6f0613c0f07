"""The pytest plug-in: `simulator("stripe")` in any test of an app that uses this package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .simulator import Simulator

__all__ = ["simulator"]


@pytest.fixture
def simulator() -> Iterator[Callable[[str], Simulator]]:
    """Start a simulated provider: `stripe = simulator("stripe")`; it ends with the test."""
    from .simulator import Simulator  # noqa: PLC0415 - a plug-in is imported in every test run, wanted or not

    with ExitStack() as stack:
        yield lambda provider: stack.enter_context(Simulator(provider))
