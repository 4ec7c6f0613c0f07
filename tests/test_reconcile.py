"""What the provider has and what we have are compared, mended through the inbox, and every drift has a cause."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from tests.outage import Beside, beside
from webhooks import jsontext
from webhooks.models import OUTCOMES
from webhooks.provider import Change, ObjectRef
from webhooks.reconcile import CAUSES, differences
from webhooks.reconcile.late import kinds_of
from webhooks.reconcile.listing import Listing
from webhooks.testing.simulator import Answer, Call


@pytest.fixture
def stripe(database_url: str, tmp_path: Path) -> Iterator[Beside]:
    with beside(database_url, tmp_path, "stripe") as made:
        yield made


@pytest.fixture
def github(sqlite_url: str, tmp_path: Path) -> Iterator[Beside]:
    with beside(sqlite_url, tmp_path, "github") as made:
        yield made


def patched(made: Beside, **facts: Any) -> None:
    """Give the endpoint's provider other facts."""
    endpoint = made.endpoint
    provider = replace(endpoint.provider, **facts)
    made.shop.state.endpoints._endpoints[made.name] = replace(endpoint, provider=provider)


# -- what is found


def test_whatever_changed_without_a_word_is_mended_and_counted_by_its_cause(github: Beside) -> None:
    keys = [github.provider.create("issue", title=f"issue {n}") for n in range(3)]
    github.live()
    github.clock.go(timedelta(seconds=5))
    github.provider.update(keys[0], silent=True, title="changed")
    github.provider.create("pull_request", silent=True, title="new")
    run = github.reconcile()
    assert (run.missed, run.healed, run.causes) == (2, 2, {"never_delivered": 2})
    assert github.is_equal()
    assert github.issues()["drift"].evidence["causes"] == {"never_delivered": 2}
    assert github.reconcile().missed == 0
    assert github.issues() == {}


def test_a73_an_object_with_the_time_of_the_last_one_seen_is_found_by_the_next_run(github: Beside) -> None:
    """A second is a long time: what was stamped T may become visible after the run that has read up to T."""
    at = github.clock().replace(microsecond=0) - timedelta(seconds=30)
    github.provider.world.clock = lambda: at
    github.provider.create("issue", silent=True, title="A")
    github.reconcile()
    github.provider.create("issue", silent=True, title="B, also T")
    assert github.reconcile().healed == 1
    assert github.is_equal()


def test_two_states_within_one_second_of_the_providers_clock_are_told_apart(github: Beside) -> None:
    at = github.clock().replace(microsecond=0)
    github.provider.world.clock = lambda: at
    key = github.provider.create("issue", title="first")
    github.live()
    github.provider.update(key, silent=True, title="second, and the time says nothing of it")
    assert github.reconcile().missed == 1
    assert github.is_equal()


def test_a74_shifting_pages_lose_nothing_and_what_comes_twice_is_one(stripe: Beside) -> None:
    """An offset list: between two pages one object is inserted at the top and another is removed."""
    ids = [f"cus_{n:03d}" for n in range(30)]
    for id_ in ids:
        stripe.provider.create("customer", id_=id_, silent=True)
    passes = 0

    def shifting(_api: Any, _since: datetime) -> Iterator[Change]:
        nonlocal passes
        passes += 1
        for page in range(4):
            for id_ in ids[page * 10 : page * 10 + 10]:
                yield Change(ObjectRef("customer", id_))
            if (passes, page) == (1, 0):  # the first page's last entry comes again on the second
                stripe.provider.create("customer", id_="cus_new", silent=True)
                ids.insert(0, "cus_new")
            if (passes, page) == (1, 1):  # and now one of the third page moves up into the second, unread
                stripe.provider.delete(("", "customer", "cus_003"), silent=True)
                ids.remove("cus_003")

    patched(stripe, list_changed=shifting)
    stripe.reconcile()
    stripe.reconcile()
    stripe.sweep()
    assert stripe.is_equal()
    heals = [event for event in stripe.shop.events() if event.object_id == "cus_009"]
    assert len(heals) == 1


