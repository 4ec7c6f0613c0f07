"""The tree of errors; the class says what happens next.

WebhooksError
├── ConfigError            start-up stops; every mistake is named at once
├── RequestError           the door refuses the delivery; `http_status` is the answer
│   ├── SignatureError     401   not signed by one of our secrets
│   ├── TooLarge           413   body over the endpoint's limit
│   └── Unsupported        415   compressed body
├── InboxUnavailable       503   the event could not be recorded; the provider sends it again
├── Unreadable             recorded, 200, a dead letter with outcome `unreadable`
├── NotFetchable           no fetch for this kind; the event's own data is applied
├── RetryLater             the event is postponed
│   ├── RateLimited        postponed, and the attempt is not counted
│   ├── OverBudget         postponed, and the attempt is not counted: others go first
│   └── NotVisibleYet      postponed, and the attempt is not counted
├── TimeLimit              a handler was stopped: the event is postponed, and a dead letter when attempts run out
├── GiveUp                 the event is a dead letter at once
│   └── ApiRefused         the provider refuses our credentials or our request
├── Refuse                 what an `answer` handler raises: the provider is told no, in its own words
└── HandlerCommitted       a handler ended our transaction: postponed, then a dead letter
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import ClassVar, Literal

__all__ = [
    "ApiRefused",
    "ConfigError",
    "GiveUp",
    "HandlerCommitted",
    "InboxUnavailable",
    "NotFetchable",
    "NotVisibleYet",
    "OverBudget",
    "RateLimited",
    "Refuse",
    "RequestError",
    "RetryLater",
    "SignatureError",
    "TimeLimit",
    "TooLarge",
    "Unreadable",
    "Unsupported",
    "WebhooksError",
]


class WebhooksError(Exception):
    """Everything that this package raises on purpose."""


class ConfigError(WebhooksError):
    """The configuration or the registered handlers are wrong; lists every mistake, not only the first."""

    def __init__(self, mistakes: str | Iterable[str]) -> None:
        self.mistakes: Sequence[str] = (mistakes,) if isinstance(mistakes, str) else tuple(mistakes)
        super().__init__("\n".join(self.mistakes))


class RequestError(WebhooksError):
    """A delivery that the door refuses. The reply never says why; the reason is for logs and counters."""

    http_status: ClassVar[int] = 400


class SignatureError(RequestError):
    """The delivery is not signed by one of the endpoint's secrets (401).

    `reason` is one of a closed list, so that it can be counted: `missing` (no signature in the request), `malformed`
    (it cannot be read), `mismatch` (it is another's), `clock` (it is right, but its time is outside the window: look
    at the clocks), `replayed` (it was used before for another body), `no_secret` (nothing usable is configured).
    """

    http_status = 401
    Reason = Literal["missing", "malformed", "mismatch", "clock", "replayed", "no_secret"]

    def __init__(self, reason: Reason, detail: str = "") -> None:
        self.reason: SignatureError.Reason = reason
        super().__init__(f"{reason}: {detail}" if detail else reason)


class TooLarge(RequestError):
    """The body is larger than the endpoint accepts (413)."""

    http_status = 413


class Unsupported(RequestError):
    """The body is compressed; no provider does that, and inflating before verifying would be a bomb (415)."""

    http_status = 415


class InboxUnavailable(WebhooksError):
    """The event could not be committed; the provider is told to come again (503 with Retry-After)."""


class Unreadable(WebhooksError):
    """A signed body that is not what the provider documents. Kept, answered 200 and shown as a dead letter."""


class NotFetchable(WebhooksError):
    """The provider's API has no request for this kind of object; what the event carries is all there is."""


class RetryLater(WebhooksError):
    """Try this event again, no sooner than `after` from now (None: by the usual backoff)."""

    outcome: ClassVar[str] = "handler_failed"
    counts: ClassVar[bool] = True

    def __init__(self, reason: str, after: timedelta | None = None) -> None:
        self.reason = reason
        self.after = after
        super().__init__(reason)


class RateLimited(RetryLater):
    """The provider's API told us to slow down; `after` is the provider's own hint."""

    outcome = "rate_limited"
    counts = False


class OverBudget(RetryLater):
    """What is left of the account's calls is kept for what is more urgent. Nobody else has to wait for that."""

    outcome = "rate_limited"
    counts = False


class NotVisibleYet(RetryLater):
    """The provider's API does not show yet what its event says (a lagging replica)."""

    outcome = "not_visible_yet"
    counts = False


class TimeLimit(WebhooksError):
    """A handler took longer than it may, and was stopped. What it did is rolled back."""

    event_id: int | None = None
    """The event whose turn it was; None: it was about the object, for all its events."""


class GiveUp(WebhooksError):
    """Retrying cannot help: the event is a dead letter now, with this reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class ApiRefused(GiveUp):
    """The provider's API answered 4xx for a reason that time does not mend (credentials, permissions, request).

    `answer` is the decoded body, where there is one: not every API says "no such object" with a 404.
    """

    def __init__(self, reason: str, http_status: int, answer: object = None) -> None:
        self.http_status = http_status
        self.answer = answer
        super().__init__(reason)


class Refuse(WebhooksError):
    """An `answer` handler says no; `message` is what the provider shows to its user."""

    def __init__(self, message: str, http_status: int = 403) -> None:
        if not message.strip():
            raise ValueError("a refusal needs a message: providers take an empty one for consent")
        self.message = message
        self.http_status = http_status
        super().__init__(message)


class HandlerCommitted(WebhooksError):
    """A handler ended the transaction that carries its ledger row; what it did may now happen twice."""
