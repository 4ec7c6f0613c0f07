"""The provider's clock: how long it goes on trying, and when it stops sending altogether. Every number is from `Policy`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..issues import Finding
from ..provider import Disables, Policy

__all__ = ["LEVELS", "Trouble", "countdown", "duration", "findings"]

LEVELS = (50, 75, 90)
"""Per cent of what the provider allows."""


@dataclass(frozen=True)
class Trouble:
    """What the provider has not been able to deliver, as far as we know."""

    since: datetime | None = None
    """When the oldest event happened that is not delivered; None: there is none."""
    failing_since: datetime | None = None
    """The first failure after the last delivery that was good; None: there was none."""
    failures: int = 0
    """Our own refusals since then."""
    lost: int = 0
    """Deliveries that the provider has given up and we have not recovered."""
    lost_from: datetime | None = None
    lost_until: datetime | None = None


@dataclass(frozen=True)
class Countdown:
    """One thing that the provider will do, and how much of the way there is used up."""

    sentence: str
    used: float


def countdown(name: str, policy: Policy, trouble: Trouble, now: datetime) -> list[Countdown]:
    """What the provider will do and when, the most urgent first; nothing where its documentation does not say."""
    found = [*_retries(name, policy, trouble, now), *_disables(name, policy.disables, trouble, now)]
    return sorted(found, key=lambda each: -each.used)


def findings(endpoint: str, name: str, policy: Policy, trouble: Trouble, now: datetime) -> Iterator[Finding]:
    """One finding for each level that has been passed, or not."""
    found = countdown(name, policy, trouble, now)
    used = found[0].used if found else 0.0
    detail = "; ".join(each.sentence for each in found) or "nothing is running out"
    for level in LEVELS:
        yield Finding(
            endpoint,
            f"provider_clock_{level}",
            used * 100 < level,
            detail,
            {"used": round(min(used, 1.0), 3)},
        )


def _retries(name: str, policy: Policy, trouble: Trouble, now: datetime) -> Iterator[Countdown]:
    if policy.never_retries:
        if trouble.lost and trouble.lost_from and trouble.lost_until and policy.log_window:
            left = policy.log_window - (now - trouble.lost_from)
            yield Countdown(
                f"{name}: {trouble.lost} deliveries between {_clock(trouble.lost_from)} and {_clock(trouble.lost_until)} are "
                + (f"lost unless redelivered within {duration(left)}" if left > timedelta(0) else "lost"),
                (now - trouble.lost_from) / policy.log_window,
            )
        return
    if trouble.since is not None and policy.retry_window:
        used = (now - trouble.since) / policy.retry_window
        left = policy.retry_window - (now - trouble.since)
        said = f"in {duration(left)}" if left > timedelta(0) else "now: it has given up"
        yield Countdown(f"{name} gives up on the oldest undelivered event {said}", used)


def _disables(name: str, disables: Disables | None, trouble: Trouble, now: datetime) -> Iterator[Countdown]:
    if disables is None:
        return
    if disables.after_failures and trouble.failures:
        left = disables.after_failures - trouble.failures
        said = f"after {left} more failure{'s' * (left != 1)}" if left > 0 else "now"
        yield Countdown(
            f"{name} removes this subscription {said}", trouble.failures / disables.after_failures
        )
    if disables.after is not None and trouble.failing_since is not None:
        time = disables.after - (now - trouble.failing_since)
        said = f"in {duration(time)}" if time > timedelta(0) else "now"
        yield Countdown(
            f"{name} disables this endpoint {said}", (now - trouble.failing_since) / disables.after
        )


def duration(length: timedelta) -> str:
    """A length of time as people say it: `41 h`, `2 d 14 h`, `25 min`."""
    minutes = max(round(length.total_seconds() / 60), 0)
    if minutes < 120:
        return f"{minutes} min"
    hours = round(minutes / 60)
    if hours < 49:
        return f"{hours} h"
    return f"{hours // 24} d {hours % 24} h" if hours % 24 else f"{hours // 24} d"


def _clock(at: datetime) -> str:
    return f"{at:%H:%M}"
