"""The README's app does what the README says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from tests.apps import apply, deliver, rows

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_app_of_the_readme_ships_an_order_once_whatever_events_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLASK_CELERY__broker_url", "memory://")
    monkeypatch.setenv("FLASK_WEBHOOKS__stripe__fetch", "false")  # the provider is not there
    code = next(
        block
        for block in re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
        if "create_app" in block
    )
    shop: dict[str, Any] = {"__name__": "shop"}
    exec(compile(code, "README.md", "exec"), shop)
    app = shop["create_app"]()
    app.config["CELERY"] = {"broker_url": "memory://"}
    with app.app_context():
        shop["db"].create_all()
    session = {
        "id": "cs_1",
        "object": "checkout.session",
        "payment_status": "paid",
        "client_reference_id": "order 42",
        "customer_details": {"email": "ada@example.test"},
    }
    for type_ in ("checkout.session.completed", "checkout.session.async_payment_succeeded"):
        for _ in range(2):
            answer = deliver(app, "stripe", type_, id=f"evt_{type_}", object=session)
            assert answer.status_code == 200
    deliver(
        app, "stripe", "customer.updated", object={"id": "cus_1", "object": "customer", "email": "a@b.test"}
    )
    apply(app)
    with app.app_context():
        assert shop["db"].session.scalar(select(func.count()).select_from(shop["Shipment"])) == 1
        assert shop["db"].session.get(shop["Customer"], "cus_1").email == "a@b.test"
        shop["db"].session.remove()
        shop["db"].engine.dispose()
    assert [row.name for row in rows(app, "effects")] != []
    assert len(rows(app, "effects")) == 1
