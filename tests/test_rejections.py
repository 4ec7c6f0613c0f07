"""What was refused and was genuine after all: kept where that is asked for, within bounds, and checked again."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import text

from tests.apps import GITHUB, STRIPE, apply, build, deliver, post, rows, signed
from webhooks.cli import cli
from webhooks.extension import state
from webhooks.inbox import rejections as module

WRONG, RIGHT = "whsec_a_typing_mistake", STRIPE["secrets"][0]
DAY = 86400


def stripe(secret: str, **options: Any) -> dict[str, Any]:
    return {"stripe": {**STRIPE, "fetch": False, "secrets": [secret], **options}}


def command(app: Flask, *arguments: str) -> Any:
    found = app.test_cli_runner().invoke(cli, [*arguments, "--json"])
    assert found.exit_code == 0, found.output
    return json.loads(found.output)


def refuse_two(url: str, **options: Any) -> None:
    """Two genuine deliveries meet a wrong secret, one of them twice, and a stranger's comes in between."""
    with build(url, stripe(WRONG, **options)) as app:
        for id_ in ("evt_1", "evt_2", "evt_1"):
            assert deliver(app, "stripe", "customer.updated", id=id_, secret=RIGHT).status_code == 401
        assert (
            deliver(app, "stripe", "customer.updated", id="evt_x", secret="whsec_stranger00").status_code
            == 401
        )


def test_after_the_secret_was_mended_genuine_deliveries_are_recorded_once(database_url: str) -> None:
    refuse_two(database_url, keep_refused=DAY)
    with build(database_url, stripe(RIGHT, keep_refused=DAY)) as app:
        came = [row.received_at for row in rows(app, "rejections")]
        dry = command(app, "reverify", "stripe", "--dry-run")
        assert (dry["genuine"], len(rows(app, "events"))) == (3, 0)
        done = command(app, "reverify", "stripe")
        assert done == {
            "endpoint": "stripe",
            "dry_run": False,
            "checked": 4,
            "genuine": 3,
            "recorded": 2,
            "still_refused": {"mismatch": 1},
            "not_kept": 0,
        }
        found = rows(app, "events")
        assert [(row.dedup_key, row.origin, row.deliveries, row.received_at) for row in found] == [
            ("evt_1", "delivery", 2, came[0]),
            ("evt_2", "delivery", 1, came[1]),
        ]
        apply(app)
        assert {row.state for row in rows(app, "events")} == {"applied"}
        again = command(app, "reverify", "stripe")
        assert (again["checked"], again["genuine"], again["recorded"]) == (1, 0, 0)
        assert [row.deliveries for row in rows(app, "events")] == [2, 1]


def test_by_default_no_body_is_kept_and_reverify_says_how_many_cannot_be_checked(sqlite_url: str) -> None:
    refuse_two(sqlite_url)
    with build(sqlite_url, stripe(RIGHT)) as app:
        assert {row.body for row in rows(app, "rejections")} == {None}
        assert (
            command(app, "reverify", "stripe")["checked"],
            command(app, "reverify", "stripe")["not_kept"],
        ) == (0, 4)
        shown = app.test_cli_runner().invoke(cli, ["reverify", "stripe"]).output
        assert "4 more cannot be checked" in shown
        assert "flask webhooks recover stripe" in shown


def test_it_is_the_time_of_receipt_that_counts(sqlite_url: str) -> None:
    """Checked much later, Stripe's five minutes are long over; what was stale when it came stays refused."""
    refuse_two(sqlite_url, keep_refused=DAY)
    with build(sqlite_url, stripe(RIGHT, keep_refused=DAY)) as app:
        with state(app).inbox.engine.begin() as connection:
            connection.execute(
                text("UPDATE webhook_rejections SET received_at = '2026-11-01 00:00:00.000000' WHERE id = 2")
            )
        done = command(app, "reverify", "stripe")
        assert done["still_refused"] == {"clock": 1, "mismatch": 1}
        assert [row.dedup_key for row in rows(app, "events")] == ["evt_1"]


def test_only_what_the_check_needs_is_kept_beside_the_body(sqlite_url: str) -> None:
    with build(sqlite_url, stripe(WRONG, keep_refused=DAY)) as app:
        more = {"Cookie": "session=1", "Authorization": "Bearer x", "X-Forwarded-For": "10.0.0.1"}
        deliver(app, "stripe", "customer.updated", secret=RIGHT, sent_headers=more)
        (row,) = rows(app, "rejections")
        assert set(row.headers) == {"Stripe-Signature", "Content-Type", ":method", ":url"}


