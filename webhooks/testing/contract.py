"""What must hold for every provider, as tests. A package with a provider of its own runs them in one line each:

    from webhooks.testing.contract import ProviderContract

    class TestMine(ProviderContract):
        provider = mine

What cannot be guessed is said in the same way: `secrets`, `settings` and `refs` (else made up), `deliveries` where
the provider has no `sample`, `vectors` (a file of signed requests), `gone` (how its API says "no such thing", if not
with 404) and `world` (its listings). Needs pytest and hypothesis.
"""

from __future__ import annotations

import base64
import hashlib
import json as _json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ..errors import (
    ApiRefused,
    NotFetchable,
    RateLimited,
    RetryLater,
    SignatureError,
    Unreadable,
    WebhooksError,
)
from ..provider import Change, Envelope, Health, Json, LogEntry, ObjectRef, Policy, Provider, Request, Sample

__all__ = ["Call", "FakeApi", "ProviderContract", "Vector", "World", "read_vectors", "verdict"]

NOW = datetime(2026, 12, 1, 14, 40, 0, tzinfo=UTC)
HINT = timedelta(seconds=7)
MOST_CALLS = 500
"""A listing of a few objects that asks more often than this does not end."""
MOST_ANSWERED = 1_000_000
"""Bytes of an answer where the provider names no limit."""
BUSY = 8
"""How often something happens in a restless world; else a log that asks about each entry would never end."""

FUZZ = settings(
    max_examples=60,
    deadline=None,  # the first example pays for imports
    # One suite, many classes: that is what it is for.
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)


# -- an API in memory


@dataclass(frozen=True)
class Call:
    """One request to an API; `json` is what was posted, or a GraphQL query with its variables as `params`."""

    method: str
    path: str
    params: Mapping[str, Any]
    json: Json = None


Script = Callable[[Call], Json]


class FakeApi:
    """An API in memory, for tests of provider files: a script answers, `calls` tells what was asked.

    The script gets each call and returns the decoded answer. None is "there is no such thing", and an exception that
    it returns is raised. In place of a function it can be a mapping from path to answer.
    """

    def __init__(
        self,
        script: Script | Mapping[str, Json],
        settings: Mapping[str, str] | None = None,
        account: str = "",
    ) -> None:
        self._script: Script = script if callable(script) else lambda call: script.get(call.path)
        self.settings: Mapping[str, str] = dict(settings or {})
        self.account = account
        self.place: Json = None
        self.calls: list[Call] = []

    def get(self, path: str, **params: Any) -> Json:
        answer = self._ask("GET", path, params)
        if answer is None:
            raise ApiRefused("the API answered 404", 404)
        return answer

    def find(self, path: str, **params: Any) -> Json | None:
        return self._ask("GET", path, params)

    def pages(self, path: str, **params: Any) -> Iterator[Json]:
        """Asks the script with `page=1`, `page=2` … until it has no more."""
        page = 1
        while (answer := self._ask("GET", path, {**params, "page": page})) or page == 1:
            yield answer if answer is not None else []
            page += 1

    def post(self, path: str, json: Json = None, **params: Any) -> Json:
        return self._ask("POST", path, params, json)

    def send(
        self, method: str, path: str, json: Json = None, *, form: Mapping[str, str] | None = None
    ) -> Json:
        return self._ask(method, path, {}, json if form is None else dict(form))

    def graphql(self, path: str, query: str, **variables: Any) -> Json:
        return self._ask("GRAPHQL", path, variables, query)

    def _ask(self, method: str, path: str, params: Mapping[str, Any], json: Json = None) -> Json:
        assert re.match(r"/(?!/)", path), f"{path} is no path of the API"
        assert len(self.calls) < MOST_CALLS, "the listing does not end"
        given = {name: value for name, value in params.items() if value is not None}
        call = Call(method, path, given, json)
        self.calls.append(call)
        answer = self._script(call)
        if isinstance(answer, Exception):
            raise answer
        return answer


