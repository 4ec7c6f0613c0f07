"""The peers, pinned, each in a temporary folder of its own; nothing of them comes into this project."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["Missing", "install_dj_stripe", "install_stripe_sync_engine"]

NODE_PACKAGES = ("@supabase/stripe-sync-engine@0.48.5", "stripe@20.4.1")
DJ_STRIPE = (
    "dj-stripe==2.11.0",
    "django==5.2.19",
    "stripe==15.6.2",
    "psycopg[binary]==3.3.9",
    "granian==2.8.9",
)
WITHIN = 300.0
"""Seconds for one installation."""


class Missing(Exception):
    """What a peer needs is not there, or could not be installed; the text says what."""


def install_stripe_sync_engine(folder: Path) -> Path:
    """The folder that holds `node_modules`. Raises Missing."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise Missing("node and npm are not installed")
    (folder / "package.json").write_text('{"private": true}')
    _run([npm, "install", "--no-audit", "--no-fund", "--save-exact", *NODE_PACKAGES], folder)
    return folder


def install_dj_stripe(folder: Path) -> Path:
    """The Python of an environment that holds it. Raises Missing."""
    _run([sys.executable, "-m", "venv", "environment"], folder)
    python = folder / "environment" / "bin" / "python"
    _run([str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", "install", *DJ_STRIPE], folder)
    return python


def _run(command: Sequence[str], folder: Path) -> None:
    try:
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=WITHIN, check=False)
    except subprocess.TimeoutExpired:
        raise Missing(f"{Path(command[0]).name} took more than {WITHIN:.0f} s") from None
    if ran.returncode:
        raise Missing(f"{Path(command[0]).name} failed: {ran.stderr.strip()[-500:]}")
