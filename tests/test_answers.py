"""Answers within the request: in time, at most once per call, and never the reason that a sign-in fails."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from marshmallow import Schema, fields
from sqlalchemy import String, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from twilio.twiml.messaging_response import MessagingResponse
from werkzeug.serving import make_server

from tests.auth_server import BODIES, CLAIMS, SECRET, AuthServer
from tests.services import Postgres
from webhooks import ConfigError, Refuse, Webhooks
from webhooks.extension import state
from webhooks.provider import Envelope, Request
from webhooks.providers.twilio import provider as twilio
from webhooks.state import State

HOOKS = list(BODIES)


class Site:
    """An app that answers Supabase hooks, over real HTTP."""

    def __init__(self, url: str, folder: Path, build: Callable[[Site], None]) -> None:
        self.db = db = SQLAlchemy(model_class=type("Base", (DeclarativeBase,), {}))
        self.webhooks = Webhooks()
        self.ran: list[str] = []
        """One entry for each time an `answer` handler ran."""

        class Row(db.Model):  # type: ignore[name-defined, misc]
            id: Mapped[int] = mapped_column(primary_key=True)
            what: Mapped[str] = mapped_column(String(255))

        self.Row = Row
        build(self)
        self.app = app = Flask("site", instance_path=str(folder))
        app.config.update(
            SQLALCHEMY_DATABASE_URI=url,
            WEBHOOKS={"supabase": {"secrets": [SECRET], "fetch": False}},
            CELERY={"broker_url": "memory://"},
        )
        db.init_app(app)
        self.webhooks.init_app(app)
        app.register_blueprint(self.webhooks.blueprint, url_prefix="/webhooks")
        with app.app_context():
            db.create_all()
        self.server = make_server("127.0.0.1", 0, app, threaded=True)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.auth = AuthServer(f"http://127.0.0.1:{self.server.port}/webhooks/supabase")

    @property
    def state(self) -> State:
        return state(self.app)

    def rows(self) -> list[str]:
        with self.app.app_context():
            return sorted(self.db.session.scalars(select(self.Row.what)))

    def events(self) -> list[Any]:
        events, bodies = self.state.tables.events, self.state.tables.bodies
        with self.state.inbox.engine.connect() as connection:
            joined = select(events, bodies.c.answer).join(bodies, bodies.c.event_id == events.c.id)
            return list(connection.execute(joined.order_by(events.c.id)))

    def answer(self) -> dict[str, Any]:
        """The one event's stored answer, its body decoded."""
        (event,) = self.events()
        return {**event.answer, "body": json.loads(event.answer["body"])}

    def effects(self) -> list[Any]:
        with self.state.inbox.engine.connect() as connection:
            return list(connection.execute(select(self.state.tables.effects)))

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.state.inbox.close_connections()
        with self.app.app_context():
            self.db.session.remove()
            self.db.engine.dispose()


Build = Callable[..., Site]


@pytest.fixture
def site(database_url: str, tmp_path: Path) -> Iterator[Build]:
    made: list[Site] = []

    def make(build: Callable[[Site], None]) -> Site:
        made.append(Site(database_url, tmp_path, build))
        return made[-1]

    yield make
    for one in made:
        one.close()


def answering(
    decide: Callable[[Site, Any], Any],
    on_error: Any = "allow",
    hooks: list[str] | None = None,
    **options: Any,
) -> Callable[[Site], None]:
    """Register one handler for all hooks."""

    def build(made: Site) -> None:
        names = sorted({name.partition(" ")[0] for name in hooks or HOOKS})

        @made.webhooks.answer("supabase", *names, on_error=on_error, name="decide", **options)
        def decide_(event: Any) -> Any:
            made.ran.append(event.dedup_key)
            return decide(made, event)

    return build


# -- the eight hooks