@dataclass
class World:
    """A provider with a few objects and events, for its listings: `script` answers from them, page by page."""

    script: Script
    since: datetime
    settings: Mapping[str, str] = field(default_factory=dict)
    account: str = ""
    changed: Sequence[tuple[str, str]] = ()
    """(kind, id) of what list_changed has to find."""
    events: Sequence[str] = ()
    """The dedup keys that list_events has to find."""
    happen: Callable[[], None] = lambda: None
    """One more object or event comes into being; called between the first two pages of each listing."""

    def api(self, *, restless: bool) -> FakeApi:
        """Its API; restless: something happens after the first page of each listing."""
        listed: set[str] = set()

        def script(call: Call) -> Json:
            answer = self.script(call)
            if restless and call.path not in listed and len(listed) < BUSY:
                listed.add(call.path)
                self.happen()
            return answer

        return FakeApi(script, self.settings, self.account)

    def stuck(self) -> FakeApi:
        """Its API with a fault: whatever page is asked for, it answers with the first."""
        first: dict[tuple[str, str], Json] = {}

        def script(call: Call) -> Json:
            return first.setdefault((call.path, repr(call.json)), self.script(call))

        return FakeApi(script, self.settings, self.account)


# -- signed vectors


@dataclass(frozen=True)
class Vector:
    """A signed request with the right verdict."""

    id: str
    request: Request
    secrets: tuple[str, ...]
    now: float
    accept: bool
    either: bool
    """Both verdicts are defensible; another exception is not."""
    extra: Mapping[str, Any]


def read_vectors(path: Path) -> list[Vector]:
    """The vectors of a file `{"vectors": [{id, secret, method, url, headers, body_base64, now, expect, extra}]}`."""
    return [_vector(raw) for raw in _json.loads(path.read_text(encoding="utf-8"))["vectors"]]


def _vector(raw: Mapping[str, Any]) -> Vector:
    extra = raw.get("extra") or {}
    return Vector(
        raw["id"],
        Request(raw["method"], raw["url"], raw["headers"], base64.b64decode(raw["body_base64"])),
        tuple(extra.get("secrets_for_accept") or [raw["secret"]]),
        raw["now"],
        raw["expect"] == "accept",
        # A right signature over bytes that are no text: accepted, and recorded as unreadable.
        bool(extra.get("policy") or extra.get("signature_ok_on_bytes")),
        extra,
    )


def verdict(provider: Provider, request: Request, secrets: Sequence[str], now: datetime | float = NOW) -> str:
    """`accepted`, or the reason of the refusal. Any other exception is a bug, and fails the test."""
    try:
        assert provider.signature.verify(request, secrets, now) in secrets
    except SignatureError as refusal:
        return refusal.reason
    return "accepted"


# -- the contract


