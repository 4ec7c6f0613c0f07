"""`flask webhooks send`: a delivery as the provider would write and sign it."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import click
import urllib3
from flask import current_app
from rich.console import Console
from urllib3.exceptions import HTTPError
from werkzeug.routing import BuildError

from .. import providers
from ..endpoints import Endpoint
from ..provider import Request, Sample
from ..state import State
from .asking import endpoint_named
from .output import Answer, command, state, steps, table

__all__ = ["send"]

TIMEOUT = 30.0
"""Seconds; no provider waits longer."""

ROUTE = "webhooks.receive"


@command()
@click.argument("name")
@click.argument("type_", metavar="TYPE")
@click.option(
    "--endpoint", metavar="NAME", help="The endpoint to sign for, where several are of this provider."
)
@click.option(
    "--url", metavar="URL", help="Post it there; without it the app itself gets it, without a server."
)
@click.option(
    "--count", type=click.IntRange(min=1), default=1, show_default=True, help="Send so many deliveries."
)
@click.option(
    "--id", "id_", metavar="ID", help="The event's id; with --count the same event is delivered again."
)
def send(name: str, type_: str, endpoint: str | None, url: str | None, count: int, id_: str | None) -> Answer:
    """Send a made-up event of TYPE, signed with the endpoint's current secret. NAME is an endpoint or a provider.

    `flask webhooks providers NAME` names the main types. The exit code is 1 when a delivery was not accepted.
    """
    inbox = state()
    of = _endpoint(inbox, name, endpoint)
    if of.provider.sample is None:
        raise click.ClickException(
            f"we know no sample of {of.provider.name}; send a recorded request with curl"
        )
    where = url or _own_url(of)
    if not where.startswith(("http://", "https://")):
        raise click.UsageError("--url begins with http:// or https://")
    rows: list[dict[str, Any]] = []
    for _ in steps(range(count), "Send"):
        delivery = _signed(of, where, type_, id_ or f"evt_{secrets.token_hex(10)}")
        started = time.monotonic()
        http_status, reply = _post(where, delivery) if url else _hand_over(where, delivery)
        rows.append(
            {
                "endpoint": of.name,
                "type": type_,
                "dedup_keys": [envelope.dedup_key for envelope in of.provider.parse(delivery)],
                "url": where,
                "http_status": http_status,
                "reply": reply,
                "seconds": round(time.monotonic() - started, 6),
            }
        )
    if not url:
        # The door's own bell rings in a thread, which may not outlive this command.
        inbox.reconciler.sweep()
    return Answer(rows, _shown(rows), int(any(row["http_status"] >= 300 for row in rows)))


def _endpoint(inbox: State, name: str, endpoint: str | None) -> Endpoint:
    if endpoint is not None:
        named = endpoint_named(inbox, endpoint)
        if name not in {named.name, named.provider.name, *named.aliases}:
            raise click.ClickException(
                f"the endpoint {named.name!r} is of {named.provider.name}, not of {name}"
            )
        return named
    found = inbox.endpoints.at(name)
    if found is not None:
        return found
    of = [each for each in inbox.endpoints.values() if each.provider.name == name]
    if len(of) == 1:
        return of[0]
    if of:
        raise click.ClickException(
            f"several endpoints are of {name}; choose with --endpoint: {', '.join(e.name for e in of)}"
        )
    there = ", ".join(f"{e.name} ({e.provider.name})" for e in inbox.endpoints.values()) or "none"
    what = (
        f"no endpoint is of the provider {name!r}"
        if name in providers.names()
        else f"there is no endpoint or provider {name!r}"
    )
    raise click.ClickException(f"{what}; the endpoints are {there}")


def _own_url(endpoint: Endpoint) -> str:
    config = current_app.config
    where = current_app.url_map.bind(config["SERVER_NAME"] or "localhost", config["APPLICATION_ROOT"] or "/")
    try:
        return where.build(ROUTE, {"endpoint": endpoint.name}, force_external=True)
    except BuildError:
        raise click.ClickException(
            "no URL of the app takes deliveries: call app.register_blueprint(webhooks.blueprint), or name a --url"
        ) from None


def _signed(endpoint: Endpoint, url: str, type_: str, id_: str) -> Request:
    assert endpoint.provider.sample is not None
    now = datetime.now(UTC)
    unsigned = replace(endpoint.provider.sample(Sample(type_, id_, now)), url=url)
    # Some providers sign the URL, and it is the public one that they know.
    return endpoint.provider.signature.sign(endpoint.seen_as(unsigned), endpoint.secrets[0], now)


def _hand_over(url: str, delivery: Request) -> tuple[int, str]:
    headers = list(delivery.headers.items())
    answer = current_app.test_client().open(url, method=delivery.method, headers=headers, data=delivery.body)
    return answer.status_code, answer.get_data(as_text=True)


def _post(url: str, delivery: Request) -> tuple[int, str]:
    try:
        answer = urllib3.request(
            delivery.method,
            url,
            body=delivery.body,
            headers=dict(delivery.headers),
            timeout=TIMEOUT,
            retries=False,
            redirect=False,
        )
    except HTTPError as error:
        raise click.ClickException(
            f"{url} cannot be reached ({type(error).__name__}); is the web server up?"
        ) from None
    return answer.status, answer.data.decode("utf-8", "replace")


def _shown(rows: list[dict[str, Any]]) -> Any:
    def show(where: Console) -> None:
        lines = [row | {"event": ", ".join(row["dedup_keys"])} for row in rows]
        table("", lines, ("endpoint", "type", "event", "http_status", "reply", "seconds"), empty="")(where)

    return show
