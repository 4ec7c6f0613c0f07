"""Side effects: promised with the handler's work, done once after it, and what nobody can know is never hidden."""

from __future__ import annotations

import datetime as dt
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from marshmallow import Schema, fields, validate

from tests.till import Crash, Till
from webhooks import ConfigError, GiveUp, RetryLater, Webhooks, idempotency_key
from webhooks.errors import RateLimited

Build = Callable[..., Till]


@pytest.fixture
def build(database_url: str, tmp_path: Path) -> Iterator[Build]:
    """Make a till: `build(idempotent=…, lookup=…)` or with a function that registers what it wants."""
    made: list[Till] = []

    def make(register: Callable[[Till], None] | None = None, **options: Any) -> Till:
        def usual(till: Till) -> None:
            @till.webhooks.effect(name="refund", **options)
            def refund(key: str, *, payment: str) -> dict[str, str]:
                return till.other.call(key)

            @till.webhooks.on("stripe", "customer.created", name="pay_back")
            def pay_back(event: Any, customer: Any) -> None:
                till.db.session.add(till.Row(what=event.dedup_key))
                refund.later(payment=customer["id"])

        made.append(Till(database_url, tmp_path, register or usual))
        return made[-1]

    yield make
    for till in made:
        till.close()


def test_an_effect_is_called_once_after_the_commit_with_its_key_and_arguments(build: Build) -> None:
    till = build()
    till.simulator.create("customer")
    till.deliver()
    till.apply()
    assert till.other.calls == []
    (promised,) = till.effects()
    assert (promised.state, promised.endpoint, promised.handler) == ("recorded", "stripe", "on:pay_back")
    till.call()
    till.call()
    (effect,) = till.effects()
    assert (effect.state, effect.attempts, effect.error) == ("done", 1, None)
    assert effect.result == {"id": f"re_{effect.idempotency_key[:8]}"}
    assert till.other.calls == [effect.idempotency_key]
    assert str(uuid.UUID(effect.idempotency_key)) == effect.idempotency_key


def test_what_is_rolled_back_was_never_promised(build: Build) -> None:
    def register(till: Till) -> None:
        @till.webhooks.effect(name="mail")
        def mail(key: str) -> None:
            till.other.call(key)

        @till.webhooks.on("stripe", "customer.created", name="greet")
        def greet(event: Any, customer: Any) -> None:
            mail.later()
            if event.attempts == 1:
                raise ValueError("after the promise")

    till = build(register)
    till.simulator.create("customer")
    till.deliver()
    till.apply()
    till.call()
    assert (till.effects(), till.other.calls) == ([], [])
    till.apply()
    till.call()
    assert (till.states(), len(till.other.calls)) == (["done"], 1)


def test_an_effect_is_started_in_the_database_before_it_is_called(build: Build) -> None:
    till = build()
    seen: list[Any] = []
    till.other.behave = lambda _: seen.extend(till.effects())
    till.simulator.create("customer")
    till.deliver()
    till.apply()
    till.call()
    assert [(row.state, row.attempts, row.finished_at) for row in seen] == [("started", 1, None)]


@pytest.mark.parametrize("step", ["started", "called"])
def test_a_crash_in_the_middle_of_one_that_must_not_be_repeated_is_unknown(build: Build, step: str) -> None:
    till = build()
    crash_at(till, step)
    calls = len(till.other.calls)
    till.call()
    assert till.states() == ["started"], "its worker may be alive: the lease says so"
    till.all_leases_run_out()
    till.call()
    till.all_leases_run_out()
    till.call()
    (effect,) = till.effects()
    assert (effect.state, effect.due_at) == ("unknown", None)
    assert "its worker died" in effect.error
    assert len(till.other.calls) == calls, "nobody repeats it silently"


