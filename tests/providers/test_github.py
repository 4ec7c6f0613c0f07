from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from gidgethub.sansio import Event
from hypothesis import given

from tests.apps import apply, build, deliver, rows
from tests.providers.recorded import (
    NOW,
    Recording,
    Scripted,
    Vector,
    assert_reads_as_recorded,
    assert_reads_or_refuses,
    assert_samples_pass,
    garbage_bodies,
    garbage_headers,
    gone,
    recordings,
    sampled,
    vectors,
    verdict,
)
from webhooks import Webhooks, jsontext
from webhooks.errors import ApiRefused, NotFetchable, RetryLater, Unreadable
from webhooks.extension import state
from webhooks.provider import Health, Json, LogEntry, ObjectRef, Request
from webhooks.providers.github import PAGE, provider
from webhooks.testing import Simulator
from webhooks.testing.simulator import Answer

SECRET = "It's a Secret to Everybody"
SINCE = NOW - timedelta(hours=1)
REPO = {"repositories": "acme/widgets", "hook_id": "1"}


@pytest.mark.parametrize("recording", recordings("github"), ids=lambda recording: recording.name)
def test_a_recorded_delivery_is_read_for_what_it_is(recording: Recording) -> None:
    assert_reads_as_recorded(provider, recording)


UNREADABLE = {"official-doc-vector", "invalid-utf8-signed"}
"""Rightly signed and no JSON: accepted, and recorded as unreadable."""


@pytest.mark.parametrize("vector", vectors("github"), ids=lambda vector: vector.name)
def test_a_signed_vector_gets_its_verdict(vector: Vector) -> None:
    # An empty body that is signed is a delivery that nobody can read; octokit refuses it, we keep it.
    right = vector.accept or vector.name in {"invalid-utf8-signed", "empty-body"}
    found = verdict(provider, vector.request, vector.secrets, vector.now)
    assert (found == "accepted") == right, found


@pytest.mark.parametrize("vector", vectors("github"), ids=lambda vector: vector.name)
def test_a_signed_vector_that_is_accepted_can_be_read_or_told_of(vector: Vector) -> None:
    if vector.name in UNREADABLE or vector.name == "empty-body":
        with pytest.raises(Unreadable):
            provider.parse(vector.request)
    elif vector.accept:
        (envelope,) = provider.parse(vector.request)
        assert envelope.dedup_key == vector.request.headers["X-GitHub-Delivery"]


def test_the_published_vector_is_accepted() -> None:
    """https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries"""
    mac = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    request = Request("POST", "", {"X-Hub-Signature-256": mac}, b"Hello, World!")
    assert verdict(provider, request, [SECRET], NOW) == "accepted"
    assert verdict(provider, request, ["another", SECRET], NOW) == "accepted"
    assert verdict(provider, request, ["another"], NOW) == "mismatch"


def test_every_sample_is_accepted_and_read() -> None:
    assert_samples_pass(provider, SECRET)


@given(
    garbage_bodies(
        "action", "issue", "number", "repository", "full_name", "id", "ref", "ref_type", "installation"
    ),
    garbage_headers("X-Hub-Signature-256", "X-GitHub-Event", "X-GitHub-Delivery", "Content-Type"),
)
def test_garbage_is_refused_and_nothing_else(body: bytes, headers: dict[str, str]) -> None:
    for event in ("issues", "push", "repository", "installation", headers.get("X-GitHub-Event", "")):
        request = Request("POST", "", {**headers, "X-GitHub-Event": event}, body)
        assert_reads_or_refuses(provider, request, SECRET)


def test_gidgethub_accepts_what_we_sign() -> None:
    request = provider.signature.sign(sampled(provider, "issues.opened"), SECRET, NOW)
    headers = {name.lower(): value for name, value in request.headers.items()}
    event = Event.from_http(headers, request.body, secret=SECRET)
    assert (event.event, event.delivery_id, event.data["action"]) == ("issues", "sample-1", "opened")


# -- the current object


