"""What the simulator serves, the providers' own libraries read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from webhooks.testing import Simulator


@pytest.fixture
def simulator(request: pytest.FixtureRequest) -> Iterator[Simulator]:
    with Simulator(request.param) as made:
        yield made


@pytest.mark.parametrize("simulator", ["slack"], indirect=True)
def test_slacks_library_reads_users_and_channels(simulator: Simulator) -> None:
    from slack_sdk import WebClient
    from slack_sdk.errors import SlackApiError

    users = [simulator.create("user", real_name=f"user {number}")[2] for number in range(5)]
    channel = simulator.create("channel")[2]
    client = WebClient(simulator.service.settings["token"], base_url=f"{simulator.api_url}/api/")
    assert client.users_info(user=users[0])["user"]["real_name"] == "user 0"
    assert [user["id"] for page in client.users_list(limit=2) for user in page["members"]] == users
    assert client.conversations_info(channel=channel)["channel"]["id"] == channel
    with pytest.raises(SlackApiError, match="user_not_found"):
        client.users_info(user="U0NOBODY")


@pytest.mark.parametrize("simulator", ["razorpay"], indirect=True)
def test_razorpays_library_reads_payments_and_is_told_of_unknown_ones(simulator: Simulator) -> None:
    import razorpay

    keys = [simulator.create("payment") for _ in range(3)]
    simulator.update(keys[0])
    settings = simulator.service.settings
    client = razorpay.Client(auth=(settings["key_id"], settings["key_secret"]), base_url=simulator.api_url)
    assert client.payment.fetch(keys[0][2])["status"] == "captured"
    assert [item["id"] for item in client.payment.all({"count": 2})["items"]] == [keys[2][2], keys[1][2]]
    with pytest.raises(razorpay.errors.BadRequestError, match="does not exist"):
        client.payment.fetch("pay_nobody")
    client.session.close()


@pytest.mark.parametrize("simulator", ["svix"], indirect=True)
def test_svixs_library_reads_endpoints(simulator: Simulator) -> None:
    from svix.api import Svix, SvixOptions

    key = simulator.create(
        "endpoint", url="https://x.test/", description="", version=1, metadata={}, disabled=False
    )
    client = Svix(simulator.service.settings["token"], SvixOptions(server_url=simulator.api_url))
    found = client.endpoint.get("app_simulated", key[2])
    assert (found.id, found.url) == (key[2], "https://x.test/")
    assert [one.id for one in client.endpoint.list("app_simulated").data] == [key[2]]
    client._httpx_client.close()  # it offers no way of its own


@pytest.mark.parametrize("simulator", ["twilio"], indirect=True)
def test_twilios_library_reads_messages(simulator: Simulator) -> None:
    from twilio.http.http_client import TwilioHttpClient
    from twilio.rest import Client

    class ToTheSimulator(TwilioHttpClient):
        def request(self, method, url, **kwargs):  # type: ignore[no-untyped-def]
            return super().request(method, url.replace("https://api.twilio.com", simulator.api_url), **kwargs)

    keys = [simulator.create("message") for _ in range(3)]
    simulator.update(keys[0])
    settings = simulator.service.settings
    http = ToTheSimulator()
    client = Client(settings["account_sid"], settings["auth_token"], http_client=http)
    assert client.messages(keys[0][2]).fetch().status == "sent"
    assert [message.sid for message in client.messages.list()] == [key[2] for key in reversed(keys)]
    http.session.close()


@pytest.mark.parametrize("simulator", ["shopify"], indirect=True)
def test_shopify_answers_a_query_for_one_and_for_many(simulator: Simulator) -> None:
    import urllib3

    keys = [simulator.create("product", title=f"kettle {number}") for number in range(3)]
    headers = {"X-Shopify-Access-Token": simulator.service.settings["access_token"]}
    with urllib3.PoolManager() as pool:

        def ask(query: str, **variables: object) -> object:
            body = {"query": query, "variables": variables}
            url = f"{simulator.api_url}/admin/api/2026-10/graphql.json"
            return pool.request("POST", url, json=body, headers=headers).json()["data"]

        one = ask(
            "query($id: ID!) { product(id: $id) { id title } }", id=f"gid://shopify/Product/{keys[0][2]}"
        )
        assert one["product"]["title"] == "kettle 0"  # type: ignore[index]
        many = ask("query($after: String) { products(first: 100, after: $after) { nodes { id } } }")
        assert len(many["products"]["nodes"]) == 3  # type: ignore[index]
        gone = ask("query($id: ID!) { product(id: $id) { id } }", id="gid://shopify/Product/1")
        assert gone == {"product": None}
