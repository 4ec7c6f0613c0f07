"""HTTP to a provider: credentials, time limits, one reading of errors, a brake that all calls share."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

import urllib3
from sqlalchemy.exc import SQLAlchemyError
from urllib3.exceptions import HTTPError
from urllib3.util import Timeout, make_headers, parse_url

from .. import jsontext
from ..endpoints import Endpoint
from ..errors import ApiRefused, GiveUp, NotFetchable, OverBudget, RateLimited, RetryLater, Unreadable
from ..jsontext import Json
from ..provider import as_text, dig
from .budget import Budget, Priority
from .watching import pool_manager, watched

__all__ = ["Apis", "HttpApi", "Priority"]

TIMEOUT = timedelta(seconds=20)
"""For one request in all; a provider that takes longer is asked again later."""

MAX_ANSWER = 64 * 1024 * 1024
"""Bytes; nobody's object is larger, and an endless answer must not fill the memory."""

CHUNK = 256 * 1024
"""Bytes that are read at once; it only matters that they are few beside MAX_ANSWER."""

MAX_REDIRECTS = 3
UNHINTED = timedelta(seconds=60)
"""How long to wait after a 429 or a throttling 403 that gives no hint (GitHub asks for at least a minute)."""

LONGEST_HINT = timedelta(hours=1)

PATIENCE = timedelta(minutes=2)
"""Whoever is in no hurry waits so long for one call: a listing that ends half-way has to begin again."""

TRIES = 5
"""Times that such a call is made before its error counts."""

SHOWN_BELOW = 0.9
"""A share of the provider's limit that is larger than this is not worth a statement."""


_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"

_SECONDS = re.compile(r"[0-9]{1,11}", re.ASCII)
_CODE = re.compile(r"[A-Za-z0-9_]{1,60}", re.ASCII)


@dataclass(frozen=True)
class _Answer:
    """An HTTP response that was read to its end."""

    status: int
    headers: Mapping[str, str]
    data: bytes = field(repr=False)


class Apis:
    """The APIs of all endpoints: kept-alive connections of one process, and its brakes."""

    def __init__(
        self,
        *,
        timeout: timedelta = TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        budget: Budget | None = None,
    ) -> None:
        self._pool = pool_manager()
        self._timeout = timeout
        self._clock = clock
        self.sleep = sleep
        self.budget = budget
        self._brakes: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()
        self.calls = 0
        """Requests sent by this process."""
        self.apart: dict[str, float] = {}
        """Endpoint → how many seconds the clock of its API was ahead of ours, by the last answer to a call without haste."""

    def of(
        self,
        endpoint: Endpoint,
        account: str = "",
        *,
        deadline: float | None = None,
        priority: Priority = "live",
    ) -> HttpApi:
        """The API as this endpoint may use it, for one account. `deadline` is in time.monotonic() seconds.

        `reconcile` and `audit` wait where they must, and use what the others leave.
        """
        return HttpApi(self, endpoint, account, deadline, priority)

    def brake(self, endpoint: str, account: str, wait: timedelta) -> None:
        """Let no request of this endpoint and account out for that long."""
        with self._lock:
            until = self._clock() + wait.total_seconds()
            self._brakes[endpoint, account] = max(until, self._brakes.get((endpoint, account), 0.0))

    def _require_free(self, endpoint: str, account: str) -> None:
        left = self._brakes.get((endpoint, account), 0.0) - self._clock()
        if left > 0:
            raise RateLimited("the provider asked us to wait", timedelta(seconds=left))

    def _count(self) -> None:
        with self._lock:
            self.calls += 1


