"""What docs/how-to/scale.md says to set: it exists, and does what is said of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from webhooks.extension import state

from .apps import STRIPE, apply, build, deliver, rows

PAGE = (Path(__file__).parent.parent / "docs" / "how-to" / "scale.md").read_text()


def test_the_settings_of_the_tables_are_ones_that_postgresql_has(fresh_postgres: str) -> None:
    (settings,) = re.findall(r"^```sql\n(.+?)^```", PAGE, re.DOTALL | re.MULTILINE)
    with build(fresh_postgres, {"stripe": STRIPE}) as app, state(app).inbox.transaction() as connection:
        connection.exec_driver_sql(settings)
        set_on = connection.exec_driver_sql(
            "SELECT relname FROM pg_class WHERE reloptions::text LIKE '%%autovacuum%%' AND relkind = 'r' ORDER BY 1"
        )
        assert set_on.scalars().all() == ["webhook_bodies", "webhook_claims", "webhook_events"]


def prepared(app: Any) -> int:
    """Statements that the sessions of the door and of the pool hold prepared."""
    engine, door = state(app).inbox.engine, state(app).inbox._door._connection
    count = "SELECT count(*) FROM pg_prepared_statements"
    found = door.driver_connection.execute(count).fetchone()[0]
    with engine.connect() as connection:
        return int(found + connection.exec_driver_sql(count).scalar_one())


@pytest.mark.parametrize(
    ("options", "expected"), [({}, True), ({"connect_args": {"prepare_threshold": None}}, False)]
)
def test_one_setting_keeps_every_statement_from_being_prepared(
    fresh_postgres: str, options: dict[str, Any], expected: bool
) -> None:
    endpoint = {**STRIPE, "fetch": False}
    with build(fresh_postgres, {"stripe": endpoint}, SQLALCHEMY_ENGINE_OPTIONS=options) as app:
        for number in range(10):
            answer = deliver(app, "stripe", "customer.updated", id=f"evt_{number}")
            assert answer.status_code == 200
            apply(app)
        assert [row.state for row in rows(app, "events")] == ["applied"] * 10
        assert bool(prepared(app)) == expected
