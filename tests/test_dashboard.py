"""The dashboard: who may look, what a page can hold, and who may act."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import flask
import pytest
from flask import Flask
from flask.testing import FlaskClient
from flask_wtf import CSRFProtect
from sqlalchemy import insert, update

from webhooks import ConfigError, Webhooks
from webhooks.extension import state
from webhooks.issues import Finding
from workers.reference import create_app

from .apps import GITHUB, STRIPE, apply, build, deliver, rows

CARRIED = STRIPE | {"fetch": False}
ENDPOINTS = {"stripe": CARRIED, "github": GITHUB | {"fetch": False}}
PAGES = ("/", "/events", "/events/1", "/objects", "/effects", "/issues", "/runs")
HOSTILE = ['<script>alert("x")</script>', '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}", "x\x1b[31m\u202e"]

Opened = Callable[..., FlaskClient]


@pytest.fixture
def opened(database_url: str) -> Iterator[Opened]:
    """A client of an app with a dashboard under /admin, with the guard and the Flask settings given."""
    closing: list[Any] = []

    def open_(guard: Any = lambda: True, *, csrf: bool = False, **config: Any) -> FlaskClient:
        app, webhooks = Flask("tests.dashboard"), Webhooks()
        app.config.from_mapping({"SECRET_KEY": "a secret key of the tests"} | config)
        if csrf:
            CSRFProtect(app)
        context = build(database_url, ENDPOINTS, webhooks=webhooks, app=app)
        context.__enter__()
        closing.append(context)
        app.register_blueprint(webhooks.dashboard(guard=guard), url_prefix="/admin")
        return app.test_client()

    yield open_
    for context in closing:
        context.__exit__(None, None, None)


def fill(app: Flask) -> None:
    """An applied event and a dead one."""
    assert deliver(app, "stripe", "customer.updated", id="evt_good", object=customer()).status_code == 200
    apply(app)
    assert deliver(app, "stripe", "customer.updated", id="evt_dead", body=b"[]").status_code == 200


def customer(**more: Any) -> dict[str, Any]:
    return {"id": "cus_1", "object": "customer", "email": "ada@example.test", **more}


def form(client: FlaskClient, page: str, action: str) -> dict[str, str]:
    """The hidden fields of the form on that page which is sent there."""
    text = client.get(page).text
    found = re.search(rf'<form method="post" action="{re.escape(action)}">(.*?)</form>', text, re.DOTALL)
    assert found is not None, text
    return dict(re.findall(r'name="(\w+)" value="([^"]*)"', found[1]))


class Elements(HTMLParser):
    """The names of all elements and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}


# -- who may look


def test_every_page_shows_what_is_there(opened: Opened) -> None:
    client = opened()
    fill(client.application)
    for page in PAGES:
        answer = client.get("/admin" + page)
        assert answer.status_code == 200, page
        assert answer.content_type == "text/html; charset=utf-8"
    assert "evt_good" in client.get("/admin/events/1").text
    assert "ada@example.test" in client.get("/admin/objects").text
    assert client.get("/admin/events?state=dead").text.count("/admin/events/2") == 1


@pytest.mark.parametrize("answer", [False, None, 0, "", 1, "admin", ["admin"]])
def test_who_is_not_let_in_sees_and_does_nothing(opened: Opened, answer: Any) -> None:
    """A user's name is no permission: a guard that forgot to compare must not open the door."""
    client = opened(lambda: answer)
    fill(client.application)
    for page in PAGES:
        assert client.get("/admin" + page).status_code == 403, page
    assert client.post("/admin/events/2/redrive").status_code == 403
    assert [row.state for row in rows(client.application, "events")] == ["applied", "dead"]


def test_a_guard_may_send_to_its_login_page(opened: Opened) -> None:
    client = opened(lambda: flask.redirect("/login"))
    answer = client.get("/admin/")
    assert (answer.status_code, answer.location) == (302, "/login")


def test_there_is_no_dashboard_without_a_guard() -> None:
    with pytest.raises(ConfigError, match="guard"):
        Webhooks().dashboard(guard=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="guard"):
        Webhooks().dashboard()  # type: ignore[call-arg]


# -- what a page can hold


