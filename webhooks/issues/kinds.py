"""The kinds of issue: what each means, what to do, and how sure a check must be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["KINDS", "Kind"]


@dataclass(frozen=True)
class Kind:
    """What an issue means, what to do, and how sure a check must be."""

    means: str
    todo: str
    opens_after: int = 1
    """Bad checks in a row."""
    closes_after: int = 1
    """Good checks in a row; more where a value wanders around its limit."""


KINDS: Mapping[str, Kind] = {
    "endpoint_disabled": Kind(
        "The provider has stopped sending to this endpoint.",
        "mend why it was disabled, then `flask webhooks check --fix --endpoint {endpoint}` or enable it at the provider, "
        "then `flask webhooks recover {endpoint}`",
    ),
    "endpoint_missing": Kind(
        "The provider does not know this endpoint, or no longer.",
        "create the endpoint at the provider, or correct the id of it in WEBHOOKS; then `flask webhooks recover {endpoint}`",
    ),
    "endpoint_failing": Kind(
        "The provider's last deliveries failed.",
        "look at the provider's last deliveries and at our log: do its requests reach us, is the secret right?",
    ),
    "wrong_url": Kind(
        "The endpoint at the provider has another URL than ours.",
        "correct the URL at the provider, or `public_url` in WEBHOOKS",
    ),
    "duplicate_endpoints": Kind(
        "The provider sends the same events twice: an old endpoint that was never deleted, or a wildcard beside specific types.",
        "delete the endpoint that is not wanted at the provider; the evidence names both",
    ),
    "not_subscribed": Kind(
        "Handlers wait for types that the provider does not send.",
        "subscribe to the types at the provider, or remove the handlers; the evidence names them",
    ),
    "access_refused": Kind(
        "The provider refuses our credentials.",
        "renew the credentials in WEBHOOKS[{endpoint!r}]; until then nothing is fetched, recovered or reconciled",
    ),
    "no_answer": Kind(
        "The provider cannot be asked about this endpoint, so nobody knows whether it still sends to it.",
        "see its detail, then `flask webhooks check --endpoint {endpoint}` again; what was found bad before stays open",
        opens_after=4,  # an hour of beat's checks: a provider that is away for a moment is no news
    ),
    "silence": Kind(
        "Deliveries have stopped although the provider has something for us, or for longer than `max_silence`.",
        "see `flask webhooks check`, then what the provider's dashboard says about its deliveries",
        closes_after=1,
    ),
    "backlog": Kind(
        "Events are recorded but not applied.",
        "see whether workers run, and whether `flask webhooks status` shows a hold",
        closes_after=2,
    ),
    "dead_letters": Kind(
        "Events could not be applied and will not be tried again by themselves.",
        "see `flask webhooks events --state dead --endpoint {endpoint}`, mend the reason, then "
        "`flask webhooks redrive --all --endpoint {endpoint}`",
    ),
    "drift": Kind(
        "The last run found objects that were not what the provider has.",
        "see `flask webhooks drift --endpoint {endpoint}`: each cause says what to mend; the objects themselves are mended",
    ),
    "lost_events": Kind(
        "For some time the provider's log can no longer be read: what happened then can only be seen in its results.",
        "the evidence says since when; objects are compared anyway, occasions of that time are yours to check",
    ),
    "clock_skew": Kind(
        "Deliveries are refused for their time alone, or this machine's clock is not the database's.",
        "set the clock (NTP) of the machines that take deliveries",
    ),
    "secret_wrong": Kind(
        "Deliveries are refused because none of our secrets signed them.",
        "compare the secret in WEBHOOKS[{endpoint!r}] with the one that the provider shows",
        opens_after=1,
        closes_after=2,
    ),
    "rate_limited": Kind(
        "The provider's API keeps asking us to wait.",
        "see `flask webhooks status`; let fewer workers fetch, or ask the provider for a higher limit",
        opens_after=2,
        closes_after=2,
    ),
    "unknown_effect": Kind(
        "A side effect was started and nobody knows whether it was done.",
        "see `flask webhooks effects list --state unknown`, look whether it happened, then `flask webhooks effects settle`",
    ),
    "effects": Kind(
        "Side effects have failed for good.",
        "see `flask webhooks effects list --state dead`, mend the reason, then `flask webhooks effects redrive`",
    ),
    "beat_silent": Kind(
        "Beat, or the worker that hears it, has stopped: nothing is swept, recovered or checked.",
        "start `celery beat` and a worker on its queues",
    ),
    "spool": Kind(
        "Deliveries that a host kept while the database was away are still not in the inbox.",
        "run `flask webhooks sweep` on that host, see its log for what fails, and whether the file can be written",
    ),
    "provider_clock_50": Kind(
        "Half of the time or of the failures that the provider allows is used up.",
        "see its detail; bring the endpoint back into service",
    ),
    "provider_clock_75": Kind(
        "Three quarters of the time or of the failures that the provider allows are used up.",
        "see its detail; bring the endpoint back into service",
    ),
    "provider_clock_90": Kind(
        "Nine tenths of the time or of the failures that the provider allows are used up.",
        "see its detail; bring the endpoint back into service now, then `flask webhooks recover {endpoint}`",
    ),
    "test": Kind("Somebody tried whether alerts arrive.", "nothing"),
}
"""Every kind of issue."""
