from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
import stripe as sdk
from hypothesis import given
from marshmallow import Schema, fields

from tests.apps import STRIPE, apply, build, deliver, rows
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
from tests.wire import Wire, answer
from webhooks import Webhooks, endpoints
from webhooks.api import Apis
from webhooks.errors import ApiRefused, NotFetchable, RetryLater
from webhooks.provider import Health, Json, ObjectRef, Request
from webhooks.providers.stripe import API_VERSION, LISTED, PATHS, provider
from webhooks.testing import Simulator

SECRET = "whsec_0123456789abcdef"
SINCE = NOW - timedelta(hours=1)


@pytest.mark.parametrize("recording", recordings("stripe"), ids=lambda recording: recording.name)
def test_a_recorded_delivery_is_read_for_what_it_is(recording: Recording) -> None:
    assert_reads_as_recorded(provider, recording)


@pytest.mark.parametrize("vector", vectors("stripe"), ids=lambda vector: vector.name)
def test_a_signed_vector_gets_its_verdict(vector: Vector) -> None:
    # Blanks after the comma are refused, as both of Stripe's own SDKs do.
    found = verdict(provider, vector.request, vector.secrets, vector.now)
    assert (found == "accepted") == vector.accept, found


@pytest.mark.parametrize("vector", vectors("stripe"), ids=lambda vector: vector.name)
def test_a_signed_vector_that_is_accepted_can_be_read(vector: Vector) -> None:
    if vector.accept:
        (envelope,) = provider.parse(vector.request)
        assert envelope.dedup_key.startswith("evt_")


def test_every_sample_is_accepted_and_read() -> None:
    assert_samples_pass(provider, SECRET)


@given(
    garbage_bodies("id", "type", "object", "data", "created", "account", "livemode", "related_object", "url"),
    garbage_headers("Stripe-Signature", "Content-Type"),
)
def test_garbage_is_refused_and_nothing_else(body: bytes, headers: dict[str, str]) -> None:
    assert_reads_or_refuses(provider, Request("POST", "", headers, body), SECRET)


def test_stripes_own_library_accepts_what_we_sign_and_signs_what_we_accept() -> None:
    import time

    now = int(time.time())
    ours = provider.signature.sign(sampled(provider, "customer.updated"), SECRET, now)
    event = sdk.Webhook.construct_event(ours.body, ours.headers["Stripe-Signature"], SECRET)
    assert event["type"] == "customer.updated"
    theirs = sdk.WebhookSignature.generate_signature_header(ours.body.decode(), SECRET, now)
    assert verdict(provider, ours.with_headers({"Stripe-Signature": theirs}), [SECRET], now) == "accepted"


def test_each_kind_is_where_stripes_own_library_has_it() -> None:
    from stripe._object_classes import OBJECT_CLASSES

    for kind, path in PATHS.items():
        module, name = OBJECT_CLASSES[kind]
        assert getattr(import_module(module), name).class_url() == path
    assert sdk.api_version == API_VERSION


def test_the_window_is_five_minutes_to_either_side() -> None:
    """A16, A84: Stripe's own libraries accept any time in the future."""
    request = provider.signature.sign(sampled(provider, "customer.updated"), SECRET, NOW)
    verdicts = {
        s: verdict(provider, request, [SECRET], NOW + timedelta(seconds=s)) for s in (-301, -300, 300, 301)
    }
    assert verdicts == {-301: "clock", -300: "accepted", 300: "accepted", 301: "clock"}


def test_two_times_in_one_header_are_none() -> None:
    request = provider.signature.sign(sampled(provider, "customer.updated"), SECRET, NOW)
    value = request.headers["Stripe-Signature"]
    for doubled in (f"t=1,{value}", f"{value},t=1", f"{value},{value}"):
        assert (
            verdict(provider, request.with_headers({"Stripe-Signature": doubled}), [SECRET], NOW)
            == "malformed"
        )


# -- the current object


def bound(wire: Wire, account: str = "") -> Any:
    config = {"stripe": {**STRIPE, "api_base_url": wire.url}}
    return Apis().of(endpoints.read(config)["stripe"], account)


def fetched(script: Callable[[str, dict[str, Any]], Json], ref: ObjectRef) -> tuple[Json, list[Any]]:
    api = Scripted(script)
    assert provider.fetch is not None
    return provider.fetch(api, ref), api.asked


def test_each_kind_is_fetched_where_the_api_serves_it() -> None:
    for kind, path in PATHS.items():
        found, asked = fetched(lambda path, params: {"id": "x_1"}, ObjectRef(kind, "x_1"))
        assert found == {"id": "x_1"}
        expand = ["line_items"] if kind == "checkout.session" else None
        assert asked == [("GET", f"{path}/x_1", {"expand[]": expand})]


