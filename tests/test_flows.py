"""One fact, many events: exactly one trigger decides, once per business key, whatever arrives."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from marshmallow import RAISE, Schema, fields
from sqlalchemy import delete, event, insert, select, update
from sqlalchemy.orm import Session

from tests.till import Crash, Till
from webhooks import ConfigError, Webhooks
from webhooks.testing.simulator import Happening, Key

Build = Callable[[Callable[[Till], None]], Till]

PAID_AT_ONCE = (
    "checkout.session.completed",
    "payment_intent.succeeded",
    "charge.succeeded",
    "checkout.session.async_payment_succeeded",
)


@pytest.fixture
def build(database_url: str, tmp_path: Path) -> Iterator[Build]:
    made: list[Till] = []

    def make(register: Callable[[Till], None], **config: Any) -> Till:
        made.append(Till(database_url, tmp_path, register, **config))
        return made[-1]

    yield make
    for till in made:
        till.close()


def fulfilment(till: Till) -> None:
    """The flow as the docs write it: ship once per session, when it is paid, and send one receipt."""

    @till.webhooks.effect(name="receipt")
    def receipt(key: str) -> None:
        till.other.call(key)

    @till.webhooks.on(
        "stripe",
        "checkout.session.completed",
        "checkout.session.async_payment_succeeded",
        flow="fulfil-order",
        once_per="id",
        when=lambda session: session["payment_status"] != "unpaid",
        name="ship",
    )
    def ship(event: Any, session: Any) -> None:
        till.db.session.add(till.Row(what=session["id"]))
        receipt.later()


def checkout(till: Till, **state: Any) -> tuple[Key, dict[str, Happening]]:
    """A session, and the four events that its payment makes, none of them delivered."""
    simulator = till.simulator
    key = simulator.create("checkout.session", silent=True, **state)
    for kind in ("payment_intent", "charge"):
        simulator.world.put(("", kind, f"{kind}_1"), {"id": f"{kind}_1", "object": kind})
    about = {
        "payment_intent.succeeded": ("", "payment_intent", "payment_intent_1"),
        "charge.succeeded": ("", "charge", "charge_1"),
    }
    happenings = {type_: simulator.emit(type_, about.get(type_, key)) for type_ in PAID_AT_ONCE}
    simulator._due.clear()
    return key, happenings


def test_four_events_in_every_order_doubled_are_one_shipment_and_one_receipt(build: Build) -> None:
    till = build(fulfilment)
    for order in itertools.permutations(PAID_AT_ONCE):
        key, happenings = checkout(till, payment_status="paid")
        for type_ in order:
            till.simulator.send(happenings[type_])
            till.apply()
            till.simulator.send(happenings[type_])
            till.apply()
        till.call()
        assert till.rows().count(key[2]) == 1, order
    assert len(till.rows()) == 24
    assert till.states() == ["done"] * 24
    assert len(set(till.other.calls)) == len(till.other.calls) == 24


def test_four_events_in_one_claim_are_one_shipment(build: Build) -> None:
    till = build(fulfilment)
    for order in itertools.permutations(PAID_AT_ONCE):
        key, happenings = checkout(till, payment_status="paid")
        for type_ in order + order[::-1]:
            till.simulator.send(happenings[type_])
        till.apply()
        assert till.rows().count(key[2]) == 1, order
    outcomes = [outcome for type_, _, outcome in till.outcomes() if type_.startswith("checkout.")]
    assert sorted(set(outcomes)) == ["applied", "flow_already_decided"]
    assert outcomes.count("applied") == 24


def test_a_delayed_payment_ships_when_the_money_is_there_and_not_before(build: Build) -> None:
    """The buyer has finished, the bank has not: `completed` comes while the session is unpaid."""
    till = build(fulfilment)
    for late_first in (False, True):
        key, happenings = checkout(till, payment_status="unpaid")
        completed = happenings["checkout.session.completed"]
        paid = happenings["checkout.session.async_payment_succeeded"]
        if not late_first:
            till.simulator.send(completed)
            till.apply()
            assert till.rows().count(key[2]) == 0
            assert till.outcomes()[-1] == (completed.type, "ignored", "condition_not_met")
        till.simulator.update(key, silent=True, payment_status="paid")
        for happening in (paid, completed, paid):
            till.simulator.send(happening)
            till.apply()
        assert till.rows().count(key[2]) == 1


def test_a_payment_that_failed_is_never_shipped(build: Build) -> None:
    till = build(fulfilment)
    key, happenings = checkout(till, payment_status="unpaid")
    for type_ in PAID_AT_ONCE:
        till.simulator.send(happenings[type_])
    till.apply()
    assert (till.rows(), till.effects(), key[2] in till.rows()) == ([], [], False)


def test_a_flow_whose_handler_fails_is_not_decided(build: Build) -> None:
    failures = [ValueError(), None]

    def register(till: Till) -> None:
        @till.webhooks.on("stripe", "checkout.session.completed", flow="fulfil-order", once_per="id")
        def ship(event: Any, session: Any) -> None:
            till.db.session.add(till.Row(what=session["id"]))
            failure = failures.pop(0)
            if failure is not None:
                raise failure

    till = build(register)
    key, happenings = checkout(till)
    till.simulator.send(happenings["checkout.session.completed"])
    till.apply()
    assert till.rows() == []
    till.apply()
    assert till.rows() == [key[2]]


def test_two_events_at_the_same_instant_decide_a_flow_once(build: Build) -> None:
    """Two objects, so two claims, with one business key: only the unique key can tell (A71)."""
    barrier = threading.Barrier(2, timeout=10)

    def register(till: Till) -> None:
        def meet(_session: Any) -> bool:
            barrier.wait()
            return True

        @till.webhooks.on("stripe", "customer.created", flow="welcome", once_per="email", when=meet)
        def welcome(event: Any, customer: Any) -> None:
            till.db.session.add(till.Row(what=customer["email"]))

    till = build(register)
    if till.state.inbox.is_sqlite:
        pytest.skip("SQLite has one writer at a time; the barrier would never open")
    till.state.applier.drain()
    for _ in range(2):
        till.simulator.create("customer", email="ada@example.test")
    till.deliver()
    first, second = till.events()
    threads = [
        threading.Thread(target=till.state.applier.apply_now, args=([event.id],), kwargs={"deadline": 1e12})
        for event in (first, second)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert till.rows() == ["ada@example.test"]
    assert sorted(outcome for _, _, outcome in till.outcomes()) == ["applied", "flow_already_decided"]


def test_a_second_trigger_for_a_flow_is_refused_naming_both_places() -> None:
    webhooks = Webhooks()
    webhooks.on("stripe", "checkout.session.completed", flow="fulfil-order")(lambda event, thing: None)
    with pytest.raises(ConfigError) as caught:
        webhooks.on("stripe", "payment_intent.succeeded", flow="fulfil-order", name="b")(
            lambda event, thing: None
        )
    said = str(caught.value)
    assert "the flow 'fulfil-order' has two triggers: checkout.session.completed at " in said
    assert said.count("test_flows.py:") == 2
    assert "replaces=" in said


def test_a_trigger_that_the_provider_does_not_call_authoritative_is_warned_of_with_the_source(
    build: Build,
) -> None:
    def register(till: Till) -> None:
        till.webhooks.on("stripe", "payment_intent.succeeded", flow="fulfil-order")(lambda event, thing: None)

    till = build(register)
    with pytest.warns(
        UserWarning, match=r"payment_intent.succeeded does not decide the flow 'fulfil-order'.*https://"
    ):
        till.state.check()


def test_an_object_without_the_business_key_is_a_dead_letter(build: Build) -> None:
    def register(till: Till) -> None:
        till.webhooks.on("stripe", "customer.created", flow="welcome", once_per="email", name="welcome")(
            lambda event, thing: None
        )

    till = build(register)
    till.simulator.create("customer")
    till.deliver()
    till.apply()
    (found,) = till.events()
    assert (found.state, found.outcome) == ("dead", "gave_up")
    assert found.error == (
        "GiveUp: welcome: once_per='email' finds no key in the object, so the flow cannot be decided once"
    )


def test_business_keys_that_are_longer_than_their_column_stay_apart(build: Build) -> None:
    def register(till: Till) -> None:
        @till.webhooks.on("stripe", "customer.created", flow="welcome", once_per="email")
        def welcome(event: Any, customer: Any) -> None:
            till.db.session.add(till.Row(what=customer["id"]))

    till = build(register)
    for end in "ab":
        till.simulator.create("customer", email="x" * 300 + end)
    till.deliver()
    till.apply()
    assert len(till.rows()) == 2


# -- hand-over


def old_trigger(till: Till) -> None:
    @till.webhooks.on("stripe", "payment_intent.succeeded", flow="ship", once_per="id", name="ship_old")
    def ship_old(event: Any, payment: Any) -> None:
        till.db.session.add(till.Row(what=f"old {payment['id']}"))


def new_trigger(till: Till) -> None:
    @till.webhooks.on(
        "stripe",
        "checkout.session.completed",
        flow="fulfil-order",
        once_per="id",
        replaces={"ship": "payment_intent"},
        name="ship_new",
    )
    def ship_new(event: Any, session: Any) -> None:
        till.db.session.add(till.Row(what=f"new {session['id']}"))


@pytest.mark.parametrize("order", list(itertools.permutations(["old event", "new event", "hand-over"])))
def test_a_hand_over_loses_nothing_and_doubles_nothing(
    build: Build, database_url: str, tmp_path: Path, order: tuple[str, ...]
) -> None:
    """Whichever event comes before the new version is deployed, and whichever after."""
    till = build(old_trigger)
    _, happenings = checkout(till, payment_intent="payment_intent_1")
    sent = {"old event": "payment_intent.succeeded", "new event": "checkout.session.completed"}
    handed_over = False
    for step in order:
        if step == "hand-over":
            new_trigger(till)  # the old one stays, as the docs say
            handed_over = True
        else:
            till.simulator.send(happenings[sent[step]])
            till.apply()
    assert handed_over
    assert len(till.rows()) == 1
    # Sent again, later, when the old trigger is gone: still one.
    till.webhooks.handlers._handlers[:] = [h for h in till.webhooks.handlers if h.flow != "ship"]
    second_key, second = checkout(till, payment_intent="payment_intent_2")
    for happening in (*happenings.values(), second["checkout.session.completed"]):
        till.simulator.send(happening)
        till.apply()
    assert len(till.rows()) == 2
    assert f"new {second_key[2]}" in till.rows()


def test_a_flow_that_replaces_another_decides_also_where_there_is_no_old_key(build: Build) -> None:
    till = build(new_trigger)
    key, happenings = checkout(till)
    till.simulator.send(happenings["checkout.session.completed"])
    till.apply()
    assert till.rows() == [f"new {key[2]}"]


def test_a_replacement_that_makes_no_sense_is_refused() -> None:
    webhooks = Webhooks()
    with pytest.raises(ConfigError, match="needs the name of its own flow"):
        webhooks.on("stripe", "a", replaces={"old": "id"})
    with pytest.raises(ConfigError, match="cannot replace itself"):
        webhooks.on("stripe", "a", flow="old", replaces={"old": "id"})


# -- schemas


class CustomerSchema(Schema):
    email = fields.Email(required=True)
    address = fields.Nested(Schema.from_dict({"zip": fields.Integer(required=True, strict=True)}))


def test_what_does_not_fit_a_schema_is_a_dead_letter_with_its_field_errors(build: Build) -> None:
    asked: list[Any] = []

    def register(till: Till) -> None:
        till.webhooks.sync("stripe", "customer", schema=CustomerSchema, name="copy")(
            lambda event, customer: till.db.session.add(till.Row(what=customer["email"]))
        )
        till.webhooks.on(
            "stripe",
            "customer.created",
            schema=CustomerSchema,
            when=lambda c: asked.append(c["email"]),
            name="on",
        )(lambda event, customer: None)

    till = build(register)
    till.simulator.create("customer", email="nobody", address={"zip": "1"})
    till.simulator.create("customer", email="ada@example.test", address={"zip": 1})
    till.deliver()
    till.apply()
    bad, good = till.events()
    assert (bad.state, bad.outcome) == ("dead", "gave_up")
    assert bad.error == (
        "GiveUp: copy: the object does not fit CustomerSchema: address.zip: Not a valid integer.; "
        "email: Not a valid email address."
    )
    assert (good.state, till.rows(), asked) == ("ignored", ["ada@example.test"], ["ada@example.test"])


def test_fields_that_a_provider_adds_are_no_mistake_at_any_depth_unless_a_schema_says_so(
    build: Build,
) -> None:
    line = Schema.from_dict({"sku": fields.String(required=True)})

    class Wide(Schema):
        lines = fields.List(fields.Nested(line))
        by_name = fields.Dict(values=fields.Nested(line))

    class Narrow(Schema):
        one = fields.Nested(line, unknown=RAISE)

    def register(till: Till) -> None:
        till.webhooks.on("stripe", "customer.created", schema=Wide, name="wide")(
            lambda event, customer: till.db.session.add(till.Row(what=customer["lines"][0]["new"]))
        )
        till.webhooks.on("stripe", "product.created", schema=Narrow, name="narrow")(
            lambda event, product: None
        )

    till = build(register)
    new = {"sku": "a", "new": "b"}
    till.simulator.create("customer", lines=[new], by_name={"a": new})
    till.simulator.create("product", one=new)
    till.deliver()
    till.apply()
    assert till.rows() == ["b"]
    assert till.events()[1].error.endswith("does not fit Narrow: one.new: Unknown field.")


# -- increments, and the cases that were reported of others (A69 to A72)


def credit(till: Till) -> None:
    """The increment that a redelivery must not repeat: +10 per paid invoice."""

    @till.webhooks.on("stripe", "customer.created", name="grant")
    def grant(event: Any, customer: Any) -> None:
        balance = till.db.session.get(till.Balance, "ada", with_for_update=True)
        if balance is None:
            till.db.session.add(till.Balance(account="ada", credits=10))
        else:
            balance.credits = till.Balance.credits + 10
        till.db.session.flush()


def test_a_processed_row_is_written_with_the_work_or_not_at_all(build: Build) -> None:
    """A69: an exception after the mark and before the commit leaves no mark, and the retry applies."""
    till = build(credit)
    till.simulator.create("customer")
    till.deliver()

    def fail(_session: Session) -> None:
        raise ValueError

    event.listen(till.db.session, "before_commit", fail)
    till.apply()
    event.remove(till.db.session, "before_commit", fail)
    assert till.outcomes() == [("customer.created", "pending", "handler_failed")]
    ledger = till.state.tables.processed_events
    with till.state.inbox.engine.connect() as connection:
        assert connection.execute(select(ledger)).all() == []
    assert till.credits() == 0
    till.apply()
    assert till.credits() == 10
    with till.state.inbox.engine.connect() as connection:
        (entered,) = connection.execute(select(ledger)).all()
    assert entered.event_id == till.events()[0].id


def test_an_increment_happens_once_whatever_is_delivered_and_whoever_crashes(build: Build) -> None:
    """A70: three deliveries, a crash after the fetch, one more delivery: +10."""
    till = build(credit, WEBHOOKS_LEASE=0.000001)
    key = till.simulator.create("customer")
    (happening,) = till.simulator.world.log
    till.simulator._due.clear()
    for _ in range(3):
        till.simulator.send(happening)
    for step in ("claimed", "fetched", "written"):

        def die(reached: str, step: str = step) -> None:
            if reached == step:
                raise Crash

        till.state.applier.at = die
        with pytest.raises(Crash):
            till.apply()
    till.state.applier.at = lambda _: None
    till.simulator.send(happening)
    till.apply()
    assert (till.credits(), till.events()[0].deliveries) == (10, 4)
    # A replay on purpose of another handler's work does not touch it; a replay of its own does, and that is the point.
    till.state.inbox.replay([till.events()[0].id], ["on:another"])
    till.apply()
    assert till.credits() == 10
    till.state.inbox.replay([till.events()[0].id], ["on:grant"])
    till.apply()
    assert till.credits() == 20
    assert key[1] == "customer"


def test_two_workers_with_the_same_event_at_the_same_instant_apply_it_once(build: Build) -> None:
    """A71: both have fetched before either writes; the second finds that its claim is not its own any more."""
    till = build(credit, WEBHOOKS_LEASE=0.000001)
    till.simulator.create("customer")
    till.deliver()
    second = till.state.applier
    entered = False

    def meanwhile(step: str) -> None:
        nonlocal entered
        if step == "fetched" and not entered:
            entered = True
            second.drain()

    second.at = meanwhile
    till.apply()
    assert entered
    assert till.credits() == 10
    assert [event.state for event in till.events()] == ["applied"]


def test_a_delivery_of_a_dead_event_arms_it_once_more(build: Build) -> None:
    """A72: the first try failed for good after the dedup key was stored; the provider's next delivery is not dropped."""
    broken = [True]

    def register(till: Till) -> None:
        @till.webhooks.on("stripe", "customer.created")
        def grant(event: Any, customer: Any) -> None:
            if broken:
                raise ValueError
            till.db.session.add(till.Row(what=customer["id"]))

    till = build(register)
    till.state.endpoints._endpoints["stripe"] = replace_attempts(till)
    key = till.simulator.create("customer")
    (happening,) = till.simulator.world.log
    till.deliver()
    till.apply()
    assert [event.state for event in till.events()] == ["dead"]
    broken.clear()
    assert till.simulator.send(happening) == 200
    till.apply()
    assert ([event.state for event in till.events()], till.rows()) == (["applied"], [key[2]])


