"""Where the CPU of an event goes, ours beside other inboxes: sampled with Linux's `perf` while they are measured as in
`benchmarks.peers`. `python -m benchmarks profile`; needs `perf`, and the right to use it.

A sample belongs to the library that ran; those within the kernel are told apart by the function: handing the processor from
one thread to another (and waking, and waiting), or all else (network, files, memory).
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path

import psutil

from .machine import ROUNDS, Figures, figure
from .peers.deploying import MODES, Bench, Deployed, Mode, Peer
from .peers.installing import Missing

__all__ = ["run"]

SAMPLES = 499
"""Per second; no divisor of anything that happens regularly."""

PARTS = (
    "the interpreter and what runs in it",
    "libraries in C and Rust",
    "kernel: threads that take turns",
    "kernel: network, memory, files",
)
_TURNS = re.compile(
    r"sched|switch|futex|spin|wake|ttwu|pick_next|update_curr|idle|load_avg|enqueue|dequeue|hrtimer"
)
_INTERPRETER = re.compile(r"python3|libpython|/node\b|\[JIT\]|anon|perf-\d+\.map|unknown|memfd")


def run() -> Figures:
    """Microseconds of CPU per event, by part."""
    if shutil.which("perf") is None:
        sys.exit("this profile needs Linux's `perf`")
    samples: dict[str, list[float]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bench = Bench(stack, folder)
        for install in (bench.install_stripe_sync_engine, bench.install_dj_stripe):
            try:
                install()
            except Missing as reason:
                print(f"left out: {reason}", file=sys.stderr)
        for _ in range(ROUNDS):
            for mode, (name, peer) in product(MODES, bench.peers.items()):
                if mode in peer.counts:
                    seen: Counter[str] = Counter()
                    taken = dict(_cpu(bench, peer, mode, seen))
                    for part in PARTS:
                        share = seen[part] / max(seen.total(), 1)
                        samples.setdefault(f"{mode.name}, {name}: {part}", []).append(share * taken["CPU"])
    return {name: figure(taken, "us per event") for name, taken in samples.items()}


def _cpu(bench: Bench, peer: Peer, mode: Mode, seen: Counter[str]) -> Iterator[tuple[str, float]]:
    @contextmanager
    def watch(deployed: Deployed) -> Iterator[None]:
        with tempfile.TemporaryDirectory() as folder:
            into = Path(folder) / "perf.data"
            pids = ",".join(map(str, _processes(deployed)))
            command = ["perf", "record", "-q", "-F", str(SAMPLES), "-p", pids, "-o", str(into)]
            perf = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                yield
            finally:
                perf.send_signal(signal.SIGINT)
                perf.wait(30)
            seen.update(_parts(into))

    for what, _unit, value in bench.measure(peer, mode, watch):
        yield what, value


def _processes(deployed: Deployed) -> Iterator[int]:
    for served in (deployed.server, *deployed.others):
        process = psutil.Process(served.pid)
        yield process.pid
        yield from (child.pid for child in process.children(recursive=True))


def _parts(recorded: Path) -> Iterator[str]:
    """The part of each sample."""
    listed = subprocess.run(
        ["perf", "script", "-i", recorded, "-F", "ip,sym,dso"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    for line in listed.stdout.splitlines():
        _ip, _, rest = line.strip().partition(" ")
        symbol, _, library = rest.rpartition(" (")
        if "kernel" in library or library.startswith("[k"):
            yield PARTS[2] if _TURNS.search(symbol) else PARTS[3]
        else:
            yield PARTS[0] if _INTERPRETER.search(library) else PARTS[1]
