"""The blueprint within somebody else's app, behind their proxies, under their limits, on real servers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from flask import Blueprint, Flask, Response, redirect, request
from flask_sqlalchemy import SQLAlchemy
from flask_wtf import CSRFProtect
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.serving import make_server

from tests.apps import GITHUB, STRIPE, apply, build, deliver, post, rows, signed
from tests.services import free_port
from webhooks import Webhooks, providers
from webhooks.errors import SignatureError
from webhooks.extension import state
from webhooks.provider import Provider, Request

BOTH = {"stripe": {**STRIPE, "fetch": False}, "github": {**GITHUB, "fetch": False}}
CUSTOMER = {"id": "cus_1", "object": "customer"}


def form(payload: dict[str, Any]) -> dict[str, Any]:
    """What `deliver` needs to send GitHub's form encoding."""
    body = b"payload=" + quote(json.dumps(payload)).encode()
    return {"body": body, "headers": {"Content-Type": "application/x-www-form-urlencoded"}}


# -- hooks and protection of the host


@pytest.mark.parametrize("when", ["before", "after"])
def test_csrf_protection_of_the_host_lets_deliveries_through_and_guards_the_rest(
    sqlite_url: str, when: str
) -> None:
    """A30: initialised before us or after us."""
    host = Flask("host")
    host.config["SECRET_KEY"] = "x"
    if when == "before":
        CSRFProtect(host)
    host.add_url_rule("/order", "order", lambda: "ordered", methods=["POST"])
    with build(sqlite_url, BOTH, app=host) as app:
        if when == "after":
            CSRFProtect(app)
        for url in ("/webhooks/stripe", "/webhooks/stripe/"):
            assert deliver(app, "stripe", "customer.updated", url=url).status_code == 200
        assert deliver(app, "github", "issues.opened", **form({"issue": {"id": 1}})).status_code == 200
        assert deliver(app, "stripe", "customer.updated", secret="whsec_of_nobody").status_code == 401
        assert app.test_client().post("/order").status_code == 400
        assert len(rows(app, "events")) == 3


@pytest.mark.parametrize("how", ["renamed", "nested", "nested and renamed"])
def test_under_whatever_name_the_blueprint_is_registered_it_reads_the_body_first(
    sqlite_url: str, how: str
) -> None:
    """A03, A30, A31: nested in another blueprint it has another name, and still its rights."""
    host, webhooks = Flask("host", instance_path="/nowhere"), Webhooks()
    host.config.from_mapping(
        SECRET_KEY="x",
        SQLALCHEMY_DATABASE_URI=sqlite_url,
        WEBHOOKS=BOTH,
        CELERY={"broker_url": "memory://"},
        MAX_FORM_MEMORY_SIZE=1000,
        MAX_CONTENT_LENGTH=1000,
    )
    CSRFProtect(host)
    db = SQLAlchemy(host)
    webhooks.init_app(host)
    if how == "renamed":
        host.register_blueprint(webhooks.blueprint, url_prefix="/api/hooks", name="inbox")
    else:
        outer = Blueprint("outer", "outer", url_prefix="/api")
        outer.register_blueprint(webhooks.blueprint, url_prefix="/hooks")
        host.register_blueprint(outer, **({} if how == "nested" else {"name": "other"}))
    host.before_request(lambda: request.form and None)
    with host.app_context():
        db.create_all()
    answer = deliver(
        host,
        "github",
        "issues.opened",
        url="/api/hooks/github",
        **form({"issue": {"id": 1, "body": "x" * 9000}}),
    )
    assert answer.status_code == 200
    assert [row.object_id for row in rows(host, "events")] == ["1"]
    with host.app_context():
        db.engine.dispose()


def test_hooks_that_read_the_request_in_every_way_leave_the_signature_right(sqlite_url: str) -> None:
    """A03"""
    with build(sqlite_url, BOTH) as app:
        seen: list[Any] = []

        @app.before_request
        def read() -> None:
            seen.append((request.form.to_dict(), request.values.to_dict(), request.files.to_dict()))
            request.get_data(parse_form_data=True)
            request.stream.read()

        @app.after_request
        def read_again(response: Response) -> Response:
            seen.append(request.get_data())
            return response

        sent = form({"action": "opened", "issue": {"id": 1}})
        assert deliver(app, "github", "issues.opened", **sent).status_code == 200
        assert "payload" in seen[0][0]
        assert seen[1] == sent["body"]
        multipart = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n--x--\r\n'
        answer = deliver(
            app, "stripe", "a.b", body=multipart, headers={"Content-Type": "multipart/form-data; boundary=x"}
        )
        assert answer.status_code == 200
        assert seen[2][0] == {"a": "b"}
        assert [bytes(row.body) for row in rows(app, "bodies")] == [sent["body"], multipart]


