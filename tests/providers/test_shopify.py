from __future__ import annotations

from datetime import timedelta

import pytest

from tests.providers.recorded import (
    NOW,
    Recording,
    Vector,
    assert_reads_as_recorded,
    assert_samples_pass,
    recordings,
    sampled,
    vectors,
    verdict,
)
from webhooks.errors import ApiRefused, NotFetchable, RetryLater
from webhooks.provider import Health, ObjectRef, Request
from webhooks.providers.shopify import provider
from webhooks.testing.contract import Call, FakeApi

SECRET = "shpss_" + "0f1e2d3c" * 4
SHOP = {"shop": "kettle-and-co.myshopify.com", "access_token": "shpat_x"}
ORDER = ObjectRef("order", "6111222333444555666")


@pytest.mark.parametrize("recording", recordings("shopify"), ids=lambda recording: recording.name)
def test_a_recorded_delivery_is_read_for_what_it_is(recording: Recording) -> None:
    assert_reads_as_recorded(provider, recording)


@pytest.mark.parametrize("vector", vectors("shopify"), ids=lambda vector: vector.name)
def test_a_published_vector_gets_its_verdict(vector: Vector) -> None:
    accepted = verdict(provider, vector.request, vector.secrets, vector.now) == "accepted"
    # Signatures are over bytes: an empty body and one that is not UTF-8 are signed right, and recorded as unreadable.
    # A signature with a blank behind is refused, as text that is compared and not decoded.
    assert accepted == (vector.accept or vector.name in {"empty-body", "invalid-utf8-signed"})


def test_every_sample_is_accepted_and_read() -> None:
    assert_samples_pass(provider, SECRET)


def test_two_topics_of_one_action_are_two_events_with_something_in_common() -> None:
    created, paid = (
        sampled(provider, topic, id_) for topic, id_ in (("orders/create", "d-1"), ("orders/paid", "d-2"))
    )
    paid = paid.with_headers({"X-Shopify-Event-Id": created.headers["X-Shopify-Event-Id"]})
    [one], [other] = provider.parse(created), provider.parse(paid)
    assert (one.dedup_key, other.dedup_key) == ("d-1", "d-2")
    assert one.correlation == other.correlation != ""


def test_an_event_is_accepted_under_its_unprefixed_header_and_never_under_a_mixture() -> None:
    unsigned = Request("POST", "", {"shopify-topic": "Product"}, b'{"topic":"Product"}')
    signed = provider.signature.sign(unsigned, SECRET, NOW)
    assert "shopify-hmac-sha256" in signed.headers
    assert "X-Shopify-Hmac-Sha256" not in signed.headers
    assert verdict(provider, signed, [SECRET], NOW) == "accepted"
    # The older family counts where both are there, so its wrong signature is not saved by a right one beside it.
    both = signed.with_headers({"X-Shopify-Hmac-Sha256": "bm9uZQ=="})
    assert verdict(provider, both, [SECRET], NOW) == "mismatch"


def test_a_body_with_a_byte_order_mark_is_accepted_and_read() -> None:
    body = b'\xef\xbb\xbf{"id":1001,"updated_at":"2026-01-02T03:04:05-05:00"}'
    signed = provider.signature.sign(
        Request("POST", "", {"X-Shopify-Topic": "orders/updated"}, body), SECRET, NOW
    )
    assert verdict(provider, signed, [SECRET], NOW) == "accepted"
    assert provider.parse(signed)[0].object == ObjectRef("order", "1001")


def test_while_a_secret_is_rotated_both_are_accepted() -> None:
    older = "shpss_" + "9a8b7c6d" * 4
    signed = provider.signature.sign(sampled(provider, "orders/paid"), older, NOW)
    assert provider.signature.verify(signed, [SECRET, older], NOW) == older


def test_an_order_is_fetched_by_its_global_id_from_its_own_shop() -> None:
    api = FakeApi(
        lambda _: {"order": {"id": "gid://shopify/Order/6111222333444555666"}}, SHOP, "tea.myshopify.com"
    )
    assert provider.fetch is not None
    assert provider.fetch(api, ORDER) == {"id": "gid://shopify/Order/6111222333444555666"}
    [call] = api.calls
    assert (call.path, call.params) == (
        "/admin/api/2026-10/graphql.json",
        {"id": "gid://shopify/Order/6111222333444555666"},
    )
    assert call.json.startswith("query($id: ID!) { order(id: $id) { id legacyResourceId")
    assert provider.api is not None
    assert provider.api.base_url == "https://{account|shop}"


def test_what_is_asked_for_can_be_said_per_kind() -> None:
    api = FakeApi(
        lambda _: {"order": {"id": "gid://shopify/Order/" + ORDER.id}},
        SHOP | {"order_fields": "updatedAt tags"},
    )
    assert provider.fetch is not None
    provider.fetch(api, ORDER)
    assert "{ id updatedAt tags }" in api.calls[0].json


