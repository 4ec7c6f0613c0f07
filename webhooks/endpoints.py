"""Read `app.config["WEBHOOKS"]` into endpoints; every mistake in it is named at once, at start-up."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from marshmallow import Schema, ValidationError, fields, validate

from . import providers
from .errors import ConfigError
from .keyring import Entry, Keyring
from .provider import Provider, Request
from .signatures import fingerprint

__all__ = ["DEFAULTS", "Endpoint", "Endpoints", "keyring", "read"]

DEFAULTS = "defaults"
"""The one name in `WEBHOOKS` that is no endpoint: options for all of them."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)
NAME_RULE = "a name is letters, digits, '-', '_' and '.', at most 63"

MAX_BODY = 5 * 1024 * 1024
"""For providers that publish no limit; the largest bodies seen are a few hundred kilobytes."""

TIME_LIMIT = timedelta(seconds=60)
"""A handler only writes to the database; less than a lease, so that nobody else takes its event meanwhile."""

Settings = Mapping[str, "str | Callable[[], str]"]


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One URL of ours that one account at one provider sends to."""

    name: str
    provider: Provider
    keyring: Keyring = field(repr=False)
    settings: Settings = field(default_factory=dict, repr=False)
    aliases: tuple[str, ...] = ()
    apply: Literal["worker", "request"] = "worker"
    fetch: bool = True
    mirror: Literal["auto", "all", "handled", "none"] = "auto"
    api_base_url: str | None = None
    public_url: str | None = None
    max_body: int = MAX_BODY
    max_attempts: int = 15
    livemode: bool | None = None
    late: Literal["run", "skip", "ask"] = "run"
    max_silence: timedelta | None = None
    """Longer without a delivery is an issue, whatever the provider says; None: only what it has and we lack is."""
    api_rate: float | None = None
    """Calls of the provider's API per second, instead of what its documentation says."""
    time_limit: timedelta = TIME_LIMIT
    """How long one call of a handler may take."""
    keep_bodies: timedelta | None = None
    """How long the bodies of applied and ignored events are kept; None: 30 days."""
    keep_refused: timedelta | None = None
    """How long the bodies of refused deliveries are kept, to be checked again; None: not at all."""
    spool: Literal["auto", "always", "never"] = "auto"
    """Whether its deliveries go into this host's spool while the database is away; auto: if they would not come again."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Current one first; a delivery signed with any of them is accepted. Raises InboxUnavailable if there are none."""
        return self.keyring.current()

    @property
    def spools(self) -> bool:
        """Whether a delivery is kept on this host, and answered 200, while the database is away."""
        return self.spool == "always" or (self.spool == "auto" and not self.provider.policy.comes_again)

    @property
    def fetches(self) -> bool:
        """Whether the current object can be asked for."""
        return self.fetch and self.provider.fetch is not None

    @property
    def missing(self) -> list[str]:
        """The settings without which the provider's API cannot be asked, as far as they are not set."""
        return [name for name in self.provider.required if not self.setting(name)]

    @property
    def can_ask(self) -> bool:
        """Whether there are credentials for the provider's API."""
        return not self.missing

    def setting(self, name: str) -> str:
        """A setting's value now; '' if it is not set. Callables are asked every time, so that tokens can rotate."""
        value = self.settings.get(name, self.provider.defaults.get(name, ""))
        found = value() if callable(value) else value
        return str(found or "").strip()  # what comes from a file ends in a new line

    def fingerprints(self) -> list[str]:
        return [fingerprint(secret) for secret in self.secrets]

    def seen_as(self, request: Request) -> Request:
        """The request under the URL that the provider called, where a public base URL is configured."""
        if self.public_url is None:
            return request
        parts = urlsplit(request.url)
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        return replace(request, url=self.public_url.rstrip("/") + path)


class Endpoints(Mapping[str, Endpoint]):
    """The endpoints by name; `at` also finds them by alias."""

    def __init__(self, endpoints: Mapping[str, Endpoint]) -> None:
        self._endpoints = dict(endpoints)
        self._at = {alias: e for e in endpoints.values() for alias in (e.name, *e.aliases)}

    def __getitem__(self, name: str) -> Endpoint:
        return self._endpoints[name]

    def __iter__(self) -> Any:
        return iter(self._endpoints)

    def __len__(self) -> int:
        return len(self._endpoints)

    def at(self, name: str) -> Endpoint | None:
        """The endpoint of that name or alias."""
        return self._at.get(name)


def _not_blank(value: str) -> None:
    if not value.strip():
        raise ValidationError("is blank; anybody could sign with it")


def _is_name(value: str) -> None:
    if not NAME.fullmatch(value):
        raise ValidationError(NAME_RULE)


def listed_entries(secrets: Any) -> Any:
    """Secrets as a list; a single one needs none, and one of digits is a number where it comes out of JSON."""
    if callable(secrets) or isinstance(secrets, Mapping):
        return [secrets]
    given = list(secrets) if isinstance(secrets, list | tuple) else [secrets]
    plain = [str(one) if isinstance(one, int) and not isinstance(one, bool) else one for one in given]
    return plain if isinstance(secrets, list | tuple) or isinstance(plain[0], str) else secrets


