"""An inbox for inbound webhooks, for Flask and Celery."""

from .errors import ConfigError, GiveUp, HandlerCommitted, RetryLater, SignatureError, WebhooksError
from .extension import Webhooks
from .inbox import Event
from .provider import ObjectRef

__all__ = [
    "ConfigError",
    "Event",
    "GiveUp",
    "HandlerCommitted",
    "ObjectRef",
    "RetryLater",
    "SignatureError",
    "Webhooks",
    "WebhooksError",
]