@pytest.mark.parametrize("hook", HOOKS)
def test_without_a_handler_every_hook_is_allowed(site: Build, hook: str) -> None:
    made = site(lambda _: None)
    outcome = made.auth.invoke(hook)
    assert outcome.allowed, outcome
    assert outcome.claims == (CLAIMS if hook == "customize-access-token" else None)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_handler_that_says_nothing_allows(site: Build, hook: str) -> None:
    made = site(answering(lambda _made, _event: None))
    outcome = made.auth.invoke(hook)
    assert (outcome.status, outcome.attempts) == (200, 1)
    assert outcome.claims == (CLAIMS if hook == "customize-access-token" else None)
    (event,) = made.events()
    assert (event.answer["status"], event.answer["error"]) == (200, None)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_refusal_reaches_the_user_in_our_words(site: Build, hook: str) -> None:
    def decide(_made: Site, _event: Any) -> Any:
        raise Refuse("Only people of example.org may come in.")

    outcome = site(answering(decide)).auth.invoke(hook)
    assert not outcome.allowed
    assert outcome.message == "Only people of example.org may come in."
    assert outcome.status == {"mfa-verification": 403, "password-verification": 400}.get(hook, 403)


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(("on_error", "allowed"), [("allow", True), ("refuse", False)])
def test_a_handler_that_fails_is_answered_as_on_error_says(
    site: Build, hook: str, on_error: str, allowed: bool
) -> None:
    def decide(made: Site, _event: Any) -> Any:
        made.db.session.add(made.Row(what="half done"))
        made.db.session.flush()
        raise KeyError("zoe@example.org")

    made = site(answering(decide, on_error))
    outcome = made.auth.invoke(hook)
    assert outcome.allowed is allowed, outcome
    assert made.rows() == []
    assert made.answer()["error"].startswith("builtins.KeyError at ")
    assert "zoe@" not in made.answer()["error"]


@pytest.mark.parametrize(("on_error", "allowed"), [("allow", True), ("refuse", False)])
def test_a_slow_handler_is_left_in_time_and_what_it_does_late_does_not_count(
    site: Build, on_error: str, allowed: bool
) -> None:
    finished = threading.Event()

    def decide(made: Site, _event: Any) -> Any:
        made.db.session.add(made.Row(what="late"))
        time.sleep(1.2)
        finished.set()
        raise Refuse("too late to matter")

    made = site(answering(decide, on_error, within=timedelta(seconds=0.5)))
    outcome = made.auth.invoke("before-user-created", uuid_="one")
    assert outcome.allowed is allowed
    assert outcome.seconds < 1.0
    assert finished.wait(5)
    wait_for(lambda: made.events()[0].answer is not None)
    assert made.rows() == []
    assert made.answer()["error"] == "late"
    again = made.auth.invoke("before-user-created", uuid_="one")
    assert (again.replies, made.ran) == (outcome.replies, ["one"]), (
        "the same answer, and the handler does not run again"
    )


def test_the_provider_s_deadline_less_the_margin_ends_a_handler_that_hangs(site: Build) -> None:
    made = site(answering(lambda _made, _event: time.sleep(8)))
    outcome = made.auth.invoke("password-verification")
    assert outcome.allowed, "Auth's 5 s are for everything"
    assert 3.5 < outcome.seconds < 4.9


# -- once, and the same again


def test_a_call_that_is_repeated_gets_the_first_answer_and_the_handler_runs_once(site: Build) -> None:
    """Auth did not hear the answer, and calls again with another webhook-id and the same body."""

    def decide(made: Site, event: Any) -> Any:
        made.db.session.add(made.Row(what=event.dedup_key))
        return {"claims": {**event.data["claims"], "run": len(made.ran)}}

    made = site(answering(decide))
    made.auth.deaf = 1
    outcome = made.auth.invoke("customize-access-token", uuid_="one")
    assert (outcome.allowed, outcome.attempts) == (True, 2)
    assert outcome.replies[0] == outcome.replies[1]
    assert (made.ran, made.rows()) == (["one"], ["one"])
    assert outcome.claims is not None
    assert outcome.claims["run"] == 1
    (event,) = made.events()
    assert (event.dedup_key, event.deliveries) == ("one", 2)


