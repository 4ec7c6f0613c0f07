"""A provider that nobody has heard of: what it signs and where its fields stand is configured."""

from __future__ import annotations

from typing import ClassVar

from ...provider import Provider
from ...providers.generic_hmac import configure
from .service import PlainService

__all__ = ["service"]


class GenericService(PlainService):
    """Things and gadgets; a delivery carries the whole object in `data`."""

    settings: ClassVar[dict[str, str]] = {
        "signature_header": "X-Signature",
        "object_path": "data",
        "object_id_path": "data.id",
        "time_path": "at",
    }
    provider: ClassVar[Provider] = configure(settings)
    kinds = ("thing", "gadget")
    secret = "simulated secret of a provider"  # noqa: S105 - a made-up one


service = GenericService()