def fetched(
    script: Callable[[str, dict[str, Any]], Json], ref: ObjectRef, **settings: str
) -> tuple[Json, list[str]]:
    api = Scripted(script, settings)
    assert provider.fetch is not None
    return provider.fetch(api, ref), [path for _, path, _ in api.asked]


ISSUE = ObjectRef("issue", "9007199254740993", "/repos/acme/widgets/issues/12")


def test_each_recorded_object_is_fetched_where_the_api_serves_it() -> None:
    for recording in recordings("github"):
        (envelope,) = provider.parse(recording.request)
        if envelope.object is not None:
            id_ = envelope.object.id
            answer = {"id": int(id_)} if id_.isdigit() else {"ref": "x"}
            found, asked = fetched(lambda path, params, a=answer: a, envelope.object, app_jwt="jwt")
            assert (found, asked) == (answer, [envelope.object.path])


def test_an_object_under_another_id_is_another_object() -> None:
    """A transferred issue answers by redirect from its new place; a name that was given up may be taken by others."""
    assert fetched(lambda path, params: {"id": 9007199254740993}, ISSUE)[0] == {"id": 9007199254740993}
    assert fetched(lambda path, params: {"id": 9007199254740992}, ISSUE)[0] is None
    assert fetched(gone, ISSUE)[0] is None


def test_without_a_path_or_the_apps_own_token_nothing_is_asked() -> None:
    with pytest.raises(NotFetchable, match="which repository"):
        fetched(gone, ObjectRef("issue", "1"))
    with pytest.raises(NotFetchable, match="set `app_jwt`"):
        fetched(gone, ObjectRef("installation", "31", "/app/installations/31"))


def test_the_version_is_the_time_of_the_last_change() -> None:
    assert provider.version is not None
    assert provider.version(ISSUE, {"updated_at": "2026-03-04T05:06:07Z"}) == NOW
    assert provider.version(ISSUE, {"published_at": "2026-03-04T05:06:07Z"}) == NOW
    assert provider.version(ObjectRef("ref", "x"), {"updated_at": "2026-03-04T05:06:07Z"}) is None
    assert provider.version(ISSUE, {"updated_at": None}) is None


# -- the whole way


def shown(simulator: Simulator, key: Any) -> dict[str, Any]:
    found = simulator.world.get(key)
    assert found is not None
    return found


def test_an_issue_that_was_transferred_is_gone_from_here(database_url: str) -> None:
    with Simulator("github") as hub, build(database_url, {"github": hub.config}) as app:
        key = hub.create("issue", title="It rattles")
        deliver(app, "github", "issues.opened", object=shown(hub, key))
        apply(app)
        there = {**shown(hub, key), "id": 1, "number": 1}
        hub.api.script = [Answer(301, {}, {"Location": "/repositories/4712/issues/1"}), Answer(200, there)]
        deliver(app, "github", "issues.transferred", object=shown(hub, key))
        apply(app)
        assert hub.calls[-1].path == "/repositories/4712/issues/1"
        assert [row.outcome for row in rows(app, "events")] == ["applied", "object_gone"]
        (copy,) = rows(app, "objects")
        assert (copy.id, copy.data) == (key[2], None)
        assert copy.deleted_at is not None


def test_a_renamed_repository_is_followed(database_url: str) -> None:
    with Simulator("github") as hub, build(database_url, {"github": hub.config}) as app:
        key = hub.create("issue", title="It rattles")
        path = f"/repos/acme/widgets/issues/{shown(hub, key)['number']}"
        hub.api.script = [Answer(301, {}, {"Location": path})]
        deliver(app, "github", "issues.opened", object={**shown(hub, key), "repository": "acme/gizmos"})
        apply(app)
        assert [call.path for call in hub.calls] == [path.replace("widgets", "gizmos"), path]
        assert [row.data for row in rows(app, "objects")] == [shown(hub, key)]


