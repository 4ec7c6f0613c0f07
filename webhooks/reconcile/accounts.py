"""An endpoint may hear of several accounts (Stripe Connect): each has a log and lists of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from sqlalchemy import select

from ..api import Apis, HttpApi
from ..endpoints import Endpoint
from ..errors import ApiRefused
from ..inbox import Inbox
from .places import Place
from .runs import Run

__all__ = ["of_all_accounts"]

T = TypeVar("T")

log = logging.getLogger(__name__)


def of_all_accounts(
    inbox: Inbox,
    apis: Apis,
    endpoint: Endpoint,
    run: Run,
    ask: Callable[[HttpApi], Iterable[T]],
    place: Place | None = None,
) -> Iterator[T]:
    """What is to be had of the endpoint's own account, then of each other one that we have copies of; from `place` on,
    which moves along.

    An account that has shut us out is named in the report and passed over: it must not end the others' run.
    """
    begin = None if place is None else place.account
    for account in ["", *_others(inbox, endpoint)]:
        if begin is not None and account < begin:
            continue
        try:
            yield from _of_one(apis, endpoint, account, run, ask, place)
        except ApiRefused as refusal:
            if account == "":
                raise
            log.warning("%s: account %s cannot be asked: %s", endpoint.name, account, refusal.reason)
            closed = run.report.setdefault("accounts_closed", [])
            if account not in closed:
                closed.append(account)


def _of_one(
    apis: Apis,
    endpoint: Endpoint,
    account: str,
    run: Run,
    ask: Callable[[HttpApi], Iterable[T]],
    place: Place | None,
) -> Iterator[T]:
    api = apis.of(endpoint, account, priority="reconcile")
    if place is None:
        yield from ask(api)
        return
    goes_on = place.account == account and place.cursor is not None
    api.place = place.cursor if goes_on else None
    try:
        for item in ask(api):
            goes_on = False
            place.account, place.cursor = account, api.place
            yield item
        return
    except ApiRefused as refusal:
        if not goes_on or refusal.http_status in {401, 403}:
            raise
        place.begin_again(run, refusal.reason)
    yield from _of_one(apis, endpoint, account, run, ask, place)


def _others(inbox: Inbox, endpoint: Endpoint) -> list[str]:
    """The accounts of our copies, where a header of the API says which account is meant."""
    spec = endpoint.provider.api
    if spec is None or not any("{account}" in value for value in spec.headers.values()):
        return []
    o = inbox.tables.objects.c
    with inbox.engine.connect() as connection:
        found = connection.scalars(
            select(o.account)
            .where(o.endpoint == endpoint.name, o.account != "")
            .distinct()
            .order_by(o.account)
        )
        return list(found)
