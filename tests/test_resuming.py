"""A listing that was killed half-way goes on where it was: no page is asked for again, and nothing is missed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.outage import Beside, beside
from webhooks.inbox.marks import Marks
from webhooks.reconcile import limits, listing, recovering
from webhooks.testing import Simulator
from webhooks.testing.simulator import Answer, Call

PAGES = 6


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "LISTED_CHUNK", 100)


@pytest.fixture
def stripe(database_url: str, tmp_path: Path) -> Iterator[Beside]:
    with beside(database_url, tmp_path, "stripe") as made:
        yield made


def cursors(simulator: Simulator, path: str, since: int = 0) -> list[str]:
    """The pages of a listing that were asked for: '' is the first one."""
    return [call.one("starting_after") for call in simulator.calls[since:] if call.path == path]


def kill_at(made: Beside, path: str, page: int) -> None:
    """The run ends, as by a signal, while that page is on its way."""
    asked = 0

    def before_reply(call: Call, _answer: Answer) -> None:
        nonlocal asked
        asked += call.path == path
        if asked == page:
            made.provider.before_reply = lambda _call, _answer: None
            raise_in_run.append(True)

    raise_in_run: list[bool] = []
    apis, real = made.shop.state.apis, type(made.shop.state.apis)._count

    def count() -> None:
        if raise_in_run:
            raise_in_run.clear()
            del apis._count  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        real(apis)

    apis._count = count  # type: ignore[method-assign]
    made.provider.before_reply = before_reply


def many(made: Beside, number: int = 100 * PAGES) -> list[Any]:
    return [made.provider.create("customer", silent=True, email=f"{n}@example.test") for n in range(number)]


@pytest.mark.parametrize("task", ["reconcile", "full_sweep"])
def test_pages_that_were_listed_before_the_end_are_not_asked_for_again(task: str, stripe: Beside) -> None:
    keys = many(stripe)
    kill_at(stripe, "/v1/customers", 4)
    start = getattr(stripe.reconciler, task)
    with pytest.raises(KeyboardInterrupt):
        start(stripe.endpoint)
    before = cursors(stripe.provider, "/v1/customers")
    assert len(before) == 4, "killed while the fifth was to be asked for"
    assert stripe.shop.copies() == {}
    # Meanwhile one is made, one changes that was listed, one changes that was not, and one is deleted of either kind.
    calls = len(stripe.provider.calls)
    new = stripe.provider.create("customer", silent=True, email="new@example.test")
    listed, unlisted = keys[-1], keys[0]
    for key in (listed, unlisted):
        stripe.provider.update(key, silent=True, email="changed@example.test")
    for key in (keys[-2], keys[1]):
        stripe.provider.delete(key, silent=True)
    run = start(stripe.endpoint)
    assert not run.error
    assert run.report["went_on"]["behind"] == 400
    again = cursors(stripe.provider, "/v1/customers", calls)
    assert set(again) & set(before) == set()
    assert len(again) == PAGES - 4
    assert cursors(stripe.provider, "/v1/checkout/sessions", calls) == [], (
        "a kind that was behind is not begun again"
    )
    stripe.work()
    # What was listed is fetched as it is now; what is new is the next run's, which looks back to where the first began.
    assert stripe.shop.copies()["customer", listed[2]]["email"] == "changed@example.test"
    assert ("customer", new[2]) not in stripe.shop.copies()
    later = stripe.reconcile() if task == "reconcile" else start(stripe.endpoint)
    assert not later.error
    stripe.work()
    assert stripe.is_equal()
    assert rows_left(stripe) == 0
    assert Marks(stripe.shop.state.inbox).get("stripe", f"place:{task}") is None


def rows_left(made: Beside) -> int:
    with made.shop.state.inbox.engine.connect() as connection:
        return len(connection.execute(made.shop.state.tables.listed.select()).all())


def test_the_next_run_looks_back_to_where_the_killed_one_began(stripe: Beside) -> None:
    many(stripe, 300)
    kill_at(stripe, "/v1/customers", 2)
    with pytest.raises(KeyboardInterrupt):
        stripe.reconciler.reconcile(stripe.endpoint)
    runs = stripe.shop.state.tables.runs
    with stripe.shop.state.inbox.engine.connect() as connection:
        killed = connection.execute(runs.select()).one()
    went_on = stripe.reconcile()
    assert went_on.report["went_on"]["run"] == killed.id
    watermark = stripe.reconciler._reconciling.runs.watermark("stripe", "reconcile")
    assert abs(watermark - went_on.started) < timedelta(milliseconds=1)
    assert watermark.replace(tzinfo=None) == killed.started_at.replace(tzinfo=None)


def test_a_run_that_was_killed_while_it_compared_lists_nothing_again(stripe: Beside) -> None:
    many(stripe, 250)
    comparing = stripe.shop.state.reconciler._reconciling.comparing
    real, batches = type(comparing).look, 0

    def look(self: Any, *args: Any, **how: Any) -> Any:
        nonlocal batches
        batches += 1
        if batches == 2:
            raise KeyboardInterrupt
        return real(self, *args, **how)

    type(comparing).look = look  # type: ignore[method-assign]
    try:
        with pytest.raises(KeyboardInterrupt):
            stripe.reconciler.reconcile(stripe.endpoint)
    finally:
        type(comparing).look = real  # type: ignore[method-assign]
    calls = len(stripe.provider.calls)
    stripe.work()
    stripe.reconcile()
    assert cursors(stripe.provider, "/v1/customers", calls) == []
    assert stripe.is_equal()


def test_a_cursor_that_has_expired_is_said_and_the_listing_begins_again(stripe: Beside) -> None:
    keys = many(stripe, 400)
    kill_at(stripe, "/v1/customers", 2)
    with pytest.raises(KeyboardInterrupt):
        stripe.reconciler.reconcile(stripe.endpoint)
    for key in keys[190:310]:  # the one that the cursor names is among them
        stripe.provider.delete(key, silent=True)
    run = stripe.reconcile()
    assert "has expired" in run.report["began_again"]
    assert "answered 400 (resource_missing)" in run.report["began_again"]
    assert stripe.is_equal()


def test_a_place_that_is_too_old_is_said_and_not_gone_on_with(stripe: Beside) -> None:
    many(stripe, 300)
    kill_at(stripe, "/v1/customers", 2)
    with pytest.raises(KeyboardInterrupt):
        stripe.reconciler.reconcile(stripe.endpoint)
    marks = Marks(stripe.shop.state.inbox)
    mark = marks.get("stripe", "place:reconcile")
    old = stripe.clock() - limits.PLACE_KEEPS
    marks.put("stripe", "place:reconcile", {**mark, "started": old.isoformat()})
    run = stripe.reconcile()
    assert "too old" in run.report["began_again"]
    assert stripe.is_equal()
    assert rows_left(stripe) == 0


def test_what_nobody_went_on_with_is_purged(stripe: Beside) -> None:
    many(stripe, 300)
    kill_at(stripe, "/v1/customers", 2)
    with pytest.raises(KeyboardInterrupt):
        stripe.reconciler.reconcile(stripe.endpoint)
    assert stripe.reconciler.purge()["listed"] == 0
    left = rows_left(stripe)
    stripe.set_back("reconcile", limits.KEEP_LISTED)
    assert stripe.reconciler.purge()["listed"] == left
    assert rows_left(stripe) == 0


def test_who_looks_back_on_purpose_neither_uses_nor_loses_the_place(stripe: Beside) -> None:
    many(stripe, 400)
    kill_at(stripe, "/v1/customers", 3)
    with pytest.raises(KeyboardInterrupt):
        stripe.reconciler.reconcile(stripe.endpoint)
    left = rows_left(stripe)
    assert left >= 200
    stripe.reconcile(since=stripe.clock() - timedelta(hours=1), dry=True)
    assert rows_left(stripe) == left
    calls = len(stripe.provider.calls)
    assert "went_on" in stripe.reconcile().report
    assert "" not in cursors(stripe.provider, "/v1/customers", calls)
    assert stripe.is_equal()


@pytest.mark.parametrize("name", ["stripe", "paddle", "svix", "mailgun"])
def test_a_log_that_was_read_half_way_is_read_from_there(
    name: str, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = {"stripe": 100, "paddle": 200, "svix": 250, "mailgun": 300}[name]
    monkeypatch.setattr(recovering, "BATCH", size)
    with beside(database_url, tmp_path, name, mirror="all") as made:
        kind = made.provider.service.kinds[0]
        for number in range(3 * size):
            made.provider.create(kind, title=f"{number}")
        made.lose_all()
        inbox, real, reads = made.shop.state.inbox, made.shop.state.inbox.missing, 0

        def killed(endpoint: str, keys: Any) -> set[str]:
            nonlocal reads
            reads += 1
            if reads == 3:
                raise KeyboardInterrupt
            return real(endpoint, keys)

        inbox.missing = killed  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            made.reconciler.recover(made.endpoint)
        inbox.missing = real  # type: ignore[method-assign]
        before = [(call.path, str(sorted(call.query.items()))) for call in made.provider.calls]
        late = made.provider.create(kind, title="between")
        made.lose_all()
        run = made.reconciler.recover(made.endpoint)
        assert not run.error
        assert run.report["went_on"]["behind"] == 2 * size
        after = [(c.path, str(sorted(c.query.items()))) for c in made.provider.calls[len(before) :]]
        # The page that was under way is asked for again; those before it are not.
        assert len(set(before) & set(after)) <= 1
        assert before[0] not in after
        made.reconciler.recover(made.endpoint)
        recorded = {event.dedup_key for event in made.shop.events()}
        assert len(recorded) == 3 * size + 1, late


@pytest.mark.parametrize("name", ["github", "shopify", "paddle", "razorpay"])
def test_the_lists_of_others_go_on_too(name: str, sqlite_url: str, tmp_path: Path) -> None:
    with beside(sqlite_url, tmp_path, name, mirror="all") as made:
        kind = made.provider.service.kinds[0]
        for number in range(350):
            made.clock.go(timedelta(seconds=2))
            made.provider.create(kind, silent=True, title=f"{number}")
        made.clock.is_now()
        calls = 0

        def before_reply(_call: Call, _answer: Answer) -> None:
            nonlocal calls
            calls += 1
            if calls == 4:
                made.provider.api.script = [Answer(401, {})] * 5  # the token dies in the middle

        made.provider.before_reply = before_reply
        broken = made.reconciler.reconcile(made.endpoint)
        assert broken.error
        made.provider.before_reply = lambda _call, _answer: None
        made.provider.api.script = []
        asked = [(c.path, str(c.query), c.body) for c in made.provider.calls]
        run = made.reconcile()
        assert run.report["went_on"]["behind"] >= 100
        again = {(c.path, str(c.query), c.body) for c in made.provider.calls[len(asked) :]}
        assert not set(asked[:3]) & again
        assert made.provider.drift(made.shop.objects()) == []


CHILD = """
import sys
from pathlib import Path
from tests.shop import Shop
from webhooks.reconcile import listing