class _Secrets(fields.List[Any]):
    """A list of secrets, or a single one."""

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        return super()._deserialize(listed_entries(value), *args, **kwargs)


class SecretField(fields.Field[Any]):
    """A secret, `{"file": path}`, or a function."""

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> Any:
        if callable(value):
            return value
        if isinstance(value, Mapping):
            if set(value) != {"file"} or not isinstance(value["file"], str | Path) or not str(value["file"]):
                raise ValidationError('a secret from a file is written {"file": "its path"}')
            return Path(value["file"])
        if not isinstance(value, str):
            raise ValidationError("Not a valid string.")
        _not_blank(value)
        return value


class _EndpointSchema(Schema):
    provider = fields.String()
    secrets = _Secrets(
        SecretField(),
        required=True,
        validate=validate.Length(min=1, error="is empty; give at least one secret"),
        error_messages={"required": "is missing; give the signing secret that the provider shows"},
    )
    settings = fields.Dict(keys=fields.String())
    aliases = fields.List(fields.String(validate=_is_name))
    apply = fields.String(validate=validate.OneOf(["worker", "request"]))
    fetch = fields.Boolean()
    mirror = fields.String(validate=validate.OneOf(["auto", "all", "handled", "none"]))
    api_base_url = fields.Url(require_tld=False, schemes={"http", "https"})
    public_url = fields.Url(require_tld=False, schemes={"http", "https"})
    max_body = fields.Integer(validate=validate.Range(min=1024))
    max_attempts = fields.Integer(validate=validate.Range(min=1, max=1000))
    livemode = fields.Boolean()
    tolerance = fields.TimeDelta(precision="seconds", validate=validate.Range(min=timedelta(seconds=1)))
    late = fields.String(validate=validate.OneOf(["run", "skip", "ask"]))
    max_silence = fields.TimeDelta(precision="seconds", validate=validate.Range(min=timedelta(minutes=1)))
    api_rate = fields.Float(validate=validate.Range(min=0, min_inclusive=False))
    time_limit = fields.TimeDelta(precision="seconds", validate=validate.Range(min=timedelta(seconds=1)))
    keep_bodies = fields.TimeDelta(precision="seconds", validate=validate.Range(min=timedelta(hours=1)))
    keep_refused = fields.TimeDelta(
        precision="seconds", validate=validate.Range(min=timedelta(minutes=1), max=timedelta(days=30))
    )
    spool = fields.String(validate=validate.OneOf(["auto", "always", "never"]))


_OPTIONS = frozenset(_EndpointSchema().fields)


def read(config: Mapping[Any, Any]) -> Endpoints:
    """The endpoints that the configuration describes; raises ConfigError with every mistake in it."""
    mistakes: list[str] = []
    found: dict[str, Endpoint] = {}
    if not isinstance(config, Mapping):
        raise ConfigError("WEBHOOKS must be a dict: endpoint name -> its configuration")
    defaults = config.get(DEFAULTS, {})
    if not isinstance(defaults, Mapping):
        mistakes.append(f"WEBHOOKS[{DEFAULTS!r}] must be a dict of options")
        defaults = {}
    for name, given in config.items():
        if name == DEFAULTS:
            continue
        if not isinstance(name, str) or not NAME.fullmatch(name):
            mistakes.append(f"WEBHOOKS[{name!r}]: {NAME_RULE}")
        elif not isinstance(given, Mapping):
            mistakes.append(f"WEBHOOKS[{name!r}] must be a dict with at least `secrets`")
        else:
            endpoint = _read_one(name, {**defaults, **given}, mistakes)
            if endpoint is not None:
                found[name] = endpoint
    taken = list(found)
    for endpoint in found.values():
        for alias in endpoint.aliases:
            if alias in taken:
                mistakes.append(
                    f"WEBHOOKS[{endpoint.name!r}].aliases: {alias!r} is another endpoint's name or alias"
                )
            taken.append(alias)
    if mistakes:
        raise ConfigError(mistakes)
    return Endpoints(found)


def keyring(where: str, given: Any, problem: Callable[[str], str | None]) -> Keyring:
    """The secrets that a setting describes as an endpoint's `secrets` are described. Raises ConfigError."""
    try:
        entries = _Secrets(
            SecretField(), validate=validate.Length(min=1, error="is empty; give at least one")
        ).deserialize(given)
    except ValidationError as error:
        raise ConfigError([f"{where}: {line}" for line in _flat(error.messages)]) from None
    plain = [entry.strip() if isinstance(entry, str) else entry for entry in entries]
    mistakes = [
        f"{where}[{n}]: {said}"
        for n, entry in enumerate(plain)
        if isinstance(entry, str) and (said := problem(entry))
    ]
    made = Keyring(where, plain, problem)
    mistakes += [f"{where}[{n}]: its file {said}" for n, said in made.file_troubles()]
    if mistakes:
        raise ConfigError(mistakes)
    return made


