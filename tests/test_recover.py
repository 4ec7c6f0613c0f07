"""What deliveries did not bring is found in the provider's own log, as far back as that reaches."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from tests.outage import Beside, beside
from webhooks import jsontext
from webhooks.inbox.marks import Marks
from webhooks.provider import LogEntry, Unreadable
from webhooks.reconcile import limits
from webhooks.testing.simulator import Answer

PROVIDERS = ["stripe", "github"]


@pytest.fixture(params=PROVIDERS)
def both(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Iterator[Beside]:
    """Each provider, on each database."""
    with beside(database_url, tmp_path, request.param, back=timedelta(days=4)) as made:
        yield made


@pytest.fixture
def stripe(sqlite_url: str, tmp_path: Path) -> Iterator[Beside]:
    with beside(sqlite_url, tmp_path, "stripe", back=timedelta(days=40)) as made:
        yield made


def test_an_outage_of_the_whole_retry_window_leaves_nothing_behind(both: Beside) -> None:
    """Everything is changed while nobody is there; the provider gives up; then service comes back."""
    kind = both.provider.service.kinds[0]
    before = [both.provider.create(kind, title=f"before {n}") for n in range(3)]
    both.live()
    both.recover()
    assert both.is_equal()
    both.set_back("recover", timedelta(days=4))
    both.reachable = False
    window = both.provider.provider.policy.log_window
    assert window is not None
    both.clock.offset = -min(window, timedelta(days=3)) + timedelta(hours=2)
    for number, key in enumerate(before):
        both.provider.update(key, title=f"during {number}")
    both.provider.create(kind, title="made during")
    if both.provider.service.deletable(kind):
        both.provider.delete(before[0])
    both.provider.deliver(all_due=True)
    both.lose_all()
    both.clock.is_now()
    both.reachable = True
    assert not both.is_equal()
    run = both.recover()
    assert run.missed >= 4
    assert both.is_equal()
    assert both.provider.drift(both.shop.objects()) == []
    # Every occasion was taken, and none twice.
    assert both.shop.noted() == sorted(happening.id for happening in both.provider.world.log)


def test_a77_after_35_days_the_objects_are_listed_and_the_gap_is_an_issue(stripe: Beside) -> None:
    old = stripe.provider.create("customer", email="old@example.test")
    stripe.live()
    stripe.recover()
    stripe.reconcile()
    stripe.set_back("recover", timedelta(days=35))
    stripe.set_back("reconcile", timedelta(days=35))
    stripe.reachable = False
    stripe.clock.offset = timedelta(days=-34)
    stripe.provider.update(old, email="changed in the gap@example.test")
    new = stripe.provider.create("customer", email="new in the gap@example.test")
    stripe.clock.offset = timedelta(days=-10)
    stripe.provider.create("customer", email="within the log@example.test")
    stripe.provider.deliver(all_due=True)
    stripe.lose_all()
    stripe.clock.is_now()
    stripe.reachable = True
    run = stripe.recover()
    assert run.report["gap"]["from"] < run.report["gap"]["until"] == run.since.isoformat()
    # The log brought the newest; the list brought what was made in the gap; only a full sweep sees an old object's change.
    assert ("customer", new[2]) in stripe.shop.copies()
    assert stripe.shop.copies()["customer", old[2]]["email"] == "old@example.test"
    assert "has nothing from" in stripe.issues()["lost_events"].evidence["detail"]
    stripe.sweep()
    assert stripe.is_equal()
    stripe.recover()
    assert "lost_events" not in stripe.issues()
    # What cannot be known: two occasions of the gap have left no trace, and nobody pretends otherwise.
    noted = stripe.shop.noted()
    missing = [h for h in stripe.provider.world.log if h.id not in noted]
    assert [h.key for h in missing] == [old, new]


def test_a_long_gap_is_read_in_pieces_and_a_run_that_was_killed_goes_on_where_it_was(stripe: Beside) -> None:
    stripe.clock.offset = timedelta(days=-2)
    stripe.recover()
    stripe.set_back("recover", timedelta(days=2))
    for hours in range(46, 0, -2):
        stripe.clock.offset = timedelta(hours=-hours)
        stripe.provider.create("customer", email=f"{hours}@example.test")
    stripe.lose_all()
    stripe.clock.is_now()
    recovering = stripe.reconciler._recovering
    real, reads = stripe.shop.state.inbox.missing, 0

    def killed(endpoint: str, keys: Any) -> set[str]:
        nonlocal reads
        reads += 1
        if reads == 4:
            raise KeyboardInterrupt
        return real(endpoint, keys)

    stripe.shop.state.inbox.missing = killed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        recovering.recover(stripe.endpoint)
    stripe.shop.state.inbox.missing = real  # type: ignore[method-assign]
    watermark = recovering._runs.watermark("stripe", "recover")
    calls = len(stripe.provider.calls)
    run = stripe.recover()
    # The piece that was begun is gone on with: it starts where the last whole one ended.
    assert run.since == watermark
    assert run.report["went_on"]["behind"] > 0
    begun = int(stripe.provider.calls[calls].one("created[gte]"))
    assert begun == int(run.since.timestamp())
    assert stripe.is_equal()
    assert len(stripe.shop.events()) == len(stripe.provider.world.log)


def test_a_run_that_died_without_a_word_is_taken_over_when_its_lease_is_over(stripe: Beside) -> None:
    runs = stripe.reconciler._recovering._runs
    with runs.run(stripe.endpoint, "recover") as first:
        assert stripe.reconciler.recover(stripe.endpoint) is None
        table = stripe.shop.state.tables.runs
        with stripe.shop.state.inbox.transaction() as connection:
            past = stripe.shop.state.inbox.moment(-timedelta(seconds=1))
            connection.execute(table.update().values(expires_at=past))
        assert stripe.reconciler.recover(stripe.endpoint) is not None
        with pytest.raises(Exception, match="taken over"):
            runs.goes_on(first)


def test_looking_back_a_little_on_purpose_does_not_move_the_watermark(stripe: Beside) -> None:
    """Otherwise `recover --since -2h` after an outage of a day would hide the other 22 hours for ever."""
    stripe.clock.is_now()
    stripe.recover()
    stripe.set_back("recover", timedelta(days=1))
    before = stripe.reconciler._recovering._runs.watermark("stripe", "recover")
    stripe.recover(since=stripe.clock() - timedelta(hours=2))
    assert stripe.reconciler._recovering._runs.watermark("stripe", "recover") == before
    stripe.recover()
    assert stripe.reconciler._recovering._runs.watermark("stripe", "recover") > before


def test_a_token_that_dies_in_the_middle_ends_the_run_and_is_an_issue_until_it_is_renewed(
    stripe: Beside,
) -> None:
    stripe.clock.is_now()
    for number in range(150):
        stripe.provider.create("customer", email=f"{number}@example.test")
    stripe.lose_all()
    # The first run looks three days back, in pieces; the last of them has two pages.
    pieces = int(limits.FIRST_LOOK / limits.SLICE)
    stripe.provider.api.script = [*[None] * pieces, Answer(401, {"error": {"code": "api_key_expired"}})]
    run = stripe.reconciler.recover(stripe.endpoint)
    assert "401" in run.error
    assert 0 < run.healed < 150
    assert stripe.issues()["access_refused"].evidence["detail"] == run.error
    assert stripe.recover().healed == 150 - run.healed
    assert stripe.issues() == {}
    assert stripe.is_equal()


def test_a_provider_that_asks_to_wait_is_waited_for_and_no_page_is_lost(stripe: Beside) -> None:
    stripe.clock.is_now()
    for number in range(250):
        stripe.provider.create("customer", email=f"{number}@example.test")
    stripe.lose_all()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        stripe.shop.state.apis._brakes.clear()
        with stripe.shop.state.inbox.transaction() as connection:
            connection.execute(stripe.shop.state.tables.budgets.update().values(blocked_until=None))

    stripe.shop.state.apis.sleep = sleep
    stripe.provider.api.script = [None, Answer(429, {}, {"Retry-After": "3"}), None, Answer(503, {})]
    assert stripe.recover().healed == 250
    assert len(slept) == 2
    assert 3 <= slept[0] <= 4
    assert stripe.is_equal()


def test_an_entry_that_cannot_be_read_is_a_dead_letter_and_does_not_end_the_run(
    stripe: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    stripe.clock.is_now()
    stripe.provider.create("customer", email="ada@example.test")
    stripe.lose_all()
    between = stripe.endpoint.provider.list_events

    def unreadable() -> list[Any]:
        raise Unreadable("no JSON")

    def log(api: Any, since: Any) -> Iterator[LogEntry]:
        yield LogEntry("evt_poison", stripe.clock(), unreadable)
        yield from between(api, since)  # type: ignore[misc]

    monkeypatch.setitem(
        stripe.shop.state.endpoints._endpoints,
        "stripe",
        _with_log(stripe.endpoint, log),
    )
    stripe.recover()
    states = {event.dedup_key: event.state for event in stripe.shop.events()}
    assert states.pop("recover:evt_poison") == "dead"
    assert set(states.values()) == {"applied"}
    assert stripe.recover().healed == 0


def _with_log(endpoint: Any, log: Any) -> Any:
    from dataclasses import replace

    return replace(endpoint, provider=replace(endpoint.provider, list_events=log, list_events_between=None))


def test_what_the_provider_could_not_deliver_is_noted_with_its_time(sqlite_url: str, tmp_path: Path) -> None:
    with beside(sqlite_url, tmp_path, "github") as github:
        github.reachable = False
        github.provider.create("issue", title="one")
        github.provider.create("issue", title="two")
        github.provider.deliver()
        github.recover()
        noted = Marks(github.shop.state.inbox).get("github", "undelivered")
        assert noted["count"] == 2
        assert noted["oldest"] <= noted["newest"]


def test_a_log_that_cannot_be_read_is_replaced_by_asking_to_send_again(
    sqlite_url: str, tmp_path: Path
) -> None:
    from dataclasses import replace

    with beside(sqlite_url, tmp_path, "github") as github:
        github.reachable = False
        github.provider.create("issue", title="one")
        github.provider.deliver()
        github.lose_all()
        github.reachable = True
        provider = replace(github.endpoint.provider, list_events=None)
        run = github.reconciler.recover(replace(github.endpoint, provider=provider))
        assert run.report["redeliveries"] == 1
        github.live()
        assert github.is_equal()


def test_runs_keep_their_report_and_their_watermark(stripe: Beside) -> None:
    run = stripe.recover()
    runs = stripe.shop.state.tables.runs
    with stripe.shop.state.inbox.engine.connect() as connection:
        row = connection.execute(select(runs)).one()
    assert row.reached is not None
    assert row.report["undelivered"] == {"count": 0, "missing": 0}
    assert jsontext.dumps(row.report)
    assert run.id == row.id


def test_connected_accounts_have_logs_and_lists_of_their_own(stripe: Beside) -> None:
    stripe.clock.is_now()
    known = stripe.provider.create("customer", account="acct_1", email="known@example.test")
    stripe.live()
    stripe.recover()
    stripe.provider.update(known, email="lost@example.test")
    lost = stripe.provider.create("customer", account="acct_1", email="lost too@example.test")
    stripe.lose_all()
    assert stripe.recover().healed == 2
    quiet = stripe.provider.create("customer", account="acct_1", silent=True, email="silent@example.test")
    stripe.reconcile()
    assert {("customer", key[2]) for key in (known, lost, quiet)} <= set(stripe.shop.copies())
    assert stripe.is_equal()


def test_an_account_that_has_shut_us_out_does_not_end_the_run_of_the_others(stripe: Beside) -> None:
    stripe.clock.is_now()
    stripe.recover()
    stripe.provider.create("customer", account="acct_gone", email="a@example.test")
    stripe.provider.create("customer", account="acct_there", email="b@example.test")
    stripe.live()
    stripe.provider.create("customer", account="acct_there", email="c@example.test")
    stripe.lose_all()
    real = stripe.provider.service.answer

    def shut(world: Any, call: Any) -> Answer:
        if call.headers.get("Stripe-Account") == "acct_gone":
            return Answer(403, {"error": {"code": "account_invalid"}})
        return real(world, call)

    stripe.provider.service.answer = shut  # type: ignore[method-assign]
    try:
        run = stripe.recover()
    finally:
        stripe.provider.service.answer = real  # type: ignore[method-assign]
    assert run.healed == 1
    assert run.report["accounts_closed"] == ["acct_gone"]