def replace_attempts(till: Till) -> Any:
    return replace(till.state.endpoints["stripe"], max_attempts=1)


# -- a handler keeps to its transaction


@pytest.mark.parametrize("how", ["engine", "session", "update", "delete"])
def test_a_handler_that_writes_our_tables_over_a_second_connection_is_stopped(build: Build, how: str) -> None:
    def register(till: Till) -> None:
        @till.webhooks.on("stripe", "customer.created")
        def meddle(event: Any, customer: Any) -> None:
            till.db.session.add(till.Row(what="mine"))
            if till.state.inbox.is_sqlite is False:
                till.db.session.flush()
            ledger = till.state.tables.processed_events
            statement: Any = {
                "engine": insert(ledger).values(
                    event_id=1, handler="x", processed_at=till.state.inbox.moment()
                ),
                "session": insert(ledger).values(
                    event_id=1, handler="x", processed_at=till.state.inbox.moment()
                ),
                "update": update(till.state.tables.events).values(state="applied"),
                "delete": delete(till.state.tables.effects),
            }[how]
            if how == "session":
                with Session(till.db.engine) as session:
                    session.execute(statement)
                    session.commit()
            else:
                with till.db.engine.begin() as connection:
                    connection.execute(statement)

    till = build(register)
    till.simulator.create("customer")
    till.deliver()
    till.apply()
    (found,) = till.events()
    assert (found.state, found.outcome, till.rows()) == ("pending", "handler_failed", [])
    assert found.error.startswith("HandlerCommitted: a handler wrote to our tables over a second connection")