def test_a_hook_of_the_host_that_answers_is_not_overruled(sqlite_url: str) -> None:
    """Maintenance pages and firewalls are the host's own business."""
    with build(sqlite_url, BOTH) as app:
        app.before_request(lambda: ("later", 503))
        assert deliver(app, "stripe", "customer.updated").status_code == 503
        assert rows(app, "events") == []


def test_the_hosts_limits_are_for_its_own_pages(sqlite_url: str) -> None:
    """A31, A33"""
    limits = {"MAX_CONTENT_LENGTH": 100, "MAX_FORM_MEMORY_SIZE": 50, "MAX_FORM_PARTS": 1}
    with build(sqlite_url, BOTH, **limits) as app:
        app.add_url_rule("/upload", "upload", lambda: str(len(request.get_data())), methods=["POST"])
        app.add_url_rule("/form", "form", lambda: str(len(request.form)), methods=["POST"])
        big = {"issue": {"id": 1, "body": "x" * 600_000}}
        assert deliver(app, "github", "issues.opened", **form(big)).status_code == 200
        assert deliver(app, "github", "issues.opened", body=json.dumps(big).encode()).status_code == 200
        assert app.test_client().post("/upload", data=b"x" * 101).status_code == 413
        field = {"data": {"a": "x" * 60}, "content_type": "multipart/form-data"}
        assert app.test_client().post("/form", **field).status_code == 413
        assert app.test_client().post("/upload", data=b"x" * 99).status_code == 200
        assert len(rows(app, "events")) == 2


def test_a_hook_of_the_host_may_read_a_large_multipart_form(sqlite_url: str) -> None:
    """A07, A31: the host's limits for parts and their size are not for deliveries."""
    part = b'--x\r\nContent-Disposition: form-data; name="f%d"\r\n\r\n%s\r\n'
    body = b"".join(part % (n, b"y" * 100_000) for n in range(20)) + b"--x--\r\n"
    with build(sqlite_url, BOTH, MAX_FORM_MEMORY_SIZE=1000, MAX_FORM_PARTS=2) as app:
        app.before_request(lambda: request.form and None)
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        assert deliver(app, "stripe", "a.b", body=body, headers=headers).status_code == 200
        assert [bytes(row.body) for row in rows(app, "bodies")] == [body]


def test_a_limit_of_the_host_above_ours_does_not_widen_ours(sqlite_url: str) -> None:
    """A33"""
    small = {"stripe": {**STRIPE, "max_body": 1024}}
    with build(sqlite_url, small, MAX_CONTENT_LENGTH=10_000_000) as app:
        answer = deliver(app, "stripe", "a.b", body=b"x" * 1025)
        assert (answer.status_code, answer.get_data()) == (413, b"too large\n")
        assert rows(app, "events") == []


def test_error_pages_of_the_host_do_not_replace_our_answers(sqlite_url: str) -> None:
    """A25, A89"""
    with build(sqlite_url, {"stripe": {**STRIPE, "max_body": 1024}}) as app:
        for code in (401, 404, 405, 413, 415, 500, 503):
            app.register_error_handler(code, lambda error: redirect("/sorry"))
        assert deliver(app, "stripe", "a.b", secret="whsec_of_nobody").status_code == 401
        assert deliver(app, "stripe", "a.b", body=b"x" * 2000).status_code == 413
        assert deliver(app, "stripe", "a.b", sent_headers={"Content-Encoding": "br"}).status_code == 415
        assert deliver(app, "stripe", "a.b").status_code == 200


def test_strict_settings_of_the_host_never_redirect(sqlite_url: str) -> None:
    """A25"""
    for strict in (True, False):
        for merge in (True, False):
            host = Flask("host")
            host.url_map.strict_slashes, host.url_map.merge_slashes = strict, merge
            with build(sqlite_url, BOTH, app=host) as app:
                for url, statuses in {
                    "/webhooks/stripe": {200},
                    "/webhooks/stripe/": {200},
                    "/webhooks//stripe": {200, 404},
                    "/webhooks/stripe//": {200, 404},
                }.items():
                    answer = deliver(app, "stripe", "a.b", url=url)
                    assert answer.status_code in statuses, url
                    assert "Location" not in answer.headers


def test_any_prefix_will_do(sqlite_url: str) -> None:
    for prefix in ("/", "/a/very/deep/place"):
        with build(sqlite_url, BOTH, prefix=prefix) as app:
            assert deliver(app, "stripe", "a.b", url=f"{prefix.rstrip('/')}/stripe").status_code == 200


