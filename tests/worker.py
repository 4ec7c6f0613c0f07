"""A worker process for tests: `python -m tests.worker DATABASE_URL ENDPOINTS_JSON FOLDER [STEP]`.

Applies until nothing is open. With STEP it kills itself, with SIGKILL, when it first reaches that step.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

from tests.shop import Shop


def main(url: str, endpoints: str, folder: str, step: str = "") -> None:
    shop = Shop(url, json.loads(endpoints), Path(folder), WEBHOOKS_LEASE=timedelta(seconds=1))

    def at(reached: str) -> None:
        if reached == step:
            os.kill(os.getpid(), signal.SIGKILL)

    shop.state.applier.at = at
    if step == "committing":
        shop.before_commit = lambda: at("committing")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        shop.state.applier.drain()
        if all(event.state not in {"pending", "applying"} for event in shop.events()):
            return
        time.sleep(0.02)


if __name__ == "__main__":
    main(*sys.argv[1:])