@pytest.mark.parametrize("step", ["started", "called"])
def test_a_crash_in_the_middle_of_an_idempotent_one_is_repeated_under_the_same_key(
    build: Build, step: str
) -> None:
    till = build(idempotent=True)
    till.other.honours_keys = True
    crash_at(till, step)
    till.all_leases_run_out()
    till.call()
    (effect,) = till.effects()
    assert (effect.state, effect.attempts) == ("done", 2)
    assert set(till.other.calls) == {effect.idempotency_key}
    assert till.other.happened == [effect.idempotency_key]


def test_an_idempotent_one_is_not_repeated_when_its_callee_may_have_forgotten_the_key(build: Build) -> None:
    till = build(idempotent=True, key_lifetime=timedelta(hours=12))
    crash_at(till, "called")
    till.time_passes(timedelta(hours=11, minutes=56))  # a call that starts now may take until 12 h are over
    till.call()
    (effect,) = till.effects()
    assert (effect.state, len(till.other.calls)) == ("unknown", 1)
    assert "forgotten the key" in effect.error


def test_an_idempotent_one_is_repeated_as_long_as_the_key_is_known(build: Build) -> None:
    till = build(idempotent=True, key_lifetime=timedelta(hours=12))
    crash_at(till, "called")
    till.time_passes(timedelta(hours=11))
    till.call()
    assert (till.states(), len(till.other.calls)) == (["done"], 2)


def test_an_exception_leaves_one_that_must_not_be_repeated_unknown(build: Build) -> None:
    till = build()
    till.other.behave = raising(TimeoutError("read timed out, to ada@example.test"))
    promise(till)
    till.call()
    till.all_leases_run_out()
    till.call()
    (effect,) = till.effects()
    assert (effect.state, till.other.calls) == ("unknown", [effect.idempotency_key])
    assert effect.error.startswith("builtins.TimeoutError at ")
    assert "ada@" not in effect.error, "an exception's text may repeat what a payload held"


def test_an_exception_repeats_an_idempotent_one_later_and_in_the_end_it_is_unknown(build: Build) -> None:
    till = build(idempotent=True, max_attempts=3)
    till.other.behave = raising(TimeoutError())
    promise(till)
    till.call()
    assert till.states() == ["recorded"]
    assert till.state.outbox.next_due() > timedelta(seconds=1)  # type: ignore[operator]
    for _ in range(4):
        till.all_leases_run_out()
        till.call()
    (effect,) = till.effects()
    assert (effect.state, effect.attempts, len(till.other.calls)) == ("unknown", 3, 3)


def test_retry_later_says_that_it_did_not_happen_so_it_is_called_again(build: Build) -> None:
    till = build()
    answers: list[Exception | None] = [RetryLater("busy", timedelta(minutes=3)), None]
    till.other.behave = lambda _: raise_next(answers)
    promise(till)
    till.call()
    till.call()
    assert (till.states(), len(till.other.calls)) == (["recorded"], 1)
    wait = till.state.outbox.next_due()
    assert wait is not None
    assert timedelta(minutes=2, seconds=50) < wait <= timedelta(minutes=3)
    till.all_leases_run_out()
    till.call()
    assert (till.states(), len(till.other.calls)) == (["done"], 2)


def test_retry_later_for_ever_is_a_dead_letter_and_being_told_to_wait_is_nobodys_fault(build: Build) -> None:
    till = build(max_attempts=2)
    answers: list[Exception | None] = [RateLimited("429", timedelta(minutes=1))] * 5
    till.other.behave = lambda _: raise_next(answers)
    promise(till)
    till.call()
    assert (till.effects()[0].state, till.effects()[0].attempts) == ("recorded", 0)
    answers[:] = [RetryLater("busy", timedelta(0))] * 5
    till.all_leases_run_out()
    till.call()
    (effect,) = till.effects()
    assert (effect.state, effect.attempts, effect.error) == ("dead", 2, "RetryLater: busy")