def test_what_nobody_signed_is_never_kept(sqlite_url: str) -> None:
    with build(sqlite_url, stripe(RIGHT, keep_refused=DAY, max_body=2048)) as app:
        deliver(app, "stripe", "customer.updated", sent_headers={"Stripe-Signature": None})
        deliver(app, "stripe", "customer.updated", sent_headers={"Stripe-Signature": "rubbish"})
        deliver(app, "stripe", "customer.updated", object={"id": "x" * 4000})
        assert [(row.reason, row.body) for row in rows(app, "rejections")] == [
            ("missing", None),
            ("malformed", None),
            ("too_large", None),
        ]


@pytest.mark.parametrize("bound", [("MAX_KEPT", 3), ("MAX_KEPT_BYTES", 1000), ("MAX_KEPT_BODY", 10)])
def test_a_flood_fills_no_more_than_its_room(
    sqlite_url: str, bound: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, limit = bound
    monkeypatch.setattr(module, name, limit)
    with build(sqlite_url, stripe(WRONG, keep_refused=DAY)) as app:
        for _ in range(80):
            assert deliver(app, "stripe", "customer.updated", secret=RIGHT).status_code == 401
        found = rows(app, "rejections")
        kept = [row.body for row in found if row.body is not None]
        assert len(found) == 60  # a minute's worth
        assert len(kept) <= 3 if name == "MAX_KEPT" else sum(map(len, kept)) <= limit
        assert bool(kept) == (name != "MAX_KEPT_BODY")


def test_bodies_expire_and_notes_stay(database_url: str) -> None:
    refuse_two(database_url, keep_refused=DAY)
    with build(database_url, stripe(RIGHT, keep_refused=DAY)) as app:
        assert state(app).purge()["refused_bodies"] == 0
        old = datetime.now(UTC) - timedelta(days=2)
        with state(app).inbox.transaction() as connection:
            r = state(app).tables.rejections
            connection.execute(r.update().where(r.c.id <= 2).values(received_at=old))
        assert state(app).purge()["refused_bodies"] == 2
        found = rows(app, "rejections")
        assert [(row.body is None, row.headers == {}) for row in found] == [(True, True)] * 2 + [
            (False, False)
        ] * 2
    with build(database_url, stripe(RIGHT)) as app:  # switched off: nothing is kept any longer
        assert state(app).purge()["refused_bodies"] == 2


def test_rejections_counts_reasons(sqlite_url: str) -> None:
    refuse_two(sqlite_url, keep_refused=DAY)
    with build(sqlite_url, {**stripe(RIGHT), "github": GITHUB}) as app:
        deliver(app, "github", "issues.opened", secret="of somebody")
        found = command(app, "rejections")
        assert [(row["endpoint"], row["reason"], row["deliveries"]) for row in found["counts"]] == [
            ("github", "mismatch", 1),
            ("stripe", "mismatch", 4),
        ]
        assert [row["body_kept"] for row in found["rejections"]] == [True] * 4 + [False]
        assert "body" not in found["rejections"][0]
        assert len(command(app, "rejections", "--endpoint", "github")["rejections"]) == 1


def test_a_scheme_that_signs_the_url_is_checked_under_the_same_one(sqlite_url: str) -> None:
    wrong = {"provider": "twilio", "secrets": ["0" * 32], "fetch": False, "keep_refused": DAY}
    right = {**wrong, "secrets": ["1" * 32]}
    with build(sqlite_url, {"twilio": wrong}) as app:
        endpoint = state(app).endpoints["twilio"]
        made = signed(endpoint.provider, "1" * 32, endpoint.provider.sample_types[0])
        at_home = type(made)(made.method, "http://localhost/webhooks/twilio", made.headers, made.body)
        again = endpoint.provider.signature.sign(at_home, "1" * 32, datetime.now(UTC))
        assert post(app, "/webhooks/twilio", again).status_code == 401
    with build(sqlite_url, {"twilio": right}) as app:
        assert command(app, "reverify", "twilio")["recorded"] == 1


def test_a_used_token_is_no_way_in(sqlite_url: str) -> None:
    """A85: Mailgun signs a token and not the body."""
    key, other = "key-0123456789abcdef0123456789abcdef", "key-ffffffffffffffffffffffffffffffff"
    config = {"provider": "mailgun", "fetch": False, "keep_refused": DAY}
    with build(sqlite_url, {"mailgun": {**config, "secrets": [other]}}) as app:
        good = signed(state(app).endpoints["mailgun"].provider, key, "delivered", id="the-event")
        forged = type(good)(
            good.method, good.url, good.headers, good.body.replace(b"the-event", b"another-1")
        )
        assert [post(app, "/webhooks/mailgun", one).status_code for one in (good, forged)] == [401, 401]
    with build(sqlite_url, {"mailgun": {**config, "secrets": [key]}}) as app:
        done = command(app, "reverify", "mailgun")
        assert (done["recorded"], done["still_refused"]) == (1, {"replayed": 1})