class HttpApi:
    """One provider's API, bound to an endpoint and an account. Implements `webhooks.provider.Api`."""

    def __init__(
        self, apis: Apis, endpoint: Endpoint, account: str, deadline: float | None, priority: Priority
    ) -> None:
        spec = endpoint.provider.api
        if spec is None:
            raise NotFetchable(f"{endpoint.provider.name} has no API that we know")
        self._apis, self._endpoint, self._spec, self._deadline = apis, endpoint, spec, deadline
        self.account, self._priority = account, priority
        self.place: Json = None
        self.settings: Mapping[str, str] = {
            name: endpoint.setting(name) for name in endpoint.provider.settings
        }
        base = endpoint.api_base_url or self._filled(spec.base_url)
        if base is None:
            raise NotFetchable(f"the settings for {spec.base_url} are not complete")
        self._base = base.rstrip("/")
        # Where an endpoint's API is moved as a whole, it is moved with all its hosts.
        self._bases = {} if endpoint.api_base_url else dict(spec.bases)

    def get(self, path: str, **params: Any) -> Json:
        return self._page(path, params)[0]

    def find(self, path: str, **params: Any) -> Json | None:
        try:
            return self._page(path, params)[0]
        except ApiRefused as refusal:
            if refusal.http_status in {404, 410}:
                return None
            raise

    def pages(self, path: str, **params: Any) -> Iterator[Json]:
        answer, following = self._page(path, params)
        yield answer
        seen = set()
        while following is not None:
            if following in seen:
                raise RetryLater(f"{self._where()}: its pages go in a circle")
            seen.add(following)
            answer, following = self._page(following, {})
            yield answer

    def post(self, path: str, json: Json = None, **params: Any) -> Json:
        return self._ask("POST", path, params, jsontext.dumps(json) if json is not None else b"")[0]

    def send(
        self, method: str, path: str, json: Json = None, *, form: Mapping[str, str] | None = None
    ) -> Json:
        body = urlencode(form).encode() if form is not None else jsontext.dumps(json)
        return self._ask(method, path, {}, body, _FORM if form is not None else _JSON)[0]

    def graphql(self, path: str, query: str, **variables: Any) -> Json:
        answer = self.post(path, {"query": query, "variables": variables})
        errors = answer.get("errors") if isinstance(answer, dict) else None
        if errors:
            codes = {
                str((error.get("extensions") or {}).get("code"))
                for error in errors
                if isinstance(error, dict)
            }
            if "THROTTLED" in codes:
                raise self._slowed(RateLimited("the API throttles us", timedelta(seconds=2)))
            raise ApiRefused(f"the API refused the query ({', '.join(sorted(codes))})", 200)
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, dict):
            raise RetryLater("the API answered with something that is no answer to a query")
        return data

    def _page(self, path: str, params: Mapping[str, Any]) -> tuple[Json, str | None]:
        answer, following = self._ask("GET", path, params)
        if answer is None:
            # Only a 404 or a 410 says that there is nothing; an empty 200 is somebody's mistake on the way.
            raise RetryLater(f"{self._where()}: the answer is empty")
        return answer, following

    def _ask(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any],
        body: bytes | None = None,
        content_type: str = _JSON,
    ) -> tuple[Json, str | None]:
        """The decoded answer, and the path of its next page if it names one."""
        if self._priority in {"live", "retry"}:
            return self._ask_once(method, path, params, body, content_type)
        waited, tries = timedelta(0), 0
        while True:
            try:
                return self._ask_once(method, path, params, body, content_type)
            except RetryLater as later:
                # Others spent the budget, the provider is busy, a connection was cut: the rest of a listing would be
                # lost with this one page.
                tries += not isinstance(later, OverBudget)
                wait = later.after if later.after is not None else timedelta(seconds=2**tries)
                if waited + wait > PATIENCE or tries >= TRIES or method != "GET":
                    raise
                waited += wait
                self._apis.sleep(wait.total_seconds())

    def _ask_once(
        self, method: str, path: str, params: Mapping[str, Any], body: bytes | None, content_type: str
    ) -> tuple[Json, str | None]:
        self._apis._require_free(self._endpoint.name, self.account)
        self._pay()
        url = self._url(path, params)
        response = self._send(method, url, path, body, content_type)
        for _ in range(MAX_REDIRECTS):
            location = response.headers.get("Location")
            if method != "GET" or response.status not in {301, 302, 307, 308} or not location:
                break
            # A renamed repository, a transferred issue. Never to another host: our credentials would go along.
            url = self._own(url, location)
            response = self._send(method, url, path, body, content_type)
        self._learn(response)
        self._raise_for(response)
        return self._decoded(response), self._next(response, url)

    def _pay(self) -> None:
        """Take the call out of the account's budget; live ones are only counted."""
        budget = self._apis.budget
        if budget is None:
            return
        if self._priority == "live":
            budget.spend(self._endpoint, self.account)
            return
        wait = budget.take(self._endpoint, self.account, self._priority)
        if wait > timedelta(0):
            raise OverBudget(f"{self._where()}: its budget is kept for what is more urgent", wait)

    def _learn(self, response: _Answer) -> None:
        """Note the provider's clock, and what share of its limit is left (X-RateLimit-… as GitHub and others write it)."""
        if self._priority != "live" and (at := _date(response.headers)) is not None:
            self._apis.apart[self._endpoint.name] = (at - datetime.now(UTC)).total_seconds()
        left, limit = (response.headers.get(f"X-RateLimit-{name}", "") for name in ("Remaining", "Limit"))
        reset = response.headers.get("X-RateLimit-Reset", "")
        if self._apis.budget is None or not (left.isdigit() and limit.isdigit() and reset.isdigit()):
            return
        share = int(left) / max(int(limit), 1)
        until = timedelta(seconds=min(max(int(reset[:11]) - time.time(), 0), LONGEST_HINT.total_seconds()))
        if share < SHOWN_BELOW and self._priority != "live":
            self._apis.budget.learn(self._endpoint, self.account, share, until)

    def _send(self, method: str, url: str, path: str, body: bytes | None, content_type: str) -> _Answer:
        headers = self._headers(path)
        if body:
            headers["Content-Type"] = content_type
        seconds = self._time_left()
        ends = time.monotonic() + seconds
        self._apis._count()
        try:
            watched.ends = ends
            response = self._apis._pool.request(
                method,
                url,
                body=body or None,
                headers=headers,
                timeout=Timeout(connect=min(seconds, 5.0), read=seconds, total=seconds),
                redirect=False,
                retries=False,
                preload_content=False,
            )
            return _Answer(response.status, response.headers, self._read(response, ends))
        except HTTPError as error:
            raise RetryLater(f"{self._where()}: {type(error).__name__}") from None

    def _read(self, response: urllib3.BaseHTTPResponse, ends: float) -> bytes:
        """The body, as it comes: an answer that never ends takes neither all our memory nor all our time."""
        read = bytearray()
        try:
            while chunk := response.read1(CHUNK):
                read += chunk
                if len(read) > MAX_ANSWER:
                    raise RetryLater(f"{self._where()}: the answer is too large")
                if time.monotonic() > ends:
                    raise RetryLater(f"{self._where()}: the answer takes too long")
        except BaseException:
            response.close()  # with half an answer in it, the connection is of no more use
            raise
        response.release_conn()
        return bytes(read)

    def _time_left(self) -> float:
        seconds = self._apis._timeout.total_seconds()
        if self._deadline is not None:
            seconds = min(seconds, self._deadline - time.monotonic())
            if seconds <= 0:
                raise RetryLater(f"{self._where()}: no time left for a request")
        return seconds

    def _headers(self, path: str) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "flask-webhook-inbox"}
        if self._spec.basic is not None:
            user, password = (self._filled(part) or "" for part in self._spec.basic)
            headers["Authorization"] = make_headers(basic_auth=f"{user}:{password}")["authorization"]
        templates = dict(self._spec.headers)
        for prefix, special in self._spec.under.items():
            if path.startswith(prefix):
                templates |= special
        for name, template in templates.items():
            value = self._filled(template)
            if value and not (value.isascii() and value.isprintable()):
                raise GiveUp(f"{name} cannot be a header: look at the settings, or at the event's account")
            if value:
                headers[name] = value
        return headers

    def _filled(self, template: str) -> str | None:
        """The template with its settings; None if one of them is not set."""
        values = {**self.settings, "account": self.account}
        chosen = {
            names: next((values[name] for name in names.split("|") if values.get(name)), None)
            for names in _NAMES.findall(template)
        }
        if None in chosen.values():
            return None
        return _NAMES.sub(lambda match: chosen[match[1]] or "", template)

    def _base_of(self, path: str) -> str:
        return next((base for prefix, base in self._bases.items() if path.startswith(prefix)), self._base)

    def _url(self, path: str, params: Mapping[str, Any]) -> str:
        if not path.startswith("/") or path.startswith("//") or ".." in path.split("/"):
            raise GiveUp("an API path begins with one slash and has no '..'")
        pairs = [
            (key, item)
            for key, value in params.items()
            for item in (value if isinstance(value, list) else [value])
        ]
        query = urlencode([(key, str(value)) for key, value in pairs if value is not None])
        joiner = "&" if "?" in path else "?"
        return f"{self._base_of(path)}{path}{joiner + query if query else ''}"

    def _own(self, url: str, target: str) -> str:
        """The URL that an answer of ours refers to; ApiRefused if it is not on the API's own host."""
        try:
            found = urljoin(url, target)
            ours, theirs = parse_url(url), parse_url(found)
        except ValueError:  # LocationParseError is one, too
            raise ApiRefused(f"{self._where()}: refers to something that is no URL", 301) from None
        if (ours.scheme, ours.host, ours.port) != (theirs.scheme, theirs.host, theirs.port):
            raise ApiRefused(f"{self._where()}: refers to another host, which we do not follow", 301)
        return found

    def _next(self, response: _Answer, url: str) -> str | None:
        for part in response.headers.get("Link", "").split(","):
            target, _, attributes = part.partition(";")
            if 'rel="next"' in attributes:
                following = self._own(url, target.strip().strip("<>"))
                base = next(
                    (b for b in (self._base, *self._bases.values()) if following.startswith(b + "/")), None
                )
                return following.removeprefix(base) if base is not None else _path_of(following)
        return None

    def _decoded(self, response: _Answer) -> Json:
        if not response.data:
            return None
        try:
            return jsontext.loads(response.data)
        except Unreadable:
            raise RetryLater(f"{self._where()}: the answer is not JSON") from None

    def _raise_for(self, response: _Answer) -> None:
        status = response.status
        if 200 <= status < 300:
            return
        wait = _hint(response.headers)
        where = f"{self._where()} answered {status}"
        if status == 429 or (status == 403 and wait is not None):
            raise self._slowed(RateLimited(where, wait if wait is not None else UNHINTED))
        if status >= 500 or status in {408, 409, 425}:
            raise RetryLater(where, wait)
        raise ApiRefused(where + _code(response), status, _answer(response))

    def _slowed(self, limit: RateLimited) -> RateLimited:
        assert limit.after is not None
        # Not all at the same moment: twenty workers that wake together would only trip the limit again.
        limit.after += timedelta(seconds=random.uniform(0, 0.1 * limit.after.total_seconds()))  # noqa: S311 - jitter
        self._apis.brake(self._endpoint.name, self.account, limit.after)
        if self._apis.budget is not None:
            with suppress(SQLAlchemyError):  # then the others find out for themselves
                self._apis.budget.block(self._endpoint, self.account, limit.after)
        return limit

    def _where(self) -> str:
        return f"the API of {self._endpoint.provider.name}"


