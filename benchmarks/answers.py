"""How long a sign-in waits for its hook: `python -m benchmarks answers`.

Signed calls of `before-user-created` to granian, each recorded, decided with one read and one write of the app's own,
answered and stored. First at fixed rates, where a call's time counts from the moment at which it was due; then as many as
eight clients can have answered. PostgreSQL flushes each commit to its disk; client, server and database share the machine.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.services import Valkey
from webhooks import providers
from webhooks.provider import Sample

from . import load
from .doors import HOOK, HOOK_PATH, HOOK_SECRET
from .machine import ROUNDS, Figures, figure
from .servers import Database
from .serving import Served, as_http, serve

__all__ = ["run"]

RATES = (100, 200)
CLIENTS = 8
THREADS = 16
SECONDS = 10.0
WARM = 2.0
MOST = 2000
"""More calls per second than are answered."""


def run() -> Figures:
    """Milliseconds that a sign-in waits, at fixed rates and at saturation; calls per second, and the server's CPU."""
    samples: dict[str, tuple[str, list[float]]] = {}
    with Database(durable=True) as database, Valkey() as broker, tempfile.TemporaryDirectory() as folder:
        urls = {"DATABASE_URL": database.url(), "REDIS_URL": broker.url()}
        for _ in range(ROUNDS):
            with serve(HOOK, threads=THREADS, **urls) as served:
                _send(served, Path(folder), seconds=WARM, rate=RATES[0])
                fixed = [(f"{rate} a second", rate) for rate in RATES]
                for name, rate in (*fixed, (f"{CLIENTS} clients at once", 0)):
                    before = served.cpu()
                    result = _send(served, Path(folder), seconds=SECONDS, rate=rate)
                    cpu = (served.cpu() - before) / result["done"] * 1e6
                    for key, what in (
                        ("p50", "p50"),
                        ("p99", "p99"),
                        ("p999", "p99.9"),
                        ("worst", "longest"),
                    ):
                        samples.setdefault(f"{name}: {what}", ("ms", []))[1].append(result[key])
                    samples.setdefault(f"{name}: CPU", ("us per call", []))[1].append(cpu)
                    answered = result["done"] / result["seconds"]
                    samples.setdefault(f"{name}: answered", ("calls/s", []))[1].append(answered)
    return {name: figure(taken, unit) for name, (unit, taken) in samples.items()}


def _send(served: Served, folder: Path, *, seconds: float, rate: float) -> dict[str, Any]:
    prepared = load.requests_file(folder, _calls(int((rate or MOST) * seconds)))
    try:
        # At a fixed rate there are connections to spare: a slow answer must not hold the next call back.
        connections = CLIENTS * 8 if rate else CLIENTS
        result = load.send(served.port, prepared, connections=connections, seconds=seconds, rate=rate)
    finally:
        prepared.unlink()
    if result["refused"] or result["failed"] or result["sent"] != result["done"]:
        raise RuntimeError(f"not every call was answered: {result}")
    return result


def _calls(count: int) -> Iterator[bytes]:
    """So many calls of the hook, each by another user."""
    supabase, now = providers.get("supabase"), datetime.now(UTC)
    assert supabase.sample is not None
    for _ in range(count):
        id_ = str(uuid.uuid4())
        call = supabase.sample(Sample("before-user-created", id_, now, {"id": id_}))
        call = call.with_headers({"webhook-id": id_})
        yield as_http(supabase.signature.sign(call, HOOK_SECRET, now), HOOK_PATH)
