"""The processes of a small deployment: web, worker and beat, in a folder of their own, ended when we end."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import urllib3
from urllib3.exceptions import HTTPError

__all__ = ["Deployment", "DeploymentFailed"]

WSGI = '''\
"""Made by `flask webhooks demo`: the whole app of this deployment, over the database beside it.

$ flask --app wsgi webhooks status
$ flask --app wsgi run
$ celery -A wsgi:celery worker
"""

import json
import os
from pathlib import Path

from workers import create_app, make_celery

HERE = Path(__file__).resolve().parent
os.environ.setdefault("FLASK_INSTANCE_PATH", str(HERE))
if "FLASK_WEBHOOKS" not in os.environ:
    endpoints = json.loads((HERE / "endpoints.json").read_text())
    # The simulated provider has ended with the demo: what a delivery carries is applied, and nothing is fetched.
    os.environ["FLASK_WEBHOOKS"] = json.dumps({name: {**each, "fetch": False} for name, each in endpoints.items()})

app = create_app()
celery = make_celery(app)
'''

START = 60.0
"""Seconds in which the web server must answer; a cold machine imports slowly."""

STOP = 15.0
"""Seconds that a process has to end by itself before it is killed."""


class DeploymentFailed(Exception):
    """A process did not start, or ended by itself; the message says which, and what it wrote."""


class Deployment:
    """Web, worker and beat over one database and one broker; without URLs on SQLite and a broker of files."""

    def __init__(
        self,
        folder: Path,
        endpoints: dict[str, Any],
        *,
        database: str | None = None,
        broker: str | None = None,
    ) -> None:
        self.folder = folder
        self.port = _free_port()
        self.environment = {
            **{
                k: v
                for k, v in os.environ.items()
                if not k.startswith(("FLASK_", "CELERY_")) and k not in _URLS
            },
            "FLASK_WEBHOOKS": json.dumps(endpoints),
            "FLASK_INSTANCE_PATH": str(folder),
            "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]),
            **({"DATABASE_URL": database} if database else {}),
            **({"REDIS_URL": broker} if broker else {}),
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "wsgi.py").write_text(WSGI)
        (self.folder / "endpoints.json").write_text(self.environment["FLASK_WEBHOOKS"])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, name: str) -> None:
        """Start `web`, `worker` or `beat`; its output goes to a log file in the folder."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(  # noqa: S603 - our own command lines
                self._command(name),
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for us; we end them in order
            )

    def start_all(self) -> None:
        """Start all three and wait until the web server answers. Raises DeploymentFailed."""
        for name in ("web", "worker", "beat"):
            self.start(name)
        self.wait_for_web()

    def wait_for_web(self) -> None:
        ends = time.monotonic() + START
        pool = urllib3.PoolManager(retries=False)
        while time.monotonic() < ends:
            if self.processes["web"].poll() is not None:
                break
            try:
                pool.request("GET", f"{self.url}/webhooks/none", timeout=2.0)
            except HTTPError:
                time.sleep(0.1)
            else:
                return
        raise DeploymentFailed(f"the web server did not start:\n{self.log('web')}")

    def check(self) -> None:
        """Raises DeploymentFailed if a process has ended by itself."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise DeploymentFailed(f"{name} ended by itself ({process.returncode}):\n{self.log(name)}")

    def log(self, name: str) -> str:
        """The end of what a process wrote."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def kill(self, name: str) -> None:
        """SIGKILL the process and its children: a crash."""
        process = self.processes.pop(name)
        _signal_all(process, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """End all processes: asked first, killed if they do not listen."""
        running = list(self.processes.values())
        self.processes.clear()
        for process in reversed(running):
            if process.poll() is None:
                process.terminate()
        ends = time.monotonic() + STOP
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, ends - time.monotonic()))
            _signal_all(process, signal.SIGKILL)  # what a worker left behind
            process.wait()

    def _command(self, name: str) -> Sequence[str]:
        python = sys.executable
        if name == "web":
            if importlib.util.find_spec("granian") is not None:
                serve = [
                    "--interface",
                    "wsgi",
                    "--host",
                    "127.0.0.1",
                    "--port",
                    str(self.port),
                    "--no-access-log",
                ]
                return [python, "-m", "granian", *serve, "--blocking-threads", "8", "wsgi:app"]
            return [python, "-m", "flask", "--app", "wsgi", "run", "--port", str(self.port), "--with-threads"]
        celery = [python, "-m", "celery", "--quiet", "-A", "wsgi:celery"]
        if name == "worker":
            return [*celery, "worker", "--concurrency", "2", "--loglevel", "WARNING"]
        return [*celery, "beat", "--loglevel", "WARNING", "--schedule", str(self.folder / "beat-schedule")]


_URLS = {"DATABASE_URL", "REDIS_URL"}


def _signal_all(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # It leads a session of its own, so this reaches its children and nobody else.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
