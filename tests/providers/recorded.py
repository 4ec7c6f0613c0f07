"""What the tests of single providers share: their recordings, signed vectors, garbage, and an API out of a script.

A recording is one delivery, written by us in the provider's way: `headers`, `body` (a text, or a value that is sent as
compact JSON) and `expected`, a list with the facts of each envelope. Facts that are left out are empty.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from webhooks.errors import ApiRefused, SignatureError, Unreadable
from webhooks.provider import Envelope, Json, Provider, Request, Sample

HERE = Path(__file__).parent
VECTORS = HERE.parents[2] / "shared" / "vectors"
"""Signed requests with the right verdict; kept beside the repository, and not everywhere."""

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
EMPTY = {
    "object": None,
    "path": "",
    "gone": False,
    "occurred_at": None,
    "account": "",
    "livemode": None,
    "correlation": "",
    "nonce": "",
}


@dataclass(frozen=True)
class Recording:
    name: str
    request: Request
    expected: Sequence[Mapping[str, Any]]


def recordings(provider: str) -> list[Recording]:
    return [_recording(path) for path in sorted((HERE / provider).glob("*.json"))]


def _recording(path: Path) -> Recording:
    raw = json.loads(path.read_text())
    body = raw["body"] if isinstance(raw["body"], str) else json.dumps(raw["body"], separators=(",", ":"))
    expected = [EMPTY | facts for facts in raw["expected"]]
    return Recording(path.stem, Request("POST", "", raw["headers"], body.encode()), expected)


ANY_DIGEST = "sha256:?"
"""What a recording expects of a key that is made of the content."""


def assert_reads_as_recorded(provider: Provider, recording: Recording) -> None:
    """The delivery has the expected envelopes, also when it is read again with the headers that are kept."""
    given = recording.request
    kept = {
        name: given.headers[name] for name in ("Content-Type", *provider.headers) if name in given.headers
    }
    for request in (given, Request("POST", "", kept, given.body)):
        found = [facts(envelope) for envelope in provider.parse(request)]
        for is_, expected in zip(found, recording.expected, strict=True):
            if expected["dedup_key"] == ANY_DIGEST and is_["dedup_key"].startswith("sha256:"):
                is_["dedup_key"] = ANY_DIGEST
            assert is_ == expected


def facts(envelope: Envelope) -> dict[str, Any]:
    """An envelope without its data, as recordings write it."""
    ref, at = envelope.object, envelope.occurred_at
    return {
        "dedup_key": envelope.dedup_key,
        "type": envelope.type,
        "object": [ref.kind, ref.id] if ref else None,
        "path": ref.path if ref else "",
        "gone": envelope.gone,
        "occurred_at": at.isoformat() if at else None,
        "account": envelope.account,
        "livemode": envelope.livemode,
        "correlation": envelope.correlation,
        "nonce": envelope.nonce,
    }


@dataclass(frozen=True)
class Vector:
    name: str
    request: Request
    secrets: Sequence[str]
    now: float
    accept: bool
    either: bool
    """Whether the vector's author finds either verdict defensible."""
    public_key: str


def vectors(provider: str) -> list[Vector]:
    """The signed vectors for a provider; none where the file is not there, so that only their test is skipped."""
    path = VECTORS / f"{provider}.json"
    return [_vector(raw) for raw in json.loads(path.read_text())["vectors"]] if path.exists() else []


def _vector(raw: dict[str, Any]) -> Vector:
    extra = raw.get("extra") or {}
    return Vector(
        raw["id"],
        Request(raw["method"], raw["url"], raw["headers"], base64.b64decode(raw["body_base64"])),
        extra.get("secrets_for_accept") or [raw["secret"]],
        raw["now"],
        raw["expect"] == "accept",
        bool(extra.get("policy")),
        extra.get("public_key", ""),
    )


