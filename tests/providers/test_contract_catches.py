"""The contract has teeth: each broken provider fails the test that is about what is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any

import pytest

from webhooks.errors import ApiRefused, SignatureError
from webhooks.provider import Api, Change, Envelope, Json, ObjectRef, Policy, Provider, Request, Sample
from webhooks.providers.paddle import provider as sound
from webhooks.signatures import HmacBody, TimestampedHeader
from webhooks.testing.contract import FakeApi, ProviderContract, World

UNSIGNED_ID = HmacBody(header="Paddle-Signature")


@dataclass(frozen=True, kw_only=True)
class Lax(TimestampedHeader):
    """As sound as Paddle's, but for one thing."""

    lets: str

    def verify(self, request: Request, secrets: Sequence[str], now: datetime | float) -> str:
        if self.lets == "raise" and not request.headers.get(self.header, "").isascii():
            raise TypeError("comparing strings with non-ASCII characters is not supported")
        try:
            return super().verify(request, secrets, now)
        except SignatureError as refusal:
            if refusal.reason == self.lets and secrets:
                return secrets[0]
            raise


def lax(lets: str) -> Provider:
    names = {
        "header": "Paddle-Signature",
        "time_key": "ts",
        "signature_key": "h1",
        "separator": ";",
        "joiner": ":",
    }
    signature: Any = Lax(lets=lets, **names)
    return replace(sound, signature=signature)


def reading(change: Callable[[Envelope], Envelope]) -> Provider:
    return replace(sound, parse=lambda request: [change(envelope) for envelope in sound.parse(request)])


def _strict(request: Request) -> list[Envelope]:
    assert set(request.document) <= {"data", "event_id", "event_type", "occurred_at", "notification_id"}
    return sound.parse(request)


def _swallow(api: Api, ref: ObjectRef) -> Json | None:
    try:
        return api.get(f"/things/{ref.id}")
    except Exception:  # noqa: BLE001 - this is the mistake
        return None


def _forgetful(api: Api, _since: datetime) -> Iterator[Change]:
    """Misses everything behind the first page."""
    for item in api.get("/transactions", **{"updated_at[GTE]": "x", "order_by": "updated_at[ASC]"})["data"]:
        yield Change(ObjectRef("transaction", item["id"]))


def _endless(api: Api, since: datetime) -> Iterator[Change]:
    """Misses the end."""
    while True:
        yield from _forgetful(api, since)


def _two_transactions() -> World:
    """The second one is on a page that nobody of these asks for."""
    answer = {"data": [{"id": "txn_1"}], "meta": {"pagination": {"has_more": True}}}
    return World(
        lambda _: answer, datetime.fromisoformat("2026-03-04T05:00:00Z"), changed=[("transaction", "txn_2")]
    )


