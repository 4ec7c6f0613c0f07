"""`flask webhooks …`: what an operator asks and does. Every command has `--json`: one JSON document on stdout."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click
from flask.cli import AppGroup

__all__ = ["cli"]

COMMANDS = {
    "audit": "webhooks.cli.finding:audit",
    "check": "webhooks.cli.checking:check",
    "drift": "webhooks.cli.drifting:drift",
    "demo": "webhooks.testing.demo:demo",
    "doctor": "webhooks.cli.checking:doctor",
    "effects": "webhooks.cli.effects:effects",
    "erase": "webhooks.cli.erasing:erase",
    "events": "webhooks.cli.looking:events",
    "explain": "webhooks.cli.explaining:explain",
    "flows": "webhooks.cli.flows:flows",
    "issues": "webhooks.cli.checking:issues",
    "objects": "webhooks.cli.looking:objects",
    "pause": "webhooks.cli.working:pause",
    "providers": "webhooks.cli.describing:providers",
    "purge": "webhooks.cli.working:purge",
    "reconcile": "webhooks.cli.finding:reconcile",
    "recover": "webhooks.cli.finding:recover",
    "redrive": "webhooks.cli.working:redrive",
    "reencrypt": "webhooks.cli.erasing:reencrypt",
    "rejections": "webhooks.cli.refusing:rejections",
    "replay": "webhooks.cli.working:replay",
    "resume": "webhooks.cli.working:resume",
    "reverify": "webhooks.cli.refusing:reverify",
    "runs": "webhooks.cli.looking:runs",
    "send": "webhooks.cli.sending:send",
    "show": "webhooks.cli.looking:show",
    "simulate-outage": "webhooks.cli.drifting:simulate_outage",
    "status": "webhooks.cli.looking:status",
    "sweep": "webhooks.cli.working:sweep",
    "test-alert": "webhooks.cli.checking:test_alert",
    "tail": "webhooks.cli.following:tail",
    "unhandled": "webhooks.cli.looking:unhandled",
    "work": "webhooks.cli.working:work",
}
"""Command → where it is. By name, so that a command is only imported when it is run."""


class _Lazy(AppGroup):
    """A group that finds its commands in COMMANDS."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's own signature
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's own signature
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        found: Any = getattr(import_module(module), attribute)
        return found if isinstance(found, click.Command) else None


@click.group(cls=_Lazy)
def cli() -> None:
    """The inbox for inbound webhooks."""
