"""The statements of one object's transaction, as text: they are the same every time, and built once per database."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import JSON, DateTime, Executable, String, TextClause, bindparam, text

__all__ = ["Statements", "statements"]

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
    )


def _timed(statement: str, *instants: str) -> TextClause:
    return text(statement).bindparams(*(bindparam(name, type_=_INSTANT) for name in instants))
