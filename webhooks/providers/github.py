"""GitHub: signs the body only, never retries; its delivery log of three days holds headers and payloads."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import quote

from .. import jsontext
from ..errors import ApiRefused, NotFetchable, RetryLater, Unreadable
from ..provider import (
    Api,
    ApiSpec,
    Change,
    Envelope,
    Headers,
    Health,
    Json,
    LogEntry,
    ObjectRef,
    Policy,
    Provider,
    Rate,
    Redelivery,
    Request,
    Sample,
    Subscription,
    Version,
    as_text,
    dig,
    instant,
    listed,
    parts,
    path_segment,
    served,
    turn,
)
from ..signatures import HmacBody

__all__ = ["provider"]

OBJECTS: Mapping[str, tuple[str, str, str]] = {
    "issues": ("issue", "number", "/issues/{}"),
    "issue_comment": ("comment", "id", "/issues/comments/{}"),
    "pull_request": ("pull_request", "number", "/pulls/{}"),
    "pull_request_review_comment": ("comment", "id", "/pulls/comments/{}"),
    "release": ("release", "id", "/releases/{}"),
    "workflow_run": ("workflow_run", "id", "/actions/runs/{}"),
    "check_suite": ("check_suite", "id", "/check-suites/{}"),
}
"""Event → (the body's key that holds the object, the field in the path, where its repository's API serves it)."""

KINDS = {"issue_comment": "issue_comment", "pull_request_review_comment": "review_comment"}
"""Two events call their object `comment`, but the API serves them in different places."""

PAGE = 100
_FULL_NAME = re.compile(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+", re.ASCII)


def parse(request: Request) -> list[Envelope]:
    event = request.headers.get("X-GitHub-Event", "").strip()
    if not event:
        raise Unreadable("a GitHub delivery names its event in X-GitHub-Event")
    body = _payload(request)
    action = as_text(body.get("action"))
    key = request.headers.get("X-GitHub-Delivery", "").strip()
    ref, snapshot = _object(event, body)
    return [
        Envelope(
            key or "sha256:" + hashlib.sha256(request.body).hexdigest(),
            f"{event}.{action}" if action else event,
            body,
            object=ref,
            snapshot=snapshot,
            gone=action == "deleted" or body.get("deleted") is True or event == "delete",
            occurred_at=_time(event, body, snapshot),
            account=as_text(dig(body, "installation", "id")),
            correlation=as_text(dig(body, "after")) or as_text(dig(snapshot, "head", "sha")),
        )
    ]


def _payload(request: Request) -> dict[str, Any]:
    if request.content_type != "application/x-www-form-urlencoded":
        return request.document
    payload = dict(request.form).get("payload")
    if payload is None:
        raise Unreadable("a GitHub form delivery holds its JSON in `payload`")
    decoded = jsontext.loads(payload.encode())
    if not isinstance(decoded, dict):
        raise Unreadable("the payload is not a JSON object")
    return decoded


def _object(event: str, body: Mapping[str, Any]) -> tuple[ObjectRef | None, Json]:
    base = _repository_path(body)
    repository = as_text(dig(body, "repository", "id"))
    if event in OBJECTS:
        key, field, path = OBJECTS[event]
        snapshot, number = body.get(key), as_text(dig(body.get(key), field))
        id_ = as_text(dig(snapshot, "id")) or (f"{repository}/{number}" if number else "")
        where = base + path.format(number) if base and _is_number(number) else ""
        return (ObjectRef(KINDS.get(event, key), id_, where) if id_ else None), snapshot
    if event in {"push", "create", "delete"}:
        name = as_text(body.get("ref"))
        kind = "tags" if body.get("ref_type") == "tag" else "heads"
        full = name if name.startswith("refs/") else f"refs/{kind}/{name}"
        where = f"{base}/git/ref/{quote(full.removeprefix('refs/'))}" if base else ""
        snapshot = {"ref": full, "object": {"sha": body.get("after")}} if event == "push" else None
        return (ObjectRef("ref", f"{repository}:{full}", where) if name and repository else None), snapshot
    if event == "repository" and _is_number(repository):
        return ObjectRef("repository", repository, f"/repositories/{repository}"), body["repository"]
    installation = as_text(dig(body, "installation", "id"))
    if event == "installation" and _is_number(installation):
        ref = ObjectRef("installation", installation, f"/app/installations/{installation}")
        return ref, body["installation"]
    return None, None


def _is_number(id_: str) -> bool:
    return id_.isascii() and id_.isdigit() and len(id_) <= 20


def _repository_path(body: Mapping[str, Any]) -> str:
    name = as_text(dig(body, "repository", "full_name"))
    dots = {".", ".."} & set(name.split("/"))
    return f"/repos/{name}" if _FULL_NAME.fullmatch(name) and not dots else ""


def _time(event: str, body: Mapping[str, Any], snapshot: Json) -> datetime | None:
    if event == "push":
        # A push has the repository's times as integers where every other event has text.
        return instant(dig(body, "repository", "pushed_at"))
    return instant(dig(snapshot, "updated_at")) or instant(dig(snapshot, "created_at"))


def fetch(api: Api, ref: ObjectRef) -> Json | None:
    if not ref.path:
        raise NotFetchable("GitHub: the event does not say which repository it is about")
    if ref.kind == "installation" and not api.settings.get("app_jwt"):
        raise NotFetchable("GitHub: an installation is only shown to its app; set `app_jwt`")
    # Also answers for a renamed repository or a transferred issue: the API redirects, and we follow within its host.
    found = api.find(ref.path)
    # A transferred issue goes on under another id, and a name that was given up may be another repository's by now.
    id_ = as_text(dig(found, "id"))
    other = _is_number(ref.id) and id_ not in {ref.id, ""}
    if _is_number(ref.id) and not id_:
        served(found, ref.id)
    return None if other else found


def version(ref: ObjectRef, data: Json) -> Version | None:
    if ref.kind == "ref":
        return None
    return instant(dig(data, "updated_at")) or instant(dig(data, "published_at"))


LISTED = {
    "/issues": "issue",
    "/pulls": "pull_request",
    "/issues/comments": "issue_comment",
    "/pulls/comments": "review_comment",
}
"""Below a repository's path: what is listed by change → kind."""


