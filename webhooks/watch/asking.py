"""What the providers say about our endpoints: exists, enabled, right URL, the types we handle, nothing twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlsplit

from ..api import Apis
from ..apply import summary
from ..endpoints import Endpoint
from ..errors import ApiRefused, NotFetchable, OverBudget, RateLimited, RetryLater, WebhooksError
from ..handlers import Handlers
from ..issues import Finding
from ..provider import Subscription

__all__ = ["ask"]


def ask(apis: Apis, handlers: Handlers, endpoint: Endpoint) -> Iterator[Finding]:
    """Ask the provider about one endpoint. What it does not answer is a finding by itself (`no_answer`) and nothing is
    made up for it: a provider that is away neither has our endpoint disabled nor closes what it said before."""
    provider = endpoint.provider
    if not endpoint.fetch:
        return
    asks = provider.endpoint_health is not None or provider.subscriptions is not None
    unasked = [] if asks else [provider.untold.get("endpoint_health", f"{provider.name} has nobody to ask")]
    failed: dict[str, WebhooksError] = {}
    for look in (_health, _subscribed):
        try:
            yield from look(apis, handlers, endpoint, unasked)
        except NotFetchable as reason:  # a setting is missing: nothing was sent
            unasked.append(str(reason))
        except WebhooksError as error:
            failed[f"could not be asked ({summary(error)}): {_advice(endpoint, error)}"] = error
            if isinstance(error, RetryLater):
                break  # the next question would fare no better
    for detail, why in failed.items():
        yield Finding(endpoint.name, "no_answer", good=False, detail=detail, evidence=_kind_of(why))
    if not failed:
        once = list(dict.fromkeys(unasked))
        detail = "; ".join(once) or "its questions are answered"
        evidence = {"unknown": once} if once else {}
        yield Finding(endpoint.name, "no_answer", good=True, detail=detail, evidence=evidence)


def _advice(endpoint: Endpoint, error: WebhooksError) -> str:
    """What to do about a question that had no answer."""
    match error:
        case ApiRefused(http_status=401):
            return f"renew the credentials in WEBHOOKS[{endpoint.name!r}]"
        case ApiRefused(http_status=403):
            return f"give the credentials in WEBHOOKS[{endpoint.name!r}] the right to read webhook endpoints"
        case RateLimited() | OverBudget():
            return "wait, and ask again; if it lasts, see who else uses the account's API"
        case RetryLater():
            return "see whether this machine reaches the provider's API, and the provider's status page"
    return f"correct the settings in WEBHOOKS[{endpoint.name!r}]"


def _kind_of(error: WebhooksError) -> dict[str, Any]:
    status = getattr(error, "http_status", None)
    return {"error": type(error).__name__} | ({"http_status": status} if status is not None else {})


def _health(apis: Apis, _handlers: Handlers, endpoint: Endpoint, unasked: list[str]) -> Iterator[Finding]:
    check = endpoint.provider.endpoint_health
    if check is None:
        return
    health = check(apis.of(endpoint, priority="retry"))
    if health.refused is not None:
        raise ApiRefused(health.detail, health.refused)
    if health.state == "unknown":
        unasked.append(health.detail)
        return
    said = health.detail or health.state
    for state in ("disabled", "missing", "failing"):
        yield Finding(endpoint.name, f"endpoint_{state}", health.state != state, said)


def _subscribed(apis: Apis, handlers: Handlers, endpoint: Endpoint, unasked: list[str]) -> Iterator[Finding]:
    listed = endpoint.provider.subscriptions
    if listed is None:
        return
    if not endpoint.can_ask:
        unasked.append(f"set {', '.join(endpoint.missing)} to ask {endpoint.provider.name}")
        return
    found = listed(apis.of(endpoint, priority="retry"))
    ours = [one for one in found if one.ours or (one.ours is None and _is_at(endpoint, one.url))]
    yield _duplicates(endpoint, found)
    if unasked and endpoint.provider.lists_all and (ours or endpoint.public_url is not None):
        # Nobody said which of them is ours, but the URL does.
        unasked.clear()
        yield from _there(endpoint, ours)
    if ours:
        yield _url(endpoint, ours)
        yield _types(handlers, endpoint, ours)
        yield _version(endpoint, ours)


def _there(endpoint: Endpoint, ours: Sequence[Subscription]) -> Iterator[Finding]:
    name, provider = endpoint.name, endpoint.provider.name
    if not ours:
        yield Finding(
            name, "endpoint_missing", good=False, detail=f"{provider} has none at {endpoint.public_url}"
        )
        return
    where = ", ".join(sorted({one.url for one in ours}))
    yield Finding(name, "endpoint_missing", good=True, detail=f"{provider} sends to {where}")
    on = any(one.enabled for one in ours)
    yield Finding(name, "endpoint_disabled", good=on, detail=f"{where} is {'enabled' if on else 'disabled'}")


def _duplicates(endpoint: Endpoint, found: Sequence[Subscription]) -> Finding:
    """An old endpoint that was never deleted, a wildcard beside specific types: both send us the same events."""
    here = [one for one in found if one.enabled and (one.ours or _is_at(endpoint, one.url))]
    twice = [
        (one, other)
        for n, one in enumerate(here)
        for other in here[n + 1 :]
        if _overlap(one.types, other.types) and (not one.scope or not other.scope or one.scope == other.scope)
    ]
    named = sorted({one.id for pair in twice for one in pair})
    return Finding(
        endpoint.name,
        "duplicate_endpoints",
        not twice,
        f"{' and '.join(named)} at {endpoint.provider.name} send the same types here"
        if twice
        else "nothing comes twice",
        {"subscriptions": [{"id": one.id, "url": one.url, "types": list(one.types)} for one in here]}
        if twice
        else {},
    )


def _overlap(some: Sequence[str], others: Sequence[str]) -> bool:
    """Whether a type may fit both; one that says nothing may mean everything."""
    return (
        not some
        or not others
        or any(fnmatchcase(one, other) or fnmatchcase(other, one) for one in some for other in others)
    )


def _is_at(endpoint: Endpoint, url: str) -> bool:
    """Whether a URL is one of this endpoint's: its last part is the endpoint's name or alias."""
    parts = urlsplit(url)
    if endpoint.public_url is not None and parts.netloc != urlsplit(endpoint.public_url).netloc:
        return False
    return parts.path.rstrip("/").rpartition("/")[2] in {endpoint.name, *endpoint.aliases}


def _url(endpoint: Endpoint, ours: Sequence[Subscription]) -> Finding:
    urls = sorted({one.url for one in ours})
    right = all(_is_at(endpoint, url) for url in urls)
    return Finding(endpoint.name, "wrong_url", right, f"{endpoint.provider.name} sends to {', '.join(urls)}")


def _types(handlers: Handlers, endpoint: Endpoint, ours: Sequence[Subscription]) -> Finding:
    """Types that handlers wait for and nobody sends; beside them those that are sent and nobody waits for."""
    patterns = [pattern for one in ours for pattern in one.types]
    wanted = {
        type_
        for handler in handlers
        if handler.verb == "on" and handler.is_for(endpoint)
        for type_ in handler.types
        if not set("*?[") & set(type_)
    }
    lacking = sorted(type_ for type_ in wanted if patterns and not _fits(type_, patterns))
    ons = [handler for handler in handlers if handler.verb == "on" and handler.is_for(endpoint)]
    idle = sorted(
        pattern.replace("?", "_")
        for pattern in set(patterns)
        if set(pattern) != {"*"}
        and handlers.any_for(endpoint)
        and not any(_overlap((pattern,), h.types) for h in ons)
    )
    unseen = "" if endpoint.provider.lists_all else " (as far as its API shows them)"
    detail = (
        f"not subscribed{unseen}: {', '.join(lacking)}"
        if lacking
        else "every type that has a handler is subscribed"
    )
    if idle:
        detail += f"; subscribed without an `on` handler: {', '.join(idle)}"
    good = not lacking or not endpoint.provider.lists_all
    return Finding(endpoint.name, "not_subscribed", good, detail, {"missing": lacking, "unhandled": idle})


def _fits(type_: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(type_, pattern) for pattern in patterns)


def _version(endpoint: Endpoint, ours: Sequence[Subscription]) -> Finding:
    """Deliveries of another API version than we fetch matter only where the delivery is what is applied."""
    fetched = endpoint.setting("api_version") if "api_version" in endpoint.provider.settings else ""
    others = sorted({one.api_version for one in ours if one.api_version and fetched} - {fetched})
    detail = (
        f"deliveries are of version {', '.join(others)}, fetches of {fetched}"
        if others
        else "the same version is delivered and fetched"
    )
    return Finding(endpoint.name, "api_version", not others or endpoint.fetches, detail)