def test_give_up_is_a_dead_letter_and_redrive_calls_it_again_under_its_key(build: Build) -> None:
    till = build()
    answers: list[Exception | None] = [GiveUp("no such payment"), None]
    till.other.behave = lambda _: raise_next(answers)
    promise(till)
    till.call()
    till.call()
    (effect,) = till.effects()
    assert (effect.state, effect.error, len(till.other.calls)) == ("dead", "GiveUp: no such payment", 1)
    assert till.state.outbox.redrive([effect.idempotency_key]) == 1
    till.call()
    assert till.states() == ["done"]
    assert till.other.calls == [effect.idempotency_key] * 2


def test_give_up_after_a_call_that_may_have_done_it_is_unknown(build: Build) -> None:
    till = build(idempotent=True)
    answers: list[Exception | None] = [TimeoutError(), GiveUp("the account is closed")]
    till.other.behave = lambda _: raise_next(answers)
    promise(till)
    till.call()
    till.all_leases_run_out()
    till.call()
    (effect,) = till.effects()
    assert (effect.state, effect.error) == ("unknown", "GiveUp: the account is closed")


@pytest.mark.parametrize(("done", "calls", "end"), [(True, 1, "done"), (False, 2, "done")])
def test_a_person_settles_what_is_unknown(build: Build, done: bool, calls: int, end: str) -> None:
    till = build()
    answers: list[Exception | None] = [TimeoutError(), None]
    till.other.behave = lambda _: raise_next(answers)
    promise(till)
    till.call()
    key = till.effects()[0].idempotency_key
    assert till.state.outbox.settle("another", done=done) is False
    assert till.state.outbox.settle(key, done=done) is True
    assert till.state.outbox.settle(key, done=done) is False, "it is settled"
    till.call()
    assert (till.states(), till.other.calls) == ([end], [key] * calls)


@pytest.mark.parametrize(
    ("found", "calls", "end"), [(True, 1, "done"), (False, 2, "done"), (None, 1, "unknown")]
)
def test_a_lookup_settles_what_is_unknown_by_asking_the_other_side(
    build: Build, found: Any, calls: int, end: str
) -> None:
    looked: list[tuple[str, str]] = []

    def lookup(key: str, *, payment: str) -> Any:
        looked.append((key, payment))
        return found

    till = build(lookup=lookup)
    answers: list[Exception | None] = [TimeoutError(), None]
    till.other.behave = lambda _: raise_next(answers)
    customer = promise(till)
    till.call()
    assert (till.states(), looked) == (["unknown"], []), (
        "a request that is still on its way could not be seen yet"
    )
    till.all_leases_run_out()
    till.call()
    key = till.effects()[0].idempotency_key
    assert looked == [(key, customer)]
    assert (till.states(), till.other.calls) == ([end], [key] * calls)
    if end == "unknown":
        assert till.effects()[0].due_at is not None, "it is asked again"


def test_a_lookup_that_fails_is_asked_again_and_what_it_answers_is_kept(build: Build) -> None:
    answers: list[Exception | None] = [ConnectionError(), None]

    def lookup(_key: str, *, payment: str) -> Any:
        raise_next(answers)
        return {"found": payment}

    till = build(lookup=lookup)
    till.other.behave = raising(TimeoutError())
    customer = promise(till)
    till.call()
    till.all_leases_run_out()
    till.call()
    assert till.states() == ["unknown"]
    till.all_leases_run_out()
    till.call()
    (effect,) = till.effects()
    assert (effect.state, effect.result, len(till.other.calls)) == ("done", {"found": customer}, 1)


def test_a_lookup_that_says_no_every_time_ends_as_a_dead_letter(build: Build) -> None:
    till = build(lookup=lambda key, *, payment: False, max_attempts=3)
    till.other.behave = raising(TimeoutError())
    promise(till)
    for _ in range(20):
        till.all_leases_run_out()
        till.call()
    assert (till.states(), len(till.other.calls)) == (["dead"], 3)


def test_a_worker_that_took_too_long_may_still_say_that_it_happened(build: Build) -> None:
    till = build()

    def slow(_key: str) -> None:
        till.all_leases_run_out()
        assert till.state.outbox.take(till.webhooks.effects.values()) is None
        assert till.states() == ["unknown"]

    till.other.behave = slow
    promise(till)
    till.call()
    assert (till.states(), len(till.other.calls)) == (["done"], 1)