def test_a_deleted_stub_is_no_object() -> None:
    stub = {"id": "cus_1", "object": "customer", "deleted": True}
    assert fetched(lambda path, params: stub, ObjectRef("customer", "cus_1"))[0] is None
    assert (
        fetched(lambda path, params: {**stub, "deleted": False}, ObjectRef("customer", "cus_1"))[0]
        is not None
    )
    assert fetched(gone, ObjectRef("customer", "cus_1"))[0] is None


def test_a_kind_that_we_do_not_know_is_fetched_where_a_thin_event_says_and_else_not() -> None:
    """A53"""
    ref = ObjectRef("v2.core.account", "acct_1", "/v2/core/accounts/acct_1")
    assert fetched(lambda path, params: {"id": "acct_1"}, ref)[1] == [("GET", "/v2/core/accounts/acct_1", {})]
    with pytest.raises(NotFetchable, match=r"no path is known for terminal\.reader"):
        fetched(gone, ObjectRef("terminal.reader", "tmr_1"))


URLS = [
    "https://api.stripe.com/v2/core/accounts/acct_1",
    "//evil.test/v2/acct_1",
    "/v2/core/accounts/acct_2",
    "/v2/../v1/acct_1",
    "/v2/core/accounts/acct_1?x=/acct_1",
    "/v2/core/accounts/acct_1#/acct_1",
    "/v2/core//acct_1",
    "/v3/core/accounts/acct_1",
    "/v2/core/accounts/%61cct_1/acct_1",
    "/v2/core/accounts/acct_1\n",
    "v2/core/accounts/acct_1",
    "",
    5,
    None,
]


@pytest.mark.parametrize("url", URLS)
def test_a_thin_events_url_is_only_used_if_it_is_a_plain_path_to_its_object(url: Any) -> None:
    """A53, A86"""
    related = {"id": "acct_1", "type": "v2.core.account", "url": url}
    body = {"id": "evt_1", "object": "v2.core.event", "type": "v2.x", "related_object": related}
    (envelope,) = provider.parse(Request("POST", "", {}, json.dumps(body).encode()))
    assert envelope.object == ObjectRef("v2.core.account", "acct_1")
    assert envelope.object.path == ""


def test_the_account_goes_into_the_header_that_the_path_wants() -> None:
    """A52"""
    with Wire(answer(json_={"id": "x_1"})) as wire:
        for path in ("/v1/customers/x_1", "/v2/core/accounts/x_1"):
            bound(wire, "acct_T").find(path)
            bound(wire).find(path)
    sent = [(a.headers.get("Stripe-Account"), a.headers.get("Stripe-Context")) for a in wire.asked]
    assert sent == [("acct_T", None), (None, None), (None, "acct_T"), (None, None)]


def test_only_a_few_kinds_have_a_version() -> None:
    assert provider.version is not None
    assert provider.version(ObjectRef("product", "p"), {"updated": 1772600767}) == NOW
    assert provider.version(ObjectRef("customer", "c"), {"created": 1772600767}) is None


# -- the whole way


def test_an_object_of_a_connected_account_is_fetched_and_kept_under_it(database_url: str) -> None:
    """A52"""
    with Simulator("stripe") as api, build(database_url, {"stripe": api.config}) as app:
        key = api.create("customer", account="acct_T", email="ada@example.test")
        own = api.create("customer", id_="cus_own")
        deliver(
            app, "stripe", "customer.updated", object={"id": key[2], "object": "customer"}, account="acct_T"
        )
        deliver(app, "stripe", "customer.updated", object={"id": own[2], "object": "customer"})
        apply(app)
        assert {(row.account, row.id): row.data for row in rows(app, "objects")} == {
            ("acct_T", key[2]): api.world.get(key),
            ("", "cus_own"): api.world.get(own),
        }
        assert {(c.path, c.headers.get("Stripe-Account")) for c in api.calls} == {
            (f"/v1/customers/{key[2]}", "acct_T"),
            ("/v1/customers/cus_own", None),
        }


def test_an_object_that_is_gone_by_now_leaves_a_tombstone_and_no_dead_letter(database_url: str) -> None:
    """A49"""
    with Simulator("stripe") as api, build(database_url, {"stripe": api.config}) as app:
        old = NOW - timedelta(minutes=10)
        deliver(app, "stripe", "plan.created", object={"id": "plan_1", "object": "plan"}, at=old)
        key = api.create("customer")
        api.delete(key)
        deliver(app, "stripe", "customer.updated", object={"id": key[2], "object": "customer"}, at=old)
        apply(app)
        assert [(row.state, row.outcome) for row in rows(app, "events")] == [("applied", "object_gone")] * 2
        assert len(rows(app, "objects")) == 2
        for row in rows(app, "objects"):
            assert row.data is None
            assert row.deleted_at is not None


