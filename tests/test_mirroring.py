from __future__ import annotations

from typing import Any

from tests.apps import STRIPE, build, deliver, rows
from webhooks.apply import Applied
from webhooks.apply.fetching import Fetched
from webhooks.extension import state


def test_of_two_claims_that_mirror_an_object_the_later_one_stays_whoever_writes_last(
    database_url: str,
) -> None:
    with build(database_url, {"stripe": STRIPE}) as app:
        parts = state(app)

        def thing(title: str) -> dict[str, Any]:
            return {"id": "cus_1", "object": "customer", "title": title}

        claims = []
        for title in ("old", "new"):
            assert deliver(app, "stripe", "customer.updated", object=thing(title)).status_code == 200
            claims.append(parts.inbox.claim(parts.endpoints))
        for claim, title in zip(reversed(claims), ("new", "old"), strict=True):
            assert claim is not None
            plain: list[Any] = []
            (group,) = claim.groups
            parts.applier._put(claim, group, Fetched(asked=True, data=thing(title)), plain, Applied())
            assert len(plain) == 1, "nothing about it needs a transaction of its own"
            parts.applier._mirror(claim, plain, Applied())
        (copy,) = rows(app, "objects")
        assert copy.data["title"] == "new"
        assert [(row.state, row.outcome) for row in rows(app, "events")] == [
            ("applied", "stale"),
            ("applied", "applied"),
        ]