def verdict(provider: Provider, request: Request, secrets: Sequence[str], now: datetime | float) -> str:
    """`accepted`, or the reason of the refusal; any other exception fails the test."""
    try:
        assert provider.signature.verify(request, secrets, now) in secrets
    except SignatureError as refused:
        return refused.reason
    return "accepted"


def sampled(provider: Provider, type_: str, id_: str = "sample-1", **more: Any) -> Request:
    assert provider.sample is not None
    return provider.sample(Sample(type_, id_, NOW, **more))


def assert_samples_pass(provider: Provider, secret: str, secret_of_verifier: str | None = None) -> None:
    """Each sample is signed, verified and read as what it was asked for, and another id makes another event."""
    for type_ in provider.sample_types:
        signed = [
            provider.signature.sign(sampled(provider, type_, id_), secret, NOW)
            for id_ in ("sample-1", "sample-2")
        ]
        keys = []
        for request in signed:
            assert verdict(provider, request, [secret_of_verifier or secret], NOW) == "accepted", type_
            [envelope] = provider.parse(request)
            assert envelope.type == type_
            keys.append(envelope.dedup_key)
        again = provider.signature.sign(sampled(provider, type_), secret, NOW.replace(hour=6))
        assert provider.parse(again)[0].dedup_key == keys[0], f"{type_}: another key for the next attempt"
        assert keys[0] != keys[1], f"{type_}: one key for two events"


def assert_reads_or_refuses(provider: Provider, request: Request, secret: str) -> None:
    """Whatever a request holds: verify accepts or refuses, parse reads or says that it cannot, reply answers."""
    verdict(provider, request, [secret], NOW)
    with suppress(Unreadable):
        for envelope in provider.parse(request):
            assert envelope.dedup_key.strip()
            assert envelope.type.strip()
            assert envelope.occurred_at is None or envelope.occurred_at.tzinfo is not None
            assert envelope.object is None or (envelope.object.kind and envelope.object.id)
    with suppress(Unreadable):
        assert provider.reply(request).status in {200, 204}


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)


def garbage_bodies(*words: str) -> st.SearchStrategy[bytes]:
    """Bytes, and JSON documents that use the provider's own words for anything but what they mean."""
    keys = st.sampled_from(words) | st.text(max_size=4)
    nodes = st.recursive(
        SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=6)
    )
    documents = st.dictionaries(keys, nodes, max_size=6) | nodes
    return st.binary(max_size=40) | documents.map(lambda document: json.dumps(document).encode())


def garbage_headers(*names: str) -> st.SearchStrategy[dict[str, str]]:
    values = st.text(st.characters(max_codepoint=255), max_size=40) | st.sampled_from(
        ["v1,", "v1", ",", "t=1,v1=", "1" * 400, "v1,\xe9", "v1," + "A" * 44, "v1a," + "A" * 88, "", " "]
    )
    return st.dictionaries(st.sampled_from(names), values)


@dataclass
class Scripted:
    """An API that answers as the script says, and remembers what it was asked. None: there is no such thing (404)."""

    script: Callable[[str, dict[str, Any]], Json]
    settings: Mapping[str, str] = field(default_factory=dict)
    account: str = ""
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    place: Json = None

    def find(self, path: str, **params: Any) -> Json | None:
        self.asked.append(("GET", path, params))
        return self.script(path, params)

    def get(self, path: str, **params: Any) -> Json:
        answer = self.find(path, **params)
        if answer is None:
            raise ApiRefused("the API answered 404", 404)
        return answer

    def post(self, path: str, json: Json = None, **params: Any) -> Json:
        self.asked.append(("POST", path, json))
        return self.script(path, params)

    def pages(self, path: str, **params: Any) -> Iterator[Json]:
        raise NotImplementedError

    def graphql(self, path: str, query: str, **variables: Any) -> Json:
        raise NotImplementedError


def gone(_path: str, _params: dict[str, Any]) -> Json:
    """A script in which nothing exists."""
    return None