class ProviderContract:
    """Every test here holds for every provider. Subclass it, name it `Test…`, and set `provider`."""

    provider: ClassVar[Provider]
    secrets: ClassVar[Sequence[str]] = ()
    """Two that the provider could have issued; empty: made up from the usual forms."""
    settings: ClassVar[Mapping[str, str]] = {}
    """The endpoint's settings, as its API sees them."""
    account: ClassVar[str] = ""
    url: ClassVar[str] = "https://hooks.example.test/webhooks/contract"
    deliveries: ClassVar[Sequence[Request]] = ()
    """Unsigned ones, for a provider without `sample`."""
    refs: ClassVar[Sequence[ObjectRef]] = ()
    """One object of each kind; a kind that is left out gets an invented one."""
    never_gone: ClassVar[Sequence[str]] = ()
    """Kinds of which the API does not tell whether they are gone: fetch raises NotFetchable then."""
    vectors: ClassVar[Path | None] = None

    def gone(self, _call: Call) -> Json:
        """How the API answers where there is no such thing."""
        return None

    def world(self) -> World | None:
        """A new world of a few objects and events, for the listings."""
        return None

    # -- what it says about itself

    def test_its_facts_are_complete(self) -> None:
        provider = self.provider
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", provider.name)
        assert provider.docs.startswith("https://")
        assert set(provider.required) <= set(provider.settings)
        assert set(provider.defaults) <= set(provider.settings)
        assert bool(provider.kinds) == (provider.fetch is not None)
        assert provider.fetch is None or provider.api is not None, "a fetch needs an API"
        assert all(
            types and source.startswith("https://") for types, source in provider.authoritative.values()
        )
        for flow, types in provider.companions.items():
            assert not {*types} & {*provider.authoritative[flow][0]}, "a companion does not decide"
        for listing in (provider.list_changed, provider.list_events):
            assert listing is None or "miss" in (listing.__doc__ or "").lower(), "say what the listing misses"

    def test_every_figure_of_its_policy_has_a_source_and_a_date(self) -> None:
        policy = self.provider.policy
        assert date(2020, 1, 1) < policy.checked
        assert set(policy.sources) <= {item.name for item in fields(Policy)}
        assert all(source.startswith("https://") for source in policy.sources.values())
        known = ("respond_within", "retries", "retry_window", "log_window", "max_body")
        for name in (name for name in known if getattr(policy, name) is not None):
            beside = {"retries", "retry_window"} if name.startswith("retr") else {name}
            assert beside & set(policy.sources), f"{name} is a figure without a source"
        assert all(wait >= timedelta(0) for wait in policy.retries or ())

    def test_no_signature_is_kept_with_a_body(self) -> None:
        one, other = self._secrets()
        for unsigned in self._deliveries():
            first, second = (self._sign(unsigned, secret).headers for secret in (one, other))
            signatures = {name.lower() for name in first if first[name] != second.get(name)}
            assert not signatures & {name.lower() for name in self.provider.headers}

    # -- signatures

    def test_what_is_signed_is_accepted_under_each_live_secret(self) -> None:
        for unsigned in self._deliveries():
            for secret in self._secrets():
                signed = self._sign(unsigned, secret)
                assert self.provider.signature.verify(signed, [secret], NOW) == secret
                assert self.provider.signature.verify(signed, list(self._secrets()), NOW) == secret

    def test_another_secret_is_refused(self) -> None:
        one, other = self._secrets()
        for unsigned in self._deliveries():
            assert verdict(self.provider, self._sign(unsigned, one), [other]) == "mismatch"

    def test_without_a_secret_nothing_is_accepted_not_even_what_an_empty_one_signs(self) -> None:
        for unsigned in self._deliveries():
            attempts = [unsigned, self._sign(unsigned, self._secrets()[0])]
            with suppress(ValueError, SignatureError):  # some schemes cannot sign with nothing
                attempts.append(self._sign(unsigned, ""))
            for attempt in attempts:
                for none in ([], [""], [" "], ["", "\t"]):
                    assert verdict(self.provider, attempt, none) != "accepted"

    def test_without_a_signature_nothing_is_accepted(self) -> None:
        for unsigned in self._deliveries():
            assert verdict(self.provider, unsigned, self._secrets()) in {"missing", "malformed"}
            bare = replace(unsigned, headers={}, body=b"")
            assert verdict(self.provider, bare, self._secrets()) in {"missing", "malformed"}

    def test_a_changed_body_is_refused(self) -> None:
        if not self.provider.signature.signs_body:
            pytest.skip("the scheme does not sign the body, and says so")
        for unsigned in self._deliveries():
            signed = self._sign(unsigned, self._secrets()[0])
            for body in (signed.body + b" ", signed.body[:-1], signed.body[1:], signed.body * 2, b"", b"{}"):
                if body != signed.body:
                    assert verdict(self.provider, replace(signed, body=body), self._secrets()) != "accepted"

    def test_a_time_outside_the_window_is_refused_on_both_sides(self) -> None:
        signature = self.provider.signature
        years = timedelta(days=3650)
        for unsigned in self._deliveries():
            signed = self._sign(unsigned, self._secrets()[0])
            if not signature.signs_time:
                assert verdict(self.provider, signed, self._secrets(), NOW + years) == "accepted", (
                    "it signs a time"
                )
                continue
            tolerance = getattr(signature, "tolerance", None)
            assert isinstance(tolerance, timedelta), "a scheme that signs a time says how far it may be off"
            for late in (timedelta(0), tolerance - timedelta(seconds=1)):
                assert verdict(self.provider, signed, self._secrets(), NOW + late) == "accepted"
            for off in (tolerance + timedelta(seconds=2), years, -tolerance - timedelta(seconds=2), -years):
                assert verdict(self.provider, signed, self._secrets(), NOW + off) == "clock"

    def test_no_unsigned_header_makes_another_event_unless_the_body_is_guarded(self) -> None:
        for unsigned in self._deliveries():
            signed = self._sign(unsigned, self._secrets()[0])
            for name in self.provider.headers:
                forged = signed.with_headers({name: "forged"})
                if verdict(self.provider, forged, self._secrets()) == "accepted":
                    with suppress(Unreadable):
                        same = _keys(self.provider, forged) == _keys(self.provider, signed)
                        assert same or self.provider.guards_body, f"{name} is not signed, but decides the key"

    def test_every_published_vector_gets_its_verdict(self) -> None:
        if self.vectors is None or not self.vectors.exists():
            pytest.skip("no file of signed vectors")
        for vector in read_vectors(self.vectors):
            provider = self.provider
            if "tolerance" in vector.extra:
                window = timedelta(seconds=vector.extra["tolerance"])
                signature: Any = replace(provider.signature, tolerance=window)  # type: ignore[type-var]
                provider = replace(provider, signature=signature)
            found = verdict(provider, vector.request, vector.secrets, vector.now)
            assert vector.either or (found == "accepted") == vector.accept, f"{vector.id}: {found}"

    @FUZZ
    @given(st.data())
    def test_garbage_in_any_header_is_refused_or_read_and_nothing_else(self, data: st.DataObject) -> None:
        signed = self._sign(data.draw(st.sampled_from(self._deliveries())), self._secrets()[0])
        names = st.sampled_from(sorted({*signed.headers, *self.provider.headers, "Content-Type"}))
        garbage = data.draw(st.dictionaries(names, GARBAGE, min_size=1, max_size=4))
        self._read_or_refuse(signed.with_headers(garbage))

    @FUZZ
    @given(st.data())
    def test_garbage_in_any_body_is_refused_or_read_and_nothing_else(self, data: st.DataObject) -> None:
        unsigned = data.draw(st.sampled_from(self._deliveries()))
        broken = replace(unsigned, body=data.draw(st.binary(max_size=60) | _mangled_body(unsigned)))
        self._read_or_refuse(broken)
        with suppress(Exception):  # nobody needs to be able to sign garbage
            broken = self._sign(broken, self._secrets()[0])
        self._read_or_refuse(broken)

    # -- what is read

    def test_every_delivery_of_one_event_has_one_key_and_another_event_another(self) -> None:
        for type_, make in self._samples():
            keys = [
                _keys(self.provider, make(id_, at)) for id_ in ("event-1", "event-2") for at in (NOW, NOW)
            ]
            assert keys[0] == keys[1], f"{type_}: another key for the same delivery"
            assert not set(keys[0]) & set(keys[2]), f"{type_}: one key for two events"
            signed = [self._sign(make("event-1", NOW), self._secrets()[0], NOW + n * HINT) for n in range(3)]
            again = [_keys(self.provider, request) for request in signed]
            assert all(one == other for one, other in pairwise(again)), f"{type_}: another key for a retry"

    def test_samples_are_read_as_what_they_were_asked_to_be(self) -> None:
        for type_, make in self._samples():
            found = {envelope.type for envelope in self.provider.parse(make("event-1", NOW))}
            assert found <= {type_}, f"asked for {type_}, read {found}"

    def test_envelopes_are_well_formed(self) -> None:
        for request in self._deliveries():
            for envelope in self.provider.parse(request):
                _require_well_formed(envelope)

    def test_what_is_kept_reads_as_what_came(self) -> None:
        # The inbox keeps the body, the content type and the headers that the provider names; not the URL.
        names = ("Content-Type", *self.provider.headers)
        for unsigned in self._deliveries():
            came = self._sign(unsigned, self._secrets()[0])
            for envelope in self.provider.parse(came):
                source = envelope.request or came
                kept = {name: source.headers[name] for name in names if name in source.headers}
                again = self.provider.parse(Request("POST", "", kept, source.body))
                assert _facts(envelope) in [_facts(other) for other in again]

    def test_unknown_fields_pass(self) -> None:
        for type_, make in self._samples():
            request = make("event-1", NOW)
            grown = _grown(request)
            if grown is not None:
                before, after = (self.provider.parse(each) for each in (request, grown))
                assert [e.type for e in after] == [e.type for e in before], type_
                assert [e.object for e in after] == [e.object for e in before], type_

    def test_unknown_types_pass(self) -> None:
        if self.provider.sample is None or not self.provider.sample_types:
            pytest.skip("no samples")
        word = self.provider.sample_types[0]
        for unknown in ("surprise.happened", re.sub(r"\w+$", "surprised", word)):
            for envelope in self.provider.parse(self._sample(unknown, "event-1", NOW)):
                _require_well_formed(envelope)

    def test_a_blank_id_is_no_key(self) -> None:
        for type_, make in self._samples():
            whole = set(_keys(self.provider, make("event-1", NOW)))
            for blank in ("", " ", None):
                keys: set[str] = set()
                for filler in ("one", "two"):
                    request = _blanked(make("event-1", NOW), "event-1", blank, filler)
                    with suppress(Unreadable):
                        keys |= {*_keys(self.provider, request)} or {filler}
                        assert all(key.strip() for key in keys)
                # One that does not hold the id as it stands makes its key of something else.
                assert len(keys) != 1 or keys == whole, f"{type_}: two bodies without an id have one key"

    def test_replies_say_success(self) -> None:
        for request in self._deliveries():
            reply = self.provider.reply(request)
            assert 200 <= reply.status < 300
            assert isinstance(reply.body, str)

    def test_an_answer_that_says_nothing_changes_nothing_and_a_refusal_says_so(self) -> None:
        answers = self.provider.answers
        if answers is None:
            pytest.skip("it takes no answers")
        asked = [
            (r, e) for r in self._deliveries() for e in self.provider.parse(r) if e.type in answers.types
        ]
        assert asked, "no delivery is a question"
        for request, envelope in asked:
            nothing = answers.say(envelope, None)
            assert nothing == self.provider.reply(request)
            assert len(nothing.body.encode()) <= (answers.max_size or MOST_ANSWERED)
            if answers.refuse is not None:
                refusal = answers.refuse(envelope, "Not today.", 403)
                assert refusal != nothing
                assert "Not today." in refusal.body

    # -- the API

    def test_gone_is_none(self) -> None:
        for ref in self._refs():
            api = FakeApi(self.gone, self._settings(), self.account)
            if ref.kind in self.never_gone:
                with pytest.raises(NotFetchable):
                    _fetch(self.provider, api, ref)
            else:
                assert self._fetched(api, ref) is None, f"{ref.kind}: gone is not None"

    def test_a_refusal_is_not_taken_for_gone(self) -> None:
        for ref in self._refs():
            for status in (400, 401, 403):
                api = FakeApi(lambda _: ApiRefused("refused", status), self._settings(), self.account)  # noqa: B023
                with suppress(NotFetchable), pytest.raises(ApiRefused):
                    _fetch(self.provider, api, ref)

    def test_slow_down_and_come_later_are_passed_on_with_their_hint(self) -> None:
        for error in (RateLimited("slow down", HINT), RetryLater("503", HINT)):
            for ask in self._questions():
                api = FakeApi(lambda _: error, self._settings(), self.account)  # noqa: B023
                raised = _raised(ask, api)
                # Where a setting is missing nothing is asked, so there is nothing to pass on.
                assert not api.calls or raised is error, "an API that says `later` was taken for an answer"

    def test_health_is_unknown_rather_than_an_error(self) -> None:
        if self.provider.endpoint_health is None:
            pytest.skip("the API does not tell")
        for status in (401, 403, 404):
            api = FakeApi(lambda _: ApiRefused("refused", status), self._settings(), self.account)  # noqa: B023
            assert isinstance(self.provider.endpoint_health(api), Health)

    def test_listings_find_everything_page_by_page(self) -> None:
        self._list(restless=False)

    def test_listings_survive_what_happens_between_their_pages(self) -> None:
        self._list(restless=True)

    def test_listings_end_also_where_the_api_stands_still(self) -> None:
        for listing in (self.provider.list_changed, self.provider.list_events):
            world = self.world()
            if world is None:
                pytest.skip("no world to list")
            if listing is not None:
                list(listing(world.stuck(), world.since))

    def _list(self, *, restless: bool) -> None:
        world, again = self.world(), self.world()
        if world is None or again is None:
            pytest.skip("no world to list")
        if self.provider.list_changed is not None:
            changes = list(self.provider.list_changed(world.api(restless=restless), world.since))
            assert all(isinstance(change, Change) for change in changes)
            assert set(world.changed) <= {(change.object.kind, change.object.id) for change in changes}
            assert {change.object.kind for change in changes} <= set(self.provider.kinds)
            assert all(change.changed_at is None or change.changed_at.tzinfo for change in changes)
        if self.provider.list_events is not None:
            entries = list(self.provider.list_events(again.api(restless=restless), again.since))
            assert set(again.events) <= {entry.dedup_key for entry in entries}
            for entry in entries:
                self._require_readable(entry)

    def _require_readable(self, entry: LogEntry) -> None:
        assert entry.occurred_at is None or entry.occurred_at.tzinfo
        envelopes = entry.read()
        assert entry.dedup_key in {envelope.dedup_key for envelope in envelopes}, "the log has other keys"
        for envelope in envelopes:
            _require_well_formed(envelope)

    # -- what the tests are made of

    def _secrets(self) -> tuple[str, str]:
        if self.secrets:
            one, other = self.secrets[:2]
            return one, other
        request = self._deliveries()[0]
        for form in _FORMS:
            one, other = form(b"one"), form(b"two")
            with suppress(ValueError, SignatureError):
                signed = self.provider.signature.sign(request, one, NOW)
                if (
                    self.provider.secret_problem(one) is None
                    and verdict(self.provider, signed, [one]) == "accepted"
                ):
                    return one, other
        raise AssertionError("set `secrets`: two that the provider could have issued")

    def _sign(self, request: Request, secret: str, at: datetime = NOW) -> Request:
        return self.provider.signature.sign(request, secret, at)

    def _samples(self) -> Iterator[tuple[str, Callable[[str, datetime], Request]]]:
        if self.provider.sample is None:
            pytest.skip("no samples")
        for type_ in self.provider.sample_types:
            yield type_, lambda id_, at, type_=type_: self._sample(type_, id_, at)  # type: ignore[misc]

    def _sample(self, type_: str, id_: str, at: datetime) -> Request:
        assert self.provider.sample is not None
        made = self.provider.sample(Sample(type_, id_, at))
        return replace(made, url=made.url or self.url)

    def _deliveries(self) -> list[Request]:
        if self.provider.sample is not None:
            return [self._sample(type_, "event-1", NOW) for type_ in self.provider.sample_types]
        assert self.deliveries, "set `deliveries`, or give the provider a `sample`"
        return list(self.deliveries)

    def _settings(self) -> dict[str, str]:
        return {**self.provider.defaults, **self.settings}

    def _refs(self) -> list[ObjectRef]:
        if self.provider.fetch is None:
            pytest.skip("nothing can be fetched")
        given_ = {ref.kind: ref for ref in self.refs}
        return [given_.get(kind) or ObjectRef(kind, "1001", "/things/1001") for kind in self.provider.kinds]

    def _fetched(self, api: FakeApi, ref: ObjectRef) -> Json | None:
        try:
            return _fetch(self.provider, api, ref)
        except NotFetchable:
            assert not api.calls, f"{ref.kind}: set `gone`, or raise NotFetchable before asking"
            return None

    def _questions(self) -> Iterator[Callable[[FakeApi], Any]]:
        provider = self.provider
        if provider.fetch is not None:
            for ref in self._refs():

                def fetch(api: FakeApi, ref: ObjectRef = ref) -> Json | None:
                    return _fetch(provider, api, ref)

                yield fetch
        for listing in (provider.list_changed, provider.list_events, provider.redeliver):
            if listing is not None:
                yield lambda api, listing=listing: list(listing(api, NOW - timedelta(hours=1)))  # type: ignore[misc]
        for ask in (provider.endpoint_health, provider.subscriptions, provider.enable):
            if ask is not None:
                yield ask

    def _read_or_refuse(self, request: Request) -> None:
        """Whatever a request holds: verify accepts or refuses, parse reads or cannot, the reply is a reply."""
        verdict(self.provider, request, self._secrets())
        with suppress(Unreadable):
            for envelope in self.provider.parse(request):
                _require_well_formed(envelope)
        self.provider.reply(request)


