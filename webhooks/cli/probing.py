"""A signed probe of our own door: does a delivery get through, and is the secret right? Nothing of it is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import urlsplit

import urllib3
from flask import current_app
from urllib3.exceptions import HTTPError
from werkzeug.routing import BuildError

from ..endpoints import Endpoint
from ..errors import WebhooksError
from ..issues import Finding
from ..provider import Request, Sample
from ..signatures import probe_headers
from ..state import State

__all__ = ["probe_all"]

ROUTE = "webhooks.receive"
TIMEOUT = 10.0
"""Seconds; a provider would not wait longer."""


def probe_all(inbox: State, *, public: bool) -> Iterator[Finding]:
    """One finding per endpoint that can be probed. `public`: over the network, where a public URL is configured."""
    for endpoint in inbox.endpoints.values():
        path = _path(endpoint)
        if path is None or endpoint.provider.sample is None or not endpoint.provider.sample_types:
            continue
        url = (
            f"http://localhost{path}"
            if endpoint.public_url is None
            else endpoint.public_url.rstrip("/") + path
        )
        try:
            request = _signed(endpoint, url)
        except (WebhooksError, ValueError):
            continue  # signed with a key that only the provider has
        yield (
            _over_the_network(endpoint, request)
            if public and endpoint.public_url
            else _here(endpoint, request, path)
        )


def _path(endpoint: Endpoint) -> str | None:
    try:
        return current_app.url_map.bind("localhost").build(ROUTE, {"endpoint": endpoint.name})
    except BuildError:
        return None


def _signed(endpoint: Endpoint, url: str) -> Request:
    provider, now = endpoint.provider, datetime.now(UTC)
    assert provider.sample is not None
    sample = provider.sample(Sample(provider.sample_types[0], f"probe_{int(now.timestamp())}", now))
    signed = provider.signature.sign(replace(sample, url=url), endpoint.secrets[0], now)
    return signed.with_headers(probe_headers(signed, endpoint.secrets[0]))


def _here(endpoint: Endpoint, request: Request, path: str) -> Finding:
    query = urlsplit(request.url).query
    status = (
        current_app.test_client()
        .open(
            path + (f"?{query}" if query else ""),
            method=request.method,
            data=request.body,
            headers=dict(request.headers),
        )
        .status_code
    )
    return _finding(endpoint, status, "a signed probe within this process")


def _over_the_network(endpoint: Endpoint, request: Request) -> Finding:
    try:
        answer = urllib3.PoolManager(retries=False).request(
            request.method,
            request.url,
            body=request.body,
            headers=dict(request.headers),
            timeout=TIMEOUT,
            redirect=False,
        )
    except HTTPError as error:
        return Finding(endpoint.name, "probe", good=False, detail=f"{request.url}: {type(error).__name__}")
    if answer.status in {301, 302, 303, 307, 308}:
        detail = f"{request.url} redirects; providers do not follow, correct the URL or the proxy"
        return Finding(endpoint.name, "probe", good=False, detail=detail)
    return _finding(endpoint, int(answer.status), f"a signed probe to {request.url}")


def _finding(endpoint: Endpoint, status: int, what: str) -> Finding:
    meant = {
        204: "was taken",
        401: "was refused: what comes in is not what was sent, or another secret is configured there",
        404: "found no such endpoint",
    }
    detail = f"{what} {meant.get(status, f'got {status}')}"
    return Finding(endpoint.name, "probe", status == 204, detail)
