"""`flask webhooks explain`: the whole path of one event, in sentences."""

from __future__ import annotations

import click

from ..operating import queries
from ..operating.explaining import explained, parts
from .asking import endpoint_name, event_named
from .output import Answer, command, sentences, state

__all__ = ["explain"]


@command()
@click.argument("event")
@click.option(
    "--endpoint", metavar="NAME", help="The event's endpoint, where several have had this dedup key."
)
def explain(event: str, endpoint: str | None) -> Answer:
    """Why an event is as it is: secret, deliveries, claim, fetch, ledger, flows, effects, outcome and what to do.

    EVENT is an id or a dedup key, as `events` shows them or as the provider's own log names them.
    """
    inbox = state()
    known = endpoint is None or inbox.endpoints.at(endpoint) is not None
    # Its rows are kept when an endpoint is taken out of the configuration.
    of = (
        endpoint_name(inbox, endpoint)
        if known or not queries.events_named(inbox, event, endpoint)
        else endpoint
    )
    found = parts(inbox, event_named(inbox, event, of))
    lines = list(explained(found, queries.now(inbox)))
    return Answer(found | {"sentences": lines}, sentences(lines))
