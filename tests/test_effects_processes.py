"""Real worker processes that are killed, with SIGKILL, in the middle of a real HTTP call."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests import calling_app
from tests.till import Till


class Callee:
    """The other side: it does what it is asked for at once, and answers when it is let."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.answer = threading.Event()
        callee = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                callee.calls.append((self.path.strip("/"), self.headers["Idempotency-Key"]))
                callee.answer.wait(20)
                try:
                    self.send_response(200)
                    self.send_header("Content-Length", "2")
                    self.end_headers()
                    self.wfile.write(b"ok")
                except OSError:
                    pass  # who asked is gone

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def callee() -> Iterator[Callee]:
    made = Callee()
    yield made
    made.answer.set()
    made.server.shutdown()
    made.server.server_close()


WORKERS = {
    "celery": ["-m", "celery", "-A", "tests.calling_app:celery", "worker", "-P", "solo", "-l", "WARNING"],
    "work": ["-m", "flask", "--app", "tests.calling_app:app", "webhooks", "work"],
}


@pytest.mark.parametrize("worker", sorted(WORKERS))
@pytest.mark.parametrize(("effect", "end", "calls"), [("once", "unknown", 1), ("keyed", "done", 2)])
def test_sigkill_in_the_middle_of_a_call_is_never_hidden_and_never_a_second_refund(
    database_url: str,
    tmp_path: Path,
    callee: Callee,
    monkeypatch: pytest.MonkeyPatch,
    worker: str,
    effect: str,
    end: str,
    calls: int,
) -> None:
    root = Path(__file__).parent.parent
    environment = {
        "DATABASE": database_url,
        "FOLDER": str(tmp_path),
        "CALLEE_URL": callee.url,
        "EFFECT": effect,
        "PYTHONPATH": str(root),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    till = calling_app.make(
        create=True, endpoints={"stripe": {"secrets": ["whsec_simulated_0123456789abcdef"], "fetch": False}}
    )
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        settings = {
            **os.environ,
            "ENDPOINTS": json.dumps(
                {"stripe": {"secrets": ["whsec_simulated_0123456789abcdef"], "fetch": False}}
            ),
        }
        started.append(
            subprocess.Popen(
                [sys.executable, *WORKERS[worker]], env=settings, cwd=root, stdout=subprocess.DEVNULL
            )
        )
        return started[-1]

    try:
        till.simulator.create("customer")
        till.deliver()
        till.apply()
        assert till.states() == ["recorded"]
        first = start()
        wait_for(lambda: sweep_until(till, lambda: len(callee.calls) == 1))
        assert till.states() == ["started"], "committed before the call"
        os.kill(first.pid, signal.SIGKILL)
        first.wait(10)
        callee.answer.set()
        start()
        wait_for(lambda: sweep_until(till, lambda: till.states() == [end]))
        time.sleep(1)
        (row,) = till.effects()
        assert (row.state, row.attempts) == (end, calls)
        assert callee.calls == [(effect, row.idempotency_key)] * calls
    finally:
        for process in started:
            if process.poll() is None:
                process.terminate()
        for process in started:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)
        till.close()


def sweep_until(till: Till, condition: Callable[[], bool]) -> bool:
    """What beat does, faster."""
    if not condition():
        till.state.sweep()
        time.sleep(0.3)
    return condition()


def wait_for(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 45
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.05)