def test_a75_a_deletion_without_an_event_is_found_and_what_is_only_missing_from_a_list_is_kept(
    stripe: Beside,
) -> None:
    kept, gone, hidden = (stripe.provider.create("customer", email=f"{n}@example.test") for n in range(3))
    stripe.live()
    stripe.provider.delete(gone, silent=True)
    real = stripe.endpoint.provider.list_changed
    assert real is not None

    def hiding(api: Any, since: datetime) -> Iterator[Change]:
        return (change for change in real(api, since) if change.object.id != hidden[2])  # type: ignore[misc]

    patched(stripe, list_changed=hiding)
    stripe.reconcile()
    assert ("customer", gone[2]) in stripe.shop.copies()  # no list of changes shows a deletion
    [run] = stripe.sweep()
    assert run.missed == 1
    assert stripe.is_equal()
    rows = {row.id: row for row in stripe.shop.objects()}
    assert rows[gone[2]].deleted_at is not None
    assert rows[hidden[2]].deleted_at is None
    assert rows[hidden[2]].unlisted_at is None
    assert rows[kept[2]].deleted_at is None


def test_a76_a_live_event_between_the_list_and_the_write_is_not_overwritten(stripe: Beside) -> None:
    key = stripe.provider.create("customer", email="v0")
    stripe.live()
    stripe.provider.update(key, silent=True, email="v1")

    def race(call: Call, answer: Answer) -> None:
        if call.path == f"/v1/customers/{key[2]}" and answer.json.get("email") == "v1":
            stripe.provider.before_reply = lambda _call, _answer: None
            stripe.provider.update(key, email="v2")
            thread = threading.Thread(target=stripe.live)  # while reconciliation waits for v1
            thread.start()
            thread.join()

    stripe.provider.before_reply = race
    run = stripe.reconcile()
    assert stripe.shop.copies()["customer", key[2]]["email"] == "v2"
    assert run.missed == 0  # whoever wrote meanwhile asked later than we did
    assert stripe.is_equal()


def test_an_object_with_open_events_is_left_to_them(stripe: Beside) -> None:
    key = stripe.provider.create("customer", email="v0")
    stripe.live()
    stripe.provider.update(key, email="v1")
    stripe.provider.deliver()  # recorded, and not yet applied
    calls = len(stripe.provider.calls)
    run = stripe.reconciler.reconcile(stripe.endpoint)
    assert run.missed == 0
    assert f"/v1/customers/{key[2]}" not in {call.path for call in stripe.provider.calls[calls:]}
    stripe.work()
    assert stripe.is_equal()


def test_where_lists_know_only_creation_what_is_not_final_is_read_again(stripe: Beside) -> None:
    running = stripe.provider.create("subscription", status="active")
    over = stripe.provider.create("subscription", status="canceled")
    customer = stripe.provider.create("customer", email="old@example.test")
    stripe.live()

    def nothing(_api: Any, _since: datetime) -> Iterator[Change]:
        yield from ()

    patched(stripe, list_changed=nothing)
    for key in (running, over, customer):
        stripe.provider.update(key, silent=True, changed="yes")
    calls = len(stripe.provider.calls)
    run = stripe.reconcile()
    assert run.missed == 1
    assert stripe.shop.copies()["subscription", running[2]]["changed"] == "yes"
    # Not asked for: the one that is over, and kinds that have no last state; a full sweep sees both.
    asked = {call.path.rpartition("/")[2] for call in stripe.provider.calls[calls:]}
    assert asked == {running[2]}
    stripe.sweep()
    assert stripe.is_equal()


# -- the full sweep


def test_a_full_sweep_goes_on_after_a_restart_and_keeps_to_its_budget(stripe: Beside) -> None:
    keys = [stripe.provider.create("customer", email=f"{n}@example.test") for n in range(25)]
    stripe.live()
    for key in keys:
        stripe.provider.delete(key, silent=True)
    asked: list[int] = []
    for _ in range(3):  # each a new process
        before = len(stripe.provider.calls)
        run = stripe.reconciler.full_sweep(stripe.endpoint, calls=10)
        stripe.work()
        fetched = [c for c in stripe.provider.calls[before:] if c.path.startswith("/v1/customers/cus")]
        asked.append(run.seen)
        assert len(fetched) <= 20  # ten by the sweep, ten by the worker that mends
    assert asked == [10, 10, 5]
    assert run.report["left"] == 0
    assert stripe.is_equal()
    assert stripe.reconciler.full_sweep(stripe.endpoint, scheduled=True) is None  # not due for a week


