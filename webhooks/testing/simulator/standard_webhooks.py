"""Somebody who signs as Standard Webhooks says, and has no API that we know."""

from __future__ import annotations

from ...providers.standard_webhooks import provider
from .service import PlainService

__all__ = ["service"]


class StandardService(PlainService):
    """Contacts and invoices; a delivery carries the whole object."""

    provider = provider
    kinds = ("contact", "invoice")
    secret = "whsec_c2ltdWxhdGVkIHNpbXVsYXRlZCBzaW11bGF0ZWQh"  # noqa: S105 - a made-up one


service = StandardService()