def list_changed(api: Api, since: datetime) -> Iterator[Change]:
    """Issues, pull requests and comments of the configured repositories that were updated since. Misses releases, runs
    and refs (their lists know no such filter, use the delivery log) and deletions."""
    for listing, cursor in parts(api, [base + path for base in _repositories(api) for path in LISTED]):
        kind = LISTED[listing.removeprefix("/".join(listing.split("/")[:4]))]
        if kind == "pull_request":
            for item in _pulls_since(api, listing, since, cursor or 1):
                # A list entry lacks what the object has (mergeable, commits …), so it only says that there is something.
                yield Change(_ref(kind, item, f"{listing}/{item.get('number')}"), None, _updated(item))
            continue
        more = {"state": "all"} if kind == "issue" else {}
        for item in _updated_since(api, listing, since, cursor, **more):
            if "pull_request" in item:
                continue  # this list holds both; the other one is complete for pull requests
            id_ = item.get("number" if kind == "issue" else "id")
            yield Change(_ref(kind, item, f"{listing}/{id_}"), item, _updated(item))


def _ref(kind: str, item: Mapping[str, Any], path: str) -> ObjectRef:
    return ObjectRef(kind, as_text(item.get("id")), path)


def _updated(item: Mapping[str, Any]) -> datetime | None:
    return instant(item.get("updated_at"))


def _repositories(api: Api) -> list[str]:
    names = [name.strip() for name in api.settings.get("repositories", "").split(",") if name.strip()]
    if not names:
        raise NotFetchable("set `repositories` (owner/name, comma-separated) to reconcile with GitHub")
    return [f"/repos/{name}" for name in names]


def _updated_since(
    api: Api, path: str, since: datetime, begin: str | None = None, **params: Any
) -> Iterator[dict[str, Any]]:
    """Walk by time and not by page number: an item that changes meanwhile moves to the end and would shift the pages.

    Only where one second holds more than a page, pages are counted; that second is walked again until it brings nothing
    new, since one that left it would have shifted another one over the edge.
    """
    cursor, page, new = begin or since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), 1, False
    seen: set[tuple[str, str]] = set()
    keys: list[tuple[str, str]] = []
    while True:
        found = api.get(
            path, sort="updated", direction="asc", since=cursor, per_page=PAGE, page=page, **params
        )
        items, before = listed(found), keys
        keys = [(as_text(item.get("id")), as_text(item.get("updated_at"))) for item in items]
        if page > 1 and items and keys == before:
            raise RetryLater("GitHub's pages go in a circle")
        fresh = [item for item, key in zip(items, keys, strict=True) if key not in seen]
        yield from turn(api, fresh, path, keys[-1][1] if keys else cursor)
        seen.update(keys)
        new = new or bool(fresh)
        if len(items) == PAGE and keys[-1][1] == cursor:
            page += 1
        elif page > 1 and new:
            page, new = 1, False
        elif len(items) < PAGE:
            return
        else:
            cursor, page, new, seen = keys[-1][1], 1, False, set(keys)