def test_a_full_sweep_finds_what_is_older_than_any_log(stripe: Beside) -> None:
    stripe.clock.offset = timedelta(days=-400)
    old = stripe.provider.create("customer", silent=True, email="old@example.test")
    stripe.clock.is_now()
    stripe.reconcile()
    assert ("customer", old[2]) not in stripe.shop.copies()
    stripe.sweep()
    assert stripe.is_equal()


# -- causes


def test_each_drift_has_a_cause(stripe: Beside) -> None:
    keys = {name: stripe.provider.create("product", name=name) for name in CAUSES}
    stripe.live()
    inbox, tables = stripe.shop.state.inbox, stripe.shop.state.tables
    stripe.clock.go(timedelta(seconds=10))
    # Delivered, and dead; delivered, and nobody wanted it.
    for name in ("delivered_but_dead", "delivered_but_ignored"):
        stripe.provider.update(keys[name], changed=name)
    stripe.provider.deliver()
    with inbox.transaction() as connection:
        e = tables.events
        for name, state, outcome in (
            ("delivered_but_dead", "dead", "handler_failed"),
            ("delivered_but_ignored", "ignored", "no_handler"),
        ):
            mine = (e.c.object_id == keys[name][2]) & (e.c.state == "pending")
            connection.execute(e.update().where(mine).values(state=state, outcome=outcome))
        o = tables.objects
        row = connection.execute(o.select().where(o.c.id == keys["applied_then_changed_locally"][2])).one()
        mine = o.c.id == row.id
        connection.execute(o.update().where(mine).values(data={**row.data, "name": "by hand"}))
        # Written after the provider says it had changed: it was shown to us as it was before.
        lagging = o.c.id == keys["provider_lag"][2]
        connection.execute(o.update().where(lagging).values(as_of=datetime.now(UTC) + timedelta(minutes=5)))
    stripe.provider.update(keys["provider_lag"], silent=True, updated=int(stripe.clock().timestamp()))
    stripe.provider.update(keys["never_delivered"], silent=True, changed="yes")
    run = stripe.reconcile()
    found = {drift["id"]: drift["cause"] for drift in run.report["drifts"]}
    expected = {
        keys[n][2]: n for n in CAUSES if n not in {"rejected_at_the_door", "applied_then_changed_locally"}
    }
    assert found == expected
    # A list that shows what the provider has cannot see what we did to our own row; whoever fetches both does.
    [audit] = [stripe.reconciler.audit(stripe.endpoint)]
    stripe.work()
    assert audit.causes == {"applied_then_changed_locally": 1}
    assert stripe.is_equal()


def test_what_was_refused_at_the_door_is_told_from_what_never_came(stripe: Beside) -> None:
    key = stripe.provider.create("customer", email="v0")
    stripe.live()
    stripe.provider.update(key, email="v1")
    real, stripe.provider.service.secret = stripe.provider.service.secret, "whsec_another_0123456789"
    try:
        stripe.provider.deliver()
    finally:
        stripe.provider.service.secret = real
    r = stripe.shop.state.tables.rejections
    with stripe.shop.state.inbox.engine.connect() as connection:
        [row] = connection.execute(select(r)).all()
    assert (row.endpoint, row.reason, row.body) == ("stripe", "mismatch", None)
    assert row.length > 0
    assert len(row.digest) == 64
    assert stripe.reconcile().causes == {"rejected_at_the_door": 1}


# -- dry runs


