"""Many objects asked for at once: each once, no API more often at a time than it takes, and nobody waits for another's."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhooks.apply import flights
from webhooks.apply.fetching import Fetched
from webhooks.apply.flights import CONCURRENCY, FAR, FAR_FROM, NEAR, Flights, Windows
from webhooks.errors import RetryLater
from webhooks.inbox import Group
from webhooks.provider import ObjectRef

ENDPOINTS = ("stripe", "github", "shopify")


def group(endpoint: str, number: int) -> Group:
    return Group(endpoint, "", ObjectRef("customer", str(number)), [])


def name(of: Group) -> tuple[str, str]:
    assert of.object is not None
    return of.endpoint, of.object.id


class Api:
    """Remembers who was asked for, and how many at once; whoever is named in `held` is only answered when let go."""

    def __init__(self, *held: str) -> None:
        self.asked: Counter[tuple[str, str]] = Counter()
        self.most: Counter[str] = Counter()
        self.let_go = threading.Event()
        self._held, self._flying, self._lock = held, Counter[str](), threading.Lock()

    def __call__(self, wanted: Group) -> Fetched:
        with self._lock:
            self.asked[name(wanted)] += 1
            self._flying[wanted.endpoint] += 1
            self.most[wanted.endpoint] = max(self.most[wanted.endpoint], self._flying[wanted.endpoint])
        try:
            if wanted.endpoint in self._held:
                assert self.let_go.wait(10)
            return Fetched(asked=True, data={"id": name(wanted)[1]})
        finally:
            with self._lock:
                self._flying[wanted.endpoint] -= 1


@given(
    claims=st.lists(st.lists(st.sampled_from(ENDPOINTS), max_size=30), max_size=4),
    bad=st.sampled_from(range(9)),
)
def test_each_group_is_asked_for_once_and_its_answer_comes_to_its_own_claim(
    claims: list[list[str]], bad: int
) -> None:
    api, made = Api(), Flights()

    def ask(wanted: Group) -> Fetched:
        said = api(wanted)
        if int(name(wanted)[1]) % 9 == bad:
            raise ValueError(name(wanted)[1])
        return said

    wanted = [
        [group(endpoint, 100 * claim + n) for n, endpoint in enumerate(names)]
        for claim, names in enumerate(claims)
    ]
    begun = [made.begin(groups, ask) for groups in wanted]
    for groups, flight in zip(wanted, begun, strict=True):
        answers = {name(one): said for one, said in flight}
        assert set(answers) == {name(one) for one in groups}
        for (_endpoint, id_), said in answers.items():
            if int(id_) % 9 == bad:
                assert isinstance(said, ValueError)
                assert str(said) == id_
            else:
                assert said == Fetched(asked=True, data={"id": id_})
    assert set(api.asked.values()) <= {1}
    assert sum(api.asked.values()) == sum(map(len, wanted))


def test_claims_share_one_window_and_the_next_one_begins_while_the_last_answers_are_out() -> None:
    api, made = Api("stripe"), Flights()
    made.windows._sizes["stripe"] = 3
    first = made.begin([group("stripe", n) for n in range(2)], api)
    second = made.begin([group("stripe", n) for n in range(2, 20)], api)
    _until(lambda: sum(api.asked.values()) == 3)
    assert ("stripe", "2") in api.asked, "the window has room for one of the next claim"
    time.sleep(0.05)
    assert api.most["stripe"] == 3
    api.let_go.set()
    assert len(list(first)) == 2
    assert len(list(second)) == 18
    assert api.most["stripe"] <= CONCURRENCY


def test_an_api_that_is_silent_keeps_no_other_waiting() -> None:
    api, made = Api("stripe"), Flights()
    flight = made.begin(
        [group("stripe", n) for n in range(100)] + [group("github", n) for n in range(100)], api
    )
    seen = []
    for one, _said in flight:
        seen.append(one.endpoint)
        if len(seen) == 100:
            assert set(seen) == {"github"}
            api.let_go.set()
    assert Counter(seen) == {"github": 100, "stripe": 100}


def test_one_answer_is_handed_out_though_others_are_still_awaited() -> None:
    api, made = Api("stripe"), Flights()
    answers = iter(made.begin([group("stripe", 1), group("github", 2)], api))
    assert next(answers)[0].endpoint == "github"
    api.let_go.set()
    assert next(answers)[0].endpoint == "stripe"
    assert list(answers) == []


def test_what_is_called_off_is_not_asked_for_and_the_other_claims_are() -> None:
    api, made = Api("stripe"), Flights()
    first = made.begin([group("stripe", n) for n in range(50)], api)
    second = made.begin([group("stripe", n) for n in range(50, 60)], api)
    _until(lambda: sum(api.asked.values()) == 1)
    first.close()
    api.let_go.set()
    assert {name(one)[1] for one, _ in second} == {str(n) for n in range(50, 60)}
    assert sum(api.asked.values()) == 11
    assert list(first) == []


def test_leaving_the_loop_calls_the_rest_off() -> None:
    api, made = Api(), Flights()
    made.windows._sizes["stripe"] = 1
    asked = threading.Event()

    def ask(wanted: Group) -> Fetched:
        said = api(wanted)
        if sum(api.asked.values()) > flights.CHUNK:
            asked.wait(0.2)
        return said

    answers = iter(made.begin([group("stripe", n) for n in range(500)], ask))
    next(answers)
    answers.close()
    asked.set()
    _until(lambda: not made._waiting)
    assert sum(api.asked.values()) < 500


def test_what_ends_a_process_ends_the_thread_that_waits() -> None:
    def ask(_wanted: Group) -> Fetched:
        raise SystemExit

    with pytest.raises(SystemExit):
        list(Flights().begin([group("stripe", n) for n in range(3)], ask))


def test_where_no_thread_can_be_begun_nobody_waits_for_an_answer() -> None:
    api, made = Api(), Flights()
    made._pool.shutdown()
    with pytest.raises(SystemExit):
        list(made.begin([group("stripe", n) for n in range(3)], api))
    assert not api.asked


def test_where_the_system_gives_no_more_threads_each_is_asked_for_once_or_said_to_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api, made = Api("stripe"), Flights()
    made.windows._sizes["stripe"] = 8
    begin, begun = threading.Thread.start, []

    def start(thread: threading.Thread) -> None:
        begun.append(thread)
        if len(begun) > 2:
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    flight = made.begin([group("stripe", n) for n in range(12)], api)
    api.let_go.set()
    answers = list(flight)
    monkeypatch.undo()
    failed = {name(one) for one, said in answers if isinstance(said, RetryLater)}
    assert len(answers) == 12
    assert failed, "no thread was refused, so this shows nothing"
    _until(made._pool._work_queue.empty)
    _until(lambda: not any(made._in_flight.values()))
    assert set(api.asked) == {name(one) for one, _ in answers} - failed
    assert set(api.asked.values()) == {1}


def test_what_waits_for_a_thread_is_not_overtaken_by_later_claims() -> None:
    made, lock, order = Flights(), threading.Lock(), list[str]()
    made.windows._sizes |= {"stripe": FAR, "github": FAR}

    def ask(wanted: Group) -> Fetched:
        with lock:
            order.append(name(wanted)[1])
        time.sleep(FAR_FROM + 0.01)  # of an API that is not far the windows would shrink
        return Fetched(asked=True, data={})

    first = [group(endpoint, 1) for endpoint in ("stripe", "github") for _ in range(FAR)]
    begun = [made.begin(first, ask), made.begin([group("stripe", 2) for _ in range(3 * FAR)], ask)]
    assert [len(list(flight)) for flight in begun] == [2 * FAR, 3 * FAR]
    overtook = order[: len(order) - order[::-1].index("1")].count("2")
    assert overtook <= FAR, "what was begun later waits for its turn"


def test_how_many_at_once_depends_on_how_long_an_api_takes() -> None:
    windows = Windows()
    assert windows.size("stripe") == 1

    def learn(seconds: float, times: int = 200) -> int:
        for _ in range(times):
            windows.answered("stripe", seconds)
        return windows.size("stripe")

    assert learn(0.0005) == NEAR
    assert learn(0.010) == CONCURRENCY
    assert learn(0.100) == FAR
    windows.failed("stripe")
    assert windows.size("stripe") == FAR // 2
    assert learn(0.010) == CONCURRENCY
    # Beside us, but with so many in flight that most wait for each other.
    for number in range(200):
        windows.answered("stripe", 0.008 if number % 10 else 0.0008)
    assert windows.size("stripe") == NEAR
    for _ in range(20):
        windows.failed("stripe")
    assert windows.size("stripe") == 1
    assert windows.size("github") == 1


def _until(there: Any) -> None:
    ends = time.monotonic() + 10
    while not there():
        assert time.monotonic() < ends
        time.sleep(0.002)
