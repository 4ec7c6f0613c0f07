"""Doors under real servers, as processes of their own, and distinct signed deliveries for them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import psutil

from tests.services import free_port
from webhooks import providers
from webhooks.provider import Request, Sample

from .doors import PATH, SECRET

__all__ = ["Served", "as_http", "deliveries", "granian", "running", "serve"]

START_WITHIN = 30.0


@dataclass(frozen=True)
class Served:
    """A server that runs."""

    port: int
    pid: int
    log: Path

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
    given = environment | {"DOOR": door}
    with granian("benchmarks.doors:app", threads=threads, workers=workers, **given) as served:
        yield served


@contextmanager
def granian(app: str, *, threads: int, workers: int = 1, **environment: str) -> Iterator[Served]:
    """Granian with any WSGI app of this interpreter."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "granian",
        "--interface",
        "wsgi",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    command += [
        "--workers",
        str(workers),
        "--blocking-threads",
        str(threads),
        "--no-ws",
        "--log-level",
        "warning",
    ]
    with running([*command, app], environment, port=port) as served:
        yield served


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str], *, port: int = 0) -> Iterator[Served]:
    """A process of our own, with an instance folder of its own, ended at the end; with a port, when it listens there."""
    with tempfile.TemporaryDirectory() as instance:
        log = Path(instance) / "log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                env=os.environ | {"INSTANCE": instance} | environment,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        try:
            if port:
                _wait(process, port, log)
            yield Served(port, process.pid, log)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
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
        yield as_http(stripe.signature.sign(replace(template, body=body), SECRET, now), PATH)


def as_http(request: Request, path: str) -> bytes:
    """The request as it goes over the network."""
    headers = dict(request.headers) | {"Host": "localhost", "Content-Length": str(len(request.body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + request.body
