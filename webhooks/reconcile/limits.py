"""How often, how far back and how much at a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

__all__ = [
    "BATCH",
    "EPOCH",
    "EVERY",
    "FIRST_LOOK",
    "FULL_SWEEP_EVERY",
    "KEEP_BODIES",
    "KEEP_CLAIMS",
    "KEEP_EVENTS",
    "KEEP_LISTED",
    "KEEP_NONCES",
    "KEEP_REJECTIONS",
    "LISTED_CHUNK",
    "OVERLAP",
    "PLACE_KEEPS",
    "RACY",
    "REREAD",
    "RUN_LEASE",
    "SETTLE",
    "SLICE",
    "SWEEP_CALLS",
]

EVERY = {
    "sweep": timedelta(seconds=30),
    "recover": timedelta(minutes=5),
    "check": timedelta(minutes=15),
    "reconcile": timedelta(hours=1),
    "full_sweep": timedelta(hours=1),
    "audit": timedelta(days=1),
    "purge": timedelta(days=1),
}
"""How often beat runs each task."""

FULL_SWEEP_EVERY = timedelta(days=7)
"""A new full sweep begins so long after the last one was done; `full_sweep` above is how often an unfinished one goes on."""

OVERLAP = timedelta(minutes=10)
"""A run looks back beyond the last good one: what was stamped before it may have become visible after it."""

FIRST_LOOK = timedelta(days=3)
"""How far the first run of an endpoint looks back, where the provider's log reaches that far."""

SETTLE = timedelta(seconds=60)
"""Beat's recover leaves younger log entries for the next run: their deliveries are probably still on the way."""

RUN_LEASE = timedelta(minutes=15)
"""A run that has not said for so long that it goes on has died; the next one takes over."""

SLICE = timedelta(hours=6)
"""A log that can be asked for a stretch of time is read in such pieces, each of which counts when it is read."""

BATCH = 100
"""Log entries, or objects to fetch, per transaction."""

LISTED_CHUNK = 5_000
"""Listed objects that are held in memory at a time."""

PLACE_KEEPS = timedelta(days=1)
"""A listing that was left half-way is gone on with for so long; then its cursor may be worth nothing, and what was listed is
old."""

REREAD = 500
"""Copies of objects that are not in their last state and are read again per run, the longest unchecked first."""

SWEEP_CALLS = 1_000
"""Objects that a full sweep fetches per run; the next run goes on there."""

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
"""Before anything at any provider; Razorpay refuses earlier times."""

RACY = timedelta(seconds=2)
"""A version with a one-second clock, fetched within that second, may stand for two states."""

KEEP_BODIES = timedelta(days=30)
KEEP_EVENTS = timedelta(days=365)
"""Longer than any provider can still send: Stripe resends for 30 days."""
KEEP_CLAIMS = timedelta(days=7)
KEEP_LISTED = timedelta(days=7)
"""Long after `PLACE_KEEPS`: a run may take days to compare what it went on with."""
KEEP_NONCES = timedelta(days=7)
"""Longer than any scheme's tolerance."""
KEEP_REJECTIONS = timedelta(days=30)
