"""What the app does with events: `sync` copies state, `on` reacts to an occasion, a flow is decided once."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from marshmallow import INCLUDE, Schema, ValidationError

from .endpoints import Endpoint, Endpoints, messages_of
from .errors import ConfigError, GiveUp
from .jsontext import Json
from .provider import Provider, as_text, dig

__all__ = ["HEALS", "Handler", "Handlers", "Late", "late_type"]

KNOWN = 10_000
"""Answers that are remembered; types come from outside, and must not fill the memory."""

Late = Literal["run", "skip", "ask"]
Schemas = type[Schema] | Schema | None

HEALS = "reconcile."
"""What the types of events begin with that reconciliation made: `reconcile.customer`, `reconcile.late.fulfil-order`."""


def late_type(flow: str) -> str:
    """The type of the event that decides this flow late."""
    return f"{HEALS}late.{flow}"


@dataclass(frozen=True, kw_only=True)
class Handler:
    """One function of the app and what it is for."""

    function: Callable[[Any, Any], Any] = field(repr=False)
    name: str
    """What its ledger rows are entered under; must not change while events are open."""
    verb: Literal["sync", "on"]
    source: str
    """The endpoint or the provider that it is for."""
    kinds: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    flow: str | None = None
    once_per: str | Callable[[Any], Any] | None = None
    when: Callable[[Any], bool] | None = field(default=None, repr=False)
    schema: Schemas = field(default=None, repr=False)
    late: Late | None = None
    """What to do with a flow that reconciliation finds undecided, where no event of the provider's will decide it any
    more: None asks the endpoint."""
    where: str = ""

    @property
    def entry(self) -> str:
        """What its ledger rows say: one function may be both."""
        return f"{self.verb}:{self.name}"[:255]

    def is_for(self, endpoint: Endpoint) -> bool:
        return self.source in {endpoint.name, endpoint.provider.name}

    def wants(self, type_: str) -> bool:
        """Whether an `on` handler is for events of this type; `*` and `?` stand for any text and any character.

        Events that reconciliation made are no occasions, so no pattern matches them: only the flow that they are for.
        """
        if type_.startswith(HEALS):
            return type_ in self.types or (self.flow is not None and type_ == late_type(self.flow))
        return any(type_ == wanted or fnmatchcase(type_, wanted) for wanted in self.types)

    def key(self, thing: Json, data: Json) -> str:
        """The business key of a flow, from the fetched object. Raises GiveUp if the object has none."""
        wanted = self.once_per or "id"
        found = (
            wanted(thing)
            if callable(wanted)
            else dig(thing if thing is not None else data, *wanted.split("."))
        )
        key = as_text(found)
        if not key:
            raise GiveUp(
                f"{self.name}: once_per={wanted!r} finds no key in the object, so the flow cannot be decided once"
            )
        return key[:255]

    def checked(self, thing: Json) -> Json:
        """The object as the handler's schema loads it. Raises GiveUp with the field errors."""
        if self.schema is None or thing is None:
            return thing
        schema = self.schema() if isinstance(self.schema, type) else self.schema
        try:
            return schema.load(thing, unknown=INCLUDE)
        except ValidationError as error:
            raise GiveUp(
                f"{self.name}: the object does not fit {type(schema).__name__}: {_errors(error)}"
            ) from None


def _errors(error: ValidationError) -> str:
    # Field names and marshmallow's own sentences; never the values.
    return "; ".join(f"{name}: {reason}" for name, reason in sorted(messages_of(error).items()))


class Handlers:
    """All handlers of an app, registered by decorators before or after `init_app`."""

    def __init__(self) -> None:
        self._handlers: list[Handler] = []
        self._found: dict[tuple[str, str, str], list[Handler]] = {}

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._handlers)

    def add(self, handler: Handler) -> None:
        """Register; ConfigError if the name is taken or the flow has another trigger, naming both places."""
        for other in self._handlers:
            if other.name == handler.name and other.verb == handler.verb and other.where != handler.where:
                raise ConfigError(
                    f"two handlers are called {handler.name!r}: {other.where} and {handler.where}; give one a name="
                )
            if handler.flow is not None and other.flow == handler.flow:
                raise ConfigError(
                    f"the flow {handler.flow!r} has two triggers: {', '.join(other.types)} at {other.where} and "
                    f"{', '.join(handler.types)} at {handler.where}; let one handler list the types that are alternatives"
                )
        self._handlers.append(handler)
        self._found.clear()

    def syncs(self, endpoint: Endpoint, kind: str) -> list[Handler]:
        """The `sync` handlers for objects of this kind."""
        return self._find(endpoint, "sync", kind)

    def ons(self, endpoint: Endpoint, type_: str) -> list[Handler]:
        """The `on` handlers for events of this type."""
        return self._find(endpoint, "on", type_)

    def _find(self, endpoint: Endpoint, verb: Literal["sync", "on"], name: str) -> list[Handler]:
        if not self._handlers:
            return []
        found = self._found.get((endpoint.name, verb, name))
        if found is None:
            mine = [h for h in self._handlers if h.verb == verb and h.is_for(endpoint)]
            found = [h for h in mine if (name in h.kinds if verb == "sync" else h.wants(name))]
            if len(self._found) < KNOWN:
                self._found[endpoint.name, verb, name] = found
        return found

    def flows_for(self, endpoint: Endpoint) -> list[Handler]:
        """The handlers of this endpoint that decide a flow."""
        return [h for h in self._handlers if h.verb == "on" and h.flow is not None and h.is_for(endpoint)]

    def any_for(self, endpoint: Endpoint) -> bool:
        return any(handler.is_for(endpoint) for handler in self._handlers)

    def check(self, endpoints: Endpoints) -> None:
        """Raise ConfigError naming every handler that is for nothing; warn where a flow's trigger is not the provider's."""
        sources = {name for e in endpoints.values() for name in (e.name, e.provider.name)}
        mistakes = [
            f"{handler.where}: there is no endpoint or provider {handler.source!r} in WEBHOOKS; there are {sorted(sources)}"
            for handler in self._handlers
            if handler.source not in sources
        ]
        if mistakes:
            raise ConfigError(mistakes)
        for handler in self._handlers:
            for provider in {
                e.provider.name: e.provider for e in endpoints.values() if handler.is_for(e)
            }.values():
                _warn_of_trigger(handler, provider)


def _warn_of_trigger(handler: Handler, provider: Provider) -> None:
    if handler.flow is None or handler.flow not in provider.authoritative:
        return
    types, source = provider.authoritative[handler.flow]
    for type_ in handler.types:
        if type_ not in types:
            warnings.warn(
                f"{handler.where}: {type_} does not decide the flow {handler.flow!r} for {provider.name}; "
                f"{' or '.join(types)} does ({source})",
                stacklevel=3,
            )


def named(function: Callable[..., Any], name: str | None) -> tuple[str, str]:
    """A handler's name and where it is defined."""
    code = inspect.unwrap(function).__code__
    return name or f"{function.__module__}.{function.__qualname__}"[
        -255:
    ], f"{code.co_filename}:{code.co_firstlineno}"


def texts(given: str | Iterable[str]) -> Sequence[str]:
    return (given,) if isinstance(given, str) else tuple(given)