def test_what_the_account_may_not_see_is_told_of_and_deletes_nothing(database_url: str) -> None:
    """A50, A55: a revoked key must not read as 'gone'."""
    with Simulator("stripe") as api, build(database_url, {"stripe": api.config}) as app:
        key = api.create("customer", email="ada@example.test")
        thing = {"id": key[2], "object": "customer"}
        deliver(app, "stripe", "customer.updated", object=thing)
        apply(app)
        api.service.settings["api_key"], kept = "sk_test_another", api.service.settings["api_key"]
        try:
            deliver(app, "stripe", "customer.updated", object=thing)
            apply(app)
        finally:
            api.service.settings["api_key"] = kept
        event = rows(app, "events")[-1]
        assert (event.state, event.outcome) == ("dead", "gave_up")
        assert "answered 401 (api_key_invalid)" in event.error
        (copy,) = rows(app, "objects")
        assert (copy.data, copy.deleted_at) == (api.world.get(key), None)


def test_a_field_that_has_moved_is_told_of_and_never_read_as_nothing(database_url: str) -> None:
    """A50: the object of another API version fails its schema; the good value stays, and the event says why."""

    class Subscription(Schema):
        current_period_end = fields.Integer(required=True)

    webhooks, ends = Webhooks(), []

    @webhooks.sync("stripe", "subscription", schema=Subscription)
    def save(event: Any, subscription: Any) -> None:
        ends.append(subscription["current_period_end"])

    with Simulator("stripe") as api, build(database_url, {"stripe": api.config}, webhooks=webhooks) as app:
        key = api.create("subscription", current_period_end=1772600767)
        thing = {"id": key[2], "object": "subscription"}
        deliver(app, "stripe", "customer.subscription.updated", object=thing)
        apply(app)
        api.world.put(key, {**thing, "items": {"data": [{"current_period_end": 1775279167}]}})
        deliver(app, "stripe", "customer.subscription.updated", object=thing)
        apply(app)
        assert ends == [1772600767]
        good, moved = rows(app, "events")
        assert (good.state, good.outcome) == ("applied", "applied")
        assert (moved.state, moved.outcome) == ("dead", "gave_up")
        assert "current_period_end" in moved.error
        assert rows(app, "objects")[0].data["current_period_end"] == 1772600767
        assert {call.headers["Stripe-Version"] for call in api.calls} == {API_VERSION}


def test_a_thin_event_is_fetched_once(database_url: str) -> None:
    """A53"""
    related = {"id": "cus_1", "type": "customer", "url": "/v1/customers/cus_1"}
    thin = {
        "id": "evt_T",
        "object": "v2.core.event",
        "type": "v1.customer.updated",
        "created": "2026-01-01T00:00:00.000Z",
        "livemode": False,
        "related_object": related,
    }
    with Simulator("stripe") as api, build(database_url, {"stripe": api.config}) as app:
        key = api.create("customer", id_="cus_1", email="ada@example.test")
        assert deliver(app, "stripe", "x", body=json.dumps(thin).encode()).status_code == 200
        apply(app)
        assert [call.path for call in api.calls] == ["/v1/customers/cus_1"]
        assert [row.data for row in rows(app, "objects")] == [api.world.get(key)]
        assert [(row.type, row.outcome) for row in rows(app, "events")] == [
            ("v1.customer.updated", "applied")
        ]


# -- lists and the event log


class Listing:
    """Newest first, a page at a time after the last one that the caller has; `between` happens after each page."""

    def __init__(self, items: list[dict[str, Any]], between: Callable[[Listing], None]) -> None:
        self.items, self.between, self.asked = items, between, []

    def __call__(self, path: str, params: dict[str, Any]) -> Json:
        self.asked.append((path, params))
        after = params.get("starting_after")
        start = 0 if after is None else [item["id"] for item in self.items].index(after) + 1
        page = self.items[start : start + params["limit"]]
        answer = {"object": "list", "data": page, "has_more": start + len(page) < len(self.items)}
        self.between(self)
        return answer


def customer(number: int) -> dict[str, Any]:
    return {"id": f"cus_{number}", "object": "customer", "created": 1772600000 + number}


def test_a_listing_that_grows_between_its_pages_loses_nothing() -> None:
    """A74"""
    grown = iter(range(1000, 2000))

    def insert(listing: Listing) -> None:
        listing.items.insert(0, customer(next(grown)))

    for kind in LISTED:
        assert kind in PATHS
    script = Listing([customer(n) for n in range(250, 0, -1)], insert)
    empty: Json = {"object": "list", "data": [], "has_more": False}
    api = Scripted(lambda path, params: script(path, params) if path == "/v1/customers" else empty)
    assert provider.list_changed is not None
    found = [change.object.id for change in provider.list_changed(api, SINCE)]
    assert sorted(found) == sorted(f"cus_{n}" for n in range(1, 251))
    assert [params.get("starting_after") for _, params in script.asked] == [None, "cus_151", "cus_51"]
    assert {params["created[gte]"] for _, params in script.asked} == {int(SINCE.timestamp())}