def test_an_order_that_is_not_shown_is_not_taken_for_deleted() -> None:
    # Without read_all_orders whatever is older than 60 days is null, too.
    assert provider.fetch is not None
    nothing = {"order": None, "refund": None, "fulfillmentOrder": None}
    for kind in ("order", "refund", "fulfillment_order"):
        with pytest.raises(NotFetchable, match="60 days"):
            provider.fetch(FakeApi(lambda _: nothing, SHOP), ObjectRef(kind, "1"))
        sees_all = FakeApi(lambda _: nothing, SHOP | {"read_all_orders": "yes"})
        assert provider.fetch(sees_all, ObjectRef(kind, "1")) is None
        for other in ({}, {"maintenance": True}, {name: {"id": "gid://shopify/Order/2"} for name in nothing}):
            with pytest.raises(RetryLater):
                provider.fetch(FakeApi(lambda _, said=other: said, SHOP), ObjectRef(kind, "1"))
    assert provider.fetch(FakeApi(lambda _: {"product": None}, SHOP), ObjectRef("product", "1")) is None


def test_uninstalling_and_redacting_need_no_api() -> None:
    # The token is dead by then; a request would be refused for ever.
    [uninstalled] = provider.parse(sampled(provider, "app/uninstalled"))
    [redact] = provider.parse(sampled(provider, "customers/redact"))
    assert redact.object is None
    assert uninstalled.gone
    assert uninstalled.object is not None
    api = FakeApi(lambda _: ApiRefused("401", 401), SHOP)
    assert provider.fetch is not None
    with pytest.raises(NotFetchable):
        provider.fetch(api, uninstalled.object)
    assert api.calls == []


@pytest.mark.parametrize(
    "shop", ["", "evil.example", "x.myshopify.com.evil.example", "a/b.myshopify.com", "-.myshopify.com"]
)
def test_our_token_goes_to_no_host_that_is_not_a_shop(shop: str) -> None:
    api = FakeApi(lambda _: {}, {"access_token": "shpat_x"}, shop)
    assert provider.fetch is not None
    with pytest.raises(NotFetchable):
        provider.fetch(api, ORDER)
    assert api.calls == []
    request = sampled(provider, "orders/paid").with_headers({"X-Shopify-Shop-Domain": shop})
    assert provider.parse(request)[0].account == ""


def test_times_of_the_api_and_of_a_delivery_compare_as_instants() -> None:
    assert provider.version is not None
    delivered = provider.version(ORDER, {"updated_at": "2026-03-04T00:06:07-05:00"})
    assert delivered == provider.version(ORDER, {"updatedAt": "2026-03-04T05:06:07Z"})
    assert provider.version(ORDER, {"id": 1}) is None


def test_only_kinds_that_have_a_list_are_listed() -> None:
    assert provider.list_changed is not None
    with pytest.raises(NotFetchable, match="'refund'"):
        list(
            provider.list_changed(
                FakeApi(lambda _: {}, SHOP | {"listed": "refund"}), NOW - timedelta(hours=1)
            )
        )


def test_a_removed_subscription_is_reported_missing() -> None:
    wanted = SHOP | {
        "webhook_url": "https://hooks.example.test/webhooks/shopify",
        "topics": "orders/paid, refunds/create",
    }

    def script(call: Call) -> object:
        assert "webhookSubscriptions(first: 100, after: $after)" in call.json
        ours = {"id": "1", "topic": "ORDERS_PAID", "uri": wanted["webhook_url"]}
        theirs = {"id": "2", "topic": "REFUNDS_CREATE", "uri": "https://else.example.test/"}
        return {
            "webhookSubscriptions": {
                "nodes": [ours, theirs],
                "pageInfo": {"hasNextPage": False, "endCursor": "x"},
            }
        }

    health = provider.endpoint_health
    assert health is not None
    assert health(FakeApi(script, wanted)) == Health("missing", "no subscription for refunds/create")
    assert health(FakeApi(script, wanted | {"topics": "orders/paid"})) == Health("enabled")
    # Those of the app's configuration file are in no list, so without `topics` nothing can be said.
    assert health(FakeApi(script, SHOP)).state == "unknown"


def test_what_cannot_be_a_client_secret_is_refused_at_start_up() -> None:
    assert provider.secret_problem(SECRET) is None
    assert provider.secret_problem("0f1e2d3c" * 4) is None
    assert "access token" in (provider.secret_problem("shpat_" + "0f1e2d3c" * 4) or "")
    assert provider.secret_problem("short") is not None


def test_the_official_library_accepts_what_we_sign() -> None:
    official = pytest.importorskip("shopify_app")
    signed = provider.signature.sign(sampled(provider, "orders/paid"), SECRET, NOW)
    app = official.ShopifyApp(client_id="kettle", client_secret=SECRET)
    request = {
        "method": "POST",
        "headers": dict(signed.headers),
        "url": "https://x.test/",
        "body": signed.body.decode(),
    }
    assert app.verify_webhook_req(request).ok