def test_a_dry_run_names_each_field_and_mends_nothing(stripe: Beside) -> None:
    key = stripe.provider.create("customer", email="v0", address={"city": "Bath", "line": "1"})
    stripe.live()
    stripe.provider.update(key, silent=True, email="v1", address={"city": "York", "line": "1"})
    run = stripe.reconcile(dry=True)
    [drift] = run.drifts
    assert drift.differences == [("address.city", "Bath", "York"), ("email", "v0", "v1")]
    assert (run.missed, run.healed) == (1, 0)
    assert not stripe.is_equal()
    assert stripe.issues() == {}
    assert stripe.reconciler._reconciling.runs.watermark("stripe", "reconcile") is None


def test_differences_name_what_is_only_on_one_side() -> None:
    assert differences({"a": 1, "b": {"c": 2}}, {"b": {"c": 3, "d": 4}}) == [
        ("a", 1, None),
        ("b.c", 2, 3),
        ("b.d", None, 4),
    ]
    assert differences(None, {"a": 1}) == [("(all)", None, {"a": 1})]


# -- flows that nobody decided


def with_flow(stripe: Beside, late: Any = None) -> list[str]:
    ran: list[str] = []

    def fulfil(_event: Any, session: Any) -> None:
        ran.append(session["id"])

    stripe.shop.webhooks.on(
        "stripe",
        "checkout.session.completed",
        flow="fulfil-order",
        once_per="id",
        when=lambda s: s["payment_status"] == "paid",
        late=late,
        name="fulfil",
    )(fulfil)
    return ran


def lost_sessions(stripe: Beside) -> tuple[Any, Any]:
    """Two sessions whose events were lost: one was paid, one was not."""
    stripe.reconcile()  # we watch from here on
    stripe.clock.go(timedelta(seconds=2))
    paid = stripe.provider.create("checkout.session", silent=True, payment_status="paid", status="complete")
    open_ = stripe.provider.create("checkout.session", silent=True, payment_status="unpaid", status="open")
    return paid, open_


def test_a_flow_that_no_event_will_decide_any_more_runs_once_where_the_object_says_so(stripe: Beside) -> None:
    ran = with_flow(stripe)
    paid, _ = lost_sessions(stripe)
    stripe.reconcile()
    assert ran == [paid[2]]
    late = [event for event in stripe.shop.events() if event.type.startswith("reconcile.late.")]
    assert [event.object_id for event in late] == [paid[2]]
    stripe.provider.emit("checkout.session.completed", paid)  # and then it comes after all
    stripe.live()
    stripe.reconcile()
    assert ran == [paid[2]]


def test_a_flow_with_late_skip_stays_undecided(stripe: Beside) -> None:
    ran = with_flow(stripe, "skip")
    paid, _ = lost_sessions(stripe)
    stripe.reconcile()
    assert ran == []
    assert ("checkout.session", paid[2]) in stripe.shop.copies()


def test_a_flow_with_late_ask_waits_for_a_person(stripe: Beside) -> None:
    ran = with_flow(stripe, "ask")
    paid, _ = lost_sessions(stripe)
    stripe.reconcile()
    assert ran == []
    [waiting] = [event for event in stripe.shop.events() if event.state == "dead"]
    assert (waiting.outcome, waiting.type) == ("late", "reconcile.late.fulfil-order")
    assert waiting.outcome in OUTCOMES
    stripe.reconcile()
    stripe.shop.state.inbox.redrive([waiting.id])
    stripe.work()
    assert ran == [paid[2]]


def test_history_from_before_we_watched_decides_no_flow(stripe: Beside) -> None:
    """The first run of a new installation finds three days of paid sessions that somebody else has fulfilled."""
    ran = with_flow(stripe)
    stripe.clock.go(timedelta(hours=-2))
    stripe.provider.create("checkout.session", silent=True, payment_status="paid", status="complete")
    stripe.clock.is_now()
    stripe.reconcile()
    assert ran == []
    assert stripe.is_equal()


def test_which_kind_a_flow_is_about_is_read_off_the_provider_file(stripe: Beside) -> None:
    with_flow(stripe)
    [handler] = stripe.shop.state.handlers.flows_for(stripe.endpoint)
    assert kinds_of(handler, stripe.endpoint.provider) == {"checkout.session"}
    wide = replace(handler, types=("customer.*",))
    assert kinds_of(wide, stripe.endpoint.provider) == {"customer", "subscription"}


