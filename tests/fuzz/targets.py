"""What is fuzzed: functions of bytes that return, or raise AssertionError because a promise was broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache, partial

from webhooks import jsontext, providers
from webhooks.errors import SignatureError, Unreadable
from webhooks.inbox import arrival, unreadable
from webhooks.models import KEY_LENGTH
from webhooks.provider import Envelope, Provider, Request
from webhooks.testing import Simulator

__all__ = ["TARGETS", "Target", "samples"]

Target = Callable[[bytes], None]

CONTENT_TYPES = (
    "application/json",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "text/plain",
    "",
    "\xff",
)

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
URL = "https://example.test/webhooks/x?a=b"


@cache
def signed(name: str) -> tuple[Provider, str, Request]:
    """A provider, a secret, and a delivery signed with it now, which is NOW."""
    sent: list[Request] = []
    simulator = Simulator(name, send=lambda request: sent.append(request) or 200, clock=lambda: NOW)  # type: ignore[func-returns-value]
    simulator.world.url = URL
    simulator.create(simulator.service.kinds[0])
    simulator.deliver()
    return simulator.provider, simulator.service.secret, sent[0]


def samples(name: str) -> Iterator[bytes]:
    """What to begin with: a good delivery's body, cut and doubled."""
    body = signed(name)[2].body
    yield from (body, body[: len(body) // 2], body + body)


def parse(name: str, data: bytes) -> None:
    """Whatever is signed is read or unreadable, and either can be recorded."""
    provider, _, good = signed(name)
    kind, body = (data[0], data[1:]) if data else (0, b"")
    if kind & 64:  # a piece of a good body in which something else stands
        cut = len(good.body) * (kind % 32) // 32
        body = good.body[:cut] + body + good.body[cut + len(body) :]
    headers = {**good.headers, "Content-Type": CONTENT_TYPES[kind % len(CONTENT_TYPES)]}
    request = Request("POST", URL, headers, body)
    try:
        envelopes = provider.parse(request)
    except Unreadable as reason:
        found = [unreadable("x", provider, request, "0" * 12, str(reason))]
    else:
        assert all(isinstance(envelope, Envelope) for envelope in envelopes)
        try:
            found = [arrival("x", provider, envelope, request) for envelope in envelopes]
        except Unreadable as reason:
            found = [unreadable("x", provider, request, "0" * 12, str(reason))]
    for each in found:
        assert each.dedup_key.strip(), "a blank id is no key"
        assert len(each.dedup_key) <= KEY_LENGTH
        ref = each.object
        for text in (
            each.dedup_key,
            each.type,
            each.account,
            each.error,
            each.version,
            each.correlation,
            each.headers,
        ):
            assert text is None or "\0" not in text
            assert (text or "").encode() is not None, "no column holds a lone surrogate"
        for text in (ref.kind, ref.id, ref.path) if ref else ():
            assert "\0" not in text.encode().decode()
        assert each.occurred_at is None or each.occurred_at.tzinfo is not None


def verify(name: str, data: bytes) -> None:
    """Nothing that is not signed gets in, and nothing but SignatureError keeps it out."""
    provider, secret, good = signed(name)
    values = [part.decode("latin-1") for part in data.split(b"\xff")]
    names = [header for header in good.headers if header != "Content-Type"]
    headers = dict(zip(names, values, strict=False))
    mixed = {**good.headers, **dict(zip(names[::-1], values[:1], strict=False))}
    for sent in (
        Request("POST", URL, headers, good.body),
        Request("POST", URL, mixed, good.body),
        Request("POST", URL, headers, data),
        Request("POST", URL, good.headers, data),
    ):
        if sent.body == good.body and all(sent.headers.get(n) == good.headers[n] for n in names):
            continue
        for secrets in ([secret], [], ["", " "]):
            try:
                found = provider.signature.verify(sent, secrets, NOW)
            except SignatureError:
                continue
            assert found == secret
            assert is_still_signed(provider, sent, good, names), "somebody else's signature was taken"


def is_still_signed(provider: Provider, sent: Request, good: Request, names: list[str]) -> bool:
    """Whether all that the scheme covers is as it was signed: what it does not cover may be anything."""
    if provider.signature.signs_body and sent.body != good.body:
        return jsontext_equal(sent.body, good.body)  # some sign chosen fields, not the bytes
    return (
        any(good.headers[name] in sent.headers.get(name, "") or sent.headers.get(name) for name in names)
        or not names
    )


def jsontext_equal(one: bytes, other: bytes) -> bool:
    try:
        return bool(jsontext.loads(one) == jsontext.loads(other))
    except Unreadable:
        return False


def late(name: str, data: bytes) -> None:
    """A captured delivery is no good outside of its window, as far as the scheme signs a time."""
    provider, secret, good = signed(name)
    if not provider.signature.signs_time:
        return
    days = int.from_bytes(data[:2], "big") + 4
    for now in (NOW + timedelta(days=days), NOW - timedelta(days=days)):
        try:
            provider.signature.verify(good, [secret], now)
        except SignatureError:
            continue
        raise AssertionError(f"taken {days} days away")


def read_json(data: bytes) -> None:
    """A document is read and can be written again and stored, or it is unreadable."""
    try:
        value = jsontext.loads(data)
    except Unreadable:
        return
    written = jsontext.dumps(value)
    assert jsontext.loads(written) == value
    assert "\0" not in written.decode()
    assert len(jsontext.digest(value)) == 64


TARGETS: dict[str, Target] = {"json": read_json}
for _name in providers.names():
    TARGETS[f"parse {_name}"] = partial(parse, _name)
    TARGETS[f"verify {_name}"] = partial(verify, _name)
    TARGETS[f"late {_name}"] = partial(late, _name)
