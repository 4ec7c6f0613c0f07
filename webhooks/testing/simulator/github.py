"""GitHub's API as far as the provider file uses it: issues and pull requests of one repository, one hook and its log."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, ClassVar

from ... import jsontext
from ...provider import Request, Sample
from ...providers.github import sample
from .world import Answer, Attempt, Call, Happening, Key, World

__all__ = ["service"]

REPOSITORY = "acme/widgets"
PATHS = {"issue": "issues", "pull_request": "pulls"}
EVENTS = {"issue": "issues", "pull_request": "pull_request"}
ACTIONS = {"created": "opened", "updated": "edited", "deleted": "deleted"}


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class GithubService:
    """One repository with one hook."""

    settings: ClassVar[dict[str, str]] = {
        "token": "ghp_simulated",
        "repositories": REPOSITORY,
        "hook_id": "1",
    }
    kinds = ("issue", "pull_request")
    secret = "simulated github secret"  # noqa: S105 - a made-up one
    account = ""

    def new(self, world: World, kind: str, id_: str, fields: dict[str, Any]) -> dict[str, Any]:
        """The first state of an object."""
        at = _text(world.clock())
        return {
            "id": int(id_),
            "number": int(id_) % 100_000,
            "state": "open",
            "created_at": at,
            "updated_at": at,
            **fields,
        }

    def id_of(self, kind: str, number: int) -> str:
        return str(9_007_199_254_700_000 + number)  # beyond what a float holds

    def changed(self, world: World, data: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
        """Its next state."""
        return {**data, "updated_at": _text(world.clock()), **fields}

    def event_type(self, kind: str, what: str, data: dict[str, Any]) -> str:
        return f"{EVENTS[kind]}.{ACTIONS.get(what, what)}"

    def signed_at(self, happening: Happening, now: datetime) -> datetime:
        return now

    def deletable(self, kind: str) -> bool:
        return kind == "issue"

    def request(
        self, happening_id: str, type_: str, at: datetime, key: Key, snapshot: dict[str, Any]
    ) -> Request:
        """The delivery of one event, unsigned."""
        return sample(Sample(type_, happening_id, at, snapshot, key[0]))

    def answer(self, world: World, call: Call) -> Answer:
        if call.headers.get("Authorization") != f"Bearer {self.settings['token']}":
            return Answer(401, {"message": "Bad credentials"})
        path = call.path.removeprefix(f"/repos/{REPOSITORY}")
        if path == call.path:
            return _missing()
        if path == "/hooks":
            return Answer(
                200, [_hook("1", world.url, world.subscribed, active=world.enabled), *_others(world)]
            )
        if path.startswith("/hooks/1"):
            return self._hook(world, call, path.removeprefix("/hooks/1"))
        match = re.fullmatch(r"/(issues|pulls)(?:/(\d+))?", path)
        if match is None:
            return Answer(200, []) if path.endswith("/comments") else _missing()
        kind = "issue" if match[1] == "issues" else "pull_request"
        return self._one(world, kind, int(match[2])) if match[2] else self._list(world, call, kind)

    def _one(self, world: World, kind: str, number: int) -> Answer:
        for key in list(world.history):
            known, data = world.shown(key)
            if key[1] == kind and known and int(key[2]) % 100_000 == number:
                # Who may read the repository is told that an issue was deleted; everybody else gets a 404.
                return (
                    Answer(200, data)
                    if data is not None
                    else Answer(410, {"message": "This issue was deleted"})
                )
        return _missing()

    def _list(self, world: World, call: Call, kind: str) -> Answer:
        items = sorted(world.objects("", kind), key=lambda item: (item["updated_at"], item["id"]))
        if call.one("since"):
            items = [item for item in items if item["updated_at"] >= call.one("since")]
        if call.one("state", "open") != "all":
            items = [item for item in items if item["state"] == call.one("state", "open")]
        if call.one("direction", "desc") == "desc":
            items.reverse()
        size, page = int(call.one("per_page", "30")), int(call.one("page", "1"))
        return Answer(200, items[(page - 1) * size : page * size])

    # -- the hook and its delivery log

    def _hook(self, world: World, call: Call, path: str) -> Answer:
        if path == "" and call.method == "PATCH":
            world.enabled = world.enabled or jsontext.loads(call.body).get("active") is True
        if path == "":
            last = world.attempts[-1].http_status if world.attempts else None
            hook = {
                "id": 1,
                "active": world.enabled,
                "config": {"content_type": "json"},
                "last_response": {"code": last},
            }
            return Answer(200, hook)
        if path == "/deliveries":
            return self._log(world, call)
        match = re.fullmatch(r"/deliveries/(\d+)(/attempts)?", path)
        found = next((a for a in world.attempts if match and a.id == int(match[1])), None)
        if match is None or found is None:
            return _missing()
        if match[2]:
            world.again(found.happening)
            return Answer(202, {})
        headers = dict(found.happening.request.headers)
        payload = jsontext.loads(found.happening.request.body)
        return Answer(
            200, {**_row(found), "request": {"headers": headers, "payload": payload}, "response": {}}
        )

    def _log(self, world: World, call: Call) -> Answer:
        rows = list(reversed(world.attempted()))
        size, start = int(call.one("per_page", "30")), int(call.one("cursor", "0"))
        headers = {}
        if start + size < len(rows):
            base = f"http://{call.headers.get('Host')}{call.path}"
            headers["Link"] = f'<{base}?per_page={size}&cursor={start + size}>; rel="next"'
        return Answer(200, [_row(attempt) for attempt in rows[start : start + size]], headers)


def _hook(id_: str, url: str, events: Iterable[str], *, active: bool) -> dict[str, Any]:
    where = {"url": url or "https://example.test/webhooks/github", "content_type": "json"}
    return {"id": int(id_), "active": active, "events": list(events), "config": where}


def _others(world: World) -> list[dict[str, Any]]:
    return [_hook(other.id, other.url, other.types, active=True) for other in world.others]


def _row(attempt: Attempt) -> dict[str, Any]:
    event, _, action = attempt.happening.type.partition(".")
    return {
        "id": attempt.id,
        "guid": attempt.happening.id,
        "delivered_at": _text(attempt.at),
        "redelivery": attempt.redelivery,
        "status": "OK"
        if attempt.ok
        else "Unable to connect"
        if attempt.http_status is None
        else "Invalid HTTP Response",
        "status_code": attempt.http_status or 0,
        "event": event,
        "action": action or None,
    }


def _missing() -> Answer:
    return Answer(404, {"message": "Not Found"})


service = GithubService()
