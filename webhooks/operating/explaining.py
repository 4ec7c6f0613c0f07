"""The whole path of one event: its parts, and the same in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select

from ..models import OUTCOMES
from ..state import State
from . import queries, standing
from .words import ago, duration

__all__ = ["explained", "parts"]

Row = dict[str, Any]


def parts(inbox: State, row: Row) -> Row:
    """What is known of an event."""
    body, _ = queries.kept(inbox, row["id"])
    return {
        "event": row,
        "endpoint_known": row["endpoint"] in inbox.endpoints,
        "secrets": _secrets(inbox, row),
        "deliveries": {
            "count": row["deliveries"],
            "first_at": row["received_at"],
            "last_at": row["last_delivery_at"],
            "body_kept": body is not None,
        },
        "claim": _claim(inbox, row),
        "object": _object(inbox, row),
        "ledger": _ledger(inbox, row),
        "flows": queries.flows(inbox, row["id"]),
        "effects": queries.effects(inbox, row["id"]),
        "holds": [
            h
            for h in standing.holds(inbox)
            if h["endpoint"] == row["endpoint"] and h["account"] in {"", row["account"]}
        ],
        "outcome": {"name": row["outcome"], "todo": OUTCOMES.get(row["outcome"] or "")},
        "error": row["error"],
    }


def _secrets(inbox: State, row: Row) -> list[Row]:
    """The secrets that matched: fingerprint, position in the configuration (1 is the current one) if still there."""
    if not row["secret"]:
        return []
    endpoint = inbox.endpoints.get(row["endpoint"])
    configured = endpoint.fingerprints() if endpoint is not None else []
    return [
        {
            "fingerprint": each,
            "position": configured.index(each) + 1 if each in configured else None,
            "configured": len(configured),
        }
        for each in row["secret"].split(",")
    ]


def _claim(inbox: State, row: Row) -> Row | None:
    if row["claim_no"] is None:
        return None
    claims, events = inbox.tables.claims, inbox.tables.events
    worker = queries.rows(inbox, select(claims.c.worker).where(claims.c.claim_no == row["claim_no"]))
    mates = queries.rows(
        inbox,
        select(events.c.id)
        .where(
            events.c.claim_no == row["claim_no"],
            events.c.endpoint == row["endpoint"],
            events.c.account == row["account"],
            events.c.object_kind == row["object_kind"],
            events.c.object_id == row["object_id"],
            events.c.id != row["id"],
        )
        .order_by(events.c.id),
    )
    return {
        "no": row["claim_no"],
        "worker": worker[0]["worker"] if worker else None,
        "at": row["claimed_at"],
        "attempt": row["attempts"],
        "with": [mate["id"] for mate in mates] if row["object_id"] else [],
    }


def _object(inbox: State, row: Row) -> Row | None:
    """What the event is about, and how our copy stands to the event's claim."""
    if row["object_id"] is None:
        return None
    endpoint = inbox.endpoints.get(row["endpoint"])
    c = inbox.tables.objects.c
    found = queries.rows(
        inbox,
        select(c.claim_no, c.as_of, c.version, c.deleted_at, c.checked_at).where(
            c.endpoint == row["endpoint"],
            c.account == row["account"],
            c.kind == row["object_kind"],
            c.id == row["object_id"],
        ),
    )
    copy = found[0] if found else None
    compared = None
    if copy is not None and row["claim_no"] is not None:
        ours, its = copy["claim_no"], row["claim_no"]
        compared = "same_claim" if ours == its else "newer" if ours > its else "older"
    return {
        "kind": row["object_kind"],
        "id": row["object_id"],
        "fetched": bool(endpoint is not None and endpoint.fetches),
        "copy": copy,
        "copy_is": compared,
    }


def _ledger(inbox: State, row: Row) -> list[Row]:
    """The ledger rows of the event, and the handlers that want it but have none."""
    found = [
        {"handler": entry["handler"], "at": entry["processed_at"]}
        for entry in queries.ledger(inbox, [row["id"]])
    ]
    endpoint = inbox.endpoints.get(row["endpoint"])
    if endpoint is None:
        return found
    syncs = inbox.handlers.syncs(endpoint, row["object_kind"]) if row["object_kind"] else []
    had = {entry["handler"] for entry in found}
    wanting = [h.entry for h in (*syncs, *inbox.handlers.ons(endpoint, row["type"])) if h.entry not in had]
    return found + [{"handler": entry, "at": None} for entry in wanting]


# -- the sentences


def explained(parts: Row, now: datetime) -> Iterator[str]:
    """The parts in sentences, in the order in which things happened."""
    yield from _what(parts, now)
    if not parts["endpoint_known"]:
        name = parts["event"]["endpoint"]
        yield (
            f"There is no endpoint {name} in WEBHOOKS any more: its events are kept, and none is applied until it is there again."
        )
    yield from _how_it_came(parts, now)
    yield from _claimed(parts, now)
    yield from _written(parts, now)
    yield from _by_handlers(parts, now)
    yield from _ended(parts, now)


def _what(parts: Row, now: datetime) -> Iterator[str]:
    row = parts["event"]
    about = (
        f", about the {row['object_kind']} {row['object_id']}" if row["object_id"] else ", about no object"
    )
    account = f" of the account {row['account']}" if row["account"] else ""
    yield f"Event {row['id']} is {row['dedup_key']}, a {row['type'] or 'nameless event'} at the endpoint {row['endpoint']}{about}{account}."
    if row["occurred_at"] is not None:
        late = row["received_at"] - row["occurred_at"]
        after = f", {duration(late)} before we received it" if late >= timedelta(seconds=1) else ""
        yield f"At the provider it happened at {ago(row['occurred_at'], now)}{after}."