def _fetch(provider: Provider, api: FakeApi, ref: ObjectRef) -> Json | None:
    assert provider.fetch is not None
    return provider.fetch(api, ref)


def _raised(ask: Callable[[FakeApi], Any], api: FakeApi) -> WebhooksError | None:
    try:
        ask(api)
    except WebhooksError as error:
        return error
    return None


def _keys(provider: Provider, request: Request) -> list[str]:
    return [envelope.dedup_key for envelope in provider.parse(request)]


def _require_well_formed(envelope: Envelope) -> None:
    assert envelope.dedup_key.strip(), "a blank key"
    assert isinstance(envelope.type, str)
    assert envelope.object is None or (envelope.object.kind and envelope.object.id)
    assert envelope.occurred_at is None or envelope.occurred_at.tzinfo is not None, "a naive time"
    assert isinstance(envelope.account, str)
    assert isinstance(envelope.correlation, str)
    assert envelope.livemode in {True, False, None}


def _facts(envelope: Envelope) -> tuple[Any, ...]:
    path = envelope.object.path if envelope.object else ""
    names = (
        "dedup_key",
        "type",
        "object",
        "snapshot",
        "gone",
        "occurred_at",
        "account",
        "livemode",
        "correlation",
    )
    return *(getattr(envelope, name) for name in names), path