def _pulls_since(api: Api, path: str, since: datetime, page: int) -> Iterator[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    while True:
        before = items
        found = api.get(path, state="all", sort="updated", direction="desc", per_page=PAGE, page=page)
        items = listed(found)
        if items and items == before:
            raise RetryLater("GitHub's pages go in a circle")
        recent = [item for item in items if (_updated(item) or since) >= since]
        yield from turn(api, recent, path, page + 1)
        if len(items) < PAGE or len(recent) < len(items):
            return
        page += 1


def list_events(api: Api, since: datetime) -> Iterator[LogEntry]:
    """The hook's delivery log, about three days, newest first. Misses events over 25 MB, which are never sent. Reading
    an entry costs one request."""
    hook = _hook_path(api)
    for item in _deliveries(api, hook, since):
        yield LogEntry(
            as_text(item.get("guid")),
            instant(item.get("delivered_at")),
            partial(_read, api, hook, as_text(item.get("id"))),
            delivered=item.get("status") == "OK",
        )


def _read(api: Api, hook: str, id_: str) -> list[Envelope]:
    logged = api.get(f"{hook}/deliveries/{path_segment(id_)}")
    sent = dig(logged, "request", "headers")
    headers = {name: as_text(value) for name, value in sent.items()} if isinstance(sent, dict) else {}
    # The payload is logged decoded, whatever content type it was sent with.
    headers = dict(Headers({**headers, "Content-Type": "application/json"}))
    request = Request("POST", "", headers, jsontext.dumps(dig(logged, "request", "payload")))
    return [replace(envelope, request=request) for envelope in parse(request)]


def _deliveries(api: Api, hook: str, since: datetime) -> Iterator[dict[str, Any]]:
    for page in api.pages(f"{hook}/deliveries", per_page=PAGE):
        for item in listed(page):
            if (instant(item.get("delivered_at")) or since) < since:
                return
            yield item


def _hook_path(api: Api) -> str:
    settings = api.settings
    if settings.get("hook_id") and settings.get("organization"):
        return f"/orgs/{path_segment(settings['organization'])}/hooks/{path_segment(settings['hook_id'])}"
    if settings.get("hook_id"):
        return f"{_repositories(api)[0]}/hooks/{path_segment(settings['hook_id'])}"
    if settings.get("app_jwt"):
        return "/app/hook"
    raise NotFetchable(
        "set `hook_id` with `repositories` or `organization`, or `app_jwt`, to read GitHub's delivery log"
    )


def redeliver(api: Api, since: datetime) -> Iterator[Redelivery]:
    """Ask for a new attempt of each event that no delivery since has brought to us."""
    hook = _hook_path(api)
    delivered: set[str] = set()
    failed: dict[str, dict[str, Any]] = {}
    for item in _deliveries(api, hook, since):
        if item.get("status") == "OK":
            delivered.add(as_text(item.get("guid")))
        else:
            failed.setdefault(as_text(item.get("guid")), item)
    for guid, item in failed.items():
        if guid not in delivered:
            api.post(f"{hook}/deliveries/{path_segment(as_text(item.get('id')))}/attempts")
            yield Redelivery(as_text(item.get("id")), guid, as_text(item.get("event")))


def endpoint_health(api: Api) -> Health:
    try:
        hook = _hook_path(api)
    except NotFetchable as reason:
        return Health("unknown", str(reason))
    if hook == "/app/hook":
        return _health_of(listed(next(iter(api.pages(f"{hook}/deliveries", per_page=PAGE)))))
    try:
        found = api.find(hook)
    except ApiRefused as refusal:
        return Health("unknown", refusal.reason, refusal.http_status)
    if found is None:
        return Health("missing", "GitHub has no such hook")
    if not found.get("active"):
        return Health("disabled", "the hook is not active")
    code = dig(found, "last_response", "code")
    return (
        Health("failing", f"the last delivery got {code}")
        if isinstance(code, int) and code >= 300
        else Health("enabled")
    )


def _health_of(deliveries: Iterable[Mapping[str, Any]]) -> Health:
    # An app's hook does not show its last response; its newest delivery does.
    newest = next(iter(deliveries), None)
    failed = newest is not None and newest.get("status") != "OK"
    return Health("failing", "the newest delivery failed") if failed else Health("enabled")


def subscriptions(api: Api) -> list[Subscription]:
    ours = _hook_path(api)
    if ours == "/app/hook":
        return []  # an app has one hook, and its configuration does not say which events it gets
    listed = ours.rpartition("/")[0]
    return [
        Subscription(
            as_text(hook.get("id")),
            as_text(dig(hook, "config", "url")),
            hook.get("active") is True,
            tuple("*" if event == "*" else f"{event}*" for event in map(as_text, hook.get("events") or [])),
            ours=as_text(hook.get("id")) == api.settings.get("hook_id"),
        )
        for page in api.pages(listed, per_page=PAGE)
        for hook in page
    ]


def enable(api: Api) -> None:
    hook = _hook_path(api)
    if hook == "/app/hook":
        raise NotFetchable("GitHub: an app's hook is switched on in the app's settings")
    api.send("PATCH", hook, {"active": True})


def sample(wanted: Sample) -> Request:
    event, _, action = wanted.type.partition(".")
    thing = dict(wanted.object or {"id": int.from_bytes(wanted.id.encode()[-6:]), "number": 1})
    name = thing.pop("repository", "acme/widgets")
    now = wanted.at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    body: dict[str, Any] = {
        "repository": {"id": 4711, "full_name": name, "owner": {"login": name.partition("/")[0]}}
    }
    if action:
        body["action"] = action
    if event in OBJECTS:
        body[OBJECTS[event][0]] = {"updated_at": now, **thing}
    elif event == "push":
        body |= {
            "ref": "refs/heads/main",
            "after": hashlib.sha256(wanted.id.encode()).hexdigest()[:40],
            "commits": [],
        }
        body["repository"]["pushed_at"] = int(wanted.at.timestamp())
    elif event == "ping":
        body |= {"zen": "Keep it simple.", "hook_id": 1, "hook": {"id": 1, "active": True}}
    if wanted.account:
        body["installation"] = {"id": int(wanted.account)}
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "GitHub-Hookshot/simulated",
        "X-GitHub-Event": event,
        "X-GitHub-Delivery": wanted.id,
        "X-GitHub-Hook-ID": "1",
    }
    return Request("POST", "", headers, jsontext.dumps(body))