def test_a_deleted_issue_is_gone_at_once(database_url: str) -> None:
    """A49: 410 for those who may read the repository."""
    with Simulator("github") as hub, build(database_url, {"github": hub.config}) as app:
        key = hub.create("issue")
        before = shown(hub, key)
        hub.delete(key)
        deliver(app, "github", "issues.deleted", object=before)
        apply(app)
        assert [(row.state, row.outcome) for row in rows(app, "events")] == [("applied", "object_gone")]
        assert [row.data for row in rows(app, "objects")] == [None]


def test_an_id_beyond_a_float_is_fetched_and_kept_exactly(database_url: str) -> None:
    """A39"""
    with Simulator("github") as hub, build(database_url, {"github": hub.config}) as app:
        key = hub.create("issue", id_="9007199254740993")
        deliver(app, "github", "issues.opened", object=shown(hub, key))
        apply(app)
        (copy,) = rows(app, "objects")
        assert (copy.id, copy.data["id"]) == ("9007199254740993", 9007199254740993)


# -- lists


class Issues:
    """`/issues` as GitHub lists it, by last change, oldest first; `between` happens after each page."""

    def __init__(
        self, items: list[dict[str, Any]], between: Callable[[Issues], None] = lambda _: None
    ) -> None:
        self.items, self.between, self.calls = items, between, 0

    def __call__(self, path: str, params: dict[str, Any]) -> Json:
        if not path.endswith("/widgets/issues"):
            return []
        self.calls += 1
        found = sorted(
            (item for item in self.items if item["updated_at"] >= params["since"]),
            key=lambda item: (item["updated_at"], item["id"]),
        )
        start = (params["page"] - 1) * params["per_page"]
        page = [dict(item) for item in found[start : start + params["per_page"]]]
        self.between(self)
        return page