def test_a_second_call_waits_for_the_first_one_that_is_still_running(site: Build) -> None:
    entered = threading.Event()

    def decide(made: Site, event: Any) -> Any:
        entered.set()
        time.sleep(0.8)
        made.db.session.add(made.Row(what=event.dedup_key))
        raise Refuse("no")

    made = site(answering(decide))
    outcomes: list[Any] = []
    threads = [
        threading.Thread(target=lambda: outcomes.append(made.auth.invoke("send-email", uuid_="one")))
        for _ in range(3)
    ]
    threads[0].start()
    assert entered.wait(5)
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(o.status, o.message) for o in outcomes] == [(403, "no")] * 3
    assert (made.ran, made.rows()) == (["one"], ["one"])


def test_an_effect_of_an_answer_is_promised_with_it_and_once(site: Build) -> None:
    sent: list[str] = []

    def build(made: Site) -> None:
        @made.webhooks.effect(name="sms", idempotent=True)
        def sms(key: str, *, to: str, otp: str) -> None:
            sent.append(f"{to} {otp}")

        @made.webhooks.answer("supabase", "send-sms", on_error="refuse")
        def send(event: Any) -> None:
            sms.later(to=event.data["sms"]["phone"], otp=event.data["sms"]["otp"])

    made = site(build)
    made.auth.deaf = 1
    assert made.auth.invoke("send-sms").allowed
    made.state.caller.drain()
    made.state.caller.drain()
    assert sent == ["15555550101 561166"]
    assert [effect.state for effect in made.effects()] == ["done"]


def test_what_a_handler_wrote_before_it_refused_is_kept(site: Build) -> None:
    """Counting wrong passwords is what the hook is for."""

    def decide(made: Site, _event: Any) -> Any:
        made.db.session.add(made.Row(what="failed once"))
        raise Refuse("Locked")

    made = site(answering(decide))
    outcome = made.auth.invoke("password-verification")
    assert (outcome.status, outcome.message, made.rows()) == (400, "Locked", ["failed once"])


def test_a_handler_must_not_commit(site: Build) -> None:
    def decide(made: Site, _event: Any) -> Any:
        made.db.session.add(made.Row(what="mine"))
        made.db.session.commit()

    made = site(answering(decide))
    assert made.auth.invoke("send-email").allowed
    assert made.rows() == []
    assert made.answer()["error"].startswith("HandlerCommitted: ")


# -- what goes out is what Auth understands


@pytest.mark.parametrize(
    ("hook", "said", "error"),
    [
        ("customize-access-token", {"claims": {"sub": "x"}}, "claims.aal: Missing data for required field."),
        ("customize-access-token", {"claims": {**CLAIMS, "exp": "soon"}}, "claims.exp: must be int"),
        ("customize-access-token", {"claims": {**CLAIMS, "exp": True}}, "claims.exp: must be int"),
        ("customize-access-token", {"claims": {**CLAIMS, "aud": 1}}, "claims.aud: must be str or list"),
        ("customize-access-token", {}, "claims: Missing data for required field."),
        ("customize-access-token", {"claims": {**CLAIMS, "x": "y" * 20_000}}, "supabase takes 20000"),
        ("password-verification", {"decision": "no"}, "'continue' or 'reject'"),
        ("send-email", {"error": {"message": ""}}, "raise Refuse(message)"),
        ("send-email", "yes", "is a dict, or None"),
    ],
)
def test_an_answer_that_auth_would_not_understand_does_not_go_out(
    site: Build, hook: str, said: Any, error: str
) -> None:
    made = site(answering(lambda _made, _event: said))
    outcome = made.auth.invoke(hook)
    assert outcome.allowed, (
        "on_error says so; what was said would have failed the sign-in, or let somebody in"
    )
    assert error in made.answer()["error"]
    (event,) = made.events()
    assert (event.state, event.outcome) == ("dead", "gave_up")


