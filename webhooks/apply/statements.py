"""The statements of one object's transaction, as text: they are the same every time, and built once per database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import JSON, DateTime, Executable, String, TextClause, bindparam, text

__all__ = ["Guard", "Statements", "statements"]

Guard = Literal["claim_no", "as_of"]
"""What must not be older than the stored row's: the claim of what was fetched, the time of what an event carried."""

_INSTANT = DateTime(timezone=True)
_COLUMNS = "endpoint, account, kind, id, path, claim_no, as_of, version, digest, data, deleted_at, checked_at"
_SET = ", ".join(
    f"{name} = excluded.{name}"
    for name in ("path", "claim_no", "as_of", "version", "digest", "data", "deleted_at", "checked_at")
)
_HERE = "endpoint = :endpoint AND account = :account AND kind = :kind AND id = :id"


@dataclass(frozen=True)
class Statements:
    """For one kind of database. Each takes its values by name; instants are bound."""

    lock: Executable
    """Our row of the object, locked until the end of the transaction."""
    write_newer: TextClause
    """Write the object's row unless a later claim has written it: that one's fetch was later too. Returns a row if it did."""
    write_absent: TextClause
    """Write it if there is none."""
    write: TextClause
    """Write it; the caller holds the row and has decided."""
    copies: TextClause
    """Another event that came before with the same body."""
    enter: TextClause
    """Enter events into a handler's ledger; returns those that were not there."""
    decide: TextClause
    """Decide a flow for a key; returns a row if nobody had."""
    close: TextClause
    """Give events of this claim their outcome; the count says whether they still were."""
    at_once: Mapping[Guard, TextClause] | None
    """`write_newer`, `enter` for several handlers and `close` in one round trip, where there are such; by what is newer.
    Says whether the row was written, and how many events were closed."""


def statements(*, is_sqlite: bool) -> Statements:
    """The statements in this database's dialect."""
    json = ":data" if is_sqlite else "CAST(:data AS json)"
    write = (
        f"INSERT INTO webhook_objects AS o ({_COLUMNS}) VALUES (:endpoint, :account, :kind, :id, :path, :claim_no,"
        f" :as_of, :version, :digest, {json}, :deleted_at, :now) ON CONFLICT (endpoint, account, kind, id) "
    )
    done = " RETURNING claim_no"
    seen = "version, as_of, deleted_at, data"
    lock = (
        # A transaction of SQLite's that reads first could not write later: another writer may have come in between.
        f"UPDATE webhook_objects SET checked_at = checked_at WHERE {_HERE} RETURNING {seen}"
        if is_sqlite
        else f"SELECT {seen} FROM webhook_objects WHERE {_HERE} FOR UPDATE"
    )
    return Statements(
        lock=text(lock).columns(version=String, as_of=_INSTANT, deleted_at=_INSTANT, data=JSON),
        write_newer=_timed(
            write + f"DO UPDATE SET {_SET} WHERE o.claim_no <= excluded.claim_no" + done,
            "as_of",
            "deleted_at",
            "now",
        ),
        write_absent=_timed(write + "DO NOTHING" + done, "as_of", "deleted_at", "now"),
        write=_timed(write + f"DO UPDATE SET {_SET}" + done, "as_of", "deleted_at", "now"),
        copies=text(
            "SELECT id FROM webhook_events WHERE endpoint = :endpoint AND digest = :digest AND id <> :id"
            # One body may stand for two events of different types (an order that is created and paid at once).
            " AND type = :type AND account = :account"
            " AND (id < :id OR state = 'applied') AND coalesce(outcome, '') <> 'duplicate_body' LIMIT 1"
        ),
        enter=_timed(
            "INSERT INTO webhook_processed_events (event_id, handler, processed_at)"
            " SELECT id, CAST(:handler AS varchar), :now FROM webhook_events WHERE id IN :ids"
            " ON CONFLICT (event_id, handler) DO NOTHING RETURNING event_id",
            "now",
        ).bindparams(bindparam("ids", expanding=True)),
        decide=_timed(
            "INSERT INTO webhook_flow_keys (flow, key, event_id, handler, decided_at)"
            " VALUES (:flow, :key, :event_id, :handler, :now) ON CONFLICT (flow, key) DO NOTHING RETURNING flow",
            "now",
        ),
        close=_timed(
            "UPDATE webhook_events SET state = :state, outcome = :outcome, error = :error, finished_at = :now"
            " WHERE id IN :ids AND claim_no = :claim_no AND state = 'applying'",
            "now",
        ).bindparams(bindparam("ids", expanding=True)),
        at_once=None
        if is_sqlite
        else {"claim_no": _at_once(write, "claim_no"), "as_of": _at_once(write, "as_of")},
    )


def _at_once(write: str, guard: Guard) -> TextClause:
    return _timed(
        f"WITH fresh AS ({write} DO UPDATE SET {_SET} WHERE o.{guard} <= excluded.{guard} RETURNING claim_no),"
        " entered AS (INSERT INTO webhook_processed_events (event_id, handler, processed_at)"
        " SELECT e.id, h.entry, :now FROM fresh, webhook_events e, unnest(CAST(:entries AS varchar[])) AS h (entry)"
        " WHERE e.id = ANY(CAST(:ids AS bigint[])) ON CONFLICT (event_id, handler) DO NOTHING),"
        " closed AS (UPDATE webhook_events SET state = 'applied', error = NULL, finished_at = :now, outcome ="
        " CASE WHEN NOT EXISTS (SELECT FROM fresh) THEN 'stale' WHEN id = :newest THEN :outcome ELSE 'covered' END"
        " WHERE id = ANY(CAST(:ids AS bigint[])) AND claim_no = :claim_no AND state = 'applying' RETURNING id)"
        " SELECT EXISTS (SELECT FROM fresh) AS fresh, (SELECT count(*) FROM closed) AS closed",
        "as_of",
        "deleted_at",
        "now",
    )


def _timed(statement: str, *instants: str) -> TextClause:
    return text(statement).bindparams(*(bindparam(name, type_=_INSTANT) for name in instants))
