"""What the tests of recover, reconcile and watch share: a clock that is set, an app beside a provider, an outage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.shop import Shop, truth
from webhooks.endpoints import Endpoint
from webhooks.provider import Request
from webhooks.reconcile import Run
from webhooks.testing import Simulator

__all__ = ["Beside", "Clock", "beside"]


class Clock:
    """Shows what it was set to, by default now."""

    def __init__(self, back: timedelta = timedelta(0)) -> None:
        self.offset = -back

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.offset

    def is_now(self) -> None:
        self.offset = timedelta(0)

    def go(self, length: timedelta) -> None:
        self.offset += length


class Beside:
    """An app and the provider that it copies."""

    def __init__(self, shop: Shop, provider: Simulator, clock: Clock) -> None:
        self.shop, self.provider, self.clock = shop, provider, clock
        self.name = provider.provider.name
        self.reachable = True

    @property
    def endpoint(self) -> Endpoint:
        return self.shop.state.endpoints[self.name]

    @property
    def reconciler(self) -> Any:
        return self.shop.state.reconciler

    def receive(self, request: Request) -> int | None:
        # Signed by the clock that the door goes by, whatever time it is at the provider.
        scheme, secret = self.provider.provider.signature, self.provider.service.secret
        # Some schemes sign the URL, which is where the door is.
        request = replace(request, url=f"http://localhost/webhooks/{self.name}")
        signed = scheme.sign(request, secret, datetime.now(UTC))
        return self.shop.receiver(self.name)(signed) if self.reachable else None

    def work(self) -> None:
        for _ in range(5):
            self.shop.state.applier.drain()

    def live(self) -> None:
        """Deliver and apply what there is."""
        self.provider.deliver()
        self.work()

    def lose_all(self) -> None:
        """The provider gives up on everything that it has not delivered."""
        for due in self.provider._due:
            self.provider._attempted(due.happening, None, redelivery=False)
        self.provider._due.clear()

    def recover(self, **how: Any) -> Run:
        run = self.reconciler.recover(self.endpoint, **how)
        assert run is not None
        assert not run.error, run.error
        self.work()
        return run

    def reconcile(self, **how: Any) -> Run:
        run = self.reconciler.reconcile(self.endpoint, **how)
        assert run is not None
        assert not run.error, run.error
        self.work()
        return run

    def sweep(self, **how: Any) -> list[Run]:
        """Full sweeps until nothing is left."""
        runs = []
        while True:
            run = self.reconciler.full_sweep(self.endpoint, **how)
            assert run is not None
            assert not run.error, run.error
            self.work()
            runs.append(run)
            if not run.report["left"]:
                return runs

    def is_equal(self) -> bool:
        return self.shop.copies() == truth(self.provider)

    def set_back(self, task: str, length: timedelta) -> None:
        """As if the runs of this task were so long ago."""
        runs = self.shop.state.tables.runs
        with self.shop.state.inbox.transaction() as connection:
            for row in connection.execute(runs.select().where(runs.c.task == task)).all():
                moved = {
                    name: getattr(row, name) and getattr(row, name) - length
                    for name in ("started_at", "finished_at", "reached", "expires_at")
                }
                connection.execute(runs.update().where(runs.c.id == row.id).values(**moved))

    def set_back_lease(self) -> None:
        """As if every run under way had said nothing for longer than its lease."""
        runs = self.shop.state.tables.runs
        with self.shop.state.inbox.transaction() as connection:
            late = datetime.now(UTC) - timedelta(seconds=1)
            connection.execute(runs.update().where(runs.c.finished_at.is_(None)).values(expires_at=late))

    def issues(self, *, open_only: bool = True) -> dict[str, Any]:
        issues = self.shop.state.tables.issues
        with self.shop.state.inbox.engine.connect() as connection:
            rows = connection.execute(issues.select().order_by(issues.c.id)).all()
        return {row.kind: row for row in rows if row.state == "open" or not open_only}


@contextmanager
def beside(
    url: str, folder: Path, provider: str, *, back: timedelta = timedelta(0), **options: Any
) -> Iterator[Beside]:
    clock = Clock(back)
    with Simulator(provider, clock=clock) as simulator:
        shop = Shop(url, {provider: {**simulator.config, **options}}, folder)
        made = Beside(shop, simulator, clock)
        simulator._send = made.receive
        try:
            yield made
        finally:
            shop.close()