def at(seconds: int) -> str:
    return (SINCE + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def issue(number: int, seconds: int) -> dict[str, Any]:
    return {"id": number, "number": number, "updated_at": at(seconds)}


def changed(script: Callable[[str, dict[str, Any]], Json]) -> list[tuple[str, str, str]]:
    assert provider.list_changed is not None
    found = provider.list_changed(Scripted(script, REPO), SINCE)
    return [(c.object.kind, c.object.id, c.data["updated_at"] if c.data else "") for c in found]


def test_an_issue_that_changes_between_two_pages_shifts_no_other_one_out_of_sight() -> None:
    """A74"""
    moved = iter(range(1, 40))

    def touch(issues: Issues) -> None:
        number = next(moved)
        issues.items[number - 1]["updated_at"] = at(1000 + number)

    script = Issues([issue(n, n) for n in range(1, 351)], touch)
    found = changed(script)
    assert {id_ for _, id_, _ in found} == {str(n) for n in range(1, 351)}
    for item in script.items[: script.calls - 1]:  # the last call saw all but what came after it
        assert ("issue", str(item["id"]), item["updated_at"]) in found


def test_an_issue_that_appears_between_two_pages_is_seen_or_left_to_the_next_run() -> None:
    """A74"""
    script = Issues([issue(n, n) for n in range(1, 251)])
    script.between = lambda issues: issues.items.append(issue(1000 + len(issues.items), 2000))
    assert {id_ for _, id_, _ in changed(script)} >= {str(n) for n in range(1, 251)}


@pytest.mark.parametrize("call", [0, 1, 2, 3])
@pytest.mark.parametrize("number", [PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, 3 * PAGE + 1])
def test_more_than_a_page_within_one_second_is_read_whole(number: int, call: int) -> None:
    """A73: also when one of that second changes after any of the calls and shifts another one over the edge of its page."""

    def touch(issues: Issues) -> None:
        if issues.calls == call:
            issues.items[0]["updated_at"] = at(100)

    found = changed(Issues([issue(n, 5) for n in range(number)], touch))
    assert {id_ for _, id_, _ in found} == {str(n) for n in range(number)}


def test_what_has_the_same_second_as_the_last_run_is_seen_again() -> None:
    """A73"""
    assert [id_ for _, id_, _ in changed(Issues([issue(1, 0), issue(2, 0), issue(3, -1)]))] == ["1", "2"]


def test_of_the_list_of_both_only_issues_are_issues_and_pulls_only_hint() -> None:
    def script(path: str, params: dict[str, Any]) -> Json:
        if path.endswith("/widgets/issues"):
            return [issue(1, 1), {**issue(2, 2), "pull_request": {"url": "x"}}]
        if path.endswith("/widgets/pulls"):
            return [issue(2, 2), issue(3, -5)]
        return [{"id": 55, "updated_at": at(3)}]

    assert changed(script) == [
        ("issue", "1", at(1)),
        ("pull_request", "2", ""),
        ("issue_comment", "55", at(3)),
        ("review_comment", "55", at(3)),
    ]


def test_pulls_are_read_until_they_are_older() -> None:
    asked = []

    def script(path: str, params: dict[str, Any]) -> Json:
        if not path.endswith("/pulls"):
            return []
        asked.append(params["page"])
        start = 250 - (params["page"] - 1) * PAGE
        return [issue(n, n - 120) for n in range(start, max(start - PAGE, 0), -1)]

    assert [id_ for _, id_, _ in changed(script)] == [str(n) for n in range(250, 119, -1)]
    assert asked == [1, 2]


def test_every_repository_that_is_named_is_listed() -> None:
    api = Scripted(lambda path, params: [], {"repositories": " acme/widgets, acme/gadgets ,"})
    assert provider.list_changed is not None
    assert list(provider.list_changed(api, SINCE)) == []
    assert {path.split("/")[3] for _, path, _ in api.asked} == {"widgets", "gadgets"}
    with pytest.raises(NotFetchable, match="set `repositories`"):
        list(provider.list_changed(Scripted(gone, {}), SINCE))


@pytest.mark.parametrize("same", [lambda n: issue(n, 5), lambda n: issue(n, n)], ids=["one second", "many"])
def test_pages_that_go_in_a_circle_end(same: Callable[[int], dict[str, Any]]) -> None:
    page = [same(n) for n in range(PAGE)]
    for ending in ("/widgets/issues", "/widgets/pulls"):
        api = Scripted(lambda path, params, e=ending: page if path.endswith(e) else [], REPO)
        assert provider.list_changed is not None
        with pytest.raises(RetryLater, match="circle"):
            list(provider.list_changed(api, SINCE))
        assert len(api.asked) < 10


NO_LISTINGS: list[Json] = [{}, "x", 5, [1], [None], {"message": "moved"}, {"items": []}]


@pytest.mark.parametrize("said", NO_LISTINGS)
def test_an_answer_that_is_no_listing_is_no_empty_listing(said: Json) -> None:
    assert provider.list_changed is not None
    with pytest.raises(RetryLater, match="no listing"):
        list(provider.list_changed(Scripted(lambda path, params: said, REPO), SINCE))
    assert provider.list_events is not None
    with pytest.raises(RetryLater, match="no listing"):
        list(provider.list_events(Log([said]), SINCE))


# -- the delivery log


class Log(Scripted):
    """A delivery log: its pages, and what each of its entries holds."""

    def __init__(self, pages: list[Json], entries: dict[int, Json] | None = None, **settings: str) -> None:
        super().__init__(self._answer, {**REPO, **settings})
        self._pages, self._entries = pages, entries or {}

    def _answer(self, path: str, params: dict[str, Any]) -> Json:
        return self._entries.get(int(path.removesuffix("/attempts").rpartition("/")[2]))

    def pages(self, path: str, **params: Any) -> Iterator[Json]:
        self.asked.append(("GET", path, params))
        yield from self._pages


def logged(id_: int, guid: str, minutes: int, status: str = "OK") -> dict[str, Any]:
    moment = (SINCE + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"id": id_, "guid": guid, "delivered_at": moment, "status": status, "event": "issues"}


def entries(log: Log) -> list[LogEntry]:
    assert provider.list_events is not None
    return list(provider.list_events(log, SINCE))


def test_the_delivery_log_is_read_back_to_the_moment_and_its_entries_only_when_they_are_wanted() -> None:
    log = Log(
        [
            [logged(4, "d", 30), logged(3, "c", 20, "Invalid HTTP Response 500")],
            [logged(2, "b", 1), logged(1, "a", -1)],
        ]
    )
    found = entries(log)
    assert [(entry.dedup_key, entry.delivered) for entry in found] == [("d", True), ("c", False), ("b", True)]
    assert found[0].occurred_at == SINCE + timedelta(minutes=30)
    assert log.asked == [("GET", "/repos/acme/widgets/hooks/1/deliveries", {"per_page": 100})]


@pytest.mark.parametrize("content_type", ["application/json", "application/x-www-form-urlencoded"])
def test_a_logged_delivery_is_read_as_it_was_sent(content_type: str) -> None:
    sent = sampled(provider, "issues.opened", "d")
    headers = {name.lower(): value for name, value in sent.headers.items()} | {"content-type": content_type}
    log = Log(
        [[logged(4, "d", 30)]], {4: {"request": {"headers": headers, "payload": jsontext.loads(sent.body)}}}
    )
    (read,) = entries(log)[0].read()
    (direct,) = provider.parse(sent)
    assert (read.dedup_key, read.type, read.object, read.snapshot) == (
        direct.dedup_key,
        direct.type,
        direct.object,
        direct.snapshot,
    )
    assert log.asked[-1][1] == "/repos/acme/widgets/hooks/1/deliveries/4"
    assert read.request is not None
    assert provider.parse(read.request)[0].type == "issues.opened"


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"request": None},
        {"request": {"headers": [], "payload": {}}},
        {"request": {"headers": {}, "payload": []}},
        [],
    ],
)
def test_a_logged_delivery_of_another_shape_is_unreadable(said: Json) -> None:
    with pytest.raises(Unreadable):
        entries(Log([[logged(4, "d", 30)]], {4: said}))[0].read()


