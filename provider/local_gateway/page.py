"""The page at `/`, the figures it shows, and `POST /v1/explain`."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway_protocol.errors import ApiError, ErrorCode
from gateway_protocol.limits import MIB
from gateway_protocol.openai_types import Contract
from gateway_protocol.validation import parse_body
from provider.local_gateway.body import read_body, work
from provider.local_gateway.broker import Broker
from provider.local_gateway.buyers import Buyers
from provider.local_gateway.envelope import error_response
from provider.local_gateway.ledger import JobEntry, Ledger
from provider.local_gateway.meter import SECONDS
from provider.local_gateway.models import json_response
from provider.local_gateway.providers import Directory, ProviderRecord, state_name
from provider.local_gateway.settings import GatewaySettings
from provider.toolcalls.explain import RawOutput, explain

_RECENT: Final = 50
_EXPLAIN_BYTES: Final = 1 * MIB
_PIECES: Final = 20_000


class ExplainRequest(BaseModel):
    """Body of `POST /v1/explain`: a model's raw output and what it was asked for, as `parse` takes them."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    text: str
    tools: list[Any] = []
    finish_reason: str = Field("stop", pattern="^(stop|length)$")
    parallel_tool_calls: bool | None = None
    contract: Contract | None = None
    stream: bool = False
    chunk_chars: int | None = Field(None, ge=1)


@dataclass(frozen=True, slots=True)
class Page:
    """`html`: the whole page; `policy`: the Content-Security-Policy that lets it run and no more."""

    settings: GatewaySettings
    directory: Directory
    broker: Broker
    buyers: Buyers
    ledger: Ledger
    html: bytes
    policy: str
    openapi: bytes

    async def index(self, request: web.Request) -> web.Response:
        try:
            self.buyers.check_admin(request)
        except ApiError as error:
            refusal = error_response(request, error)
            if error.http_status == 401:
                refusal.headers["WWW-Authenticate"] = 'Basic realm="Malibu gateway"'  # browsers ask then
            return refusal
        headers = {
            "Content-Security-Policy": self.policy,
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-cache",
        }
        return web.Response(body=self.html, content_type="text/html", charset="utf-8", headers=headers)

    async def describe(self, request: web.Request) -> web.Response:
        """The OpenAPI document of all that this gateway answers."""
        return web.Response(body=self.openapi, content_type="application/json")

    async def live(self, request: web.Request) -> web.Response:
        """What the page shows, once a second."""
        self.buyers.check_admin(request)
        loop_now = self.broker.now()
        document = {
            "now_ms": int(self.settings.wall_clock() * 1000),
            "contract": self.settings.contract,
            "open": self.buyers.open,
            "running": len(self.broker.jobs) - self.broker.queued,
            "queued": self.broker.queued,
            "models": sorted(self.broker.dispatch.models()),
            "providers": [self._provider(record) for record in self.directory.records.values()],
            "rate": {"seconds": SECONDS, "tokens": self.broker.meter.values(loop_now)},
            "jobs": [self._job(entry) for entry in self.ledger.recent(_RECENT)],
        }
        return json_response(document)

    def _provider(self, record: ProviderRecord) -> dict[str, Any]:
        candidate, heartbeat = record.candidate, record.heartbeat
        return {
            "id": record.provider_id,
            "connected": record.link is not None,
            "state": state_name(record),
            "reasons": self.broker.reasons(record),
            "slots": candidate.slots,
            "free": candidate.free if record.link is not None else 0,
            "models": sorted(record.candidate.models),
            "tokens_per_s": candidate.decode_tokens_per_s or None,
            "version": record.register.software.version,
            "chip": record.register.machine.chip,
            "memory_bytes": heartbeat.memory.active_bytes if heartbeat else None,
            "thermal": heartbeat.machine.thermal if heartbeat else None,
        }

    def _job(self, entry: JobEntry) -> dict[str, Any]:
        usage = entry.usage
        return {
            "id": entry.job_id,
            "attempt": entry.attempt,
            "key": self.buyers.name_of(entry.key_id),
            "model": entry.model,
            "provider": entry.provider_id,
            "terminal": entry.terminal,
            "finish_reason": entry.finish_reason,
            "error": entry.error,
            "prompt_tokens": usage.prompt_tokens if usage else None,
            "completion_tokens": usage.completion_tokens if usage else None,
            "ended_ms": entry.ended_ms,
            "receipt": entry.receipt,
        }

    async def explain(self, request: web.Request) -> web.Response:
        """What the daemon would make of a raw model output: the JSON that `malibu-provider parse` prints."""
        with self.buyers.admit(request):
            raw = await read_body(request, self.settings.timers.request_body)
            if len(raw) > _EXPLAIN_BYTES:
                raise ApiError(
                    ErrorCode.REQUEST_BODY_TOO_LARGE, f"At most {_EXPLAIN_BYTES} bytes are explained."
                )
            asked = _explain_request(parse_body(raw))
            if asked.chunk_chars and len(asked.text) > _PIECES * asked.chunk_chars:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"The text is cut into at most {_PIECES} pieces.",
                    param="chunk_chars",
                )
            output = RawOutput(
                text=asked.text,
                model=asked.model,
                tools=asked.tools,
                finish="length" if asked.finish_reason == "length" else "stop",
                parallel=asked.parallel_tool_calls,
                contract=asked.contract or self.settings.contract,
                chunk_chars=asked.chunk_chars,
            )
            return json_response(await work(len(raw), explain, output, stream=asked.stream))


def _explain_request(body: dict[str, Any]) -> ExplainRequest:
    try:
        return ExplainRequest.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{path}: {first['msg']}.", param=path) from None


def load_page() -> tuple[bytes, str, bytes]:
    """The page, a policy that allows its one script and one style by their hashes, the OpenAPI document."""
    folder = resources.files("provider.local_gateway")
    html = (folder / "page.html").read_bytes()

    def sources(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), html, re.DOTALL)
        hashes = (base64.b64encode(hashlib.sha256(text).digest()).decode() for text in found)
        return " ".join(f"'sha256-{digest}'" for digest in hashes)

    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {sources('script')}",
            f"style-src {sources('style')}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )
    return html, policy, (folder / "openapi.json").read_bytes()
