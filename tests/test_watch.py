"""What a check finds: at the provider, in our own rows, on the provider's clock; each issue is told once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.outage import Beside, beside
from webhooks import providers
from webhooks.alerts import AppriseTeller
from webhooks.errors import ConfigError
from webhooks.issues import KINDS, Finding, Issue, Issues
from webhooks.provider import Disables, Policy
from webhooks.testing.simulator import Answer, Other
from webhooks.watch import Watch, simulate
from webhooks.watch.countdown import Trouble, countdown, duration, findings

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


@pytest.fixture(params=["stripe", "github"])
def both(request: pytest.FixtureRequest, sqlite_url: str, tmp_path: Path) -> Iterator[Beside]:
    with beside(sqlite_url, tmp_path, request.param) as made:
        yield made


@pytest.fixture
def stripe(database_url: str, tmp_path: Path) -> Iterator[Beside]:
    with beside(database_url, tmp_path, "stripe") as made:
        yield made


def check(made: Beside) -> dict[str, Finding]:
    return {f.kind: f for f in made.shop.state.watch.check() if f.endpoint == made.name}


# -- at the provider


def test_a80_an_endpoint_that_the_provider_disabled_is_an_issue_at_the_next_check(both: Beside) -> None:
    both.provider.create(both.provider.service.kinds[0], title="events still come")
    both.live()
    assert check(both)["endpoint_disabled"].good
    both.provider.world.enabled = False
    check(both)
    assert both.issues()["endpoint_disabled"].endpoint == both.name
    check(both)
    assert len(both.issues(open_only=False)) == 1
    both.shop.state.watch.enable(both.endpoint)
    assert both.provider.world.enabled
    check(both)
    assert both.issues() == {}


@pytest.mark.parametrize(
    ("answer", "said", "todo"),
    [
        (Answer(503, {}), "answered 503", "status page"),
        (Answer(429, {}, {"Retry-After": "0"}), "answered 429", "wait, and ask again"),
        (Answer(401, {}), "answered 401", "renew the credentials"),
        (Answer(403, {}), "answered 403", "the right to read webhook endpoints"),
    ],
)
def test_a_provider_that_does_not_answer_is_said_and_closes_no_issue(
    answer: Answer, said: str, todo: str, both: Beside
) -> None:
    both.provider.world.enabled = False
    check(both)
    both.provider.world.enabled = True
    both.provider.api.script = [answer] * 2
    found = check(both)
    assert not found["no_answer"].good
    assert said in found["no_answer"].detail
    assert todo in found["no_answer"].detail
    assert "endpoint_disabled" not in found
    # Away once is no news, and what was bad before is not over because nobody could be asked.
    assert set(both.issues()) == {"endpoint_disabled"}
    both.provider.api.script = []
    both.shop.state.apis._brakes.clear()
    assert check(both)["no_answer"].good
    assert both.issues() == {}


def test_a_provider_that_cannot_be_reached_for_an_hour_is_an_issue_until_it_answers(both: Beside) -> None:
    both.provider.stop()  # its port is closed
    for _ in range(3):
        found = check(both)["no_answer"]
        assert "could not be asked (RetryLater: the API of" in found.detail
        assert both.issues() == {}
    check(both)
    assert set(both.issues()) == {"no_answer"}
    both.provider.start()
    both.shop.state.endpoints._endpoints[both.name] = replace(
        both.endpoint, api_base_url=both.provider.api_url
    )
    check(both)
    assert both.issues() == {}


def test_an_old_endpoint_that_was_never_deleted_is_named(stripe: Beside) -> None:
    stripe.provider.world.url = "https://shop.example/webhooks/stripe"
    stripe.provider.world.subscribed = ("customer.updated", "customer.created")
    assert check(stripe)["duplicate_endpoints"].good
    stripe.provider.world.others = [
        Other("elsewhere", "https://crm.example/hooks/abc"),
        Other("old", "https://shop.example/webhooks/stripe"),  # a wildcard beside specific types
    ]
    found = check(stripe)["duplicate_endpoints"]
    assert not found.good
    assert "we_old" in found.detail
    assert "we_elsewhere" not in found.detail


def test_types_that_handlers_wait_for_and_nobody_sends_are_named_and_the_other_way_round(
    stripe: Beside,
) -> None:
    stripe.shop.webhooks.on("stripe", "invoice.paid", name="paid")(lambda _event, _thing: None)
    stripe.provider.world.url = "https://shop.example/webhooks/stripe"
    stripe.provider.world.subscribed = ("customer.created", "payout.paid")
    found = check(stripe)["not_subscribed"]
    assert found.evidence == {"missing": ["invoice.paid"], "unhandled": ["payout.paid"]}
    assert not found.good
    stripe.provider.world.subscribed = ("*",)
    assert check(stripe)["not_subscribed"].good


def test_a_url_that_is_not_ours_is_named(stripe: Beside) -> None:
    stripe.provider.world.url = "https://shop.example/hooks/old-name"
    found = check(stripe)["wrong_url"]
    assert not found.good
    assert "old-name" in found.detail


def test_credentials_that_are_refused_are_an_issue(stripe: Beside) -> None:
    stripe.provider.api.script = [Answer(401, {})]
    found = check(stripe)
    assert not found["no_answer"].good
    assert found["duplicate_endpoints"].good  # the second question was answered
    stripe.provider.service.settings["api_key"], old = (
        "sk_test_other",
        stripe.provider.service.settings["api_key"],
    )
    try:
        run = stripe.reconciler.reconcile(stripe.endpoint)
    finally:
        stripe.provider.service.settings["api_key"] = old
    assert run.refused == 401
    assert "access_refused" in stripe.issues()
    assert stripe.reconcile().error == ""
    assert "access_refused" not in stripe.issues()


# -- in our own rows


def test_a81_workers_that_stopped_are_a_backlog_though_the_door_is_fine(stripe: Beside) -> None:
    stripe.provider.create("customer", email="ada@example.test")
    stripe.provider.deliver()
    assert check(stripe)["backlog"].good
    e = stripe.shop.state.tables.events
    inbox = stripe.shop.state.inbox
    with inbox.transaction() as connection:
        connection.execute(e.update().values(due_at=inbox.moment(-timedelta(minutes=15))))
    assert not check(stripe)["backlog"].good
    assert "15 min" in stripe.issues()["backlog"].evidence["detail"]
    stripe.work()
    check(stripe)
    check(stripe)
    assert stripe.issues() == {}


def test_a18_a_clock_that_is_wrong_is_one_issue_and_not_a_wrong_secret(stripe: Beside) -> None:
    """Twenty good deliveries are refused for their time alone."""
    real = stripe.provider.provider.signature.sign
    past = datetime.now(UTC) - timedelta(hours=2)
    for number in range(20):
        key = stripe.provider.create("customer", email=f"{number}@example.test")
        happening = stripe.provider.world.log[-1]
        late = real(happening.request, stripe.provider.service.secret, past)
        assert stripe.shop.receiver("stripe")(late) == 401
        assert key
    found = check(stripe)
    assert not found["clock_skew"].good
    assert found["clock_skew"].evidence["refused"] == {"clock": 20}
    assert found["secret_wrong"].good
    assert {"clock_skew"} <= set(stripe.issues())


def test_a_secret_that_nobody_signs_with_is_an_issue_unless_good_deliveries_come_too(stripe: Beside) -> None:
    sign, secret = stripe.provider.provider.signature.sign, stripe.provider.service.secret

    def send(with_secret: str) -> None:
        stripe.provider.create("customer", email="ada@example.test")
        request = stripe.provider.world.log[-1].request
        stripe.shop.receiver("stripe")(sign(request, with_secret, datetime.now(UTC)))

    for _ in range(3):
        send("whsec_somebody_elses_secret")
    assert not check(stripe)["secret_wrong"].good
    send(secret)  # then the others were a stranger's
    assert check(stripe)["secret_wrong"].good


def test_a_flood_of_rubbish_neither_fills_the_table_nor_stops_the_door(stripe: Beside) -> None:
    for _ in range(200):
        assert stripe.shop.client.post("/webhooks/stripe", data=b"{}").status_code == 401
    r = stripe.shop.state.tables.rejections
    inbox = stripe.shop.state.inbox
    with inbox.engine.connect() as connection:
        assert len(connection.execute(r.select()).all()) == 60
    assert inbox.purge_rejections(timedelta(days=30), keep=10) == 50
    assert check(stripe)["secret_wrong"].good  # nobody signed these with anything


def test_one_event_verified_by_two_secrets_or_at_two_endpoints_is_noticed_from_our_own_rows(
    sqlite_url: str, tmp_path: Path
) -> None:
    with beside(sqlite_url, tmp_path, "stripe") as made:
        state = made.shop.state
        state.endpoints._endpoints["old"] = replace(made.endpoint, name="old", fetch=False)
        for number in range(6):
            made.provider.create("customer", email=f"{number}@example.test")
        made.live()
        assert check(made)["duplicate_endpoints"].good
        e = state.tables.events
        with state.inbox.transaction() as connection:
            for row in connection.execute(e.select()).mappings().all():
                copy = {**row, "id": None, "endpoint": "old", "state": "applied"}
                connection.execute(e.insert().values(copy))
        found = check(made)["duplicate_endpoints"]
        assert not found.good
        assert "also came to old" in found.detail
        with state.inbox.transaction() as connection:
            connection.execute(e.delete().where(e.c.endpoint == "old"))
            connection.execute(e.update().values(secret="aaaa,bbbb"))
        assert "two secrets" in check(made)["duplicate_endpoints"].detail


def test_a_beat_that_falls_silent_is_an_issue_once_it_was_heard(stripe: Beside) -> None:
    watch = stripe.shop.state.watch

    def beat() -> list[Finding]:
        return [finding for finding in watch.check() if finding.kind == "beat_silent"]

    assert beat() == []  # nobody has to run beat
    watch.alive()
    assert beat()[0].good
    marks = stripe.shop.state.tables.marks
    inbox = stripe.shop.state.inbox
    with inbox.transaction() as connection:
        connection.execute(
            marks.update().where(marks.c.name == "beat").values(at=inbox.moment(-timedelta(minutes=6)))
        )
    assert not beat()[0].good
    assert "beat_silent" in stripe.issues()


def test_an_effect_without_an_end_is_an_issue(stripe: Beside) -> None:
    stripe.provider.create("customer", email="ada@example.test")
    stripe.live()
    inbox, tables = stripe.shop.state.inbox, stripe.shop.state.tables
    row = {
        "idempotency_key": "k",
        "endpoint": "stripe",
        "event_id": stripe.shop.events()[0].id,
        "name": "send_receipt",
        "handler": "on:note",
        "arguments": {},
        "state": "unknown",
        "attempts": 1,
        "recorded_at": NOW,
        "looks": 0,
        "call_no": 1,
    }

    with inbox.transaction() as connection:
        connection.execute(tables.effects.insert().values(row))
    assert not check(stripe)["unknown_effect"].good


def test_a_provider_that_keeps_asking_us_to_wait_is_an_issue_at_the_second_check(stripe: Beside) -> None:
    stripe.shop.state.inbox.hold("stripe", "rate_limited", until=timedelta(minutes=10))
    check(stripe)
    assert "rate_limited" not in stripe.issues()
    check(stripe)
    assert "rate_limited" in stripe.issues()


# -- on the provider's clock


def test_what_a_provider_will_do_is_said_with_the_numbers_of_its_policy() -> None:
    shopify = Policy(checked=NOW.date(), disables=Disables(after_failures=8), retry_window=timedelta(hours=4))
    [first, _] = countdown("Shopify", shopify, Trouble(NOW, NOW, failures=5), NOW)
    assert first.sentence == "Shopify removes this subscription after 3 more failures"
    stripe = providers.get("stripe").policy
    [only] = countdown("Stripe", stripe, Trouble(since=NOW - timedelta(hours=31)), NOW)
    assert only.sentence == "Stripe gives up on the oldest undelivered event in 41 h"
    github = providers.get("github").policy
    day = NOW.replace(hour=2, minute=10)
    lost = Trouble(lost=37, lost_from=day, lost_until=day.replace(minute=25))
    [only] = countdown("GitHub", github, lost, NOW)
    assert (
        only.sentence
        == "GitHub: 37 deliveries between 02:10 and 02:25 are lost unless redelivered within 2 d 14 h"
    )


@pytest.mark.parametrize(
    ("hours", "bad"),
    [(35, []), (36.1, [50]), (54.1, [50, 75]), (65, [50, 75, 90]), (200, [50, 75, 90])],
)
def test_issues_open_at_half_three_quarters_and_nine_tenths(hours: float, bad: list[int]) -> None:
    policy = Policy(checked=NOW.date(), retry_window=timedelta(hours=72))
    found = findings("shop", "Stripe", policy, Trouble(since=NOW - timedelta(hours=hours)), NOW)
    assert [int(f.kind.rpartition("_")[2]) for f in found if not f.good] == bad


def test_where_the_documentation_says_nothing_nothing_is_counted_down() -> None:
    policy = Policy(checked=NOW.date())
    trouble = Trouble(NOW - timedelta(days=9), NOW - timedelta(days=9), failures=99)
    assert countdown("Nobody", policy, trouble, NOW) == []


def test_refusals_since_the_last_good_delivery_start_the_clock(stripe: Beside) -> None:
    sign = stripe.provider.provider.signature.sign
    stripe.provider.create("customer", email="ada@example.test")
    stripe.live()
    stripe.provider.create("customer", email="eve@example.test")
    request = stripe.provider.world.log[-1].request
    stripe.shop.receiver("stripe")(sign(request, "whsec_another_one_0123", datetime.now(UTC)))
    r, inbox = stripe.shop.state.tables.rejections, stripe.shop.state.inbox
    e = stripe.shop.state.tables.events
    with inbox.transaction() as connection:
        connection.execute(e.update().values(last_delivery_at=inbox.moment(-timedelta(hours=50))))
        connection.execute(r.update().values(received_at=inbox.moment(-timedelta(hours=40))))
    found = check(stripe)
    assert [kind for kind in found if kind.startswith("provider_clock") and not found[kind].good] == [
        "provider_clock_50"
    ]
    assert "gives up on the oldest undelivered event in 32 h" in found["provider_clock_50"].detail
    stripe.live()  # a good delivery ends it
    check(stripe)
    assert "provider_clock_50" not in stripe.issues()


@pytest.mark.parametrize("name", providers.names())
def test_an_outage_can_be_simulated_for_every_provider_and_says_only_what_its_policy_says(name: str) -> None:
    provider = providers.get(name)
    for minutes in (1, 60, 60 * 24 * 4, 60 * 24 * 120):
        said = simulate(provider, timedelta(minutes=minutes))
        assert len(said.sentences) == 4
        policy = provider.policy
        if policy.never_retries:
            assert said.lost_from == said.length
        elif policy.retries is None and policy.retry_window is None:
            assert said.retried is None
            assert said.lost_from is None
        if policy.log_window is not None and said.length > policy.log_window:
            assert not said.recovered


def test_an_outage_longer_than_the_retries_loses_what_was_first() -> None:
    said = simulate(providers.get("stripe"), timedelta(days=5))
    assert said.lost_from == timedelta(days=2)
    assert "gives up events of the first 48 h" in said.sentences[0]
    assert "Recover brings back every event" in said.sentences[2]
    never = simulate(providers.get("github"), timedelta(minutes=15))
    assert "never tries again" in never.sentences[0]


def test_lengths_are_said_as_people_say_them() -> None:
    said = [duration(timedelta(minutes=m)) for m in (25, 119, 41 * 60, 62 * 60, 72 * 60)]
    assert said == ["25 min", "119 min", "41 h", "2 d 14 h", "3 d"]


# -- issues and alerts


class Told:
    def __init__(self) -> None:
        self.issues: list[tuple[str, str]] = []

    def __call__(self, issue: Issue) -> None:
        self.issues.append((issue.kind, issue.state))
        assert issue.title
        assert issue.text


def test_everybody_is_told_once_when_an_issue_opens_and_once_when_it_is_over(
    stripe: Beside, caplog: pytest.LogCaptureFixture
) -> None:
    told = Told()
    issues = Issues(stripe.shop.state.inbox, [told])
    bad = Finding("stripe", "dead_letters", good=False, detail="3 events are dead")
    for _ in range(3):
        issues.enter([bad])
    for _ in range(3):
        issues.enter([replace(bad, good=True)])
    assert told.issues == [("dead_letters", "open"), ("dead_letters", "closed")]
    lines = [record for record in caplog.records if record.name == "webhooks.issues"]
    assert [record.levelno for record in lines] == [logging.ERROR, logging.WARNING]
    issues.enter([bad])  # another episode
    assert told.issues[-1] == ("dead_letters", "open")
    assert len(told.issues) == 3


def test_evidence_is_kept_up_to_date_while_an_issue_is_open_and_kept_afterwards(stripe: Beside) -> None:
    issues = Issues(stripe.shop.state.inbox)
    for number in (1, 2):
        issues.enter(
            [
                Finding(
                    "stripe", "dead_letters", good=False, detail=f"{number} dead", evidence={"dead": number}
                )
            ]
        )
    assert stripe.issues()["dead_letters"].evidence == {"detail": "2 dead", "dead": 2}
    issues.enter([Finding("stripe", "dead_letters", good=True)])
    [row] = stripe.issues(open_only=False).values()
    assert (row.state, row.evidence["dead"]) == ("closed", 2)


def test_a_teller_that_fails_keeps_nobody_from_hearing_it(stripe: Beside) -> None:
    def broken(_issue: Issue) -> None:
        raise RuntimeError("no network")

    told = Told()
    Issues(stripe.shop.state.inbox, [broken, told]).enter([Finding("stripe", "drift", good=False)])
    assert told.issues == [("drift", "open")]


def test_a_hook_of_the_app_is_called_with_the_issue_in_an_app_context(stripe: Beside) -> None:
    heard: list[Issue] = []

    @stripe.shop.webhooks.on_issue
    def hear(issue: Issue) -> None:
        from flask import current_app

        assert current_app.name == "shop"
        heard.append(issue)

    stripe.provider.world.enabled = False
    check(stripe)
    [issue] = heard
    assert (issue.endpoint, issue.kind, issue.state) == ("stripe", "endpoint_disabled", "open")
    assert "flask webhooks recover stripe" in issue.todo


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what Apprise imports
def test_apprise_sends_to_every_address_and_says_what_to_do() -> None:
    apprise = pytest.importorskip("apprise")
    sent: list[tuple[str, str]] = []

    @apprise.decorators.notify(on="inboxtest")  # type: ignore[untyped-decorator]
    def send(body: str, title: str, notify_type: Any, *_: Any, **__: Any) -> None:
        sent.append((title, body))
        assert str(getattr(notify_type, "value", notify_type)) == "failure"

    issue = Issue(1, "stripe", "endpoint_disabled", "open", NOW, None, {"detail": "disabled"})
    AppriseTeller(lambda: ["inboxtest://here"])(issue)
    assert sent == [("stripe: endpoint disabled", issue.text)]
    assert "What to do" in issue.text
    with pytest.raises(ConfigError, match=r"WEBHOOKS_ALERTS\[0\] is no address"):
        AppriseTeller(lambda: ["nowhere"])(issue)


def test_every_kind_says_what_it_means_and_what_to_do() -> None:
    for name, kind in KINDS.items():
        assert kind.means.endswith("."), name
        assert kind.todo.format(endpoint="shop"), name
        assert len(name) <= 32
    wanted = (
        "endpoint_disabled endpoint_missing duplicate_endpoints silence backlog dead_letters drift clock_skew"
    )
    wanted += " secret_wrong rate_limited unknown_effect beat_silent lost_events"
    assert set(wanted.split()) <= set(KINDS)


def test_two_watches_at_once_tell_once(stripe: Beside) -> None:
    told = Told()
    several = [Issues(stripe.shop.state.inbox, [told]) for _ in range(3)]
    for issues in several:
        issues.enter([Finding("stripe", "drift", good=False)])
    assert told.issues == [("drift", "open")]


def test_whoever_comes_second_in_telling_does_not_tell_again(stripe: Beside) -> None:
    """Both have seen that nobody was told; one is quicker."""
    told, inbox = Told(), stripe.shop.state.inbox
    Issues(inbox)._put(Finding("stripe", "drift", good=False))
    real = inbox.transaction

    def overtaken() -> Any:
        inbox.transaction = real  # type: ignore[method-assign]
        Issues(inbox, [told]).tell()
        return real()

    inbox.transaction = overtaken  # type: ignore[method-assign]
    Issues(inbox, [told]).tell()
    assert told.issues == [("drift", "open")]


def test_a_check_can_be_about_one_endpoint_alone(stripe: Beside) -> None:
    watch: Watch = stripe.shop.state.watch
    assert {f.endpoint for f in watch.check(stripe.endpoint)} == {"stripe", "(all)"}