_NAMES = re.compile(r"\{([a-z_|]+)\}")
"""`{name}`, or `{one|other}` for the first of them that is set."""


def _path_of(url: str) -> str:
    parts = urlsplit(url)
    return parts.path + (f"?{parts.query}" if parts.query else "")


def _hint(headers: Mapping[str, str]) -> timedelta | None:
    """How long the answer asks us to wait; None: it does not say, and is no throttling."""
    given = headers.get("Retry-After")
    if given is not None:
        if _SECONDS.fullmatch(given.strip()):
            return min(timedelta(seconds=int(given)), LONGEST_HINT)
        try:
            moment = parsedate_to_datetime(given)
        except (TypeError, ValueError, OverflowError, IndexError):
            return UNHINTED
        return min(max(moment - datetime.now(UTC), timedelta(0)), LONGEST_HINT) if moment.tzinfo else UNHINTED
    reset = headers.get("X-RateLimit-Reset", "").strip()
    if headers.get("X-RateLimit-Remaining", "").strip() == "0" and _SECONDS.fullmatch(reset):
        return min(max(timedelta(seconds=int(reset) - time.time()), timedelta(seconds=1)), LONGEST_HINT)
    return None


def _date(headers: Mapping[str, str]) -> datetime | None:
    try:
        moment = parsedate_to_datetime(headers.get("Date", ""))
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo else None


def _answer(response: _Answer) -> Json:
    try:
        return jsontext.loads(response.data)
    except Unreadable:
        return None


def _code(response: _Answer) -> str:
    """The provider's own short error code, never its prose: that may repeat what we sent."""
    try:
        code = as_text(dig(jsontext.loads(response.data), "error", "code"))
    except Unreadable:
        return ""
    return f" ({code})" if _CODE.fullmatch(code) else ""