def _hex(seed: bytes, length: int) -> str:
    return hashlib.sha512(seed).hexdigest()[:length]


_FORMS: Sequence[Callable[[bytes], str]] = (
    lambda seed: _hex(seed, 32),
    lambda seed: "whsec_" + base64.b64encode(hashlib.sha256(seed).digest()).decode(),
    lambda seed: "v1,whsec_" + base64.b64encode(hashlib.sha256(seed).digest()).decode(),
    lambda seed: _hex(seed, 64).upper(),
    lambda seed: f"pdl_ntfset_01{_hex(seed, 24)}_{_hex(seed, 32)}",
    lambda seed: f"key-{_hex(seed, 32)}",
)
"""The usual forms of signing secrets."""


# -- garbage

_SCALARS = st.sampled_from(
    [None, True, False, 0, -1, 2**63, 2**70, 1e300, 0.5, "", " ", "0", "..", "\x00", "\ud83d", "é", "x" * 300]
)
_JUNK = st.recursive(
    _SCALARS | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_WORDS = (
    "",
    " ",
    "=",
    ",",
    "t=,v1=",
    "v1,",
    "ts=1;h1=",
    "v0=",
    "\xe9",
    "-1",
    "1e9",
    "1e999",
    "inf",
    "nan",
    "a\nb",
    "\ud83d",
)
GARBAGE = st.text(max_size=30) | st.sampled_from([*_WORDS, "9" * 40, "é" * 300])


def _mangled(node: Json) -> st.SearchStrategy[Any]:
    """The same tree, with parts left out and parts replaced by what nobody expects there."""
    if isinstance(node, dict):
        whole = st.fixed_dictionaries({}, optional={key: _mangled(value) for key, value in node.items()})
        return st.one_of(whole, whole, st.just(node), _JUNK)
    if isinstance(node, list):
        return st.one_of(st.tuples(*map(_mangled, node)).map(list), st.just(node), _JUNK)
    return st.one_of(st.just(node), st.just(node), _JUNK)


def _mangled_body(request: Request) -> st.SearchStrategy[bytes]:
    document = _document(request)
    if document is not None:
        # 1e999 is JSON, and read as infinite.
        return _mangled(document).map(lambda value: _json.dumps(value).replace("1e+300", "1e999").encode())
    pairs = _form(request)
    values = st.text(max_size=8) | GARBAGE
    changed = st.tuples(*(st.tuples(st.just(name), st.just(value) | values) for name, value in pairs))
    return (
        changed.map(lambda found: urlencode(found, errors="replace").encode())
        if pairs
        else st.binary(max_size=60)
    )


def _document(request: Request) -> Json:
    with suppress(Unreadable):
        return request.json
    return None


def _form(request: Request) -> list[tuple[str, str]]:
    if request.content_type != "application/x-www-form-urlencoded":
        return []
    return parse_qsl(request.body.decode(), keep_blank_values=True)


def _grown(request: Request) -> Request | None:
    """The delivery with one field more, as providers add them without notice."""
    document = _document(request)
    if isinstance(document, dict):
        return replace(request, body=_json.dumps({**document, "brand_new": {"a": [1]}}).encode())
    pairs = _form(request)
    return replace(request, body=urlencode([*pairs, ("BrandNew", "1")]).encode()) if pairs else None


def _blanked(request: Request, id_: str, blank: str | None, filler: str) -> Request:
    """The delivery with blanks wherever its event's id stood; throughout another one for another filler."""
    headers = {name: value if value != id_ else blank or "" for name, value in request.headers.items()}
    document = _document(request)
    if isinstance(document, dict):
        body = _json.dumps(_replaced(document, id_, blank, filler)).encode()
    else:
        pairs = [(name, value if value != id_ else blank or "") for name, value in _form(request)]
        body = urlencode([*pairs, ("Filler", filler)]).encode() if pairs else request.body + filler.encode()
    return replace(request, headers=headers, body=body)


def _replaced(node: Json, old: Json, new: Json, filler: str) -> Json:
    if isinstance(node, dict):
        return {**{key: _replaced(value, old, new, filler) for key, value in node.items()}, "filler": filler}
    if isinstance(node, list):
        return [_replaced(value, old, new, filler) for value in node]
    return new if node == old else node