def test_every_kind_is_listed_and_canceled_subscriptions_too() -> None:
    api = Scripted(lambda path, params: {"data": [], "has_more": False})
    assert provider.list_changed is not None
    assert list(provider.list_changed(api, SINCE)) == []
    assert {path for _, path, _ in api.asked} == {PATHS[kind] for kind in LISTED}
    assert {path: params["status"] for _, path, params in api.asked if "status" in params} == {
        "/v1/subscriptions": "all"
    }


def test_a_listed_checkout_session_only_says_that_there_is_one() -> None:
    """It comes without its line items, so it must not count as the whole object."""

    def script(path: str, params: dict[str, Any]) -> Json:
        item = {"id": "x_1", "object": "checkout.session" if "checkout" in path else "customer"}
        return {
            "data": [item] if path in {"/v1/customers", "/v1/checkout/sessions"} else [],
            "has_more": False,
        }

    assert provider.list_changed is not None
    found = {c.object.kind: c.data for c in provider.list_changed(Scripted(script), SINCE)}
    assert found == {"customer": {"id": "x_1", "object": "customer"}, "checkout.session": None}


def test_the_event_log_is_read_as_deliveries_are() -> None:
    event = json.loads(sampled(provider, "customer.updated", "evt_1").body)
    api = Scripted(lambda path, params: {"data": [event], "has_more": False})
    assert provider.list_events is not None
    (entry,) = provider.list_events(api, SINCE)
    assert (entry.dedup_key, entry.occurred_at) == ("evt_1", NOW)
    (envelope,) = entry.read()
    assert (envelope.type, envelope.dedup_key) == ("customer.updated", "evt_1")
    assert api.asked[0][1] == "/v1/events"


NO_LISTINGS = [
    None,
    [],
    "x",
    {},
    {"data": None},
    {"data": {}},
    {"data": "x"},
    {"data": [1]},
    {"error": {}},
    {"data": [None]},
]


@pytest.mark.parametrize("said", NO_LISTINGS)
def test_an_answer_that_is_no_listing_is_no_empty_listing(said: Json) -> None:
    """Else a run would be good, and its start the next watermark, without having seen anything."""
    api = Scripted(lambda path, params: said)
    for listing in (provider.list_changed, provider.list_events):
        assert listing is not None
        with pytest.raises((RetryLater, ApiRefused)):
            list(listing(api, SINCE))


@pytest.mark.parametrize("item", [{"id": "evt_1"}, {"id": None}, {}])
def test_pages_that_go_in_a_circle_end(item: dict[str, Any]) -> None:
    api = Scripted(lambda path, params: {"data": [item], "has_more": True})
    assert provider.list_events is not None
    with pytest.raises(RetryLater, match="circle"):
        list(provider.list_events(api, SINCE))
    assert len(api.asked) <= 2


# -- the endpoint


def health(script: Callable[[str, dict[str, Any]], Json], **settings: str) -> Health:
    assert provider.endpoint_health is not None
    return provider.endpoint_health(Scripted(script, settings))


def test_the_endpoint_says_how_it_is() -> None:
    url = "https://shop.example.test/webhooks/stripe"
    assert health(gone).state == "unknown"
    assert health(gone, endpoint_id="we_1") == Health("missing", "Stripe has no endpoint we_1")
    for status, state in {"enabled": "enabled", "disabled": "disabled"}.items():
        assert health(lambda path, params, s=status: {"status": s, "url": url}, endpoint_id="we_1") == Health(
            state,
            url,  # type: ignore[arg-type]
        )

    def refuse(path: str, params: dict[str, Any]) -> Json:
        raise ApiRefused("the API of stripe answered 401", 401)

    assert health(refuse, endpoint_id="we_1") == Health("unknown", "the API of stripe answered 401", 401)


def test_what_is_not_a_signing_secret_is_named() -> None:
    assert provider.secret_problem(SECRET) is None
    for wrong in ("sk_live_0123456789", "we_0123456789", "0123456789", "WHSEC_0123456789"):
        assert "begins with whsec_" in (provider.secret_problem(wrong) or "")
    assert "longer" in (provider.secret_problem("whsec_1") or "")


def test_everything_said_about_stripe_has_a_source() -> None:
    policy = provider.policy
    said = {
        n
        for n in ("respond_within", "retries", "retry_window", "log_window", "max_body")
        if getattr(policy, n)
    }
    assert said <= set(policy.sources)
