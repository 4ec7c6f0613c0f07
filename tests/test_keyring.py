"""Secrets that come from files and functions, and are renewed while the app runs."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.apps import STRIPE, build, deliver, rows
from webhooks import ConfigError, endpoints
from webhooks.cli import cli
from webhooks.extension import state
from webhooks.keyring import Keyring
from webhooks.signatures import fingerprint

OLD, NEW, NEWER = "whsec_the_old_secret_00", "whsec_the_new_secret_00", "whsec_the_newer_secret_0"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and functions are looked at every time."""
    monkeypatch.setattr("webhooks.keyring.LOOK", timedelta(0))
    monkeypatch.setattr("webhooks.keyring.ASK", timedelta(0))


def swap(path: Path, text: str) -> None:
    """As a secrets mount does it: a new file under the old name."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def stripe(*secrets: Any) -> dict[str, Any]:
    return {"stripe": {**STRIPE, "fetch": False, "secrets": list(secrets)}}


def accepts(app: Any, *secrets: str) -> list[bool]:
    return [deliver(app, "stripe", "customer.updated", secret=one).status_code == 200 for one in secrets]


def test_a_secret_in_a_file_is_renewed_without_a_restart(sqlite_url: str, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(OLD + "\n")
    with build(sqlite_url, stripe({"file": str(path)})) as app:
        assert accepts(app, OLD, NEW) == [True, False]
        swap(path, f"{NEW}\n{OLD}\n")  # the current one first
        assert accepts(app, OLD, NEW) == [True, True]
        swap(path, NEW)
        assert accepts(app, OLD, NEW) == [False, True]


@pytest.mark.parametrize("bad", [None, "", " \n\n", "sk_live_of_the_api"])
def test_a_file_that_is_gone_or_bad_leaves_the_last_good_secret(
    sqlite_url: str, tmp_path: Path, bad: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "secret"
    path.write_text(OLD)
    with build(sqlite_url, stripe({"file": str(path)})) as app:
        assert accepts(app, OLD) == [True]
        path.unlink() if bad is None else swap(path, bad)
        assert accepts(app, OLD, "", " ") == [True, False, False]
        assert caplog.text.count("the last good ones are still used") == 1
        swap(path, NEW)
        assert accepts(app, OLD, NEW) == [False, True]
        assert "is good again" in caplog.text
    for secret in (OLD, NEW, "sk_live"):
        assert secret not in caplog.text


def test_a_function_is_asked_for_the_secret(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    said: Any = OLD

    def secret() -> Any:
        if isinstance(said, Exception):
            raise said
        return said

    with build(sqlite_url, stripe(secret)) as app:
        assert accepts(app, OLD) == [True]
        said = [NEW, OLD]
        assert accepts(app, OLD, NEW) == [True, True]
        said = RuntimeError(f"no vault at {NEWER}")
        assert accepts(app, OLD, NEW, NEWER) == [True, True, False]
        said = ["", NEWER]
        assert accepts(app, "", NEWER, NEW) == [False, False, True]
        said = NEWER
        assert accepts(app, NEWER, NEW) == [True, False]
    assert NEWER not in caplog.text


def test_without_any_secret_the_answer_is_503_and_never_401(sqlite_url: str) -> None:
    """A 401 would make a provider give up, and it is not to blame."""

    def secret() -> str:
        raise OSError

    with build(sqlite_url, stripe(secret)) as app:
        answer = deliver(app, "stripe", "customer.updated", secret=OLD)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "30")
        assert rows(app, "events") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, r"secrets\[0\]: its file cannot be had \(FileNotFoundError\)"),
        ("\n", r"secrets\[0\]: its file is empty"),
    ],
)
def test_a_file_without_a_secret_stops_the_start(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "secret"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        endpoints.read(stripe({"file": str(path)}))


@pytest.mark.parametrize(
    "wrong", [{"file": ""}, {"path": "x"}, {"file": 7}, {"file": "x", "more": 1}, 7.5, None]
)
def test_what_is_neither_is_named(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="secrets"):
        endpoints.read(stripe(wrong))


def test_a_single_one_needs_no_list(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(OLD)
    for given in ({"file": str(path)}, lambda: OLD, OLD):
        (found,) = endpoints.read({"stripe": {**STRIPE, "secrets": given}}).values()
        assert found.secrets == (OLD,)
        assert OLD not in repr(found)


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[Path]]:
    path, reads = tmp_path / "secret", []
    path.write_text(OLD)
    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda self, *a, **k: (reads.append(self), read(self, *a, **k))[1])
    return path, reads


def test_a_file_is_read_when_it_has_changed_and_not_otherwise(counted: tuple[Path, list[Path]]) -> None:
    path, reads = counted
    ring = Keyring("here", [path], lambda _: None)
    assert [ring.current() for _ in range(10)] == [(OLD,)] * 10
    assert len(reads) == 1
    os.utime(path, ns=(1, 1))
    assert ring.current() == (OLD,)
    assert len(reads) == 2


def test_status_says_when_each_secret_was_last_used(database_url: str) -> None:
    with build(database_url, stripe(NEW, OLD)) as app:
        before = datetime.now(UTC) - timedelta(minutes=1)
        assert accepts(app, OLD, OLD, NEWER) == [True, True, False]
        (found,) = json.loads(app.test_cli_runner().invoke(cli, ["status", "--json"]).output)["endpoints"]
        new, old = found["secrets"]
        assert (new["fingerprint"], new["last_used_at"]) == (fingerprint(NEW), None)
        assert old["fingerprint"] == fingerprint(OLD)
        assert datetime.fromisoformat(old["last_used_at"]) > before
        shown = app.test_cli_runner().invoke(cli, ["status"]).output
        assert f"secret 1 of 2 ({fingerprint(NEW)}) was never used" in shown
        assert f"secret 2 of 2 ({fingerprint(OLD)}) was last used" in shown


def test_the_use_of_a_secret_is_noted_once_a_minute_and_not_with_every_delivery(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with build(sqlite_url, stripe(OLD, NEW)) as app:
        noted: list[str] = []
        monkeypatch.setattr(state(app).inbox, "note_use", lambda _endpoint, secret: noted.append(secret))
        assert accepts(app, OLD, OLD, NEW, OLD, NEW) == [True] * 5
        assert noted == [fingerprint(OLD), fingerprint(NEW)]