def test_text_of_others_is_text_on_every_page(opened: Opened) -> None:
    """A87: types, ids, bodies, errors and outcomes come from outside."""
    client = opened()
    app = client.application
    for number, text in enumerate(HOSTILE):
        made = {"id": text, "object": "customer", "name": text}
        deliver(app, "stripe", "customer.updated", id=f"evt_{number}{text}", object=made)
        deliver(app, "stripe", text, id=f"evt_type_{number}", object=made)
    apply(app)
    inbox = state(app)
    with inbox.inbox.transaction() as connection:
        connection.execute(
            update(inbox.tables.events).values(error=HOSTILE[0] + HOSTILE[1], account=HOSTILE[1])
        )
        connection.execute(
            insert(inbox.tables.runs).values(
                endpoint="stripe",
                task="reconcile",
                started_at=inbox.inbox.moment(),
                expires_at=inbox.inbox.moment(),
                seen=0,
                missed=0,
                healed=0,
                error=HOSTILE[0],
            )
        )
    evidence = {"example": HOSTILE[0], HOSTILE[1]: HOSTILE[1]}
    inbox.issues.enter([Finding("stripe", "drift", good=False, detail=HOSTILE[0], evidence=evidence)])
    ids = [row.id for row in rows(app, "events")]
    shown = 0
    for page in (*PAGES, *(f"/events/{id_}" for id_ in ids), "/events?about=customer:" + HOSTILE[1]):
        text = client.get("/admin" + page).text
        assert "<script" not in text
        assert "\x1b" not in text
        elements = Elements(text)
        assert elements.names.isdisjoint({"script", "img", "iframe", "object", "embed"}), page
        assert not {name for name in elements.attributes if name.startswith("on") or name == "src"}, page
        shown += text.count("&lt;script&gt;")
    assert shown > 10


def test_half_a_surrogate_pair_does_not_break_a_page(opened: Opened) -> None:
    client = opened()
    body = b'{"id":"evt_1","object":"event","type":"customer.updated","data":{"object":{"id":"x","object":"customer","name":"x\\ud83d"}}}'
    assert deliver(client.application, "stripe", "customer.updated", body=body).status_code == 200
    apply(client.application)
    for page in PAGES:
        assert client.get("/admin" + page).status_code == 200


def test_a_large_body_is_cut(opened: Opened) -> None:
    client = opened()
    deliver(client.application, "stripe", "customer.updated", object=customer(note="long " * 100_000))
    answer = client.get("/admin/events/1")
    assert "more characters" in answer.text
    assert len(answer.data) < 60_000


def test_no_page_holds_a_secret_or_a_signature(opened: Opened) -> None:
    client = opened()
    fill(client.application)
    for page in PAGES:
        text = client.get("/admin" + page).text
        assert STRIPE["secrets"][0] not in text
        assert STRIPE["api_key"] not in text
        assert "Stripe-Signature" not in text


def test_no_page_may_run_a_script_be_framed_or_be_kept(opened: Opened) -> None:
    client = opened()
    for page in (*PAGES, "/events/99", "/static/dashboard.css"):
        with client.get("/admin" + page) as answer:
            headers = answer.headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "script-src" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "query",
    [
        "state=nonsense&outcome=%00&at=nobody",
        "before=" + "9" * 40,
        "before=-1",
        "type=" + "%" * 300,
        "about=:" + "x" * 5000,
        "about=customer:%27%20OR%201=1--",
    ],
)
def test_whatever_a_query_holds_is_a_page(opened: Opened, query: str) -> None:
    client = opened()
    fill(client.application)
    assert client.get(f"/admin/events?{query}").status_code == 200
    assert client.get(f"/admin/objects?kind={query}&id={query}").status_code == 200


def test_an_event_that_is_not_there_is_404(opened: Opened) -> None:
    client = opened()
    assert client.get("/admin/events/99").status_code == 404
    assert client.get("/admin/events/" + "9" * 30).status_code == 404


def test_one_page_leads_to_the_next_until_there_is_none(opened: Opened) -> None:
    client = opened()
    for number in range(120):
        deliver(client.application, "stripe", "customer.updated", id=f"evt_{number}", object=customer())
    url, seen = "/admin/events?at=stripe", []
    while url:
        text = client.get(url).text
        seen += [int(found) for found in re.findall(r'/admin/events/(\d+)"', text)]
        older = re.search(r'<a href="([^"]+)">Older</a>', text)
        url = older[1].replace("&amp;", "&") if older else ""
    assert seen == list(range(120, 0, -1))


# -- who may act