def test_own_schemas_are_checked_before_and_after(site: Build) -> None:
    class Asked(Schema):
        user = fields.Nested(Schema.from_dict({"email": fields.Email(required=True)}), required=True)

    class Said(Schema):
        claims = fields.Nested(Schema.from_dict({"tenant": fields.Integer(required=True)}), required=True)

    def build(made: Site) -> None:
        made.webhooks.answer(
            "supabase", "before-user-created", on_error="refuse", schema=Asked, name="asked"
        )(lambda event: made.ran.append(event.data["user"]["email"]))
        made.webhooks.answer(
            "supabase", "customize-access-token", on_error="refuse", reply_schema=Said, name="said"
        )(lambda event: {"claims": event.data["claims"]})

    made = site(build)
    assert made.auth.invoke("before-user-created").allowed
    assert not made.auth.invoke("before-user-created", user={"id": "x", "email": "nobody"}).allowed
    assert made.ran == ["zoe@example.org"]
    assert not made.auth.invoke("customize-access-token").allowed
    errors = [event.answer["error"] for event in made.events()]
    assert errors[0] is None
    assert errors[1].endswith("asked: the event does not fit Asked: user.email: Not a valid email address.")
    assert errors[2].endswith(
        "said: the answer does not fit Said: claims.tenant: Missing data for required field."
    )
    assert [event.state for event in made.events()] == ["pending", "dead", "dead"]


def test_a_worker_finds_what_was_answered_and_runs_other_handlers_too(site: Build) -> None:
    def build(made: Site) -> None:
        answering(lambda _made, _event: None, hooks=["before-user-created", "after-user-created"])(made)
        made.webhooks.on("supabase", "after-user-created", name="welcome")(
            lambda event, user: made.db.session.add(made.Row(what=f"welcome {user['email']}"))
        )

    made = site(build)
    made.auth.invoke("before-user-created")
    made.auth.invoke("after-user-created")
    made.state.applier.drain()
    assert [(e.state, e.outcome) for e in made.events()] == [("applied", "answered"), ("applied", "applied")]
    assert made.rows() == ["welcome zoe@example.org"]


# -- the database is away


def test_a_database_that_is_away_never_fails_a_sign_in_where_the_hook_allows(
    own_postgres_site: tuple[Postgres, Build],
) -> None:
    server, site = own_postgres_site
    made = site(answering(lambda _made, _event: None))
    assert made.auth.invoke("send-email").allowed
    server.kill()
    outcomes = {hook: made.auth.invoke(hook) for hook in HOOKS}
    assert {hook: (o.allowed, o.attempts) for hook, o in outcomes.items()} == dict.fromkeys(HOOKS, (True, 1))


def test_a_handler_that_needs_no_database_still_decides_while_it_is_away(
    own_postgres_site: tuple[Postgres, Build],
) -> None:
    def decide(_made: Site, event: Any) -> Any:
        if event.data["user"]["email"].endswith("@example.org"):
            raise Refuse("not you")

    server, site = own_postgres_site
    made = site(answering(decide))
    server.kill()
    outcome = made.auth.invoke("before-user-created")
    assert (outcome.status, outcome.message) == (403, "not you")


def test_a_database_that_is_away_refuses_where_the_hook_says_so(
    own_postgres_site: tuple[Postgres, Build],
) -> None:
    server, site = own_postgres_site
    made = site(answering(lambda _made, _event: None, "refuse"))
    server.kill()
    outcome = made.auth.invoke("before-user-created")
    assert (outcome.status, outcome.message, made.ran) == (503, "Please try again later.", [])


