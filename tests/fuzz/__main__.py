"""Coverage-guided fuzzing with atheris: `make fuzz`, or `python -m tests.fuzz [--seconds N] [TARGET …]`.

One process per target, N seconds each (default 20). What a target stumbles over is written as a file and named; exit code 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

LONGEST = 3600
"""Seconds per target."""

RUNS = "Done "
"""How libFuzzer begins the line with the number of its inputs."""


def fuzz(name: str, seconds: int, corpus: str) -> None:
    """Fuzz one target in this process; does not return."""
    import atheris

    with atheris.instrument_imports(include=["webhooks"]):
        from tests.fuzz.targets import TARGETS, samples
    provider = name.partition(" ")[2]
    for number, body in enumerate(samples(provider) if provider else [b'{"a": [1, "\\u0000"]}']):
        (Path(corpus) / f"sample{number}").write_bytes(b"\0" + body)
    atheris.Setup(
        [
            sys.argv[0],
            f"-max_total_time={seconds}",
            "-max_len=4096",
            f"-artifact_prefix={corpus}/found-",
            corpus,
        ],
        TARGETS[name],
    )
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--here", metavar="CORPUS", help=argparse.SUPPRESS)
    parser.add_argument("targets", nargs="*")
    said = parser.parse_args()
    if not 0 < said.seconds <= LONGEST:
        parser.error(f"--seconds must be at least 1 and at most {LONGEST}")
    if find_spec("atheris") is None:
        parser.error(
            "atheris is not installed: pip install atheris (there are wheels for some Pythons on Linux only)"
        )
    if said.here:
        fuzz(said.targets[0], said.seconds, said.here)
    from tests.fuzz.targets import TARGETS

    wrong = total = 0
    for name in said.targets or TARGETS:
        if name not in TARGETS:
            parser.error(f"there is no target {name!r}; there are {', '.join(TARGETS)}")
        corpus = tempfile.mkdtemp(prefix="fuzz-")
        command = [sys.executable, "-m", "tests.fuzz", "--seconds", str(said.seconds), "--here", corpus, name]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=said.seconds + 120, check=False
        )
        runs = next((line.split()[1] for line in done.stderr.splitlines() if line.startswith(RUNS)), "0")
        total += int(runs)
        good = done.returncode == 0 and int(runs) > 0
        wrong += not good
        sys.stdout.write(f"{name}: {int(runs):,} inputs{'' if good else f', WRONG, see {corpus}'}\n")
        sys.stdout.flush()
        if not good:
            sys.stdout.write((done.stdout + done.stderr)[-4000:] + "\n")
    sys.stdout.write(f"{total:,} inputs, {wrong} targets with a finding\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
