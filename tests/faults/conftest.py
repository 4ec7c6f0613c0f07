"""One deployment for the tests of a module: a fault finds it as the last one left it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.conftest import _available
from tests.faults.deployment import Deployment


class Rented:
    """A deployment that is made anew after a test that failed."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory, self._made = factory, None  # type: tuple[pytest.TempPathFactory, Deployment | None]

    def get(self) -> Deployment:
        if self._made is not None and not self._made.whole:
            self.close()
        if self._made is None:
            with _available():
                made = Deployment(Path(self._factory.mktemp("deployment")))
            made.__enter__()
            self._made = made
            made.start("web", "worker", "beat")
        self._made.whole = False
        return self._made

    def close(self) -> None:
        if self._made is not None:
            self._made.__exit__(None, None, None)
            self._made = None


@pytest.fixture(scope="module")
def rented(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rented]:
    made = Rented(tmp_path_factory)
    yield made
    made.close()


@pytest.fixture
def deployment(rented: Rented) -> Deployment:
    """Web, worker and beat. The test ends with `assert_whole`, and the next one gets what it left."""
    return rented.get()


Survive = Callable[[Deployment, Callable[[Deployment], AbstractContextManager[None]]], None]


@pytest.fixture
def survive() -> Survive:
    """Let traffic flow before, during and after a fault, then ask for the verdict."""

    def run(d: Deployment, fault: Callable[[Deployment], AbstractContextManager[None]]) -> None:
        d.traffic(10)
        with fault(d):
            d.traffic(30)
        d.traffic(10)
        d.settle()
        d.assert_whole()

    return run
