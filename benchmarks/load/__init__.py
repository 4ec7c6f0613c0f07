"""Load on a port of this machine, by a client in C that is not what is measured: compiled when it is first needed."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["requests_file", "send"]


def send(port: int, requests: Path, *, connections: int, seconds: float, rate: float = 0) -> dict[str, Any]:
    """Send the requests, each once, until they or the seconds are used up; `rate` 0 is the closed loop.

    Returns counts (`sent, done, refused, failed`), `seconds`, `p50, p99, p999, worst` in milliseconds, and `cpu`, the
    client's own seconds.
    """
    arguments = [str(each) for each in (port, connections, seconds, rate, requests)]
    ran = subprocess.run(
        [_client(), *arguments], capture_output=True, text=True, timeout=seconds + 60, check=False
    )
    if ran.returncode:
        sys.exit(f"the load client ended with {ran.returncode}: {ran.stderr.strip()}")
    result: dict[str, Any] = json.loads(ran.stdout)
    return result


def requests_file(folder: Path, requests: Iterable[bytes]) -> Path:
    """The requests as the client reads them."""
    handle, path = tempfile.mkstemp(dir=folder, suffix=".requests")
    with os.fdopen(handle, "wb") as file:
        for request in requests:
            file.write(struct.pack("<I", len(request)) + request)
    return Path(path)


@cache
def _client() -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        sys.exit("the load client is written in C: install a C compiler (cc) to run this benchmark")
    folder = Path(tempfile.mkdtemp(prefix="load-client-"))
    source = Path(__file__).with_name("client.c")
    subprocess.run([compiler, "-O2", "-Wall", "-o", folder / "client", source], check=True)
    return folder / "client"
