"""The tables. They live in the host's own metadata, so that its migrations create them; plain column types only."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

__all__ = ["EFFECT_STATES", "KEY_LENGTH", "OUTCOMES", "STATES", "Tables", "stored_key", "tables"]

KEY_LENGTH = 255
"""Longer keys are stored as their digest, longer texts are cut."""

STATES = ("pending", "applying", "applied", "ignored", "dead")

EFFECT_STATES = {
    "recorded": "Promised; it is called soon, or tried again at `due_at`.",
    "started": "It is being called now, or its worker died; when its lease runs out it is called again, or becomes unknown.",
    "done": "It happened. Nothing to do.",
    "dead": "It did not happen, and nobody tries again; see `error`, mend it, then redrive it.",
    "unknown": "It may have happened; look at the other side, then settle it with --done or --again.",
}
"""Effect state → what to do."""

OUTCOMES = {
    "applied": "Its object was fetched and written, and its handlers ran. Nothing to do.",
    "covered": "Another event's fetch of the same claim carried it. Nothing to do.",
    "stale": "The object that we have is newer than what this event carries. Nothing to do.",
    "no_handler": "No handler wants this type. Register one, or unsubscribe from the type at the provider.",
    "condition_not_met": "A condition (`when=`, or the endpoint's live or test mode) said no. Nothing to do.",
    "flow_already_decided": "Another event has decided this flow for this key. Nothing to do.",
    "duplicate_body": "The same body came before under another id, which is not signed. Nothing to do.",
    "not_visible_yet": "The provider's API does not show it yet; it is tried again by itself.",
    "object_gone": "The provider has no such object any more; the copy is marked deleted.",
    "rate_limited": "The provider's API asked us to wait; it is tried again by itself.",
    "handler_failed": "A handler or a fetch failed; see `error`. It is tried again until attempts run out, then redrive it.",
    "gave_up": "A handler or the provider's API said that retrying cannot help; see `error`, mend it, then redrive it.",
    "unreadable": "Signed, but not what the provider documents; look at the body, then redrive it.",
    "answered": "It was answered within the request, and nothing else wants it. Nothing to do.",
    "paused": "The endpoint is paused; resume it.",
    "healed": "Reconciliation found a difference, and this event mended it. See `flask webhooks drift` for its cause.",
    "late": "Reconciliation found that this flow was never decided, and its `late` policy is `ask`: redrive the event to run "
    "it now, or leave it.",
}
"""Every event can say why it did what it did: outcome → what to do."""

_Id = BigInteger().with_variant(Integer, "sqlite")
_Instant = DateTime(timezone=True)
_OPEN = text("state IN ('pending', 'applying')")
_PENDING = text("state BETWEEN 'pending' AND 'pending'")
_UNSETTLED = text("state IN ('recorded', 'started', 'unknown')")


@dataclass(frozen=True)
class Tables:
    """Our tables within one MetaData."""

    events: Table
    bodies: Table
    processed_events: Table
    flow_keys: Table
    objects: Table
    effects: Table
    claims: Table
    holds: Table
    nonces: Table
    runs: Table
    issues: Table
    rejections: Table
    marks: Table
    budgets: Table
    listed: Table


def stored_key(text: str) -> str:
    """A key that is too long, or that no column could hold, is stored as its digest; never cut, never empty."""
    if 0 < len(text) <= KEY_LENGTH and text.isprintable():
        return text
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def tables(metadata: MetaData) -> Tables:
    """Our tables in this metadata, made on the first call."""
    if "webhooks" not in metadata.info:
        metadata.info["webhooks"] = _define(metadata)
    found = metadata.info["webhooks"]
    assert isinstance(found, Tables)
    return found


def _define(metadata: MetaData) -> Tables:
    def key(name: str, *, nullable: bool = False) -> Column[str]:
        return Column(name, String(KEY_LENGTH), nullable=nullable)

    events = Table(
        "webhook_events",
        metadata,
        Column("id", _Id, primary_key=True, autoincrement=True),
        Column("endpoint", String(63), nullable=False),
        key("dedup_key"),
        Column("origin", String(16), nullable=False),
        key("type"),
        key("object_kind", nullable=True),
        key("object_id", nullable=True),
        Column("object_path", Text),
        key("account"),
        Column("livemode", Boolean),
        Column("gone", Boolean, nullable=False, server_default=text("false")),
        key("version", nullable=True),
        Column("occurred_at", _Instant),
        Column("received_at", _Instant, nullable=False),
        Column("deliveries", Integer, nullable=False),
        Column("last_delivery_at", _Instant, nullable=False),
        Column("digest", String(64)),
        key("secret", nullable=True),
        key("correlation", nullable=True),
        key("trace", nullable=True),
        Column("state", String(16), nullable=False),
        Column("outcome", String(32)),
        Column("attempts", Integer, nullable=False),
        Column("due_at", _Instant, nullable=False),
        Column("claim_no", BigInteger),
        Column("claimed_at", _Instant),
        Column("finished_at", _Instant),
        Column("error", Text),
        UniqueConstraint("endpoint", "dedup_key", name="uq_webhook_events_endpoint_dedup_key"),
        # The state comes first: a worker that looks for crashed claims must not walk over a backlog of pending ones.
        Index("ix_webhook_events_due", "state", "due_at", postgresql_where=_OPEN, sqlite_where=_OPEN),
        # The same by account, so that a claim can be shared among them.
        Index(
            "ix_webhook_events_lanes",
            *("endpoint", "account", "due_at"),
            postgresql_where=_PENDING,
            sqlite_where=_PENDING,
        ),
        # With the state behind, an object's open events are found however long its history is.
        Index("ix_webhook_events_object", "endpoint", "object_kind", "object_id", "state"),
        Index(
            "ix_webhook_events_digest",
            "endpoint",
            "digest",
            postgresql_where=text("digest IS NOT NULL"),
            sqlite_where=text("digest IS NOT NULL"),
        ),
        sqlite_autoincrement=True,
    )
    bodies = Table(
        "webhook_bodies",
        metadata,
        # No foreign key: bodies are dropped early and in bulk, and the door should not pay for the check.
        Column("event_id", _Id, primary_key=True, autoincrement=False),
        Column("body", LargeBinary, nullable=False),
        Column("headers", JSON),
        Column("answer", JSON),
        # The fingerprint of the key that it is encrypted with; None: none.
        Column("sealed", String(12)),
    )
    processed_events = Table(
        "webhook_processed_events",
        metadata,
        Column("event_id", _Id, nullable=False),
        Column("handler", String(KEY_LENGTH), nullable=False),
        Column("processed_at", _Instant, nullable=False),
        PrimaryKeyConstraint("event_id", "handler", name="pk_webhook_processed_events"),
    )
    flow_keys = Table(
        "webhook_flow_keys",
        metadata,
        key("flow"),
        key("key"),
        Column("event_id", _Id, nullable=False),
        key("handler"),
        Column("decided_at", _Instant, nullable=False),
        PrimaryKeyConstraint("flow", "key", name="pk_webhook_flow_keys"),
    )
    objects = Table(
        "webhook_objects",
        metadata,
        Column("endpoint", String(63), nullable=False),
        key("account"),
        key("kind"),
        key("id"),
        Column("path", Text),
        Column("claim_no", BigInteger, nullable=False),
        Column("as_of", _Instant, nullable=False),
        key("version", nullable=True),
        Column("digest", String(64)),
        Column("data", JSON(none_as_null=True)),
        Column("deleted_at", _Instant),
        Column("checked_at", _Instant, nullable=False),
        # Its state is final, so that it is not read again every hour; None: nobody has looked.
        Column("settled", Boolean),
        # A full listing did not show it; whether it is gone, only a fetch can tell.
        Column("unlisted_at", _Instant),
        PrimaryKeyConstraint("endpoint", "account", "kind", "id", name="pk_webhook_objects"),
        Index(
            "ix_webhook_objects_unlisted",
            "endpoint",
            "unlisted_at",
            postgresql_where=text("unlisted_at IS NOT NULL"),
            sqlite_where=text("unlisted_at IS NOT NULL"),
        ),
    )
    effects = Table(
        "webhook_effects",
        metadata,
        Column("idempotency_key", String(KEY_LENGTH), primary_key=True),
        Column("endpoint", String(63), nullable=False),
        Column("event_id", _Id),
        key("handler"),
        key("name"),
        key("per", nullable=True),
        Column("arguments", JSON, nullable=False),
        Column("state", String(16), nullable=False),
        Column("attempts", Integer, nullable=False),
        Column("looks", Integer, nullable=False),
        # The fence: whoever takes the effect draws the next number, and only its holder may write what came of it.
        Column("call_no", Integer, nullable=False),
        # None: nothing is due by itself, a person decides.
        Column("due_at", _Instant),
        Column("recorded_at", _Instant, nullable=False),
        Column("first_started_at", _Instant),
        Column("started_at", _Instant),
        Column("finished_at", _Instant),
        Column("result", JSON(none_as_null=True)),
        Column("error", Text),
        Index(
            "ix_webhook_effects_due",
            "due_at",
            postgresql_where=_UNSETTLED,
            sqlite_where=_UNSETTLED,
        ),
        Index("ix_webhook_effects_event_id", "event_id"),
    )
    claims = Table(
        # Its key is the sequence that claim numbers are drawn from; a plain table, so that generated migrations have it.
        "webhook_claims",
        metadata,
        Column("claim_no", _Id, primary_key=True, autoincrement=True),
        Column("worker", String(KEY_LENGTH), nullable=False),
        Column("claimed_at", _Instant, nullable=False),
        sqlite_autoincrement=True,
    )
    holds = Table(
        # What may not be claimed at the moment, and why: paused by a person, or asked to wait by the provider.
        "webhook_holds",
        metadata,
        Column("endpoint", String(63), nullable=False),
        key("account"),
        Column("reason", String(16), nullable=False),
        Column("since", _Instant, nullable=False),
        Column("until", _Instant),
        PrimaryKeyConstraint("endpoint", "account", "reason", name="pk_webhook_holds"),
    )
    nonces = Table(
        # What a provider signs in place of the body, and the one event that each was good for.
        "webhook_nonces",
        metadata,
        Column("endpoint", String(63), nullable=False),
        key("nonce"),
        key("dedup_key"),
        Column("digest", String(64), nullable=False),
        Column("used_at", _Instant, nullable=False),
        PrimaryKeyConstraint("endpoint", "nonce", name="pk_webhook_nonces"),
    )
    runs = Table(
        "webhook_runs",
        metadata,
        Column("id", _Id, primary_key=True, autoincrement=True),
        Column("endpoint", String(63), nullable=False),
        Column("task", String(16), nullable=False),
        Column("since", _Instant),
        Column("started_at", _Instant, nullable=False),
        Column("finished_at", _Instant),
        # Everything before it has been read by this run or an earlier one; None: this run says nothing about that.
        Column("reached", _Instant),
        Column("expires_at", _Instant, nullable=False),
        Column("seen", Integer, nullable=False),
        Column("missed", Integer, nullable=False),
        Column("healed", Integer, nullable=False),
        Column("causes", JSON),
        Column("report", JSON),
        Column("error", Text),
        Index("ix_webhook_runs_endpoint_task_started_at", "endpoint", "task", "started_at"),
        Index(
            # The lock: one open run of a task on an endpoint, whatever number of beats there are.
            "uq_webhook_runs_open",
            "endpoint",
            "task",
            unique=True,
            postgresql_where=text("finished_at IS NULL"),
            sqlite_where=text("finished_at IS NULL"),
        ),
        sqlite_autoincrement=True,
    )
    issues = Table(
        "webhook_issues",
        metadata,
        Column("id", _Id, primary_key=True, autoincrement=True),
        Column("endpoint", String(63), nullable=False),
        Column("kind", String(32), nullable=False),
        Column("state", String(8), nullable=False),
        Column("opened_at", _Instant, nullable=False),
        Column("closed_at", _Instant),
        Column("evidence", JSON, nullable=False),
        # When people were told that it opened, and that it is over.
        Column("notified_at", _Instant),
        Column("over_notified_at", _Instant),
        Index(
            "uq_webhook_issues_open",
            "endpoint",
            "kind",
            unique=True,
            postgresql_where=text("state = 'open'"),
            sqlite_where=text("state = 'open'"),
        ),
        sqlite_autoincrement=True,
    )
    rejections = Table(
        "webhook_rejections",
        metadata,
        Column("id", _Id, primary_key=True, autoincrement=True),
        Column("endpoint", String(63), nullable=False),
        Column("received_at", _Instant, nullable=False),
        Column("reason", String(16), nullable=False),
        Column("length", Integer, nullable=False),
        Column("digest", String(64), nullable=False),
        Column("headers", JSON, nullable=False),
        Column("body", LargeBinary),
        Column("sealed", String(12)),
        Index("ix_webhook_rejections_endpoint_received_at", "endpoint", "received_at"),
        sqlite_autoincrement=True,
    )
    marks = Table(
        # What the next run must know: how far a sweep has come, when beat was last heard, how often a check was bad.
        "webhook_marks",
        metadata,
        Column("endpoint", String(63), nullable=False),
        key("name"),
        Column("value", JSON, nullable=False),
        Column("at", _Instant, nullable=False),
        PrimaryKeyConstraint("endpoint", "name", name="pk_webhook_marks"),
    )
    budgets = Table(
        # How many calls an account at a provider has left, for all workers together.
        "webhook_budgets",
        metadata,
        key("account"),
        Column("spent", Float, nullable=False),
        Column("since", _Instant, nullable=False),
        Column("share", Float),
        Column("share_until", _Instant),
        Column("blocked_until", _Instant),
        PrimaryKeyConstraint("account", name="pk_webhook_budgets"),
    )
    listed = Table(
        # What a provider listed, until the run that asked for it has compared it. A run that was killed left it here, and
        # the next one goes on with it; `n` is the place in the listing.
        "webhook_listed",
        metadata,
        Column("listing", _Id, nullable=False, autoincrement=False),
        Column("n", Integer, nullable=False, autoincrement=False),
        key("account"),
        key("kind"),
        key("key"),
        Column("id", Text, nullable=False),
        Column("path", Text, nullable=False),
        key("version", nullable=True),
        Column("digest", String(64)),
        Column("fresh_after", _Instant),
        Column("listed_at", _Instant),
        PrimaryKeyConstraint("listing", "n", name="pk_webhook_listed"),
    )
    return Tables(
        events,
        bodies,
        processed_events,
        flow_keys,
        objects,
        effects,
        claims,
        holds,
        nonces,
        runs,
        issues,
        rejections,
        marks,
        budgets,
        listed,
    )
