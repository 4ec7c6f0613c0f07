"""JSON as providers really send it: fast, strict, and never an exception other than Unreadable."""

from __future__ import annotations

import hashlib
import json
import re
from math import isfinite
from typing import Any, NoReturn

import msgspec

from .errors import Unreadable

__all__ = ["Json", "clean", "digest", "dumps", "loads"]

Json = Any
"""What a JSON text decodes to: dict, list, str, int, float, bool or None."""

BOM = b"\xef\xbb\xbf"
MAX_DEPTH = 200
"""No provider nests deeper than a few dozen; a deeper body would cost a recursion error somewhere downstream."""

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


def loads(body: bytes) -> Json:
    """Decode a JSON body; raise Unreadable for anything else.

    Big integers stay exact, one leading byte order mark is skipped, NaN and Infinity are refused (PostgreSQL refuses
    them too), and strings come without lone surrogates and NUL characters, which no database column could hold: each
    becomes U+FFFD. The bytes as received are kept beside, so nothing is lost.
    """
    body = body.removeprefix(BOM)
    try:
        value = _decode(body)
    except RecursionError:
        raise Unreadable("the JSON is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
        value = _loads_leniently(body)
    _require_depth(body, value)
    return clean(value) if b"\\u0000" in body else value


def _loads_leniently(body: bytes) -> Json:
    # The standard library reads one thing more: unpaired surrogates. They occur in user-written names.
    try:
        return clean(json.loads(body.decode(), parse_constant=_refuse_constant, parse_float=_finite))
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"the body is not JSON ({type(error).__name__})") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError("a number out of range")
    return value


def _require_depth(body: bytes, value: Json) -> None:
    # Counting brackets is cheap and rules out nearly every body; only a suspicious one is walked.
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in _children(node)]
        if not level:
            return
    raise Unreadable("the JSON is nested too deeply")


def _children(node: Json) -> list[Json]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []


def clean(value: Json) -> Json:
    """The same tree with every character that a database cannot hold replaced by U+FFFD."""
    if isinstance(value, str):
        if value.isascii() and "\0" not in value:
            return value
        return _UNSTORABLE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clean(item) for item in value]
    return value


def dumps(value: Json) -> bytes:
    """Encode as compact UTF-8 JSON."""
    return _encode(value)


def digest(value: Json) -> str:
    """The same for equal documents, whatever the order of their keys: the SHA-256 of the canonical text, in hex."""
    return hashlib.sha256(_encode_sorted(value)).hexdigest()
