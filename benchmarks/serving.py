"""A door under a real server, as a process of its own, and distinct signed deliveries for it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import psutil

from tests.services import free_port
from webhooks import providers
from webhooks.provider import Sample

from .doors import PATH, SECRET

__all__ = ["Served", "deliveries", "serve"]

START_WITHIN = 30.0


@dataclass(frozen=True)
class Served:
    """A server that runs."""

    port: int
    pid: int

    def cpu(self) -> float:
        """Seconds that it and its children have used so far."""
        total = 0.0
        server = psutil.Process(self.pid)
        for process in [server, *server.children(recursive=True)]:
            times = process.cpu_times()
            total += times.user + times.system
        return total


@contextmanager
def serve(door: str, *, threads: int, workers: int = 1, **environment: str) -> Iterator[Served]:
    """Granian with one of `benchmarks.doors`."""
    port = free_port()
    with tempfile.TemporaryDirectory() as instance:
        log = Path(instance) / "log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "granian", "--interface", "wsgi", "--host", "127.0.0.1"),
                    *("--port", str(port), "--workers", str(workers), "--blocking-threads", str(threads)),
                    *("--no-ws", "--log-level", "warning", "benchmarks.doors:app"),
                ],
                env=os.environ | environment | {"DOOR": door, "INSTANCE": instance},
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        try:
            _wait(process, port, log)
            yield Served(port, process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_WITHIN
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            probe.settimeout(0.2)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    sys.exit(f"the server did not start:\n{log.read_text(errors='replace')[-2000:]}")


def deliveries(run: str, count: int) -> Iterator[bytes]:
    """So many distinct events of about 1.8 KB, signed as Stripe signs, as HTTP requests."""
    stripe = providers.get("stripe")
    assert stripe.sample is not None
    now = datetime.now(UTC)
    customer = {
        "id": "cus_PLACEHOLDER",
        "object": "customer",
        "email": "ada@example.test",
        "description": "text " * 250,
    }
    template = stripe.sample(Sample("customer.updated", "evt_PLACEHOLDER", now, customer))
    for number in range(count):
        body = template.body.replace(b"PLACEHOLDER", f"{run}{number:08}".encode())
        signed = stripe.signature.sign(replace(template, body=body), SECRET, now)
        headers = dict(signed.headers) | {"Host": "localhost", "Content-Length": str(len(body))}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        yield f"POST {PATH} HTTP/1.1\r\n{lines}\r\n".encode() + body