def test_a_database_that_hangs_is_left_in_time(site: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    made = site(answering(lambda _made, _event: None, within=timedelta(seconds=0.5)))
    monkeypatch.setattr(made.state.inbox, "record", lambda _: time.sleep(2))
    outcome = made.auth.invoke("send-sms")
    assert outcome.allowed
    assert outcome.seconds < 1.0


@pytest.fixture
def own_postgres_site(own_postgres: Postgres, tmp_path: Path) -> Iterator[tuple[Postgres, Build]]:
    made: list[Site] = []

    def make(build: Callable[[Site], None]) -> Site:
        made.append(Site(own_postgres.url(), tmp_path, build))
        return made[-1]

    yield own_postgres, make
    for one in made:
        one.server.shutdown()
        one.server.server_close()


# -- Twilio reads TwiML


@pytest.mark.parametrize(
    ("said", "reply"),
    [
        (None, "<Response></Response>"),
        ("Hi <you> & me", "<Response><Message>Hi &lt;you&gt; &amp; me</Message></Response>"),
        ("<Response><Message>x</Message></Response>", "<Response><Message>x</Message></Response>"),
        (MessagingResponse, "<Response><Message>from the SDK</Message></Response>"),
        (Refuse("Stop."), "<Response><Message>Stop.</Message></Response>"),
        ("<Response><Message>", "<Response><Message>Please try again later.</Message></Response>"),
        ("<Say/>", "<Response><Message>Please try again later.</Message></Response>"),
        (ValueError(), "<Response><Message>Please try again later.</Message></Response>"),
    ],
)
def test_a_text_message_is_answered_with_twiml(
    sqlite_url: str, tmp_path: Path, said: Any, reply: str
) -> None:
    db, webhooks = SQLAlchemy(), Webhooks()

    @webhooks.answer("twilio", "message.received", on_error="refuse")
    def respond(event: Any) -> Any:
        assert event.data["Body"]
        if isinstance(said, Exception):
            raise said
        if said is MessagingResponse:
            made = MessagingResponse()
            made.message("from the SDK")
            return made
        return said

    app = Flask("texts", instance_path=str(tmp_path))
    app.config.update(
        SQLALCHEMY_DATABASE_URI=sqlite_url,
        CELERY={"broker_url": "memory://"},
        WEBHOOKS={"twilio": {"secrets": ["0123456789abcdef0123456789abcdef"], "fetch": False}},
    )
    db.init_app(app)
    webhooks.init_app(app)
    app.register_blueprint(webhooks.blueprint)
    with app.app_context():
        db.create_all()
    endpoint = state(app).endpoints["twilio"]
    fields = {
        "MessageSid": f"SM{'0' * 32}",
        "AccountSid": f"AC{'0' * 32}",
        "SmsStatus": "received",
        "Body": "hi",
    }
    unsigned = Request(
        "POST",
        "http://localhost/twilio",
        {"Content-Type": "application/x-www-form-urlencoded"},
        urlencode(fields).encode(),
    )
    signed = endpoint.provider.signature.sign(unsigned, endpoint.secrets[0], time.time())
    answers = [
        app.test_client().post("/twilio", data=signed.body, headers=dict(signed.headers)) for _ in range(2)
    ]
    for answer in answers:
        assert (answer.status_code, answer.content_type) == (200, "text/xml")
        assert answer.text.removeprefix('<?xml version="1.0" encoding="UTF-8"?>') == reply
    state(app).inbox.close_connections()
    with app.app_context():
        db.engine.dispose()


def test_a_caller_hears_a_refusal_before_the_line_is_cut() -> None:
    answers = twilio.answers
    assert answers is not None
    assert answers.refuse is not None
    call = Envelope("k", "call.ringing", {})
    assert answers.refuse(call, "Closed.", 403).body.endswith(
        "<Response><Say>Closed.</Say><Hangup/></Response>"
    )
    assert answers.say(call, "Hello").body.endswith("<Response><Say>Hello</Say></Response>")


# -- where it is registered


def test_answers_that_cannot_be_are_refused_at_start_up(database_url: str, tmp_path: Path) -> None:
    webhooks = Webhooks()
    with pytest.raises(ConfigError, match="it is 'allow' or 'refuse'"):
        webhooks.answer("supabase", "send-sms", on_error="maybe")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at least one event type"):
        webhooks.answer("supabase", on_error="allow")
    webhooks.answer("supabase", "send-sms", on_error="allow", name="a")(lambda event: None)
    with pytest.raises(ConfigError, match=r"supabase send-sms has two answers: .*test_answers.py:\d+ and"):
        webhooks.answer("supabase", "send-sms", on_error="allow", name="b")(lambda event: None)


def test_an_answer_to_what_is_not_asked_is_a_mistake_that_start_up_names(site: Build) -> None:
    made = site(
        lambda made: made.webhooks.answer("supabase", "user.updated", on_error="allow")(lambda event: None)
    )
    with pytest.raises(
        ConfigError, match=r"supabase takes no answer to 'user.updated', only to before-user-created"
    ):
        made.state.check()


def test_a_refusal_needs_a_message() -> None:
    with pytest.raises(ValueError, match="take an empty one for consent"):
        Refuse(" ")


def wait_for(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)
