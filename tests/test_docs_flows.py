"""The code on the pages about effects, flows and answers runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask

from webhooks import Refuse
from webhooks.extension import state
from webhooks.testing import Simulator

PAGES = Path(__file__).parent.parent / "docs" / "how-to"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run(page: str) -> dict[str, Any]:
    """All blocks of a page, one after the other."""
    names: dict[str, Any] = {"__name__": f"docs.{page}"}
    blocks = BLOCK.findall((PAGES / f"{page}.md").read_text())
    assert blocks
    exec(compile("\n".join(blocks), f"{page}.md", "exec"), names)
    return names


def make_app(names: dict[str, Any], url: str, folder: Path, endpoints: dict[str, Any]) -> Flask:
    app = Flask("docs", instance_path=str(folder))
    app.config.update(SQLALCHEMY_DATABASE_URI=url, WEBHOOKS=endpoints, CELERY={"broker_url": "memory://"})
    names["db"].init_app(app)
    names["webhooks"].init_app(app)
    app.register_blueprint(names["webhooks"].blueprint, url_prefix="/webhooks")
    with app.app_context():
        names["db"].create_all()
    return app


def close(app: Flask, names: dict[str, Any]) -> None:
    state(app).inbox.close_connections()
    with app.app_context():
        names["db"].session.remove()
        names["db"].engine.dispose()


def play(app: Flask, simulator: Simulator) -> None:
    simulator._send = lambda request: (
        app.test_client()
        .post("/webhooks/stripe", data=request.body, headers=dict(request.headers))
        .status_code
    )
    simulator.deliver(all_due=True)
    state(app).applier.drain()
    state(app).caller.drain()


def test_the_page_about_effects(sqlite_url: str, tmp_path: Path) -> None:
    names = run("effects")
    with Simulator("stripe") as stripe:
        app = make_app(names, sqlite_url, tmp_path, {"stripe": stripe.config})
        stripe.create("customer", email="ada@example.test")
        key = stripe.create(
            "checkout.session", metadata={"order": 42, "email": "ada@example.test"}, silent=True
        )
        stripe.emit("checkout.session.completed", key)
        stripe.emit("checkout.session.completed", key)
        play(app, stripe)
    assert [to for _, to in names["sent"]] == ["ada@example.test"] * 2, "one welcome, one receipt of order 42"
    close(app, names)


def test_the_page_about_flows(sqlite_url: str, tmp_path: Path) -> None:
    names = run("flows")
    with Simulator("stripe") as stripe:
        app = make_app(names, sqlite_url, tmp_path, {"stripe": stripe.config})
        key = stripe.create("checkout.session", silent=True, payment_status="paid", payment_intent="pi_1")
        with app.app_context():
            assert names["success_page"](key[2]) == "Thank you!"
        stripe.world.put(("", "payment_intent", "pi_1"), {"id": "pi_1", "object": "payment_intent"})
        stripe.emit("payment_intent.succeeded", ("", "payment_intent", "pi_1"))
        play(app, stripe)
        with app.app_context():
            shipped = [row.order for row in names["db"].session.query(names["Shipment"])]
            parcels = [row.order for row in names["db"].session.query(names["Parcel"])]
    assert (shipped, parcels) == ([key[2]], ["pi_1"])
    close(app, names)


def test_the_page_about_answers(sqlite_url: str, tmp_path: Path) -> None:
    names = run("answers")
    secret = "v1,whsec_QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY="
    app = make_app(names, sqlite_url, tmp_path, {"supabase": {"secrets": [secret], "fetch": False}})
    with app.app_context():
        state(app).check()

    event = SimpleNamespace(data={"user": {"email": "zoe@elsewhere.test"}, "claims": {"sub": "x"}})
    with pytest.raises(Refuse, match="Only people"):
        names["admit"](event)
    assert names["claims"](event) == {"claims": {"sub": "x", "tenant": 7}}
    close(app, names)