def test_a_handler_may_read_over_a_second_connection_and_write_our_tables_over_its_own(build: Build) -> None:
    def register(till: Till) -> None:
        @till.webhooks.on("stripe", "customer.created")
        def look(event: Any, customer: Any) -> None:
            with till.db.engine.connect() as connection:
                connection.execute(select(till.state.tables.events)).all()
            till.db.session.execute(update(till.state.tables.events).values(correlation="seen"))

    till = build(register)
    till.simulator.create("customer")
    till.deliver()
    till.apply()
    (found,) = till.events()
    assert (found.state, found.correlation) == ("applied", "seen")


@pytest.mark.parametrize("how", ["commit", "rollback", "close"])
def test_a_handler_that_ends_the_transaction_is_stopped(build: Build, how: str) -> None:
    def register(till: Till) -> None:
        @till.webhooks.on("stripe", "customer.created")
        def end(event: Any, customer: Any) -> None:
            till.db.session.add(till.Row(what="mine"))
            till.db.session.flush()
            getattr(till.db.session, how)()

    till = build(register)
    till.simulator.create("customer")
    till.deliver()
    till.apply()
    (found,) = till.events()
    assert (found.outcome, till.rows()) == ("handler_failed", [])
    assert found.error.startswith("HandlerCommitted: a handler must not commit")
