from __future__ import annotations

import hmac
from datetime import UTC, datetime

import pytest

from webhooks import providers
from webhooks.provider import Request
from webhooks.signatures import require_match
from webhooks.testing import Simulator


@pytest.mark.parametrize("name", providers.names())
def test_every_scheme_compares_bytes_in_constant_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that stops at the first difference tells a patient stranger how far he has come."""
    sent: list[Request] = []
    simulator = Simulator(name, send=lambda request: sent.append(request) or 200)
    simulator.world.url = "https://example.test/webhooks/x"
    simulator.create(simulator.service.kinds[0])
    simulator.deliver()
    compared: list[tuple[type, type]] = []
    real = hmac.compare_digest

    def spy(one: bytes, other: bytes) -> bool:
        compared.append((type(one), type(other)))
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", spy)
    secret = simulator.service.secret
    assert simulator.provider.signature.verify(sent[0], [secret], datetime.now(UTC)) == secret
    assert compared
    assert set(compared) == {(bytes, bytes)}


def test_all_candidates_are_compared_also_after_the_right_one(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    monkeypatch.setattr(hmac, "compare_digest", lambda one, other: compared.append(one) or one == other)
    assert require_match([b"right", b"a", b"b"], b"right")
    assert compared == [b"right", b"a", b"b"]