def test_a_worker_that_was_settled_over_has_nothing_to_say_any_more(build: Build) -> None:
    till = build()
    promise(till)
    definitions = till.webhooks.effects.values()
    taken = till.state.outbox.take(definitions)
    assert taken is not None
    till.all_leases_run_out()
    assert till.state.outbox.take(definitions) is None
    assert till.state.outbox.settle(taken.key, done=False)
    assert till.state.outbox.done(taken) is False
    assert till.states() == ["recorded"]


def test_a_worker_whose_effect_another_one_calls_by_now_has_nothing_to_say_any_more(build: Build) -> None:
    till = build(idempotent=True)
    promise(till)
    definitions = till.webhooks.effects.values()
    first = till.state.outbox.take(definitions)
    till.all_leases_run_out()
    second = till.state.outbox.take(definitions)
    assert first is not None
    assert second is not None
    assert till.state.outbox.again(first, "late", timedelta(0)) is False
    assert till.state.outbox.unknown(first, definitions[0], "late") is False
    assert till.states() == ["started"]
    assert till.state.outbox.done(second) is True


def test_a_worker_that_was_held_up_before_the_call_does_not_call(build: Build) -> None:
    till = build()
    promise(till)
    till.state.caller.outbox.lease = timedelta(0)
    till.call_once = till.state.outbox.take(till.webhooks.effects.values())  # type: ignore[attr-defined]
    state = till.state.caller._call(till.call_once, 0.0)  # type: ignore[attr-defined]
    assert (state, till.other.calls) == ("recorded", [])


def test_two_workers_never_take_the_same_effect(build: Build) -> None:
    till = build()
    promise(till)
    definitions = till.webhooks.effects.values()
    taken = [till.state.outbox.take(definitions), till.state.outbox.take(definitions)]
    assert [t and t.what for t in taken] == ["call", None]


