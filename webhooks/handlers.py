"""What the app does with events: `sync` copies state, `on` reacts to an occasion, `answer` decides within the request."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any, Literal

from marshmallow import INCLUDE, Schema, ValidationError, fields

from .endpoints import Endpoint, Endpoints, messages_of
from .errors import ConfigError, GiveUp
from .jsontext import Json
from .models import stored_key
from .provider import Provider, as_text, dig

__all__ = ["HEALS", "Handler", "Handlers", "Key", "Late", "OnError", "checked", "late_type"]

KNOWN = 10_000
"""Answers that are remembered; types come from outside, and must not fill the memory."""

Late = Literal["run", "skip", "ask"]
OnError = Literal["allow", "refuse"]
Key = str | Callable[[Any], Any]
"""Where a business key is: a path in the object, or a function of it."""
Schemas = type[Schema] | Schema | None

HEALS = "reconcile."
"""What the types of events begin with that reconciliation made: `reconcile.customer`, `reconcile.late.fulfil-order`."""


def late_type(flow: str) -> str:
    """The type of the event that decides this flow late."""
    return f"{HEALS}late.{flow}"


@dataclass(frozen=True, kw_only=True)
class Handler:
    """One function of the app and what it is for."""

    function: Callable[..., Any] = field(repr=False)
    name: str
    """What its ledger rows are entered under; must not change while events are open."""
    verb: Literal["sync", "on", "answer"]
    source: str
    """The endpoint or the provider that it is for."""
    kinds: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    flow: str | None = None
    once_per: Key | None = None
    replaces: Mapping[str, Key] = field(default_factory=dict)
    """Flow that this one takes over → where its key is in our object."""
    when: Callable[[Any], bool] | None = field(default=None, repr=False)
    schema: Schemas = field(default=None, repr=False)
    late: Late | None = None
    """What to do with a flow that reconciliation finds undecided, where no event of the provider's will decide it any
    more: None asks the endpoint."""
    on_error: OnError | None = None
    """What an `answer` handler says when it cannot say anything."""
    within: timedelta | None = None
    reply_schema: Schemas = field(default=None, repr=False)
    time_limit: timedelta | None = None
    """How long one call of a `sync` or `on` handler may take; None: as the endpoint says."""
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

    def keys(self, thing: Json, data: Json) -> list[tuple[str, str]]:
        """The flow and its business key, from the fetched object; before them those of the flows that it replaces.

        Raises GiveUp if the object has no key for the flow itself.
        """
        assert self.flow is not None
        subject = thing if thing is not None else data
        wanted = self.once_per or "id"
        own = _key(wanted, subject)
        if not own:
            raise GiveUp(
                f"{self.name}: once_per={wanted!r} finds no key in the object, so the flow cannot be decided once"
            )
        replaced = [(flow, key) for flow, where in self.replaces.items() if (key := _key(where, subject))]
        return [*replaced, (self.flow, own)]

    def checked(self, thing: Json) -> Json:
        """The object as the handler's schema loads it. Raises GiveUp with the field errors."""
        return thing if thing is None else checked(self.schema, thing, f"{self.name}: the object does not")


def checked(wanted: Schemas, thing: Json, what: str) -> Json:
    """What a marshmallow schema makes of `thing`. Raises GiveUp with the field errors.

    Unknown fields stay, at every depth: providers add fields without notice. `Nested(…, unknown=RAISE)` refuses them.
    """
    if wanted is None:
        return thing
    schema = _opened(wanted)
    try:
        return schema.load(thing, unknown=INCLUDE)
    except ValidationError as error:
        # Field names and marshmallow's own sentences; never the values.
        lines = "; ".join(_lines(messages_of(error)))
        raise GiveUp(f"{what} fit {type(schema).__name__}: {lines}") from None


_open: dict[Any, Schema] = {}


def _opened(wanted: type[Schema] | Schema) -> Schema:
    """The schema, made once, with nested ones that keep unknown fields as it does itself."""
    if wanted not in _open:
        schema = wanted() if isinstance(wanted, type) else wanted
        _open_nested(schema.fields.values(), {type(schema)})
        _open[wanted] = schema
    return _open[wanted]


def _open_nested(found: Iterable[Any], seen: set[type[Schema]]) -> None:
    for one in found:
        if isinstance(one, fields.Nested):
            one.unknown = one.unknown or INCLUDE
            if type(one.schema) not in seen:
                _open_nested(one.schema.fields.values(), {*seen, type(one.schema)})
        elif isinstance(one, fields.List):
            _open_nested([one.inner], seen)
        elif isinstance(one, fields.Dict) and one.value_field is not None:
            _open_nested([one.value_field], seen)


def _lines(messages: Any, path: str = "") -> Iterator[str]:
    if isinstance(messages, Mapping):
        for name, inner in sorted(messages.items(), key=lambda item: str(item[0])):
            yield from _lines(inner, f"{path}.{name}" if path else str(name))
    else:
        for line in messages if isinstance(messages, list) else [messages]:
            yield f"{path}: {line}"


def _key(wanted: Key, subject: Json) -> str:
    """A business key as its column takes it; '' if there is none."""
    found = as_text(wanted(subject) if callable(wanted) else dig(subject, *wanted.split(".")))
    return stored_key(found) if found else ""


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
            if _answer_the_same(handler, other):
                raise ConfigError(
                    f"{handler.source} {', '.join(handler.types)} has two answers: {other.where} and {handler.where}"
                )
            if handler.flow is not None and other.flow == handler.flow:
                raise ConfigError(
                    f"the flow {handler.flow!r} has two triggers: {', '.join(other.types)} at {other.where} and "
                    f"{', '.join(handler.types)} at {handler.where}; let one handler list the types that are alternatives, "
                    "or, to hand it over, give the new one another flow= and replaces="
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

    def answerer(self, endpoint: Endpoint, type_: str) -> Handler | None:
        """The `answer` handler for events of this type; one for the endpoint goes before one for its provider."""
        found = [h for h in self._handlers if h.verb == "answer" and h.is_for(endpoint) and type_ in h.types]
        return min(found, key=lambda handler: handler.source != endpoint.name, default=None)

    def flows(self) -> list[Handler]:
        """The handlers that own a flow."""
        return [handler for handler in self._handlers if handler.flow is not None]

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
        mistakes += [line for handler in self._handlers for line in _answer_mistakes(handler, endpoints)]
        if mistakes:
            raise ConfigError(mistakes)
        for handler in self._handlers:
            for provider in {
                e.provider.name: e.provider for e in endpoints.values() if handler.is_for(e)
            }.values():
                _warn_of_trigger(handler, provider)


def _answer_the_same(one: Handler, other: Handler) -> bool:
    both_answer = one.verb == other.verb == "answer"
    return both_answer and one.source == other.source and bool({*one.types} & {*other.types})


def _answer_mistakes(handler: Handler, endpoints: Endpoints) -> Iterator[str]:
    if handler.verb != "answer":
        return
    for provider in {e.provider.name: e.provider for e in endpoints.values() if handler.is_for(e)}.values():
        answers = provider.answers
        if answers is None:
            yield f"{handler.where}: {provider.name} takes no answers; use on() or sync()"
            continue
        for type_ in handler.types:
            if type_ not in answers.types:
                yield (
                    f"{handler.where}: {provider.name} takes no answer to {type_!r}, only to {', '.join(answers.types)}"
                )
            elif handler.on_error == "refuse" and answers.refuse is None:
                yield f"{handler.where}: {provider.name} has no way to refuse; use on_error='allow'"


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