provider = Provider(
    name="github",
    docs="https://docs.github.com/en/webhooks",
    signature=HmacBody(header="X-Hub-Signature-256", prefix="sha256="),
    parse=parse,
    policy=Policy(
        checked=date(2026, 12, 1),
        respond_within=timedelta(seconds=10),
        retries=(),
        retry_window=timedelta(0),
        log_window=timedelta(days=3),
        disables=None,  # the documentation does not say that it ever does
        max_body=25 * 1024 * 1024,
        sources={
            "respond_within": "https://docs.github.com/en/webhooks/using-webhooks/best-practices-for-using-webhooks",
            "retries": "https://docs.github.com/en/webhooks/using-webhooks/handling-failed-webhook-deliveries",
            "retry_window": "https://docs.github.com/en/webhooks/using-webhooks/handling-failed-webhook-deliveries",
            "log_window": "https://docs.github.com/en/webhooks/testing-and-troubleshooting-webhooks/redelivering-webhooks",
            "max_body": "https://docs.github.com/en/webhooks/webhook-events-and-payloads",
        },
    ),
    headers=("X-GitHub-Event", "X-GitHub-Delivery", "X-GitHub-Hook-ID"),
    settings=("token", "app_jwt", "repositories", "organization", "hook_id", "api_version"),
    required=("token",),
    defaults={"api_version": "2026-03-10"},
    secret_problem=lambda secret: None if len(secret) >= 8 else "use a secret of at least 8 characters",
    api=ApiSpec(
        "https://api.github.com",
        {
            "Authorization": "Bearer {token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "{api_version}",
        },
        under={"/app/": {"Authorization": "Bearer {app_jwt}"}},
        rate=Rate(
            5000,
            timedelta(hours=1),
            "https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api",
        ),
    ),
    fetch=fetch,
    kinds=(
        "issue",
        "issue_comment",
        "review_comment",
        "pull_request",
        "release",
        "workflow_run",
        "check_suite",
        "ref",
        "repository",
        "installation",
    ),
    version=version,
    list_changed=list_changed,
    list_events=list_events,
    redeliver=redeliver,
    endpoint_health=endpoint_health,
    subscriptions=subscriptions,
    enable=enable,
    authoritative={
        "pull-request": (
            ("pull_request.opened", "pull_request.synchronize", "pull_request.closed"),
            "https://docs.github.com/en/webhooks/webhook-events-and-payloads#pull_request",
        ),
    },
    sample=sample,
    sample_types=(
        "issues.opened",
        "issues.edited",
        "pull_request.opened",
        "pull_request.closed",
        "push",
        "release.published",
        "issue_comment.created",
        "workflow_run.completed",
        "ping",
    ),
)