def _how_it_came(parts: Row, now: datetime) -> Iterator[str]:
    row, came = parts["event"], parts["deliveries"]
    first, last = ago(came["first_at"], now), ago(came["last_at"], now)
    if row["origin"] == "reconcile":
        yield f"No delivery brought it: reconcile found at {first} that our copy differed, and made this event to mend that."
    elif row["origin"] == "recover":
        yield f"Recover found it in the provider's own log at {first}; no delivery had brought it by then."
    elif row["origin"] == "fresh":
        yield f"No delivery brought it: code of the app asked at {first} for the object as it is (`ensure_fresh`)."
    elif row["origin"] == "replay":
        yield "It is applied again on purpose: somebody said `replay`."
    if came["count"] == 1:
        yield f"It was delivered once, at {last}."
    elif came["count"] > 1:
        begin = f"first at {first}, " if row["origin"] in {"delivery", "replay"} else ""
        yield f"It was delivered {came['count']} times, {begin}last at {last}; it is one event all the same."
    for secret in parts["secrets"]:
        if not parts["endpoint_known"]:
            yield f"It was signed with the secret {secret['fingerprint']}."
        elif secret["position"] is None:
            yield f"It was signed with the secret {secret['fingerprint']}, which is not in the configuration any more."
        else:
            which = " (the current one)" if secret["position"] == 1 else " (not the current one)"
            yield (
                f"It was signed with the secret {secret['fingerprint']}, number {secret['position']} of "
                f"{secret['configured']} in the configuration{which}."
            )
    if not parts["secrets"]:
        yield "No secret matched, because none was needed: it was not delivered but read from the provider's API."
    if not came["body_kept"]:
        yield "Its body has been dropped."


def _claimed(parts: Row, now: datetime) -> Iterator[str]:
    claim = parts["claim"]
    if claim is None:
        yield "No worker has claimed it."
        return
    by = (
        f"The worker {claim['worker']} claimed it"
        if claim["worker"]
        else "It was claimed (by whom is not kept any more)"
    )
    attempt = f", attempt {claim['attempt']}" if claim["attempt"] > 1 else ""
    yield f"{by} with claim {claim['no']} at {ago(claim['at'], now)}{attempt}."
    if claim["with"]:
        few = ", ".join(str(id_) for id_ in claim["with"][:10]) + (" …" if len(claim["with"]) > 10 else "")
        yield f"The same claim covered {len(claim['with'])} more of the object's events: {few}."


def _written(parts: Row, now: datetime) -> Iterator[str]:
    thing = parts["object"]
    if thing is None:
        return
    if not thing["fetched"] and parts["endpoint_known"]:
        yield "Nothing is fetched for this endpoint: what the event carried counts, unless we have something newer."
    copy = thing["copy"]
    if copy is None:
        yield "We have no copy of the object."
        return
    version = f", version {copy['version']}" if copy["version"] else ""
    stand = f"claim {copy['claim_no']}, as of {ago(copy['as_of'], now)}{version}"
    fetch = "fetch" if thing["fetched"] else "write"
    if thing["copy_is"] == "same_claim":
        yield f"The {fetch} of that claim wrote our copy of the object, and it still stands ({stand})."
    elif thing["copy_is"] == "newer":
        yield f"Our copy of the object is newer: a later {fetch} wrote it ({stand})."
    elif thing["copy_is"] == "older":
        yield f"Our copy of the object is older than that claim, which has not written it ({stand})."
    else:
        yield f"We have a copy of the object ({stand})."
    if copy["deleted_at"] is not None:
        yield f"The object is gone at the provider; the copy is marked deleted since {ago(copy['deleted_at'], now)}."


def _by_handlers(parts: Row, now: datetime) -> Iterator[str]:
    for entry in parts["ledger"]:
        if entry["at"] is not None:
            yield f"The handler {entry['handler']} has applied it, at {ago(entry['at'], now)}."
        else:
            yield f"The handler {entry['handler']} wants such events and has no ledger row for it."
    if not parts["ledger"] and parts["endpoint_known"]:
        yield "No handler of the app is for it."
    for flow in parts["flows"]:
        yield f"It decided the flow {flow['flow']} for {flow['key']} (handler {flow['handler']}), at {ago(flow['decided_at'], now)}."
    for effect in parts["effects"]:
        error = f": {effect['error']}" if effect["error"] else ""
        yield (
            f"It promised the effect {effect['name']} (idempotency key {effect['idempotency_key']}), which is "
            f"{effect['state']} after {effect['attempts']} attempts{error}."
        )


def _ended(parts: Row, now: datetime) -> Iterator[str]:
    row, outcome = parts["event"], parts["outcome"]
    named = f", outcome {outcome['name']}: {outcome['todo']}" if outcome["name"] else "."
    yield f"Its state is {row['state']}{named}"
    if parts["error"]:
        yield f"The last error: {parts['error']}"
    if row["state"] in queries.OPEN:
        due = "its lease ends" if row["state"] == "applying" else "it is due"
        yield f"{due[0].upper()}{due[1:]} {ago(row['due_at'], now)}."
        for hold in parts["holds"]:
            until = (
                f"until {ago(hold['until'], now)}"
                if hold["until"]
                else f"until `flask webhooks resume {row['endpoint']}`"
            )
            yield f"The endpoint is held ({hold['reason'].replace('_', ' ')}) {until}."
    if row["state"] == "dead":
        yield f"When the reason is mended: `flask webhooks redrive {row['id']}`."
