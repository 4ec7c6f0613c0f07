"""Side effects outside the database: promised in the handler's transaction, done after it, each under its own key."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from marshmallow import Schema

from .. import jsontext
from ..apply import Running, now_running
from ..errors import ConfigError, GiveUp
from ..handlers import Schemas, checked
from ..jsontext import Json
from ..models import KEY_LENGTH
from .calling import Called, Caller
from .keys import derived_key, idempotency_key
from .outbox import LEASE, Outbox

__all__ = ["KEY_LIFETIME", "LEASE", "Called", "Caller", "Effect", "Effects", "Outbox", "idempotency_key"]

KEY_LIFETIME = timedelta(hours=24)
"""How long a callee is taken to remember a key, where `key_lifetime=` does not say: as long as Stripe and Shopify do."""

LOOKUP_AFTER = timedelta(seconds=60)
"""Asked sooner, the other side may say no to a request that is still on its way."""

MAX_ATTEMPTS = 15


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One function of the app that does something outside the database: `function(key, **arguments)`."""

    function: Callable[..., Any] = field(repr=False)
    name: str
    """What its rows are entered under; must not change while effects are open."""
    idempotent: bool
    """The callee does it once per key, however often it is asked."""
    key_lifetime: timedelta = KEY_LIFETIME
    """How long the callee remembers a key; afterwards a repeat would be a second time."""
    lookup: Callable[..., Any] | None = field(default=None, repr=False)
    """`lookup(key, **arguments)` asks the other side: True (or its answer) it happened, False it did not, None it
    cannot tell."""
    lookup_after: timedelta = LOOKUP_AFTER
    max_attempts: int = MAX_ATTEMPTS
    schema: Schemas = field(default=None, repr=False)
    where: str = ""
    outside: Callable[[], Running] | None = field(default=None, repr=False, compare=False)
    """What `later` belongs to where no handler runs."""

    def __call__(self, key: str, **arguments: Any) -> Any:
        """Call the function now, with no promise: for tests, and for other effects."""
        return self.function(key, **arguments)

    def later(self, *, per: str | int | None = None, **arguments: Any) -> str:
        """Promise the effect in the transaction of the handler that runs; return its idempotency key.

        It is called after the commit, and never if there is none. `per` is a business key: "the receipt of order 42"
        is one effect, however many events ask for it; without it, one event's handler promises the effect once.
        Outside of a handler `per` is needed, and the row is part of `db.session`'s transaction: commit it.

        Raises TypeError if the arguments do not fit the function or are no JSON, GiveUp if they do not fit the schema
        or the same handler has promised the effect with others.
        """
        running = now_running()
        if running is None:
            if self.outside is None or per is None:
                raise TypeError(f"{self.name}.later() outside of a handler needs per=, which makes its key")
            running = self.outside()
        stored = self._stored(arguments)
        key = self.key(running, per)
        if key in running.promised:
            if running.promised[key] != stored:
                raise GiveUp(
                    f"{running.handler} promises {self.name} twice with different arguments; give each its own per="
                )
            return key
        running.promised[key] = stored
        Outbox(running.inbox).promise(
            running.session,
            key,
            endpoint=running.event.endpoint if running.event else "",
            event_id=running.event.id if running.event else None,
            handler=running.handler,
            name=self.name,
            per=None if per is None else str(per),
            arguments=stored,
        )
        return key

    def key(self, running: Running, per: str | int | None) -> str:
        """The idempotency key: of the business key, or of the event, the handler and the effect."""
        if per is not None:
            if not str(per).strip():
                raise TypeError(f"{self.name}.later(per=…) is blank; all would be one effect")
            return derived_key("per", self.name, str(per))
        assert running.event is not None
        return derived_key(
            "event", running.event.endpoint, running.event.dedup_key, running.handler, self.name
        )

    def loaded(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the function takes them. Raises GiveUp with the field errors."""
        found = checked(self.schema, stored, f"{self.name}: the arguments do not")
        return dict(found)

    def _stored(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if self.schema is not None:
            schema = self.schema() if isinstance(self.schema, type) else self.schema
            arguments = _dumped(schema, arguments)
            arguments = {name: jsontext.loads(jsontext.dumps(value)) for name, value in arguments.items()}
            self.loaded(arguments)
        inspect.signature(self.function).bind("", **arguments)
        for name, value in arguments.items():
            if not _is_json(value):
                raise TypeError(
                    f"{self.name}.later({name}=…): arguments are kept as JSON, and {type(value).__name__} would come "
                    "back as something else; convert it, or give the effect a schema="
                )
        return arguments


def _dumped(schema: Schema, arguments: dict[str, Any]) -> dict[str, Any]:
    dumped = schema.dump(arguments)
    # What the schema does not know stays as it is, as it does when it is loaded.
    return {**{name: value for name, value in arguments.items() if name not in schema.fields}, **dumped}


def _is_json(value: Json) -> bool:
    try:
        return bool(jsontext.loads(jsontext.dumps(value)) == value)
    except Exception:  # noqa: BLE001 - whatever cannot be written and read is none
        return False


class Effects:
    """All effects of an app, by name."""

    def __init__(self) -> None:
        self._effects: dict[str, Effect] = {}

    def __getitem__(self, name: str) -> Effect:
        return self._effects[name]

    def get(self, name: str) -> Effect | None:
        return self._effects.get(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._effects)

    def __contains__(self, name: object) -> bool:
        return name in self._effects

    def values(self) -> list[Effect]:
        return list(self._effects.values())

    def add(self, effect: Effect) -> Effect:
        """Register; ConfigError if the name is taken, or the function could not be called with a key."""
        other = self._effects.get(effect.name)
        if other is not None and other.where != effect.where:
            raise ConfigError(
                f"two effects are called {effect.name!r}: {other.where} and {effect.where}; give one a name="
            )
        mistakes = list(_mistakes(effect))
        if mistakes:
            raise ConfigError(f"{effect.where}: {line}" for line in mistakes)
        self._effects[effect.name] = effect
        return effect


def _mistakes(effect: Effect) -> Iterator[str]:
    parameters = list(inspect.signature(effect.function).parameters.values())
    if not parameters or parameters[0].kind not in {
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    }:
        yield "an effect takes its idempotency key first: def send(key, *, to)"
    if any(parameter.name == "per" for parameter in parameters):
        yield "an effect has no argument called per: later(per=…) is its business key"
    if len(effect.name) > KEY_LENGTH:
        yield f"the name is longer than {KEY_LENGTH}; give it a name="
    if not effect.idempotent and effect.key_lifetime != KEY_LIFETIME:
        yield "key_lifetime= is for effects with idempotent=True: others are never repeated"
