"""The command itself: a live table for people, one JSON document for programs, and a verdict for both."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from rich.console import Console
from rich.live import Live
from rich.table import Table

from ... import providers
from ...extension import Webhooks, state
from ..simulator import Simulator
from .processes import Deployment, DeploymentFailed
from .story import Figures, Story

__all__ = ["demo"]

SIMULATED = ("stripe", "github")
"""What the demo shows unless one is named."""

ROWS = (
    ("changes", "changes made at the provider"),
    ("deliveries", "deliveries sent"),
    ("duplicates", "… of them duplicates"),
    ("reordered", "… out of order"),
    ("lost", "… and events never delivered"),
    ("recorded", "events in the inbox, each once"),
    ("applied", "events applied"),
    ("waiting", "events waiting"),
    ("recovered", "events found in the provider's own records"),
    ("api_calls", "API calls made"),
    ("calls_saved", "API calls saved: one fetch covers many events"),
    ("drift", "objects that differ from the provider's now"),
)


@click.command()
@click.option(
    "--seconds", default=20.0, show_default=True, type=click.FloatRange(min=1), help="How long things change."
)
@click.option("--provider", "names", multiple=True, help="A provider to simulate (again for another one).")
@click.option("--seed", default=1, show_default=True, help="The same seed makes the same story.")
@click.option("--live", is_flag=True, help="Show a live table even where the output is no terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
@click.option("--keep", is_flag=True, help="Keep the demo's folder: database, logs, a wsgi.py to start from.")
def demo(*, seconds: float, names: tuple[str, ...], seed: int, live: bool, as_json: bool, keep: bool) -> None:
    """Watch the main job: web, worker and beat against a provider that duplicates, reorders and loses.

    Starts them on a database of its own (DATABASE_URL and REDIS_URL are not touched), changes objects at a simulated
    provider, and ends with the verdict "database = provider", or with the differences. Exit code 0 only without one.
    """
    console = Console(stderr=as_json, force_terminal=True if live else None)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="webhooks-demo-"))
        if not keep:
            stack.callback(_remove, folder)
        try:
            figures, differences = _run(
                stack, folder, names or SIMULATED, seconds, seed, None if as_json else console
            )
        except DeploymentFailed as failure:
            raise click.ClickException(str(failure)) from None
        except KeyboardInterrupt:
            console.print("stopped; everything that was started is ended")
            sys.exit(130)
    if as_json:
        click.echo(json.dumps({**figures.document(), "differences": differences[:20]}))
    else:
        _verdict(console, figures, differences)
    if keep:
        _kept(console, folder, names[0] if names else SIMULATED[0])
    sys.exit(1 if differences or figures.dead else 0)


def _run(
    stack: ExitStack, folder: Path, names: tuple[str, ...], seconds: float, seed: int, console: Console | None
) -> tuple[Figures, list[str]]:
    simulators = {name: stack.enter_context(_simulator(name, seed)) for name in names}
    config: dict[str, Any] = {name: simulator.config for name, simulator in simulators.items()}
    deployment = stack.enter_context(Deployment(folder, config))
    if console is not None:
        console.print(f"Starting web, worker and beat in {folder} …")
    app = _app(folder, config)
    deployment.start_all()
    for name, simulator in simulators.items():
        simulator.send_to(f"{deployment.url}/webhooks/{name}")
    story = Story(simulators, state(app))
    with _Screen(console, story) as screen:

        def draw(doing: str) -> None:
            deployment.check()  # without a worker the figures would stand still and say nothing
            screen.draw(doing)

        story.begin()
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            time.sleep(0.5)
            draw("objects change at the provider, deliveries go wrong")
        draw("no more changes; the provider's retries arrive")
        story.end()
        story.settle(lambda: draw("recover and reconcile look for what never came"))
        figures = story.figures()
        screen.draw("done")
    return figures, story.differences()


def _simulator(name: str, seed: int) -> Simulator:
    try:
        return Simulator(name, seed=seed)
    except ModuleNotFoundError:
        raise click.BadParameter(f"there is no simulator for {name!r}", param_hint="--provider") from None


def _app(folder: Path, config: dict[str, Any]) -> Flask:
    """An app over the same database, to make the tables and to look into them; it serves nothing."""
    app = Flask("webhooks-demo", instance_path=str(folder))
    app.config["SQLALCHEMY_DATABASE_URI"] = "sqlite:///webhooks.db"
    app.config["WEBHOOKS"] = config
    db = SQLAlchemy(app)
    Webhooks(app)
    with app.app_context():
        state(app).inbox.engine  # noqa: B018 - it sets SQLite up before the first connection
        db.create_all()
    return app


class _Screen:
    """The live table, where there is somebody to see it."""

    def __init__(self, console: Console | None, story: Story) -> None:
        self._story = story
        self._live = (
            Live(console=console, refresh_per_second=4)
            if console is not None and console.is_terminal
            else None
        )

    def __enter__(self) -> _Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def draw(self, doing: str) -> None:
        if self._live is not None:
            self._live.update(_table(self._story.figures(), doing))


def _table(figures: Figures, doing: str) -> Table:
    table = Table(title=doing, title_justify="left", show_header=False)
    for name, words in ROWS:
        value = getattr(figures, name)
        style = ("bold red" if value else "bold green") if name == "drift" else ""
        table.add_row(words, f"{value:,}", style=style)
    return table


def _verdict(console: Console, figures: Figures, differences: list[str]) -> None:
    if not console.is_terminal:
        for name, words in ROWS:
            console.print(f"{words}: {getattr(figures, name)}")
    if differences:
        console.print(f"[bold red]database ≠ provider[/]: {len(differences)} objects differ")
        for line in differences[:20]:
            console.print(f"  {line}", markup=False)
    else:
        console.print("[bold green]database = provider[/]")
    if figures.dead:
        console.print(f"[bold red]{figures.dead} events are dead letters[/]")


def _kept(console: Console, folder: Path, name: str) -> None:
    """Where the demo's app is, and how to go on with it."""
    sample = providers.get(name).sample_types[0]
    for line in (
        f"kept: {folder}",
        f"look into it: cd {folder} && flask --app wsgi webhooks status",
        f"go on with it: flask --app wsgi webhooks send {name} {sample}, then flask --app wsgi webhooks work --until-empty",
    ):
        console.print(line, markup=False, soft_wrap=True)


def _remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
    folder.rmdir()
