"""What an outage of a length would cost with a provider: retried, lost, disabled, and what our recover brings back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from ..provider import Provider
from .countdown import duration

__all__ = ["Outage", "simulate"]

UNKNOWN = "its documentation does not say"


@dataclass(frozen=True)
class Outage:
    """What becomes of events that happen during an outage. None: the provider's documentation does not say."""

    provider: str
    length: timedelta
    attempts: int | None
    """Attempts that fail for an event at the beginning of the outage."""
    retried: bool | None
    """Whether an event from the beginning is tried again after the end."""
    wait: timedelta | None
    """How long after the end of the outage the last of them comes, at the latest."""
    lost_from: timedelta | None
    """Events of the first so much of the outage are given up; zero: none, None: unknown."""
    disabled: bool | None
    recovered: bool
    """Whether our recover finds them all again in the provider's log."""
    reconciled: bool
    """Whether reconcile finds what became of the objects."""
    sentences: list[str]


def simulate(provider: Provider, length: timedelta) -> Outage:
    """What an outage of this length does, every number taken from the provider's `Policy`."""
    policy = provider.policy
    attempts, retried, wait = _attempts(policy.retries, policy.retry_window, length)
    lost = _lost(policy.retries, policy.retry_window, length)
    disabled = _disabled(provider, length, attempts)
    window = policy.log_window
    reads = provider.list_events is not None and (window is None or length <= window)
    lists = provider.list_changed is not None and provider.fetch is not None
    return Outage(
        provider.name,
        length,
        attempts,
        retried,
        wait,
        lost,
        disabled,
        reads,
        lists,
        _sentences(provider, length, attempts, retried, wait, lost, disabled, reads=reads, lists=lists),
    )


def _attempts(
    retries: tuple[timedelta, ...] | None, window: timedelta | None, length: timedelta
) -> tuple[int | None, bool | None, timedelta | None]:
    if retries is None:
        return None, None if window is None else window > length, None
    at, failed = timedelta(0), 1
    for pause in retries:
        at += pause
        if at > length:
            return failed, True, max(retries)
        failed += 1
    return failed, False, None


def _lost(
    retries: tuple[timedelta, ...] | None, window: timedelta | None, length: timedelta
) -> timedelta | None:
    """An event is given up if its last attempt still falls into the outage."""
    reach = sum(retries, timedelta(0)) if retries is not None else window
    return None if reach is None else max(length - reach, timedelta(0))


def _disabled(provider: Provider, length: timedelta, attempts: int | None) -> bool | None:
    disables = provider.policy.disables
    if disables is None:
        return False
    if disables.after is not None and length >= disables.after:
        return True
    if disables.after_failures is not None:
        # One event's attempts count already; how many events there are, nobody knows beforehand.
        return None if attempts is None or attempts < disables.after_failures else True
    return False if disables.after is not None else None


def _sentences(
    provider: Provider,
    length: timedelta,
    attempts: int | None,
    retried: bool | None,
    wait: timedelta | None,
    lost: timedelta | None,
    disabled: bool | None,
    *,
    reads: bool,
    lists: bool,
) -> list[str]:
    return [
        _about_retries(provider, length, attempts, retried, wait, lost),
        _about_disabling(provider, disabled),
        _about_recover(provider, reads=reads),
        _about_objects(provider, lists=lists),
    ]


def _about_retries(
    provider: Provider,
    length: timedelta,
    attempts: int | None,
    retried: bool | None,
    wait: timedelta | None,
    lost: timedelta | None,
) -> str:
    name = provider.name
    if provider.policy.never_retries:
        return f"{name} never tries again: every event of the {duration(length)} is lost as a delivery."
    if retried is None:
        return f"Whether {name} tries again for so long: {UNKNOWN}."
    if lost:
        kept = duration(length - lost)
        return (
            f"{name} gives up events of the first {duration(lost)}; those of the last {kept} are tried again."
        )
    tries = f" after {attempts} failed attempts" if attempts is not None else ""
    late = f", at the latest {duration(wait)} after the end" if wait is not None else ""
    return f"{name} tries every event again{tries}{late}: nothing is lost."


def _about_disabling(provider: Provider, disabled: bool | None) -> str:
    disables, name = provider.policy.disables, provider.name
    how = disables.how if disables is not None else ""
    if disabled:
        said = f" ({how})" if how else ""
        return f"{name} disables the endpoint{said}; what happens then is not sent at all."
    if disabled is None:
        return f"{name} may disable the endpoint: {how or UNKNOWN}."
    return f"{name} does not disable the endpoint for that."


def _about_recover(provider: Provider, *, reads: bool) -> str:
    window, name = provider.policy.log_window, provider.name
    if reads:
        reach = f"reaches back {duration(window)}" if window is not None else "can be read"
        return f"Recover brings back every event: the log of {name} {reach}."
    if provider.list_events is not None and window is not None:
        return f"Recover brings back events of the last {duration(window)}; the log of {name} reaches no further."
    return f"Recover brings back nothing: {name} has no log that can be read."


def _about_objects(provider: Provider, *, lists: bool) -> str:
    if lists:
        return "Reconcile finds what became of the objects, and not what happened to them in between."
    if provider.fetch is not None:
        return (
            "Objects that we have a copy of are brought up to date by a full sweep; new ones are not found."
        )
    return f"{provider.name} shows no objects: what is lost cannot be known."
