from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, samples

NAMES = sorted(TARGETS)

ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    10**30,
    1.5,
    "",
    " ",
    "\0",
    "\ud800",
    "x" * 3000,
    [],
    {},
    [[]],
    {"id": {}},
    "2026-99-99",
]


def mutated(body: bytes) -> st.SearchStrategy[bytes]:
    """The body with any value anywhere replaced by something that it should not be."""
    try:
        document = json.loads(body)
    except ValueError:
        return st.binary(max_size=200).map(lambda tail: body[: len(tail)] + tail)
    paths: list[list[Any]] = []

    def walk(value: Any, path: list[Any]) -> None:
        paths.append(path)
        items = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        )
        for key, inner in items:
            walk(inner, [*path, key])

    walk(document, [])

    def put(path: list[Any], odd: Any) -> bytes:
        copy = json.loads(body)
        if not path:
            return json.dumps(odd).encode()
        inner = copy
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = odd
        return json.dumps(copy).encode()

    return st.builds(put, st.sampled_from(paths), st.sampled_from(ODD))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20)
@given(st.data())
def test_whatever_comes_the_promise_holds(name: str, data: st.DataObject) -> None:
    provider = name.partition(" ")[2]
    if not provider:
        TARGETS[name](data.draw(st.binary(max_size=400)))
        return
    first = next(samples(provider))
    TARGETS[name](
        data.draw(
            st.binary(max_size=400)
            | st.builds(lambda kind, body: bytes([kind]) + body, st.integers(0, 63), mutated(first))
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=400)
@given(st.data())
def test_whatever_comes_the_promise_holds_for_longer(name: str, data: st.DataObject) -> None:
    test_whatever_comes_the_promise_holds.hypothesis.inner_test(name, data)  # type: ignore[attr-defined]