listing.LISTED_CHUNK = 100
url, folder, api, key, task = sys.argv[1:6]
shop = Shop(url, {"stripe": {"provider": "stripe", "secrets": ["whsec_simulated_0123456789abcdef"], "api_base_url": api,
    "api_rate": 100000, "api_key": key, "endpoint_id": "we_simulated"}}, Path(folder))
run = getattr(shop.state.reconciler, task)(shop.state.endpoints["stripe"])
print("ended", run.error if run else None)
"""


@pytest.mark.parametrize("task", ["reconcile", "full_sweep"])
def test_a_process_that_is_killed_leaves_a_place_for_the_next_one(
    task: str, stripe: Beside, tmp_path: Path
) -> None:
    many(stripe)
    url = stripe.shop.app.config["SQLALCHEMY_DATABASE_URI"]
    config = stripe.provider.config
    command = [
        sys.executable,
        "-c",
        CHILD,
        url,
        str(tmp_path),
        config["api_base_url"],
        config["api_key"],
        task,
    ]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ}, text=True)
    asked = 0

    def before_reply(call: Call, _answer: Answer) -> None:
        nonlocal asked
        asked += call.path == "/v1/customers"
        if asked == 4:
            os.kill(child.pid, signal.SIGKILL)
            child.wait(30)

    stripe.provider.before_reply = before_reply
    said, _ = child.communicate(timeout=60)
    stripe.provider.before_reply = lambda _call, _answer: None
    assert (child.returncode, said) == (-signal.SIGKILL, "")
    assert cursors(stripe.provider, "/v1/customers") != []
    # Nobody has ended its run: the next one takes over when its lease is over.
    start = getattr(stripe.reconciler, task)
    assert start(stripe.endpoint) is None
    stripe.set_back_lease()
    calls = len(stripe.provider.calls)
    run = start(stripe.endpoint)
    assert run is not None
    assert not run.error
    assert run.report["went_on"]["behind"] >= 300
    again = cursors(stripe.provider, "/v1/customers", calls)
    before = cursors(stripe.provider, "/v1/customers")[:3]
    assert not set(again) & set(before)
    stripe.work()
    assert stripe.is_equal()