def _read_one(name: str, given: dict[str, Any], mistakes: list[str]) -> Endpoint | None:
    where = f"WEBHOOKS[{name!r}]"
    before = len(mistakes)
    try:
        provider = providers.get(str(given.get("provider", name)))
    except ConfigError as error:
        mistakes.append(f"{where}.provider: {error}")
        provider = None
    # A setting may stand beside the options or under `settings`.
    flat = {
        key: given.pop(key)
        for key in list(given)
        if provider and key in provider.settings and key not in _OPTIONS
    }
    try:
        loaded = _EndpointSchema().load(given)
    except ValidationError as error:
        mistakes.extend(f"{where}.{line}" for line in _lines(messages_of(error), provider))
        loaded = error.valid_data if isinstance(error.valid_data, dict) else {}
    settings = {key: _setting(value) for key, value in {**flat, **loaded.pop("settings", {})}.items()}
    secrets: list[Entry] = [
        _trimmed(where, entry) if isinstance(entry, str) else entry for entry in loaded.pop("secrets", ())
    ]
    tolerance = loaded.pop("tolerance", None)
    keyring = Keyring(where, [], lambda _: None)
    if provider is not None:
        mistakes.extend(
            f"{where}.{line}" for line in _setting_mistakes(provider, settings, loaded.get("fetch", True))
        )
        provider = _configured(provider, settings, where, mistakes)
        if tolerance is not None:
            provider = _tolerant(provider, tolerance, where, mistakes)
        said = listed_entries(given.get("secrets"))
        texts = (
            [one.strip() if isinstance(one, str) else "" for one in said] if isinstance(said, list) else []
        )
        problems = [(n, provider.secret_problem(secret)) for n, secret in enumerate(texts) if secret]
        mistakes.extend(f"{where}.secrets[{n}]: {problem}" for n, problem in problems if problem)
        keyring = Keyring(f"{where}.secrets", secrets, provider.secret_problem)
        mistakes.extend(f"{where}.secrets[{n}]: its file {said}" for n, said in keyring.file_troubles())
    if provider is None or len(mistakes) > before:
        return None
    loaded.pop("provider", None)
    loaded["aliases"] = tuple(loaded.get("aliases", ()))
    loaded.setdefault("max_body", provider.policy.max_body or MAX_BODY)
    if provider.livemode is not None:
        plain = {key: value for key, value in settings.items() if isinstance(value, str)}
        loaded.setdefault("livemode", provider.livemode(plain))
    return Endpoint(name=name, provider=provider, keyring=keyring, settings=settings, **loaded)


def _setting(value: Any) -> Any:
    """Numbers as text (an environment variable that holds digits is read as one), lists joined by commas."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    if isinstance(value, str):
        return value.strip()
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _setting_mistakes(provider: Provider, settings: Mapping[str, Any], fetch: bool) -> list[str]:
    lines = [
        f"settings: {provider.name} has no setting {key!r}; it has {', '.join(provider.settings) or 'none'}"
        for key in settings
        if key not in provider.settings
    ]
    lines += [
        f"settings.{key} must be text or a function that returns text"
        for key, value in settings.items()
        if not isinstance(value, str) and not callable(value)
    ]
    if fetch and provider.fetch is not None:
        lines += [
            f"settings.{key} is missing; without it the current object cannot be fetched (or set fetch to false, to "
            "apply what the deliveries carry)"
            for key in provider.required
            if not settings.get(key)
        ]
    return lines


def _configured(provider: Provider, settings: Settings, where: str, mistakes: list[str]) -> Provider:
    """The provider that these settings make of it, where they decide how to verify and to read."""
    if provider.configure is None:
        return provider
    try:
        return provider.configure({key: value for key, value in settings.items() if isinstance(value, str)})
    except ConfigError as error:
        mistakes.extend(f"{where}.{mistake}" for mistake in error.mistakes)
        return provider


def _tolerant(provider: Provider, tolerance: timedelta, where: str, mistakes: list[str]) -> Provider:
    if not hasattr(provider.signature, "tolerance"):
        mistakes.append(f"{where}.tolerance: {provider.name} signs no time, so there is nothing to tolerate")
        return provider
    return replace(provider, signature=replace(provider.signature, tolerance=tolerance))  # type: ignore[type-var]


def _trimmed(where: str, secret: str) -> str:
    if secret != secret.strip():
        warnings.warn(f"{where}.secrets: white space around a secret was removed", stacklevel=2)
    return secret.strip()


def messages_of(error: ValidationError) -> dict[str, Any]:
    """The error's messages by field."""
    return dict(error.normalized_messages())  # type: ignore[no-untyped-call]


def _lines(messages: Mapping[str, Any], provider: Provider | None) -> list[str]:
    lines = []
    for key, value in messages.items():
        lines += [f"{key}: {_explained(line, provider)}" for line in _flat(value)]
    return lines


def _explained(line: str, provider: Provider | None) -> str:
    if line != "Unknown field.":
        return line
    return (
        f"is not known; there are {', '.join(sorted(_OPTIONS | set(provider.settings if provider else ())))}"
    )


def _flat(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [f"[{key}] {line}" for key, inner in value.items() for line in _flat(inner)]
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]
