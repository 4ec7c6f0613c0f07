"""Bodies that only whoever has a key can read. A column says which key; content is never guessed at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..errors import ConfigError, RetryLater
from ..keyring import Keyring
from ..signatures import fingerprint
from .rows import Arrival

__all__ = ["Sealed", "Sealer", "key_problem"]


class Sealed(RetryLater):
    """A body is sealed under a key that we do not have (now). Nothing is wrong with its event."""

    counts = False


def _fernet(key: str) -> Any:
    try:
        from cryptography.fernet import Fernet  # noqa: PLC0415 - an extra that not everybody installs
    except ImportError:
        raise ConfigError("WEBHOOKS_BODY_KEYS needs: pip install 'flask-webhook-inbox[encryption]'") from None
    return Fernet(key)


def key_problem(key: str) -> str | None:
    """Why this cannot be a key for bodies; None: it can."""
    try:
        _fernet(key)
    except ValueError:
        return "is no key; make one with cryptography's `Fernet.generate_key()`"
    return None


class Sealer:
    """Seals with the first key, opens with all of them. Without any, bodies are written as they are."""

    def __init__(self, keyring: Keyring | None = None) -> None:
        self._keyring = keyring
        self._made: dict[str, tuple[str, Any]] = {}

    @property
    def seals(self) -> bool:
        return self._keyring is not None

    @property
    def current(self) -> str | None:
        """The fingerprint of the key that seals; None: bodies are written as they are. Raises InboxUnavailable."""
        return None if self._keyring is None else self._of(self._keyring.current()[0])[0]

    def seal(self, body: bytes) -> tuple[bytes, str | None]:
        """The body as it is stored, and which key sealed it. Raises InboxUnavailable if there should be a key."""
        if self._keyring is None:
            return body, None
        name, fernet = self._of(self._keyring.current()[0])
        return fernet.encrypt(body), name

    def open(self, body: bytes, sealed: str | None) -> bytes:
        """The body as it came. Raises Sealed if its key is not there, or the body was tampered with."""
        if sealed is None:
            return body
        for key in self._keyring.current() if self._keyring is not None else ():
            name, fernet = self._of(key)
            if name == sealed:
                try:
                    opened: bytes = fernet.decrypt(body)
                except Exception as error:  # noqa: BLE001 - whatever the library says of it
                    raise Sealed(f"a body cannot be opened ({type(error).__name__})") from None
                return opened
        raise Sealed(f"a body is sealed with the key {sealed}, which is not among WEBHOOKS_BODY_KEYS")

    def sealed(self, arrivals: Sequence[Arrival]) -> list[Arrival]:
        """The arrivals with their bodies as they are stored; those that are sealed already stay as they are."""
        if self._keyring is None:
            return list(arrivals)
        return [each if each.sealed is not None else self._sealed(each) for each in arrivals]

    def _sealed(self, arrival: Arrival) -> Arrival:
        body, sealed = self.seal(arrival.body)
        return replace(arrival, body=body, sealed=sealed)

    def _of(self, key: str) -> tuple[str, Any]:
        if key not in self._made:
            self._made[key] = fingerprint(key), _fernet(key)
        return self._made[key]
