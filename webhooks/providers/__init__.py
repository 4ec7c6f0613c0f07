"""The providers that come with the package, and those that other packages register under `webhooks.providers`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules

from ..errors import ConfigError
from ..provider import Provider

__all__ = ["get", "names"]


@cache
def _known() -> dict[str, str]:
    own = {
        module.name.replace("_", "-"): f"{__name__}.{module.name}:provider"
        for module in iter_modules(__path__)
    }
    foreign = {entry.name: entry.value for entry in entry_points(group="webhooks.providers")}
    return own | foreign


def names() -> list[str]:
    """The names of all providers, sorted."""
    return sorted(_known())


@cache
def get(name: str) -> Provider:
    """The provider of that name; ConfigError names those that there are."""
    try:
        module, _, attribute = _known()[name].partition(":")
    except KeyError:
        raise ConfigError(f"there is no provider {name!r}; there are {', '.join(names())}") from None
    found = getattr(import_module(module), attribute or "provider")
    if not isinstance(found, Provider):
        raise ConfigError(
            f"{_known()[name]} is registered as the provider {name!r}, but is no webhooks.provider.Provider"
        )
    return found
