"""HTTP to a provider: every answer has one meaning, no answer goes on for ever, and nobody else is ever asked."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import repeat
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from tests.apps import GITHUB, STRIPE, apply, build, deliver, rows
from tests.wire import Asked, Wire, answer
from webhooks import api as module
from webhooks import endpoints
from webhooks.api import Apis, HttpApi
from webhooks.errors import ApiRefused, GiveUp, NotFetchable, RateLimited, RetryLater
from webhooks.extension import state
from webhooks.provider import ObjectRef
from webhooks.testing import Simulator
from webhooks.testing.simulator import Answer


def github(wire: Wire, apis: Apis | None = None, account: str = "", **more: Any) -> HttpApi:
    endpoint = endpoints.read({"github": {**GITHUB, "api_base_url": wire.url, **more}})["github"]
    return (apis or Apis(timeout=timedelta(seconds=10))).of(endpoint, account)


def stripe(wire: Wire, apis: Apis | None = None, account: str = "", **more: Any) -> HttpApi:
    endpoint = endpoints.read({"stripe": {**STRIPE, "api_base_url": wire.url, **more}})["stripe"]
    return (apis or Apis(timeout=timedelta(seconds=10))).of(endpoint, account)


# -- what is sent


def test_every_request_carries_credentials_version_and_account() -> None:
    """A50, A52: the version is pinned, so that the shape of the copies does not change by itself."""
    with Wire(answer(json_={"id": "cus_1"})) as wire:
        assert stripe(wire, account="acct_T").get("/v1/customers/cus_1", **{"expand[]": ["a", "b"]}) == {
            "id": "cus_1"
        }
        stripe(wire).get("/v1/customers/cus_1")
        github(wire).get("/repos/acme/widgets/issues/1", page=2, nothing=None)
    with_account, without, of_github = wire.asked
    assert repr(with_account) == "GET /v1/customers/cus_1?expand%5B%5D=a&expand%5B%5D=b"
    assert with_account.headers["Authorization"] == "Bearer sk_test_0123456789"
    assert with_account.headers["Stripe-Version"] == "2026-10-28.endive"
    assert with_account.headers["Stripe-Account"] == "acct_T"
    assert "Stripe-Account" not in without.headers
    assert repr(of_github) == "GET /repos/acme/widgets/issues/1?page=2"
    assert of_github.headers["Authorization"] == "Bearer ghp_0123456789"
    assert of_github.headers["Accept"] == "application/vnd.github+json"
    assert of_github.headers["X-GitHub-Api-Version"] == "2026-03-10"
    assert of_github.headers["User-Agent"] == "flask-webhook-inbox"


def test_what_only_the_app_itself_may_see_is_asked_for_with_the_apps_own_token() -> None:
    with Wire() as wire:
        github(wire, app_jwt="jwt_1").get("/app/installations/7")
        github(wire).get("/app/installations/7")
    assert [asked.headers.get("Authorization") for asked in wire.asked] == ["Bearer jwt_1", None]


def test_a_token_from_a_function_is_asked_for_every_time() -> None:
    tokens = iter(["first", "second"])
    with Wire() as wire:
        endpoint = endpoints.read(
            {"github": {**GITHUB, "api_base_url": wire.url, "token": lambda: next(tokens)}}
        )["github"]
        apis = Apis()
        for _ in range(2):
            apis.of(endpoint).get("/user")
    assert [asked.headers["Authorization"] for asked in wire.asked] == ["Bearer first", "Bearer second"]


def test_a_post_sends_json_and_may_be_answered_with_nothing() -> None:
    with Wire(answer(202, body=b"")) as wire:
        assert github(wire).post("/repos/acme/widgets/hooks/1/deliveries/5/attempts") is None
        assert github(wire).post("/x", {"a": "é"}) is None
    assert [(asked.method, asked.body) for asked in wire.asked] == [
        ("POST", b""),
        ("POST", '{"a":"é"}'.encode()),
    ]
    assert wire.asked[1].headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    "account", ["acct_1\r\nX-Evil: 1", "acct_\n", "acct_é", "\U0001f600", "a\0b", "a\tb"]
)
def test_an_account_that_cannot_be_a_header_is_given_up_before_anything_is_sent(account: str) -> None:
    with Wire() as wire, pytest.raises(GiveUp, match="Stripe-Account cannot be a header") as caught:
        stripe(wire, account=account).get("/v1/customers/cus_1")
    assert wire.asked == []
    assert account not in str(caught.value)


def test_a_token_that_ends_in_a_new_line_is_trimmed() -> None:
    with Wire() as wire:
        github(wire, token="ghp_0123456789\n").get("/user")
        github(wire, token=lambda: " ghp_0123456789\r\n").get("/user")
    assert {asked.headers["Authorization"] for asked in wire.asked} == {"Bearer ghp_0123456789"}


# -- what an answer means


@pytest.mark.parametrize("status", [404, 410])
def test_no_such_object_is_none_where_it_was_looked_for_and_an_error_where_it_was_expected(
    status: int,
) -> None:
    with Wire(answer(status, {"message": "Not Found"})) as wire:
        assert github(wire).find("/repos/acme/widgets/issues/1") is None
        with pytest.raises(ApiRefused, match=f"answered {status}") as caught:
            github(wire).get("/repos/acme/widgets/issues/1")
    assert caught.value.http_status == status


NOT_AN_ANSWER = {
    "empty": answer(body=b""),
    "no content": answer(204, body=b""),
    "null": answer(body=b"null"),
    "a page of HTML": answer(body=b"<html>a login page</html>"),
    "NaN": answer(body=b'{"id":NaN}'),
    "not UTF-8": answer(body=b'{"id":"\xff"}'),
    "cut in the middle of JSON": answer(body=b'{"id":'),
    "10,000 deep": answer(body=b"[" * 10_000 + b"]" * 10_000),
    "compressed, though nobody asked": answer(body=b"\x1f\x8b", headers={"Content-Encoding": "gzip"}),
    "fewer bytes than it said": b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"id":1}',
    "a chunk that is not finished": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{",
    "a chunk of no length": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "no HTTP": b"SSH-2.0-OpenSSH\r\n",
    "nothing at all": b"",
    "a status that is none": b"HTTP/1.1 abc OK\r\n\r\n",
    "500": answer(500, {"error": "x"}),
    "502": answer(502, body=b"<html>bad gateway</html>"),
    "503": answer(503),
    "504": answer(504),
    "408": answer(408),
    "409": answer(409),
    "425": answer(425),
}


@pytest.mark.parametrize("said", NOT_AN_ANSWER.values(), ids=NOT_AN_ANSWER)
def test_an_answer_that_tells_nothing_is_asked_for_again_and_never_taken_for_gone(said: bytes) -> None:
    with Wire(said) as wire:
        for ask in (github(wire).find, github(wire).get):
            with pytest.raises(RetryLater) as caught:
                ask("/repos/acme/widgets/issues/1")
            assert type(caught.value) is RetryLater
            assert "github" in str(caught.value)
            assert "ghp_" not in str(caught.value)


@pytest.mark.parametrize(
    "json_",
    [
        [],
        [{"id": 1}],
        "gone",
        5,
        True,
        {},
        {"object": "list"},
        {"error": "down"},
        {"id": "cus_2", "deleted": True},
    ],
)
def test_an_answer_that_is_no_object_never_replaces_a_copy(database_url: str, json_: Any) -> None:
    with Simulator("stripe") as simulator, build(database_url, {"stripe": simulator.config}) as app:
        key = simulator.create("customer", email="ada@example.test")
        deliver(app, "stripe", "customer.updated", object=simulator.world.get(key))
        apply(app)
        simulator.api.script = [Answer(200, json_)]
        deliver(app, "stripe", "customer.updated", object=simulator.world.get(key))
        apply(app)
        (copy,) = rows(app, "objects")
        assert copy.data == simulator.world.get(key)
        event = rows(app, "events")[-1]
        assert (event.state, event.outcome) == ("pending", "handler_failed")
        assert "no object" in event.error


@pytest.mark.parametrize("status", [400, 401, 402, 403, 405, 406, 418, 422, 451, 300])
def test_a_refusal_without_a_hint_is_final(status: int) -> None:
    said = answer(status, {"error": {"code": "expired_api_key", "message": "Invalid key sk_test_0123456789"}})
    with Wire(said) as wire, pytest.raises(ApiRefused) as caught:
        stripe(wire).find("/v1/customers/cus_1")
    assert caught.value.http_status == status
    assert str(caught.value) == f"the API of stripe answered {status} (expired_api_key)"


CODES = {
    "prose": {"error": {"code": "your key sk_live_1 is wrong"}},
    "long": {"error": {"code": "x" * 61}},
    "a list": {"error": {"code": ["x"]}},
    "a text for an error": {"error": "expired"},
    "a list for a document": ["error"],
    "letters of other alphabets": {"error": {"code": "ключ"}},
}


@pytest.mark.parametrize("said", CODES.values(), ids=CODES)
def test_of_an_error_only_a_plain_code_is_repeated(said: Any) -> None:
    with Wire(answer(400, said)) as wire, pytest.raises(ApiRefused, match=r"answered 400$"):
        stripe(wire).find("/v1/customers/cus_1")


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[" * 100_000, b'{"error":' * 50_000, b"\xff", b"9" * 5000]
)
def test_a_refusal_that_cannot_be_read_is_a_refusal(body: bytes) -> None:
    with Wire(answer(400, body=body)) as wire, pytest.raises(ApiRefused, match=r"answered 400$"):
        stripe(wire).find("/v1/customers/cus_1")


# -- being asked to wait


def in_seconds(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


HINTS: dict[str, tuple[dict[str, str], float, float]] = {
    "seconds": ({"Retry-After": "7"}, 7, 7.7),
    "blanks around": ({"Retry-After": "  7 "}, 7, 7.7),
    "nothing": ({}, 60, 66),
    "zero": ({"Retry-After": "0"}, 0, 0),
    "a date": ({"Retry-After": in_seconds(1800)}, 1500, 1980),
    "a date that is over": ({"Retry-After": in_seconds(-1800)}, 0, 0),
    "a date without a zone": ({"Retry-After": "Tue, 01 Dec 2026 10:00:00 -0000"}, 60, 66),
    "a year": ({"Retry-After": "31536000"}, 3600, 3960),
    "more than any clock": ({"Retry-After": "9" * 400}, 60, 66),
    "garbage": ({"Retry-After": "soon"}, 60, 66),
    "empty": ({"Retry-After": ""}, 60, 66),
    "negative": ({"Retry-After": "-5"}, 60, 66),
    "a fraction": ({"Retry-After": "1.5"}, 60, 66),
    "a superscript": ({"Retry-After": "\xb2"}, 60, 66),
    "a date with a huge zone": ({"Retry-After": "Tue, 01 Dec 2026 10:00:00 +99999999999999"}, 60, 66),
    "reset": ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(time.time()) + 1800)}, 1500, 1980),
    "reset that is over": ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1"}, 1, 1.1),
    "reset, and hint": (
        {"Retry-After": "7", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(time.time()) + 1800)},
        7,
        7.7,
    ),
    "reset of nonsense": ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "\xb2"}, 60, 66),
    "not used up": ({"X-RateLimit-Remaining": "5", "X-RateLimit-Reset": str(int(time.time()) + 900)}, 60, 66),
}


@pytest.mark.parametrize(("headers", "least", "most"), HINTS.values(), ids=HINTS)
def test_a_429_waits_as_long_as_it_says(headers: dict[str, str], least: float, most: float) -> None:
    """A55"""
    with Wire(answer(429, headers=headers)) as wire, pytest.raises(RateLimited) as caught:
        stripe(wire).get("/v1/customers/cus_1")
    assert caught.value.after is not None
    assert least <= caught.value.after.total_seconds() <= most


@pytest.mark.parametrize(
    "name", ["seconds", "a date", "garbage", "reset", "reset that is over", "reset, and hint"]
)
def test_a_403_with_a_hint_is_a_limit(name: str) -> None:
    """GitHub answers 403 for both: no permission, and too many requests."""
    headers, least, most = HINTS[name]
    with Wire(answer(403, headers=headers)) as wire, pytest.raises(RateLimited) as caught:
        github(wire).get("/repos/acme/widgets")
    assert caught.value.after is not None
    assert least <= caught.value.after.total_seconds() <= most


@pytest.mark.parametrize("name", ["nothing", "not used up", "reset of nonsense"])
def test_a_403_without_a_hint_is_a_refusal(name: str) -> None:
    with Wire(answer(403, headers=HINTS[name][0])) as wire, pytest.raises(ApiRefused):
        github(wire).get("/repos/acme/widgets")


def test_a_503_waits_as_long_as_it_says_and_is_no_limit() -> None:
    with Wire(answer(503, headers={"Retry-After": "7"})) as wire, pytest.raises(RetryLater) as caught:
        stripe(wire).get("/v1/customers/cus_1")
    assert type(caught.value) is RetryLater
    assert caught.value.after == timedelta(seconds=7)


@given(st.text(st.characters(max_codepoint=255, exclude_characters="\r\n"), max_size=40))
def test_no_hint_is_ever_an_error(value: str) -> None:
    for headers in ({"Retry-After": value}, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": value}):
        wait = module._hint(headers)
        assert wait is None or timedelta(0) <= wait <= timedelta(hours=1)


@given(
    st.builds(
        "{}, {} {} {} {}:{}:{} {}".format,
        st.sampled_from(["Tue", "Xxx", ""]),
        *[st.integers(-(10**12), 10**12).map(str) | st.sampled_from(["01", "Dec", "9999"]) for _ in range(6)],
        st.sampled_from(["GMT", "+9999", "-9999", "+99999999999", "-0000", "EST", ""]),
    )
)
def test_no_date_is_ever_an_error(value: str) -> None:
    wait = module._hint({"Retry-After": value})
    assert wait is not None
    assert timedelta(0) <= wait <= timedelta(hours=1)


def test_whoever_was_asked_to_wait_sends_nothing_until_then() -> None:
    """A55: the brake is shared by all calls of an endpoint and account, and by nobody else."""
    now = [100.0]
    apis = Apis(clock=lambda: now[0])
    with Wire(answer(429, headers={"Retry-After": "7"}), answer(json_={"id": 1})) as wire:
        with pytest.raises(RateLimited):
            stripe(wire, apis).get("/v1/customers/cus_1")
        for moment in (100.0, 106.9):
            now[0] = moment
            for ask in (stripe(wire, apis).get, stripe(wire, apis).find, stripe(wire, apis).post):
                with pytest.raises(RateLimited) as caught:
                    ask("/v1/customers/cus_2")
                assert caught.value.after is not None
                assert timedelta(0) < caught.value.after <= timedelta(seconds=7.7)
        assert len(wire.asked) == 1
        assert stripe(wire, apis, account="acct_T").get("/v1/customers/cus_1") == {"id": 1}
        assert github(wire, apis).get("/user") == {"id": 1}
        now[0] = 107.8
        assert stripe(wire, apis).get("/v1/customers/cus_1") == {"id": 1}


def test_twenty_events_behind_a_limit_cost_one_call_and_no_attempt(database_url: str) -> None:
    """A55"""
    with Simulator("stripe") as simulator, build(database_url, {"stripe": simulator.config}) as app:
        for number in range(20):
            key = simulator.create("customer", name=f"customer {number}")
            deliver(app, "stripe", "customer.created", object=simulator.world.get(key))
        simulator.api.script = [Answer(429, {}, {"Retry-After": "7"})]
        apply(app)
        apply(app)
        assert len(simulator.calls) == 1
        found = rows(app, "events")
        assert {row.state for row in found} == {"pending"}
        assert {row.attempts for row in found} == {0}
        (hold,) = rows(app, "holds")
        assert (hold.endpoint, hold.reason) == ("stripe", "rate_limited")
        assert timedelta(seconds=7) <= hold.until - hold.since <= timedelta(seconds=8)
        assert all(row.due_at >= hold.since for row in found)
        # Seven seconds later:
        with state(app).inbox.transaction() as connection:
            connection.execute(text("DELETE FROM webhook_holds"))
            connection.execute(state(app).tables.events.update().values(due_at=state(app).inbox.moment()))
        state(app).apis._brakes.clear()
        apply(app)
        assert {(row.state, row.outcome, row.attempts) for row in rows(app, "events")} == {
            ("applied", "applied", 1)
        }
        assert len(rows(app, "objects")) == 20


# -- answers without end


def endless(piece: bytes) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
    yield from repeat(piece)


def endless_chunks(_asked: Asked) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    yield from repeat(b"10000\r\n" + b" " * 65536 + b"\r\n")


@pytest.mark.parametrize(
    "said", [lambda _: endless(b" " * 65536), endless_chunks], ids=["until it closes", "in chunks"]
)
def test_an_answer_that_never_ends_is_cut_off(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ANSWER", 3_000_000)
    with Wire(said) as wire, pytest.raises(RetryLater, match="too large"):
        github(wire).get("/repos/acme/widgets")


def test_an_answer_that_only_drips_is_cut_off() -> None:
    """A time limit for each packet alone would let it drip for ever."""

    def drip(_asked: Asked) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
        while True:
            time.sleep(0.01)
            yield b" "

    with Wire(drip) as wire, pytest.raises(RetryLater, match="takes too long"):
        github(wire, Apis(timeout=timedelta(seconds=0.3))).get("/repos/acme/widgets")


def test_an_answer_whose_head_only_drips_is_cut_off() -> None:
    """One byte now and then, each in time, and never a whole line."""

    def drip(_asked: Asked) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nX-Slow: "
        while True:
            time.sleep(0.02)
            yield b"a"

    with Wire(drip) as wire, pytest.raises(RetryLater):
        github(wire, Apis(timeout=timedelta(seconds=0.3))).get("/repos/acme/widgets")


def test_an_answer_that_does_not_come_is_not_waited_for() -> None:
    ended: list[bool] = []

    def silent(_asked: Asked) -> Iterator[bytes]:
        while not ended:
            time.sleep(0.01)
            yield b""

    with Wire(silent) as wire:
        try:
            with pytest.raises(RetryLater, match="Timeout"):
                github(wire, Apis(timeout=timedelta(seconds=0.2))).get("/repos/acme/widgets")
        finally:
            ended.append(True)


def test_nothing_is_asked_when_the_time_is_over() -> None:
    with Wire() as wire:
        endpoint = endpoints.read({"github": {**GITHUB, "api_base_url": wire.url}})["github"]
        with pytest.raises(RetryLater, match="no time left"):
            Apis().of(endpoint, deadline=time.monotonic() - 1).get("/user")
    assert wire.asked == []


def test_nobody_listening_is_worth_another_try() -> None:
    with Wire() as wire:
        pass
    with pytest.raises(RetryLater, match="the API of github: NewConnectionError"):
        github(wire).get("/user")


def test_an_endless_head_is_cut_off() -> None:
    def heads(_asked: Asked) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\n"
        yield from (b"X-%d: y\r\n" % n for n in range(10**9))

    with Wire(heads) as wire, pytest.raises(RetryLater):
        github(wire).get("/user")


# -- redirects and pages


def test_a_redirect_within_the_api_is_followed_with_our_credentials() -> None:
    """A renamed repository, a transferred issue."""
    redirects = [
        answer(301, headers={"Location": "/repositories/7/issues/1"}),
        lambda asked: answer(
            307, headers={"Location": f"http://{asked.headers['Host']}/repositories/8/issues/1?a=b"}
        ),
        answer(json_={"id": 1}),
    ]
    with Wire(*redirects) as wire:
        assert github(wire).find("/repos/acme/widgets/issues/1") == {"id": 1}
    assert [asked.target for asked in wire.asked] == [
        "/repos/acme/widgets/issues/1",
        "/repositories/7/issues/1",
        "/repositories/8/issues/1?a=b",
    ]
    assert {asked.headers["Authorization"] for asked in wire.asked} == {"Bearer ghp_0123456789"}


def test_redirects_in_a_circle_end() -> None:
    with Wire(answer(301, headers={"Location": "/round"})) as wire, pytest.raises(ApiRefused, match="301"):
        github(wire).find("/round")
    assert len(wire.asked) == 4


def test_a_post_is_never_repeated_elsewhere() -> None:
    with (
        Wire(answer(307, headers={"Location": "/elsewhere"})) as wire,
        pytest.raises(ApiRefused, match="307"),
    ):
        github(wire).post("/x", {"a": 1})
    assert len(wire.asked) == 1


def elsewhere(url: str) -> list[str]:
    """Ways to name another server."""
    host = url.removeprefix("http://")
    port = host.rpartition(":")[2]
    return [
        f"{url}/stolen",
        f"//{host}/stolen",
        f"http://localhost:{port}/stolen",
        f"http://127.0.0.1:80@{host}/stolen",
        f"http://user:password@{host}/stolen",
        f"https://{host}/stolen",
        f"\\\\{host}\\stolen",
        f"/\\{host}/stolen",
        f"HTTP://{host}/stolen",
        "http://[::1",
        "http://[",
        "http://127.0.0.1:99999999/",
        "http://169.254.169.254/latest/meta-data",
        "file:///etc/passwd",
        "gopher://127.0.0.1/",
    ]


@pytest.mark.parametrize("which", range(len(elsewhere(""))))
def test_no_redirect_leads_to_another_host(which: int) -> None:
    """A86: our credentials would go along."""
    with Wire() as other:
        location = elsewhere(other.url)[which]
        with Wire(answer(301, headers={"Location": location}), answer(404)) as wire:
            found = None
            with suppress(ApiRefused):
                found = github(wire).find("/repos/acme/widgets/issues/1")
            assert found is None
            assert len(wire.asked) in {1, 2}  # 2: it was a path on the same host after all
        assert other.asked == []


def test_a_redirect_to_another_port_of_the_same_machine_is_to_another_host() -> None:
    with Wire() as other, Wire(answer(301, headers={"Location": other.url + "/x"})) as wire:
        with pytest.raises(ApiRefused, match="refers to another host"):
            github(wire).find("/repos/acme/widgets/issues/1")
        assert other.asked == []


def test_pages_are_followed_as_the_answer_names_them() -> None:
    def page(asked: Asked) -> bytes:
        number = int(asked.target.rpartition("=")[2])
        base = f"http://{asked.headers['Host']}/list"
        links = [f'<{base}?cursor=0>; rel="prev"', f'<{base}?cursor={number + 1}>; rel="next"']
        return answer(json_=[number], headers={"Link": ", ".join(links[: 2 if number < 3 else 1])})

    with Wire(page) as wire:
        assert list(github(wire).pages("/list", cursor=1)) == [[1], [2], [3]]
    assert [asked.target for asked in wire.asked] == [f"/list?cursor={n}" for n in (1, 2, 3)]


@pytest.mark.parametrize("which", range(len(elsewhere(""))))
def test_no_page_is_fetched_from_another_host(which: int) -> None:
    """A86"""
    with Wire() as other:
        link = {"Link": f'<{elsewhere(other.url)[which]}>; rel="next"'}
        with Wire(answer(json_=[1], headers=link), answer(404)) as wire:
            pages = github(wire).pages("/list")
            with pytest.raises(ApiRefused):
                list(pages)
        assert other.asked == []


@pytest.mark.parametrize(
    "link",
    ["", ";", ",", "<>", '<>; rel="next"', '; rel="next"', 'rel="next"', "<" * 900, '</x>; rel="last"'],
)
def test_a_broken_link_header_ends_the_pages(link: str) -> None:
    with Wire(answer(json_=[1], headers={"Link": link})) as wire:
        pages = github(wire).pages("/list")
        assert next(pages) == [1]
        with suppress(RetryLater):  # it may read as a circle
            assert list(pages) == []
    assert len(wire.asked) <= 3


@pytest.mark.parametrize("cycle", [["/list?page=1"], ["/list?page=1", "/list?page=2"]])
def test_pages_that_go_in_a_circle_end(cycle: list[str]) -> None:
    said = [answer(json_=[1], headers={"Link": f'<{target}>; rel="next"'}) for target in cycle * 10]
    with Wire(*said) as wire, pytest.raises(RetryLater, match="circle"):
        list(github(wire).pages("/list"))
    assert len(wire.asked) <= 4


def test_a_base_url_with_a_path_is_kept_for_redirects_and_pages() -> None:
    """A GitHub Enterprise server has its API under /api/v3."""
    with Wire(
        answer(301, headers={"Location": "/api/v3/repositories/7"}),
        lambda asked: answer(
            json_=[1],
            headers={"Link": f'<http://{asked.headers["Host"]}/api/v3/repositories/7?page=2>; rel="next"'},
        ),
        answer(json_=[2]),
    ) as wire:
        endpoint = endpoints.read({"github": {**GITHUB, "api_base_url": wire.url + "/api/v3/"}})["github"]
        assert list(Apis().of(endpoint).pages("/repos/acme/widgets")) == [[1], [2]]
    assert [asked.target for asked in wire.asked] == [
        "/api/v3/repos/acme/widgets",
        "/api/v3/repositories/7",
        "/api/v3/repositories/7?page=2",
    ]


# -- whatever a payload names, nobody else is asked


PATHS = [
    "",
    "x",
    "//evil.example/x",
    "http://evil.example/x",
    "/../x",
    "/a/../../x",
    "/a/..",
    "..",
    "\\x",
    "/a/%2e%2e/x?y#z",
    "@evil.example/",
    ":80/",
]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_never_leaves_the_api(path: str) -> None:
    """A86"""
    with Wire(answer(json_={"id": 1})) as wire, suppress(GiveUp):
        github(wire).get(path)
    for asked in wire.asked:
        assert asked.target.startswith("/a/")
        assert asked.headers["Host"] == wire.url.removeprefix("http://")


def fetch(wire: Wire, name: str, ref: ObjectRef) -> Any:
    provider = (github if name == "github" else stripe)(wire)._endpoint.provider
    assert provider.fetch is not None
    return provider.fetch((github if name == "github" else stripe)(wire), ref)


@given(
    st.text(max_size=60)
    | st.sampled_from([".", "..", "../..", "a/b", "%2e%2e", "a?b", "a#b", "a\r\nb", "@x", "a b"])
)
def test_an_id_is_one_segment_of_the_path_whatever_it_is(id_: str) -> None:
    """A86"""
    with Wire(answer(json_={"id": "cus another", "object": "customer"})) as wire:
        try:
            with pytest.raises(RetryLater):  # it is another customer
                fetch(wire, "stripe", ObjectRef("customer", id_))
        except (NotFetchable, GiveUp):
            assert wire.asked == []
        else:
            target = wire.asked[0].target
            assert target.startswith("/v1/customers/")
            assert target.count("/") == 3
            assert not {"?", "#", "\\", " "} & set(target)
            assert target.rpartition("/")[2] not in {"", ".", ".."}


def test_urls_in_payloads_are_never_called(database_url: str) -> None:
    """A86: url, receipt_url, _links and a thin event's related_object.url name a listener; it hears nothing."""
    with (
        Wire() as listener,
        Simulator("stripe") as api,
        Simulator("github") as hub,
        build(database_url, {"stripe": api.config, "github": hub.config}) as app,
    ):
        here = listener.url + "/steal"
        links = {"url": here, "receipt_url": here, "_links": {"self": {"href": here}}, "html_url": here}
        for number, kind in enumerate(["customer", "charge", "unknown.thing"]):
            thing = {"id": f"id_{number}", "object": kind, **links}
            deliver(app, "stripe", f"{kind}.updated", object=thing)
        for number, url in enumerate(
            [*elsewhere(listener.url), here, here + "/id_7", "/v1/x/../../steal", "/id_7"]
        ):
            related = {"id": "id_7", "type": "v2.core.account", "url": url}
            body = {
                "object": "v2.core.event",
                "id": f"thin_{number}",
                "type": "v2.x",
                "related_object": related,
            }
            deliver(app, "stripe", "v2.x", body=json.dumps(body).encode())
        for number, name in enumerate(elsewhere(listener.url)):
            thing = {"id": number, "number": number, "repository": name, **links}
            deliver(app, "github", "issues.opened", object=thing)
        apply(app)
        assert listener.asked == []
        assert {call.path.split("/")[1] for call in api.calls} <= {"v1", "v2"}
        assert {call.path.split("/")[1] for call in hub.calls} <= {"repos"}
        assert {row.state for row in rows(app, "events")} <= {"applied", "ignored", "pending", "dead"}
