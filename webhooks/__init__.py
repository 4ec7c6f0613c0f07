"""An inbox for inbound webhooks, for Flask and Celery."""

from .apply import Copy
from .effects import Effect, idempotency_key
from .errors import ConfigError, GiveUp, HandlerCommitted, Refuse, RetryLater, SignatureError, WebhooksError
from .extension import Webhooks
from .inbox import Event
from .provider import ObjectRef

__all__ = [
    "ConfigError",
    "Copy",
    "Effect",
    "Event",
    "GiveUp",
    "HandlerCommitted",
    "ObjectRef",
    "Refuse",
    "RetryLater",
    "SignatureError",
    "Webhooks",
    "WebhooksError",
    "idempotency_key",
]
