"""`POST /v1/chat/completions`: a body becomes a job, its answer a stream or one JSON document."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import Final

import structlog
from aiohttp import web

from gateway_protocol import completion
from gateway_protocol.answer import AnswerCollector
from gateway_protocol.errors import ApiError, ErrorCode
from gateway_protocol.messages import Delta
from gateway_protocol.openai_types import CheckedRequest
from gateway_protocol.receipts import request_sha256
from gateway_protocol.validation import check_for_model, check_request, parse_body
from provider.local_gateway import sse
from provider.local_gateway.body import read_body, work
from provider.local_gateway.broker import Broker
from provider.local_gateway.buyers import Buyer, Buyers
from provider.local_gateway.delivery import Outcome
from provider.local_gateway.envelope import common_headers, error_response, request_id, unforeseen
from provider.local_gateway.jobs import Job, JobSpec
from provider.local_gateway.prefixes import prefix_hashes
from provider.local_gateway.providers import Directory, eligible
from provider.local_gateway.settings import GatewaySettings

log = structlog.get_logger("gateway")

_NAMED: Final = 256


@dataclass(frozen=True, slots=True)
class Chat:
    """The chat route. `named`: unknown fields that the log has named; each is named once."""

    settings: GatewaySettings
    directory: Directory
    broker: Broker
    buyers: Buyers
    named: set[str] = field(default_factory=set)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        with self.buyers.admit(request) as buyer:
            job = self.broker.submit(await self._spec(request, buyer))
            try:
                await job.delivery.wait_accepted()
                if job.spec.request.stream:
                    return await self._stream(request, job)
                return await self._buffered(request, job)
            finally:
                job.leave()
                job.delivery.close()

    async def _spec(self, request: web.Request, buyer: Buyer) -> JobSpec:
        """Check the request, in the order of docs/contract.md; raises the first failure."""
        raw = await read_body(request, self.settings.timers.request_body)
        body = await work(len(raw), parse_body, raw)
        checked = await work(
            len(raw),
            check_request,
            body,
            contract=self.settings.contract,
            max_messages=self.settings.max_messages,
        )
        self._name_unknown(checked.unknown_fields)
        only = self._check_model(checked)
        return JobSpec(
            job_id=f"job_{secrets.token_hex(16)}",
            request=checked,
            request_sha256=await work(len(raw), request_sha256, checked.body),
            tenant=buyer.tenant,
            key_id=buyer.key_id,
            line=buyer.line,
            created=int(self.settings.wall_clock()),
            only=only,
            prefixes=await work(len(raw), prefix_hashes, checked, buyer.tenant),
        )

    def _name_unknown(self, fields: tuple[str, ...]) -> None:
        new = [name for name in fields if name not in self.named]
        if new and len(self.named) < _NAMED:
            self.named.update(new)
            log.info("unknown_fields", fields=new)

    def _check_model(self, checked: CheckedRequest) -> frozenset[str] | None:
        """Model and family; the providers that can do what is asked for, `None` for all of them."""
        traits = self.directory.traits(checked.model)
        if traits is None:
            raise model_not_found(checked.model)
        check_for_model(
            checked,
            family=traits.family,
            can_force=bool(traits.force),
            contract=self.settings.contract,
            force_enabled=self.settings.force_tools,
            can_constrain=bool(traits.constrain),
        )
        return eligible(checked, traits, force_enabled=self.settings.force_tools)

    async def _stream(self, request: web.Request, job: Job) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",
            }
        )
        common_headers(request, response)
        await response.prepare(request)
        await response.write(sse.ACCEPTED)  # aiohttp holds headers back until a first write
        timers = self.settings.timers
        try:
            async with asyncio.timeout(timers.job_deadline + self.settings.queue_seconds + timers.delivery):
                await self._write_events(request, response, job)
                await response.write_eof()
        except (ConnectionError, asyncio.CancelledError):
            raise
        except TimeoutError:
            # Nobody reads: there is no use in ending the stream as one.
            if request.transport is not None:
                request.transport.abort()
            return response
        except Exception:
            # Headers are out: the stream must still end as a stream.
            log.exception("stream_failed", request_id=request_id(request))
            event = completion.error_event(unforeseen(), request_id(request))
            await response.write(sse.data(event) + sse.DONE)
        return response

    async def _write_events(self, request: web.Request, response: web.StreamResponse, job: Job) -> None:
        """Everything from the first chunk to `[DONE]`; what has gathered goes out in one write."""
        spec, delivery = job.spec, job.delivery
        writer = sse.ChunkWriter(
            id=_completion_id(job),
            created=spec.created,
            model=spec.model,
            include_usage=spec.request.include_usage,
        )
        idle = self.settings.timers.comment
        opened: list[bytes] = []
        while True:
            something = await delivery.wait(idle)
            items = delivery.take()
            parts: list[bytes] = []
            if items:
                parts = opened + [writer.delta(item.delta, item.logprobs) for item in items]
                # Clients run a call without arguments as `{}` however its stream ends, so the chunk that
                # opens a call never leaves without the next one.
                opened = [parts.pop()] if _opens_call(items[-1].delta) else []
            elif not something:
                parts = [sse.KEEPALIVE]
            over = delivery.outcome is not None and not delivery.waiting
            if over and delivery.outcome is not None:
                parts += self._ending(request, writer, delivery.outcome, spec.request.include_usage)
            if parts:
                await response.write(b"".join(parts))
            if over:
                return

    @staticmethod
    def _ending(
        request: web.Request, writer: sse.ChunkWriter, outcome: Outcome, include_usage: bool
    ) -> list[bytes]:
        if outcome.error is not None or outcome.finish_reason is None:
            error = outcome.error or ApiError(ErrorCode.PROVIDER_ERROR, "The answer ended without a reason.")
            event = completion.error_event(error, request_id(request), outcome.receipt)
            return [sse.data(event), sse.DONE]
        parts = [writer.finish(outcome.finish_reason, outcome.receipt)]
        if include_usage and outcome.usage is not None:
            parts.append(writer.usage(outcome.usage))
        return [*parts, sse.DONE]

    async def _buffered(self, request: web.Request, job: Job) -> web.StreamResponse:
        collector = AnswerCollector()
        delivery = job.delivery
        while delivery.outcome is None or delivery.waiting:
            await delivery.wait(None)
            for item in delivery.take():
                collector.add(item.delta, item.logprobs)
        outcome = delivery.outcome
        receipt = {} if outcome.receipt is None else {"x-malibu-receipt": outcome.receipt}
        if outcome.error is not None or outcome.finish_reason is None or outcome.usage is None:
            error = outcome.error or ApiError(ErrorCode.PROVIDER_ERROR, "The answer ended without a reason.")
            return error_response(request, error, receipt=outcome.receipt)
        body = completion.chat_completion(
            id=_completion_id(job),
            created=job.spec.created,
            model=job.spec.model,
            collector=collector,
            finish_reason=outcome.finish_reason,
            usage=outcome.usage,
            receipt=outcome.receipt,
        )
        return web.Response(body=sse.to_json(body).encode(), content_type="application/json", headers=receipt)


def model_not_found(model: str) -> ApiError:
    return ApiError(ErrorCode.MODEL_NOT_FOUND, f"The model {model!r} is not served here.", param="model")


def _opens_call(delta: Delta) -> bool:
    return delta.tool_calls is not None and delta.tool_calls[-1].id is not None


def _completion_id(job: Job) -> str:
    return "chatcmpl-" + job.spec.job_id.removeprefix("job_")