def test_a_handler_for_every_type_is_not_run_by_our_own_events(stripe: Beside) -> None:
    seen: list[str] = []
    stripe.shop.webhooks.on("stripe", "*", name="everything")(lambda event, _: seen.append(event.type))
    stripe.provider.create("customer", silent=True, email="ada@example.test")
    stripe.reconcile()
    assert seen == []


# -- large listings


def test_a_large_listing_is_compared_set_against_set_with_few_statements(stripe: Beside) -> None:
    number = 12_000
    o = stripe.shop.state.tables.objects
    now = datetime.now(UTC)

    def data(n: int) -> dict[str, Any]:
        return {"id": f"cus_{n:06d}", "object": "customer", "n": n}

    rows = [
        {
            "endpoint": "stripe",
            "account": "",
            "kind": "customer",
            "id": f"cus_{n:06d}",
            "claim_no": 1,
            "as_of": now - timedelta(days=1),
            "digest": jsontext.digest(data(n)),
            "data": data(n),
            "checked_at": now,
        }
        for n in range(number)
    ]
    with stripe.shop.state.inbox.transaction() as connection:
        connection.execute(o.insert(), rows)
    changes = (
        Change(ObjectRef("customer", f"cus_{n:06d}"), data(n) | ({"n": -1} if n % 4000 == 7 else {}))
        for n in range(3, number + 2)
    )
    with Listing.of(stripe.shop.state.inbox, stripe.endpoint) as listing:
        assert sum(listing.read(changes)) == number - 1
        found = sorted(c.object.id for batch in listing.differing(100) for c in batch)
        assert found == ["cus_000007", "cus_004007", "cus_008007", "cus_012000", "cus_012001"]
        assert listing.mark_unlisted(now) == 3
    with stripe.shop.state.inbox.engine.connect() as connection:
        marked = connection.scalar(select(func.count()).where(o.c.unlisted_at.is_not(None)))
    assert marked == 3


def test_more_objects_than_a_page_with_the_same_time_are_all_found(github: Beside) -> None:
    """The border between two pages lies within one second."""
    at = github.clock().replace(microsecond=0)
    github.provider.world.clock = lambda: at
    for number in range(230):
        github.provider.create("issue", silent=True, title=f"issue {number}")
    for number in range(120):
        github.provider.create("pull_request", silent=True, title=f"pull request {number}")
    assert github.reconcile().healed == 350
    assert github.is_equal()


def test_a_run_that_was_killed_while_it_mended_goes_on_with_the_rest(stripe: Beside) -> None:
    for number in range(250):
        stripe.provider.create("customer", silent=True, email=f"{number}@example.test")
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
    stripe.work()
    assert len(stripe.shop.copies()) == 100
    assert stripe.reconcile().healed == 150
    assert stripe.is_equal()


def test_a76_reconcile_that_races_with_live_events_loses_none_and_repeats_none(
    database_url: str, tmp_path: Path
) -> None:
    """Changes, deliveries and workers go on all the time while one reconcile after the other runs."""
    with beside(database_url, tmp_path, "stripe") as made:
        keys = [made.provider.create("customer", email=f"{n}@example.test") for n in range(20)]
        made.live()
        broken: list[BaseException] = []

        def lives() -> None:
            try:
                for turn in range(60):
                    key = keys[made.provider.chance.randrange(len(keys))]
                    made.provider.update(key, silent=turn % 3 == 0, email=f"turn {turn}@example.test")
                    made.provider.deliver()
                    made.shop.state.applier.drain()
            except BaseException as error:
                broken.append(error)
                raise

        thread = threading.Thread(target=lives)
        thread.start()
        runs = 0
        while thread.is_alive():
            run = made.reconciler.reconcile(made.endpoint)
            assert not run.error, run.error
            runs += 1
        thread.join()
        assert not broken
        assert runs > 1
        made.work()
        made.reconcile()
        # The lists know only creation: what changed in silence before they were read is for the sweep.
        made.sweep()
        assert made.is_equal()
        assert made.shop.noted() == sorted(happening.id for happening in made.provider.world.log)