def test_a_dead_event_is_redriven_from_its_page(opened: Opened) -> None:
    client = opened()
    app = client.application
    deliver(app, "stripe", "customer.updated", id="evt_1", object=customer())
    inbox = state(app)
    claim = inbox.inbox.claim(inbox.endpoints)
    assert claim is not None
    inbox.inbox.finish(claim.no, [1], "dead", "gave_up", "it was broken")
    fields = form(client, "/admin/events/1", "/admin/events/1/redrive")
    answer = client.post("/admin/events/1/redrive", data=fields)
    assert (answer.status_code, answer.location) == (303, "/admin/events/1")
    apply(app)
    assert [row.outcome for row in rows(app, "events")] == ["applied"]


def test_an_endpoint_is_paused_and_resumed(opened: Opened) -> None:
    client = opened()
    app = client.application
    fields = form(client, "/admin/", "/admin/endpoints/stripe/pause")
    assert client.post("/admin/endpoints/stripe/pause", data=fields).status_code == 303
    deliver(app, "stripe", "customer.updated", object=customer())
    apply(app)
    assert [row.state for row in rows(app, "events")] == ["pending"]
    fields = form(client, "/admin/", "/admin/endpoints/stripe/resume")
    assert client.post("/admin/endpoints/stripe/resume", data=fields).status_code == 303
    apply(app)
    assert [row.state for row in rows(app, "events")] == ["applied"]


ACTIONS = (
    "/admin/events/2/redrive",
    "/admin/endpoints/stripe/pause",
    "/admin/endpoints/stripe/resume",
    "/admin/effects/settle",
)


@pytest.mark.parametrize("action", ACTIONS)
def test_nothing_is_done_for_a_form_that_is_not_ours(opened: Opened, action: str) -> None:
    client = opened()
    app = client.application
    fill(app)
    good = form(client, "/admin/", "/admin/endpoints/stripe/pause")["token"]
    forged = [{}, {"token": ""}, {"token": "x"}, {"token": good[:-1]}, {"token": good + "x"}]
    for fields in forged:
        assert client.post(action, data=fields).status_code == 400, fields
    # The right token, but not from this browser; or this browser, led here by another site.
    stranger = app.test_client()
    assert stranger.post(action, data={"token": good}).status_code == 400
    led = client.post(action, data={"token": good}, headers={"Sec-Fetch-Site": "cross-site"})
    assert led.status_code == 400
    assert client.get(action).status_code == 405
    assert [row.state for row in rows(app, "events")] == ["applied", "dead"]
    assert rows(app, "holds") == []


def test_the_cookie_is_for_the_dashboard_alone(opened: Opened) -> None:
    answer = opened().get("/admin/")
    cookie = answer.headers["Set-Cookie"]
    assert "Path=/admin/" in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie


def test_without_a_secret_key_the_pages_are_for_reading(opened: Opened) -> None:
    client = opened(SECRET_KEY=None)
    fill(client.application)
    for page in PAGES:
        text = client.get("/admin" + page).text
        assert '<form method="post"' not in text
        assert "SECRET_KEY" in text
    assert client.post("/admin/endpoints/stripe/pause").status_code == 400
    assert rows(client.application, "holds") == []


def test_a_hosts_own_protection_is_satisfied_as_well(opened: Opened) -> None:
    client = opened(csrf=True)
    fields = form(client, "/admin/", "/admin/endpoints/stripe/pause")
    assert set(fields) == {"token", "csrf_token"}
    assert client.post("/admin/endpoints/stripe/pause", data={"token": fields["token"]}).status_code == 400
    assert client.post("/admin/endpoints/stripe/pause", data=fields).status_code == 303


# -- the reference deployment


def test_the_reference_deployment_asks_for_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASK_INSTANCE_PATH", str(tmp_path))
    monkeypatch.setenv("FLASK_DASHBOARD_PASSWORD", "correct horse battery")
    client = create_app().test_client()
    answer = client.get("/dashboard/")
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, 'Basic realm="webhooks"')
    assert client.get("/dashboard/", auth=("ops", "wrong horse battery")).status_code == 401
    assert client.get("/dashboard/", auth=("ops", "")).status_code == 401
    # There are no tables yet: the page says so instead of failing.
    assert client.get("/dashboard/", auth=("ops", "correct horse battery")).status_code == 503


def test_the_reference_deployment_has_no_dashboard_without_a_good_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASK_INSTANCE_PATH", str(tmp_path))
    assert create_app().test_client().get("/dashboard/").status_code == 404
    for password in ("", "short"):
        monkeypatch.setenv("FLASK_DASHBOARD_PASSWORD", password)
        with pytest.raises(ConfigError, match="FLASK_DASHBOARD_PASSWORD"):
            create_app()