# -- the URL that was signed


class SignedUrl:
    """Signs the URL alone, as Twilio does with more around it."""

    signs_body = signs_time = signs_id = False

    def verify(self, request: Request, secrets: Sequence[str], now: datetime | float) -> str:
        if request.headers.get("X-Signed") != f"{secrets[0]} {request.url}":
            raise SignatureError("mismatch")
        return secrets[0]

    def sign(self, request: Request, secret: str, now: datetime | float) -> Request:
        return request.with_headers({"X-Signed": f"{secret} {request.url}"})


@pytest.fixture
def url_signer(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a provider that signs URLs and is else like Stripe."""
    made: Provider = replace(providers.get("stripe"), name="signer", signature=SignedUrl())
    real = providers.get
    monkeypatch.setattr(providers, "get", lambda name: made if name == "signer" else real(name))
    return "signer"


PUBLIC = "https://hooks.example.test/webhooks/here?tenant=a%20b&note=it's&empty="


def knock(app: Flask, signed_url: str, **headers: str) -> int:
    secret = STRIPE["secrets"][0]
    body = json.dumps({"id": "evt_1", "type": "a.b"}).encode()
    path = "/webhooks/here?" + signed_url.partition("?")[2]
    answer = app.test_client().post(
        path,
        base_url="http://10.0.0.5:8000",
        data=body,
        headers={"X-Signed": f"{secret} {signed_url}", **headers},
    )
    return answer.status_code


def test_a_configured_public_url_is_what_counts_whatever_headers_say(
    sqlite_url: str, url_signer: str
) -> None:
    """A20, A22, A24 (as far as the spine goes)"""
    config = {**STRIPE, "provider": url_signer, "public_url": "https://hooks.example.test/"}
    with build(sqlite_url, {"here": config}) as app:
        assert knock(app, PUBLIC) == 200
        assert knock(app, PUBLIC, **{"X-Forwarded-Host": "other.example.test"}) == 200
        other = PUBLIC.replace("hooks.example.test", "other.example.test")
        assert (
            knock(app, other, **{"X-Forwarded-Host": "other.example.test", "Host": "other.example.test"})
            == 401
        )
        assert knock(app, PUBLIC.replace("https", "http")) == 401


def test_forwarded_headers_count_only_behind_a_proxy_that_somebody_configured(
    sqlite_url: str, url_signer: str
) -> None:
    """A24"""
    forwarded = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "hooks.example.test"}
    with build(sqlite_url, {"here": {**STRIPE, "provider": url_signer}}) as app:
        assert knock(app, PUBLIC, **forwarded) == 401
        assert (
            knock(app, PUBLIC.replace("https://hooks.example.test", "http://10.0.0.5:8000"), **forwarded)
            == 200
        )
        app.wsgi_app = ProxyFix(app.wsgi_app, x_proto=1, x_host=1)  # type: ignore[method-assign]
        assert knock(app, PUBLIC, **forwarded) == 200
        assert knock(app, PUBLIC, **{**forwarded, "X-Forwarded-Host": "other.example.test"}) == 401


def test_forged_forwarded_headers_do_not_harm_a_genuine_delivery(sqlite_url: str) -> None:
    """A24"""
    with build(sqlite_url, BOTH) as app:
        headers = {
            "X-Forwarded-Host": "other.example.test",
            "X-Forwarded-For": "1.2.3.4",
            "Forwarded": "host=x",
        }
        assert deliver(app, "stripe", "a.b", sent_headers=headers).status_code == 200


# -- bodies on the wire


@contextmanager
def werkzeug(app: Flask) -> Iterator[int]:
    """The development server, in a thread."""
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def talk(port: int, *pieces: bytes, until_closed: bool = True) -> bytes:
    """Send these bytes and return what comes back, up to the end of the first answer's head."""
    with closing(socket.create_connection(("127.0.0.1", port), timeout=30)) as connection:
        for piece in pieces:
            connection.sendall(piece)
        said = b""
        while b"\r\n\r\n" not in said:
            more = connection.recv(65536)
            if not more:
                break
            said += more
        return said


def head(delivery: Request, *lines: str) -> bytes:
    headers = [f"{name}: {value}" for name, value in delivery.headers.items()]
    return "\r\n".join(
        ["POST /webhooks/stripe HTTP/1.1", "Host: localhost", *headers, *lines, "", ""]
    ).encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def chunked(delivery: Request) -> Iterator[bytes]:
    """The delivery in three chunks, one of them cut inside a character."""
    cut = delivery.body.index("é".encode()) + 1
    yield head(delivery, "Transfer-Encoding: chunked")
    for part in (delivery.body[:7], delivery.body[7:cut], delivery.body[cut:]):
        yield chunk(part)
    yield b"0\r\n\r\n"


def a_delivery(id_: str = "evt_1") -> Request:
    thing = {**CUSTOMER, "name": "café"}
    return signed(providers.get("stripe"), STRIPE["secrets"][0], "customer.updated", id=id_, object=thing)


def test_a_chunked_body_through_werkzeugs_server(sqlite_url: str) -> None:
    """A05"""
    delivery = a_delivery()
    with build(sqlite_url, BOTH) as app, werkzeug(app) as port:
        assert b" 200 OK\r\n" in talk(port, *chunked(delivery))
        assert [bytes(row.body) for row in rows(app, "bodies")] == [delivery.body]


@pytest.mark.parametrize("value", ["chunked", "Chunked", "CHUNKED", "gzip, Chunked"])
def test_a_chunked_body_that_the_server_does_not_end_is_told_of(sqlite_url: str, value: str) -> None:
    """A05: it would read as empty, and that as a wrong signature."""
    with build(sqlite_url, BOTH) as app:
        answer = app.test_client().post("/webhooks/stripe", headers={"Transfer-Encoding": value})
        assert (answer.status_code, answer.get_data()) == (411, b"")
        assert rows(app, "events") == []


def test_a_chunked_body_over_the_limit_is_cut_off(sqlite_url: str) -> None:
    """A33"""
    delivery = signed(providers.get("stripe"), STRIPE["secrets"][0], "a.b", body=b"x" * 3000)
    with build(sqlite_url, {"stripe": {**STRIPE, "max_body": 1024}}) as app, werkzeug(app) as port:
        said = talk(
            port, head(delivery, "Transfer-Encoding: chunked"), *[chunk(b"x" * 500)] * 6, b"0\r\n\r\n"
        )
        assert said.startswith(b"HTTP/1.1 413 ")
        assert rows(app, "events") == []


def test_a_body_over_the_limit_is_refused_before_it_is_sent(sqlite_url: str) -> None:
    """A33: the answer comes although not one byte of the body has."""
    delivery = a_delivery()
    limit = 1024 * 1024
    with build(sqlite_url, {"stripe": {**STRIPE, "max_body": limit}}) as app, werkzeug(app) as port:
        said = talk(port, head(delivery, f"Content-Length: {limit + 1}"))
        assert said.startswith(b"HTTP/1.1 413 ")
        assert rows(app, "events") == []


def test_a_delivery_that_is_cut_off_is_not_recorded(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    delivery = a_delivery()
    with build(sqlite_url, BOTH) as app:
        with werkzeug(app) as port:
            for ending in (f"Content-Length: {len(delivery.body)}", "Transfer-Encoding: chunked"):
                with closing(socket.create_connection(("127.0.0.1", port), timeout=30)) as connection:
                    connection.sendall(head(delivery, ending) + b"5\r\n" + delivery.body[:20])
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):
                        pass
        assert rows(app, "events") == []


GRANIAN = """
from tests.apps import GITHUB, STRIPE
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from webhooks import Webhooks

app = Flask("served", instance_path={folder!r})
app.config.from_mapping(
    SQLALCHEMY_DATABASE_URI={url!r},
    WEBHOOKS={{"stripe": {{**STRIPE, "max_body": 1024 * 1024}}, "github": GITHUB}},
    CELERY={{"broker_url": "memory://"}},
)
db, webhooks = SQLAlchemy(app), Webhooks(app)
app.register_blueprint(webhooks.blueprint, url_prefix="/webhooks")
with app.app_context():
    db.create_all()
"""


@contextmanager
def granian(folder: Path, url: str) -> Iterator[int]:
    """The server of the reference deployment, as a process."""
    pytest.importorskip("granian")
    (folder / "served.py").write_text(GRANIAN.format(folder=str(folder), url=url))
    port = free_port()
    path = os.pathsep.join([str(folder), str(Path(__file__).parent.parent)])
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "granian",
            "--interface",
            "wsgi",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--workers",
            "1",
            "--no-ws",
            "served:app",
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            assert process.poll() is None
            try:
                if talk(port, b"GET /webhooks/stripe HTTP/1.1\r\nHost: x\r\n\r\n").startswith(
                    b"HTTP/1.1 200"
                ):
                    break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(30)


def test_bodies_of_every_shape_through_granian(sqlite_url: str, tmp_path: Path) -> None:
    """A05, A25, A26, A33, A90: the server that the reference deployment uses."""
    with granian(tmp_path, sqlite_url) as port:
        plain, pieces, early = a_delivery("evt_1"), a_delivery("evt_2"), a_delivery("evt_3")
        said = talk(port, head(plain, f"Content-Length: {len(plain.body)}"), plain.body)
        assert said.startswith(b"HTTP/1.1 200 ")
        assert b"location" not in said.lower()
        assert talk(port, *chunked(pieces)).startswith(b"HTTP/1.1 200 ")
        assert talk(port, head(early, f"Content-Length: {1024 * 1024 + 1}"), b"x" * 10).startswith(
            b"HTTP/1.1 413 "
        )
        too_much = [chunk(b"x" * 65536)] * 17
        assert talk(port, head(early, "Transfer-Encoding: chunked"), *too_much, b"0\r\n\r\n").startswith(
            b"HTTP/1.1 413 "
        )
        compressed = head(early, f"Content-Length: {len(early.body)}", "Content-Encoding: gzip")
        assert talk(port, compressed, early.body).startswith(b"HTTP/1.1 415 ")
        assert talk(port, head(early, "Content-Length: 0")).startswith(b"HTTP/1.1 401 ")
        assert talk(port, b"HEAD /webhooks/github HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 200 ")
        assert talk(port, b"PUT /webhooks/github HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 405 ")
        not_ascii = head(early, f"Content-Length: {len(early.body)}").replace(b"v1=", b"v1=\xe9")
        assert talk(port, not_ascii, early.body).startswith((b"HTTP/1.1 401 ", b"HTTP/1.1 400 "))
    with build(sqlite_url, BOTH) as app:
        assert [bytes(row.body) for row in rows(app, "bodies")] == [plain.body, pieces.body]


# -- within the request


def test_an_app_without_a_worker_applies_within_the_request(database_url: str) -> None:
    """The same path, the same ledger; what fails is left to the sweep, and the answer is 200 all the same."""
    webhooks, seen = Webhooks(), []

    @webhooks.on("stripe", "customer.updated")
    def note(event: Any, customer: Any) -> None:
        seen.append((event.dedup_key, customer))
        if event.dedup_key == "evt_bad":
            raise RuntimeError

    with build(
        database_url, {"stripe": {**STRIPE, "fetch": False, "apply": "request"}}, webhooks=webhooks
    ) as app:
        for id_ in ("evt_1", "evt_bad", "evt_1"):
            answer = deliver(
                app, "stripe", "customer.updated", id=id_, object={**CUSTOMER, "id": f"cus_{id_}"}
            )
            assert (answer.status_code, answer.get_data()) == (200, b"")
        assert [id_ for id_, _ in seen] == ["evt_1", "evt_bad"]
        assert [(row.state, row.outcome) for row in rows(app, "events")] == [
            ("applied", "applied"),
            ("pending", "handler_failed"),
        ]
        assert len(rows(app, "processed_events")) == 1


def test_an_api_that_is_slower_than_the_deadline_is_left_to_the_worker(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "webhooks.receiving.UNKNOWN_DEADLINE", timedelta(seconds=1.0)
    )  # less the margin: no time at all
    with build(sqlite_url, {"stripe": {**STRIPE, "apply": "request"}}) as app:
        assert deliver(app, "stripe", "customer.updated").status_code == 200
        (event,) = rows(app, "events")
        assert (event.state, event.outcome) == ("pending", "handler_failed")
        assert "no time left" in event.error
        assert state(app).apis.calls == 0


def test_apply_is_not_hindered_by_an_open_request_of_the_host(sqlite_url: str) -> None:
    """The inbox has its own connection: a host that leaves its session in a mess loses nothing of ours."""
    db = SQLAlchemy()
    with build(sqlite_url, BOTH, db=db) as app:

        @app.before_request
        def mess() -> None:
            db.session.execute(db.text("SELECT * FROM webhook_events"))

        @app.teardown_request
        def roll_back(_error: BaseException | None) -> None:
            db.session.rollback()

        assert deliver(app, "stripe", "customer.updated").status_code == 200
        apply(app)
        assert [row.outcome for row in rows(app, "events")] == ["applied"]


def test_post_is_what_deliveries_use(sqlite_url: str) -> None:
    """A26: the same signed request with another method is none."""
    with build(sqlite_url, BOTH) as app:
        delivery = a_delivery()
        for method, status in {"GET": 200, "HEAD": 200, "PUT": 405, "DELETE": 405}.items():
            assert post(app, "/webhooks/stripe", replace(delivery, method=method)).status_code == status
        assert rows(app, "events") == []
