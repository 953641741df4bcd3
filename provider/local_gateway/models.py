"""`GET /v1/models` and `/v1/models/{id}`: what can be served now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from aiohttp import web

from gateway_protocol.errors import ApiError
from provider.local_gateway.broker import Broker
from provider.local_gateway.buyers import Buyers
from provider.local_gateway.chat import model_not_found
from provider.local_gateway.providers import Directory
from provider.local_gateway.sse import to_json

OWNER: Final = "malibu"


@dataclass(frozen=True, slots=True)
class Models:
    """`started`: seconds since the epoch, the `created` of every model."""

    directory: Directory
    broker: Broker
    buyers: Buyers
    started: int

    async def list(self, request: web.Request) -> web.Response:
        self.buyers.identify(request)
        data = [self._entry(model) for model in sorted(self.broker.dispatch.models())]
        return json_response({"object": "list", "data": data})

    async def one(self, request: web.Request) -> web.Response:
        self.buyers.identify(request)
        # IDs hold slashes, which some clients escape and others don't.
        model = unquote(request.rel_url.raw_path.split("/models/", 1)[1])
        if model not in self.broker.dispatch.models():
            raise self._not_found(model)
        return json_response(self._entry(model))

    @staticmethod
    def _not_found(model: str) -> ApiError:
        return model_not_found(model)

    def _entry(self, model: str) -> dict[str, Any]:
        return {
            "id": model,
            "object": "model",
            "created": self.started,
            "owned_by": OWNER,
            "max_model_len": max_context(self.directory, self.broker, model),
        }


def max_context(directory: Directory, broker: Broker, model: str) -> int:
    """The longest context that a provider ready for this model offers, in tokens."""
    ready = broker.dispatch.ready(model)
    offers = (directory.records[provider_id].offered(model) for provider_id in ready)
    return max((offer.context_length for offer in offers if offer is not None), default=0)


def json_response(value: Any, *, status: int = 200) -> web.Response:
    return web.Response(status=status, body=to_json(value).encode(), content_type="application/json")
