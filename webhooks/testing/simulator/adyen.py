"""Adyen's platform webhooks: signed as a whole. There is no API to ask, so what a delivery carries is the truth."""

from __future__ import annotations

from typing import Any

from ...providers.adyen import provider
from .service import PlainService, iso
from .world import World

__all__ = ["service"]


class AdyenService(PlainService):
    """Account holders and balance accounts of one platform."""

    provider = provider
    kinds = ("accountHolder", "balanceAccount")
    secret = "0123456789abcdef" * 4
    account = "SamplePlatform"

    def new(self, world: World, kind: str, id_: str, fields: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": id_,
            "balancePlatform": self.account,
            "status": "active",
            "updatedAt": iso(world.clock()),
            **fields,
        }

    def changed(self, world: World, data: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
        return {**data, "updatedAt": iso(world.clock()), **fields}

    def event_type(self, kind: str, what: str, data: dict[str, Any]) -> str:
        return f"balancePlatform.{kind}.{what}"


service = AdyenService()