def test_where_the_log_is_depends_on_whose_hook_it_is() -> None:
    wanted = {
        "/repos/acme/widgets/hooks/1": {},
        "/orgs/acme/hooks/1": {"organization": "acme"},
        "/app/hook": {"hook_id": "", "app_jwt": "jwt"},
    }
    for path, settings in wanted.items():
        log = Log([[]], **settings)
        assert entries(log) == []
        assert log.asked[0][1] == f"{path}/deliveries"
    with pytest.raises(NotFetchable, match="set `hook_id`"):
        entries(Log([[]], hook_id=""))


def test_what_no_delivery_has_brought_is_asked_for_once() -> None:
    log = Log(
        [
            [
                logged(5, "twice", 50, "Timed out"),
                logged(4, "twice", 40, "Timed out"),
                logged(3, "healed", 30),
                logged(2, "healed", 20, "Timed out"),
                logged(1, "old", -10, "Timed out"),
            ]
        ]
    )
    assert provider.redeliver is not None
    assert [(r.id, r.event) for r in provider.redeliver(log, SINCE)] == [("5", "twice")]
    assert [path for method, path, _ in log.asked if method == "POST"] == [
        "/repos/acme/widgets/hooks/1/deliveries/5/attempts"
    ]


def test_recovered_deliveries_reach_the_handlers_with_all_they_carried(database_url: str) -> None:
    webhooks, seen = Webhooks(), []
    webhooks.on("github", "issues.opened")(
        lambda event, thing: seen.append((event.data, event.snapshot, thing))
    )
    with (
        Simulator("github", send=lambda request: None) as hub,
        build(database_url, {"github": hub.config}, webhooks=webhooks) as app,
    ):
        key = hub.create("issue", title="It rattles")
        hub.deliver()
        run = state(app).reconciler.recover(state(app).endpoints["github"])
        assert run is not None
        assert (run.error, run.missed, run.healed) == ("", 1, 1)
        apply(app)
        ((data, snapshot, thing),) = seen
        assert (data["action"], snapshot["title"], thing) == ("opened", "It rattles", shown(hub, key))
        (event,) = rows(app, "events")
        assert (event.origin, event.type, event.outcome) == ("recover", "issues.opened", "applied")


