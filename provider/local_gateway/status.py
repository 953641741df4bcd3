"""Health, status and keys of the gateway; status reports of its providers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import structlog
from aiohttp import web

from gateway_protocol.errors import ApiError, ErrorCode
from gateway_protocol.limits import KIB
from gateway_protocol.receipts import verify_status
from gateway_protocol.signing import SigningError, jwks
from provider.local_gateway.body import read_body
from provider.local_gateway.broker import Broker
from provider.local_gateway.ledger import Ledger
from provider.local_gateway.models import json_response, max_context
from provider.local_gateway.providers import Directory
from provider.local_gateway.settings import GatewaySettings

log = structlog.get_logger("gateway")

_REPORT_BYTES: Final = 64 * KIB


@dataclass(frozen=True, slots=True)
class Status:
    """The routes that say how the gateway is."""

    settings: GatewaySettings
    directory: Directory
    broker: Broker
    ledger: Ledger

    async def health(self, request: web.Request) -> web.Response:
        """The gateway answers; whether it can serve is `status`."""
        return json_response({"status": "ok"})

    async def status(self, request: web.Request) -> web.Response:
        """What can be served, with nothing in it that tells one provider from another."""
        return json_response(self.snapshot())

    def snapshot(self) -> dict[str, Any]:
        models = [self._model(model) for model in sorted(self._known_models())]
        return {"status": self._word(models), "models": models}

    def _known_models(self) -> set[str]:
        return {model.id for record in self.directory.records.values() for model in record.register.models}

    def _model(self, model: str) -> dict[str, Any]:
        ready = [self.directory.records[provider_id] for provider_id in self.broker.dispatch.ready(model)]
        return {
            "id": model,
            "ready_provider_count": len(ready),
            "slots_total": sum(record.candidate.slots for record in ready),
            "slots_free": sum(record.candidate.free for record in ready),
            "max_context_tokens": max_context(self.directory, self.broker, model),
        }

    def _word(self, models: list[dict[str, Any]]) -> str:
        if self.broker.closing or self.ledger.full:
            return "down"
        counts = [model["ready_provider_count"] for model in models]
        if not any(counts):
            return "idle"
        return "up" if all(counts) else "degraded"

    async def keys(self, request: web.Request) -> web.Response:
        """JWK Set of every provider key this gateway has pinned: receipts are verified with it."""
        return json_response(jwks(self.ledger.all()))

    async def report(self, request: web.Request) -> web.Response:
        """A provider's signed status report: checked, and not kept."""
        provider_id = request.match_info["provider_id"]
        pinned = self.ledger.pinned(provider_id)
        if pinned is None:
            raise ApiError(ErrorCode.FORBIDDEN, "No provider of that ID has registered here.")
        raw = await read_body(request, self.settings.timers.request_body)
        if len(raw) > _REPORT_BYTES:
            raise ApiError(ErrorCode.REQUEST_BODY_TOO_LARGE, f"A report holds at most {_REPORT_BYTES} bytes.")
        try:
            snapshot = verify_status(raw.decode("ascii").strip(), jwks([pinned]))
        except (SigningError, UnicodeDecodeError):
            raise ApiError(ErrorCode.FORBIDDEN, "The report isn't signed by that provider's key.") from None
        if snapshot.get("provider_id", provider_id) != provider_id:
            raise ApiError(ErrorCode.FORBIDDEN, "The report is another provider's.")
        return web.Response(status=204)