BROKEN = {
    "an_empty_secret_is_good": (lax("no_secret"), "without_a_secret_nothing"),
    "any_secret_is_good": (lax("mismatch"), "another_secret_is_refused"),
    "any_body_is_good": (lax("mismatch"), "a_changed_body_is_refused"),
    "any_time_is_good": (lax("clock"), "a_time_outside_the_window"),
    "no_signature_is_good": (lax("missing"), "without_a_signature_nothing"),
    "a_header_raises": (lax("raise"), "garbage_in_any_header"),
    "an_unsigned_header_is_the_key": (
        replace(
            sound,
            parse=lambda r: [replace(e, dedup_key=r.headers.get("X-Id", "none")) for e in sound.parse(r)],
            headers=("X-Id",),
        ),
        "no_unsigned_header_makes",
    ),
    "it_claims_to_sign_a_time": (
        replace(sound, signature=replace(UNSIGNED_ID, signs_time=True)),
        "a_time_outside_the_window",
    ),
    "the_signature_is_kept": (replace(sound, headers=("Paddle-Signature",)), "no_signature_is_kept"),
    "all_events_have_one_key": (reading(lambda e: replace(e, dedup_key="1")), "every_delivery_of_one_event"),
    "a_blank_id_is_a_key": (
        reading(lambda e: replace(e, dedup_key=f"key-{e.data.get('event_id') or ''}")),
        "a_blank_id_is_no_key",
    ),
    "times_are_naive": (
        reading(lambda e: replace(e, occurred_at=e.occurred_at and e.occurred_at.replace(tzinfo=None))),
        "envelopes_are_well_formed",
    ),
    "unknown_fields_raise": (replace(sound, parse=_strict), "unknown_fields_pass"),
    "what_is_kept_reads_otherwise": (
        replace(
            sound,
            parse=lambda r: [replace(e, account=r.headers.get("X-Tenant", r.url)) for e in sound.parse(r)],
        ),
        "what_is_kept_reads",
    ),
    "later_is_taken_for_gone": (replace(sound, fetch=_swallow), "slow_down_and_come_later"),
    "forbidden_is_taken_for_gone": (replace(sound, fetch=_swallow), "a_refusal_is_not_taken_for_gone"),
    "health_raises": (
        replace(sound, endpoint_health=lambda api: api.get("/notification-settings/1")),
        "health_is_unknown_rather",
    ),
    "a_listing_forgets_its_pages": (replace(sound, list_changed=_forgetful), "listings_find_everything"),
    "a_listing_does_not_end": (replace(sound, list_changed=_endless), "listings_end_also"),
    "a_listing_does_not_say_what_it_misses": (
        replace(sound, list_changed=lambda api, since: iter(())),
        "its_facts_are_complete",
    ),
    "a_figure_has_no_source": (
        replace(sound, policy=replace(sound.policy, sources={})),
        "every_figure_of_its_policy",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_provider_fails_the_test_about_it(name: str) -> None:
    provider, about = BROKEN[name]
    members = {"provider": provider, "world": lambda _self: _two_transactions()}
    suite: Any = type("TestBroken", (ProviderContract,), members)()
    [test] = [getattr(suite, member) for member in dir(suite) if member.startswith(f"test_{about}")]
    with pytest.raises((AssertionError, TypeError, ApiRefused, pytest.fail.Exception)):
        test()


def test_a_provider_of_another_package_needs_one_line() -> None:
    def sample(wanted: Sample) -> Request:
        return Request("POST", "", {"X-Kettle-Event": wanted.type}, f'{{"id":"{wanted.id}"}}'.encode())

    def parse(request: Request) -> list[Envelope]:
        id_ = str(request.document.get("id") or "").strip() or str(hash(request.body))
        return [Envelope(id_, request.headers.get("X-Kettle-Event", ""), request.document)]

    mine = Provider(
        name="kettle",
        docs="https://kettle.example.test/webhooks",
        signature=HmacBody(header="X-Kettle-Signature", signs_id=True),
        parse=parse,
        policy=Policy(checked=date(2026, 12, 1)),
        headers=("X-Kettle-Event",),
        sample=sample,
        sample_types=("kettle.boiled", "kettle.empty"),
    )

    class TestMine(ProviderContract):
        provider = mine

    suite = TestMine()
    for member in (member for member in dir(suite) if member.startswith("test_")):
        try:
            getattr(suite, member)()
        except pytest.skip.Exception:
            continue


def test_the_api_in_memory_answers_as_an_api_does() -> None:
    api = FakeApi({"/a": {"id": 1}, "/b": None})
    assert (api.get("/a", none=None), api.find("/b"), list(api.pages("/b"))) == ({"id": 1}, None, [[]])
    assert [(call.method, call.path, call.params) for call in api.calls[:2]] == [
        ("GET", "/a", {}),
        ("GET", "/b", {}),
    ]
    with pytest.raises(ApiRefused, match="404"):
        api.get("/b")
    for elsewhere in ("https://evil.example/a", "//evil.example/a", "a"):
        with pytest.raises(AssertionError, match="no path"):
            api.get(elsewhere)