def test_one_bad_entry_of_the_log_becomes_a_dead_letter_and_holds_no_other(database_url: str) -> None:
    with (
        Simulator("github", send=lambda request: None) as hub,
        build(database_url, {"github": hub.config}) as app,
    ):
        for number in range(4):
            hub.create("issue", title=f"issue {number}")
        hub.deliver()
        bad = [
            Answer(200, {"request": {"headers": {}, "payload": []}}),
            Answer(404, {"message": "Not Found"}),
        ]
        hub.api.script = [None, *bad]  # the list as it is, then two entries that cannot be read
        for attempt in range(2):
            run = state(app).reconciler.recover(state(app).endpoints["github"])
            assert run is not None
            assert run.error == ""
            assert (run.missed, run.healed) == ((4, 2) if attempt == 0 else (2, 2))
            found = [(row.state, row.origin, row.deliveries) for row in rows(app, "events")]
            assert found.count(("dead", "recover", 0)) == 2
            assert found.count(("pending", "recover", 0)) == (2 if attempt == 0 else 4)


def test_a_provider_that_answers_nonsense_holds_no_other_endpoint(sqlite_url: str) -> None:
    with (
        Simulator("github") as hub,
        Simulator("stripe") as api,
        build(sqlite_url, {"github": hub.config, "stripe": api.config}) as app,
    ):
        hub.service.answer, kept = lambda world, call: Answer(200, {"request": 5}), hub.service.answer  # type: ignore[method-assign]
        api.create("customer")
        try:
            first, second = state(app).reconciler.recover_all(scheduled=False)
        finally:
            hub.service.answer = kept  # type: ignore[method-assign]
        assert (first.endpoint, second.endpoint) == ("github", "stripe")
        assert "no listing" in first.error
        assert (second.error, second.healed) == ("", 1)
        failed, good = rows(app, "runs")
        assert (failed.error is None, good.error is None) == (False, True)


# -- the hook


def health(script: Callable[[str, dict[str, Any]], Json], **settings: str) -> Health:
    assert provider.endpoint_health is not None
    return provider.endpoint_health(Scripted(script, {**REPO, **settings}))


def hook(**fields: Any) -> Callable[[str, dict[str, Any]], Json]:
    return lambda path, params: {"id": 1, "active": True, "last_response": {"code": 200}, **fields}


def test_the_hook_says_how_it_is() -> None:
    assert health(hook()) == Health("enabled")
    assert health(hook(last_response={"code": None, "status": "unused"})) == Health("enabled")
    assert health(hook(last_response=None)) == Health("enabled")
    assert health(hook(last_response={"code": 502})) == Health("failing", "the last delivery got 502")
    assert health(hook(active=False)) == Health("disabled", "the hook is not active")
    assert health(gone) == Health("missing", "GitHub has no such hook")
    assert health(hook(), hook_id="").state == "unknown"

    def refuse(path: str, params: dict[str, Any]) -> Json:
        raise ApiRefused("the API of github answered 403", 403)

    assert health(refuse) == Health("unknown", "the API of github answered 403", 403)


def test_an_apps_hook_shows_by_its_newest_delivery() -> None:
    assert provider.endpoint_health is not None
    app = {"hook_id": "", "app_jwt": "jwt"}
    assert provider.endpoint_health(Log([[]], **app)) == Health("enabled")
    assert provider.endpoint_health(Log([[logged(2, "b", 2), logged(1, "a", 1, "x")]], **app)) == Health(
        "enabled"
    )
    assert provider.endpoint_health(Log([[logged(2, "b", 2, "x")]], **app)).state == "failing"


def test_everything_said_about_github_has_a_source() -> None:
    policy = provider.policy
    assert policy.never_retries
    said = {
        n for n in ("respond_within", "retries", "log_window", "max_body") if getattr(policy, n) is not None
    }
    assert said <= set(policy.sources)


def test_a_time_is_read_from_where_each_event_has_it() -> None:
    """A45: a push has integers where every other event has text."""
    for recording in recordings("github"):
        (envelope,) = provider.parse(recording.request)
        assert envelope.occurred_at in {None, NOW, datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)}
