"""Tell people of issues through Apprise, where it is installed (the extra `alerts`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from .errors import ConfigError
from .issues import Issue

__all__ = ["AppriseTeller", "addresses"]

log = logging.getLogger(__name__)


def addresses(given: Any) -> list[str]:
    """WEBHOOKS_ALERTS as a list of addresses. Raises ConfigError that says what it may be."""
    found = [given] if isinstance(given, str) else given
    if not isinstance(found, list | tuple) or not all(
        isinstance(each, str) and each.strip() for each in found
    ):
        # Never what was given: an address holds a token.
        raise ConfigError(
            'WEBHOOKS_ALERTS is a list of Apprise addresses, such as ["mailto://user:password@example.com"], or a function '
            f"that returns one; this is a {type(given).__name__}"
            + (" with something in it that is no text" if isinstance(given, list | tuple) else "")
        )
    return list(found)


class AppriseTeller:
    """Sends every issue to these Apprise URLs. Raises ConfigError where Apprise is missing or an address is none."""

    def __init__(self, urls: Callable[[], Sequence[str]]) -> None:
        self._urls = urls

    def __call__(self, issue: Issue) -> None:
        urls = list(self._urls())
        if not urls:
            return
        told: bool | None = self._apprise(urls).notify(
            title=issue.title, body=issue.text, notify_type="failure" if issue.state == "open" else "success"
        )
        if not told:
            # Never an address: it holds a token.
            log.warning("%s: %s could not be sent to every address", issue.endpoint, issue.kind)

    def _apprise(self, urls: Sequence[str]) -> Any:
        try:
            import apprise  # noqa: PLC0415 - an extra
        except ImportError:
            raise ConfigError("WEBHOOKS_ALERTS needs Apprise: install flask-webhook-inbox[alerts]") from None
        made = apprise.Apprise()
        for number, url in enumerate(urls):
            if not made.add(url):
                raise ConfigError(f"WEBHOOKS_ALERTS[{number}] is no address that Apprise knows")
        return made