def test_many_workers_at_once_call_each_effect_once(build: Build) -> None:
    till = build()
    for _ in range(40):
        till.simulator.create("customer")
    till.deliver()
    till.apply()
    till.other.behave = lambda _: time.sleep(0.005)
    threads = [threading.Thread(target=till.call) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert till.states() == ["done"] * 40
    assert sorted(till.other.calls) == sorted(effect.idempotency_key for effect in till.effects())


def test_an_effect_that_this_worker_does_not_know_is_left_for_one_that_does(build: Build) -> None:
    till = build()
    promise(till)
    assert till.state.outbox.take([]) is None
    assert till.states() == ["recorded"]


def test_a_business_key_makes_one_effect_of_what_many_events_ask_for(build: Build) -> None:
    def register(till: Till) -> None:
        @till.webhooks.effect(name="receipt")
        def receipt(key: str, *, order: int, asked_by: str) -> None:
            till.other.call(key)

        @till.webhooks.on("stripe", "customer.created", name="one")
        def one(event: Any, customer: Any) -> None:
            receipt.later(
                per=customer["metadata"]["order"], order=customer["metadata"]["order"], asked_by="one"
            )

        @till.webhooks.on("stripe", "customer.updated", name="other")
        def other(event: Any, customer: Any) -> None:
            receipt.later(
                per=customer["metadata"]["order"], order=customer["metadata"]["order"], asked_by="other"
            )

    till = build(register)
    customer = till.simulator.create("customer", metadata={"order": 42})
    till.simulator.update(customer, email="a@example.test")
    till.simulator.create("customer", metadata={"order": 43})
    till.deliver()
    till.apply()
    till.call()
    assert [(e.state, e.per) for e in till.effects()] == [("done", "42"), ("done", "43")]
    assert len(till.other.calls) == 2


def test_replaying_an_event_on_purpose_does_not_repeat_its_effects(build: Build) -> None:
    till = build()
    promise(till)
    till.call()
    (event,) = till.events()
    assert till.state.inbox.replay([event.id]) == 1
    till.apply()
    till.call()
    assert till.rows() == [event.dedup_key] * 2, "the handler's own work was applied again"
    assert (till.states(), len(till.other.calls)) == (["done"], 1)


def test_the_same_event_twice_is_one_effect_and_another_handler_or_event_is_another(build: Build) -> None:
    def register(till: Till) -> None:
        @till.webhooks.effect(name="mail")
        def mail(key: str) -> None:
            till.other.call(key)

        for name in ("one", "other"):
            till.webhooks.on("stripe", "customer.created", name=name)(
                lambda event, customer: mail.later() and None
            )

    till = build(register)
    till.simulator.delivery.duplicates = 1.0
    till.simulator.create("customer")
    till.simulator.create("customer")
    till.deliver()
    till.apply()
    till.call()
    assert till.states() == ["done"] * 4
    assert len(set(till.other.calls)) == 4


def test_one_handler_that_promises_an_effect_twice_is_told_to_give_each_a_key(build: Build) -> None:
    def register(till: Till) -> None:
        @till.webhooks.effect(name="mail")
        def mail(key: str, *, to: str) -> None:
            till.other.call(key)

        @till.webhooks.on("stripe", "customer.created", name="greet")
        def greet(event: Any, customer: Any) -> None:
            mail.later(to="a")
            mail.later(to="a")  # the same promise: once
            mail.later(to="b", per="b")
            mail.later(to="b")

    till = build(register)
    till.simulator.create("customer")
    till.deliver()
    till.apply()
    (event,) = till.events()
    assert (event.state, event.outcome) == ("dead", "gave_up")
    assert "on:greet promises mail twice with different arguments; give each its own per=" in event.error
    assert till.effects() == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"to": dt.date(2026, 1, 1)}, "date would come back as something else"),
        ({"to": (1, 2)}, "tuple would come back as something else"),
        ({"to": float("nan")}, "float would come back as something else"),
        ({"to": object()}, "object would come back as something else"),
        ({"whom": "a"}, "missing a required|got an unexpected"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_where_they_are_promised(
    build: Build, arguments: dict[str, Any], said: str
) -> None:
    caught: list[TypeError] = []

    def register(till: Till) -> None:
        @till.webhooks.effect(name="mail")
        def mail(key: str, *, to: Any) -> None:
            till.other.call(key)

        @till.webhooks.on("stripe", "customer.created", name="greet")
        def greet(event: Any, customer: Any) -> None:
            try:
                mail.later(**arguments)
            except TypeError as error:
                caught.append(error)

    till = build(register)
    promise(till)
    with pytest.raises(TypeError, match=said):
        raise caught[0]
    assert till.effects() == []


class RefundSchema(Schema):
    amount = fields.Decimal(required=True, as_string=True, validate=validate.Range(min=Decimal("0.01")))
    day = fields.Date(required=True)


def test_a_schema_lets_arguments_be_more_than_json_and_refuses_what_does_not_fit(build: Build) -> None:
    got: list[Any] = []

    def register(till: Till) -> None:
        @till.webhooks.effect(name="refund", schema=RefundSchema)
        def refund(key: str, *, amount: Decimal, day: dt.date) -> None:
            got.append((amount, day))

        @till.webhooks.on("stripe", "customer.created", name="pay")
        def pay(event: Any, customer: Any) -> None:
            refund.later(amount=Decimal(customer["metadata"]["amount"]), day=dt.date(2026, 12, 1))

    till = build(register)
    till.simulator.create("customer", metadata={"amount": "10.50"})
    till.simulator.create("customer", metadata={"amount": "-1"})
    till.deliver()
    till.apply()
    till.call()
    assert got == [(Decimal("10.50"), dt.date(2026, 12, 1))]
    assert [(e.state, e.outcome) for e in till.events()] == [("applied", "applied"), ("dead", "gave_up")]
    assert till.events()[1].error == (
        "GiveUp: refund: the arguments do not fit RefundSchema: amount: Must be greater than or equal to 0.01."
    )


def test_an_effect_can_be_promised_outside_of_a_handler_with_a_business_key(build: Build) -> None:
    till = build()
    effect = till.webhooks.effects["refund"]
    with till.app.app_context():
        with pytest.raises(TypeError, match="needs per="):
            effect.later(payment="pi_1")
        key = effect.later(payment="pi_1", per="order 1")
        till.db.session.rollback()
        assert till.effects() == []
        assert effect.later(payment="pi_1", per="order 1") == key
        till.db.session.commit()
    till.call()
    assert (till.states(), till.other.calls) == (["done"], [key])


def test_workers_are_rung_after_the_commit_and_the_sweep_finds_what_was_not_rung_for(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    till = build()
    rung: list[list[str]] = []
    monkeypatch.setattr(till.state.caller.bell, "ring", lambda: rung.append(till.states()))
    monkeypatch.setattr(till.state.caller.bell, "ring_in", lambda _: rung.append(till.states()))
    promise(till)
    assert rung == [["recorded"]], "rung when others can see the row"
    rung.clear()
    assert till.state.sweep()["effects"] == 1
    assert rung == [["recorded"]]
    till.call()
    rung.clear()
    assert till.state.sweep()["effects"] == 0
    assert rung == []


def test_done_effects_are_purged_late_and_what_is_open_never(build: Build) -> None:
    till = build()
    promise(till)
    promise(till)
    assert till.state.outbox.take(till.webhooks.effects.values()) is not None
    till.call()
    assert till.states().count("done") == 1
    till.time_passes(timedelta(days=400))
    assert till.state.purge()["effects"] == 1
    assert till.states() == ["started"]


def test_wrong_effects_are_refused_when_they_are_registered() -> None:
    webhooks = Webhooks()
    with pytest.raises(ConfigError, match="takes its idempotency key first"):
        webhooks.effect()(lambda: None)
    with pytest.raises(ConfigError, match="no argument called per"):
        webhooks.effect()(lambda key, per: None)
    with pytest.raises(ConfigError, match="key_lifetime= is for effects with idempotent=True"):
        webhooks.effect(key_lifetime=timedelta(days=1, hours=1))(lambda key: None)
    webhooks.effect(name="mail")(lambda key: None)
    with pytest.raises(ConfigError, match=r"two effects are called 'mail': .*test_effects.py:\d+ and"):
        webhooks.effect(name="mail")(lambda key: None)


def test_the_key_of_a_step_is_the_same_on_every_try_and_another_for_every_other_step(build: Build) -> None:
    keys: list[str] = []

    def register(till: Till) -> None:
        @till.webhooks.on("stripe", "customer.created", name="step")
        def step(event: Any, customer: Any) -> None:
            keys.extend([idempotency_key(event, "refund"), till.webhooks.idempotency_key(event, "mail")])
            if event.attempts == 1:
                raise ValueError

    till = build(register)
    till.simulator.create("customer")
    till.deliver()
    till.apply()
    till.apply()
    assert keys[:2] == keys[2:]
    assert len(set(keys)) == 2


# -- helpers


def promise(till: Till) -> str:
    """One event whose handler promises the effect; the id of its customer."""
    customer = till.simulator.create("customer")
    till.deliver()
    till.apply()
    return customer[2]


def crash_at(till: Till, step: str) -> None:
    """Promise, and let the worker die at this step of the call."""
    promise(till)

    def at(reached: str) -> None:
        if reached == step:
            raise Crash

    till.state.caller.at = at
    with pytest.raises(Crash):
        till.call()
    till.state.caller.at = lambda _: None


def raising(error: Exception) -> Callable[[str], None]:
    def behave(_key: str) -> None:
        raise error

    return behave


def raise_next(answers: list[Exception | None]) -> None:
    answer = answers.pop(0)
    if answer is not None:
        raise answer
