"""A provider on a real socket, for tests of the gateway's end: each job does what its behaviour says.

    async with FakeProvider(gateway.link_url, behave=answering("Hello", " there")) as provider:
        …                                    # the gateway may offer it jobs now

A behaviour is a coroutine function of a `FakeJob`. Frames are kept and replayed as a real outbox would.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from gateway_protocol.answer import NO_ANSWER, AnswerCollector
from gateway_protocol.errors import ApiError, ErrorCode, Fault
from gateway_protocol.families import FAMILIES, Family, family_of
from gateway_protocol.limits import FRAME_FROM_GATEWAY_BYTES
from gateway_protocol.messages import (
    SUBPROTOCOL,
    Capacity,
    Delta,
    FinishReason,
    FunctionDelta,
    Heartbeat,
    HeartbeatAck,
    JobAccepted,
    JobChunk,
    JobCompleted,
    JobError,
    JobFailed,
    JobOffer,
    JobRejected,
    Machine,
    Measured,
    ModelState,
    ModelStatus,
    Nack,
    OfferedModel,
    PreviousKey,
    ProviderState,
    Refused,
    Register,
    Registered,
    Software,
    ToolCallDelta,
    ToolCallSupport,
    Usage,
)
from gateway_protocol.openai_types import Contract
from gateway_protocol.receipts import (
    CHAIN_START,
    Receipt,
    ReceiptUsage,
    Terminal,
    chain_link,
    make_receipt,
    request_sha256,
    response_sha256,
)
from gateway_protocol.session import ProviderJobs, ProviderSession, events
from gateway_protocol.signing import ProviderKey, mint_provider_id, origin_of, sign_registration

MODEL = "Qwen3-8B-4bit"
PATIENCE = 60.0

Behaviour = Callable[["FakeJob"], Awaitable[None]]


def offered_model(
    model_id: str = MODEL,
    *,
    forced: bool = False,
    state: ModelState = ModelState.READY,
    context_length: int = 40960,
    family: Family | None = None,
) -> OfferedModel:
    family = family or family_of(model_id)
    traits = FAMILIES[family]
    return OfferedModel(
        id=model_id,
        family=family.value,
        context_length=context_length,
        max_output_tokens=8192,
        tool_calls=ToolCallSupport(first_turn=traits.first_turn, multi_turn=traits.multi_turn, forced=forced),
        revision="rev-1",
        state=state,
    )


class FakeJob:
    """One attempt at this provider, from its offer to its terminal frame."""

    def __init__(self, provider: FakeProvider, offer: JobOffer) -> None:
        self.provider = provider
        self.offer = offer
        self.cancelled = asyncio.Event()
        self.cancel_reason: str | None = None
        self.frames: list[JobChunk] = []
        self.accepted: JobAccepted | None = None
        self.terminal: JobCompleted | JobFailed | JobRejected | None = None
        self.collector = AnswerCollector()
        self.chain = CHAIN_START
        self.tokens = 0
        self.tamper: Callable[[Receipt], Receipt] = lambda receipt: receipt

    @property
    def request(self) -> dict[str, Any]:
        return self.offer.request

    async def accept(self, *, prompt_tokens: int = 7, cached_tokens: int = 0) -> None:
        self.accepted = JobAccepted(
            job_id=self.offer.job_id,
            attempt=self.offer.attempt,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
        )
        await self.provider.made(self.accepted)

    async def begin(self) -> None:
        """The chunk that the first token brings: the role and no text."""
        await self.delta(Delta(role="assistant", content=""))

    async def text(self, *pieces: str) -> None:
        for piece in pieces:
            await self.delta(Delta(content=piece))

    async def call(self, index: int, name: str, *pieces: str, call_id: str | None = None) -> None:
        head = ToolCallDelta(
            index=index,
            id=call_id or f"call_{index:032x}",
            type="function",
            function=FunctionDelta(name=name, arguments=""),
        )
        await self.delta(Delta(tool_calls=(head,)))
        for piece in pieces:
            more = ToolCallDelta(index=index, function=FunctionDelta(arguments=piece))
            await self.delta(Delta(tool_calls=(more,)))

    async def delta(
        self, delta: Delta, *, logprobs: dict[str, Any] | None = None, chain: str | None = None
    ) -> None:
        """The next chunk; `chain` in place of the right link."""
        seq = len(self.frames)
        self.chain = chain_link(self.chain, seq, delta)
        self.collector.add(delta, logprobs)
        self.tokens += 1
        chunk = JobChunk(
            job_id=self.offer.job_id,
            attempt=self.offer.attempt,
            seq=seq,
            delta=delta,
            logprobs=logprobs,
            chain=chain or self.chain.hex(),
        )
        self.frames.append(chunk)
        await self.provider.made(chunk)

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.accepted.prompt_tokens if self.accepted else 0,
            completion_tokens=self.tokens,
            cached_tokens=self.accepted.cached_tokens if self.accepted else 0,
        )

    async def complete(self, finish_reason: FinishReason = FinishReason.STOP) -> None:
        answer = self.collector.answer(finish_reason)
        await self._end(
            JobCompleted(
                job_id=self.offer.job_id,
                attempt=self.offer.attempt,
                seq=len(self.frames),
                finish_reason=finish_reason,
                usage=self.usage(),
                receipt=self.receipt(Terminal.COMPLETED, response_sha256(answer), finish_reason),
            )
        )

    async def fail(
        self,
        code: ErrorCode = ErrorCode.PROVIDER_ERROR,
        *,
        message: str = "it broke",
        cancelled: bool = False,
        fault: Fault | None = None,
    ) -> None:
        ran = bool(self.frames)
        answer = self.collector.answer(None) if self.request.get("stream") else NO_ANSWER
        terminal = Terminal.CANCELLED if cancelled else Terminal.FAILED
        await self._end(
            JobFailed(
                job_id=self.offer.job_id,
                attempt=self.offer.attempt,
                seq=len(self.frames),
                error=JobError.of(ApiError(code, message, inference_ran=ran, fault=fault)),
                usage=self.usage() if ran else None,
                receipt=self.receipt(terminal, response_sha256(answer), None) if ran else None,
            )
        )

    async def reject(self, error: ApiError) -> None:
        await self._end(
            JobRejected(
                job_id=self.offer.job_id,
                attempt=self.offer.attempt,
                error=JobError.of(error),
                retry_after_ms=error.retry_after_ms,
            )
        )

    async def _end(self, terminal: JobCompleted | JobFailed | JobRejected) -> None:
        self.terminal = terminal
        self.provider.slots_free += 1
        await self.provider.made(terminal)

    def receipt(self, terminal: Terminal, response: str, reason: FinishReason | None) -> str:
        receipt = Receipt(
            job_id=self.offer.job_id,
            attempt=self.offer.attempt,
            provider_id=self.provider.provider_id,
            model=self.request["model"],
            revision="rev-1",
            request_sha256=request_sha256(self.request),
            response_sha256=response,
            chain=self.chain.hex(),
            chunks=len(self.frames),
            terminal=terminal,
            finish_reason=reason,
            usage=ReceiptUsage.of(self.usage()),
            contract=self.provider.contract,
            issued_at_ms=int(time.time() * 1000),
        )
        return make_receipt(self.provider.key, self.tamper(receipt))

    async def until_cancelled(self) -> None:
        """Wait for the gateway's cancel, then end as a real provider does."""
        await self.cancelled.wait()
        await self.fail(message="cancelled", cancelled=True)


def answering(*pieces: str, finish_reason: FinishReason = FinishReason.STOP) -> Behaviour:
    """Accept, say these pieces, one chunk each, and complete."""

    async def behave(job: FakeJob) -> None:
        await job.accept()
        await job.begin()
        await job.text(*pieces)
        await job.complete(finish_reason)

    return behave


def rejecting(
    code: ErrorCode, message: str = "not now", *, param: str | None = None, retry_after_ms: int | None = None
) -> Behaviour:
    async def behave(job: FakeJob) -> None:
        await job.reject(ApiError(code, message, param=param, retry_after_ms=retry_after_ms))

    return behave


async def stuck(job: FakeJob) -> None:
    """Accept, then nothing until the gateway cancels."""
    await job.accept()
    await job.until_cancelled()


class FakeProvider:
    """`url`: of the link. `behave` may be changed at any time; it holds for later offers."""

    def __init__(
        self,
        url: str,
        *,
        behave: Behaviour | None = None,
        models: Sequence[OfferedModel] = (),
        slots: int = 8,
        contract: Contract = "malibu",
        token: str | None = None,
        key: ProviderKey | None = None,
        provider_id: str | None = None,
        previous: PreviousKey | None = None,
        earlier: tuple[PreviousKey, ...] = (),
        version: str = "1.0.0",
        speed: float | None = None,
        features: tuple[str, ...] = (),
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.url = url
        self.behave = behave or answering("Hello", " there", "!")
        self.models = tuple(models) or (offered_model(),)
        self.slots = self.slots_free = slots
        self.contract: Contract = contract
        self.token = token
        self.key = key or ProviderKey.generate()
        self.provider_id = provider_id or mint_provider_id()
        self.previous = previous
        self.earlier = earlier
        self.version = version
        self.speed = speed
        self.features = features
        self.ssl_context = ssl_context
        self.state = ProviderState.READY
        self.jobs: list[FakeJob] = []
        self.acks: asyncio.Queue[HeartbeatAck] = asyncio.Queue()
        self.nacks: list[Nack] = []
        self.acknowledged: list[events.JobAcknowledged] = []
        self.registered: Registered | None = None
        self.refused: Refused | None = None
        self.closed_with: int | None = None
        self.last_close: int | None = None
        self.sign: Callable[[str, str], str] = self._sign
        self._ledger = ProviderJobs()
        self._by_key: dict[tuple[str, int], FakeJob] = {}
        self._session = ProviderSession(self._ledger)
        self._socket: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        await self.dial()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in [*self._running]:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self.hang_up()

    # --- the link ------------------------------------------------------------------------------

    async def dial(self) -> None:
        """Connect and register; returns once registered or refused."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        self._session = ProviderSession(self._ledger)
        self.registered = self.refused = self.closed_with = None
        self._socket = await connect(
            self.url,
            subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
            max_size=FRAME_FROM_GATEWAY_BYTES,
            compression=None,
            additional_headers=headers,
            proxy=None,
            ssl=self.ssl_context,
            ping_interval=None,
            close_timeout=1,
        )
        self._reader = asyncio.create_task(self._read(self._socket, self._session))
        await self.until(lambda: bool(self.registered or self.refused or self.closed_with))

    async def hang_up(self) -> None:
        """Close the websocket properly."""
        if self._socket is not None:
            await self._socket.close()
        if self._reader is not None:
            await self._reader

    async def cut(self) -> None:
        """The connection is gone without a word."""
        assert self._socket is not None
        assert self._reader is not None
        self._session.close()
        self._socket.transport.abort()
        await self._reader

    async def _read(self, socket: ClientConnection, session: ProviderSession) -> None:
        try:
            async for frame in socket:
                for event in session.receive_frame(frame):
                    await self._event(event, session)
        except ConnectionClosed:
            pass
        self.closed_with = self.last_close = socket.close_code
        await self._notify()

    async def _event(self, event: events.ProviderEvent, session: ProviderSession) -> None:
        match event:
            case events.ChallengeReceived(challenge):
                await self._send(session, self._register(challenge.gateway_id, challenge.nonce))
            case events.LinkOpened(registered):
                self.registered = registered
                await self.heartbeat()
            case events.LinkRefused(refused):
                self.refused = refused
            case events.HeartbeatAcknowledged(ack):
                self.acks.put_nowait(ack)
            case events.JobOffered(offer):
                self._start(offer)
            case events.CancelRequested(job_id, attempt, reason):
                job = self._by_key[job_id, attempt]
                job.cancel_reason = reason
                job.cancelled.set()
            case events.JobAbandoned(job_id, attempt):
                self._by_key[job_id, attempt].cancelled.set()
            case events.JobResumed(job_id, attempt, from_seq):
                await self._replay(session, self._by_key[job_id, attempt], from_seq)
            case events.JobAcknowledged():
                self.acknowledged.append(event)
            case events.Send(message):
                await self._send(session, message)
            case events.NackReceived(nack):
                self.nacks.append(nack)
        await self._notify()

    def _register(self, gateway_id: str, nonce: str) -> Register:
        measured = None
        if self.speed is not None:
            measured = Measured(
                model=self.models[0].id, decode_tokens_per_s=self.speed, prefill_tokens_per_s=1.0, at_ms=1
            )
        return Register(
            protocol_version=1,
            provider_id=self.provider_id,
            public_key=self.key.public_key,
            signature=self.sign(gateway_id, nonce),
            previous=self.previous,
            earlier=self.earlier,
            software=Software(name="fake", version=self.version),
            machine=Machine(),
            models=self.models,
            capacity=Capacity(slots=self.slots, measured=measured),
            contract=self.contract,
            features=self.features,
            active_jobs=self._ledger.active_jobs(),
        )

    def _sign(self, gateway_id: str, nonce: str) -> str:
        return sign_registration(
            self.key,
            gateway_id=gateway_id,
            gateway_url=origin_of(self.url),
            nonce=nonce,
            provider_id=self.provider_id,
        )

    async def _send(self, session: ProviderSession, message: Any) -> None:
        if self._socket is None or session is not self._session:
            return
        with contextlib.suppress(ConnectionClosed):
            await self._socket.send(session.send(message))

    async def send_raw(self, frame: str | bytes) -> None:
        """Anything as a frame."""
        assert self._socket is not None
        await self._socket.send(frame)

    async def heartbeat(self, state: ProviderState | None = None) -> None:
        self.state = state or self.state
        await self._send(
            self._session,
            Heartbeat(
                state=self.state,
                slots_total=self.slots,
                slots_free=max(0, self.slots_free),
                models=tuple(ModelStatus(id=model.id, state=model.state) for model in self.models),
            ),
        )

    # --- jobs ----------------------------------------------------------------------------------

    def _start(self, offer: JobOffer) -> None:
        job = FakeJob(self, offer)
        self.jobs.append(job)
        self._by_key[offer.job_id, offer.attempt] = job
        self.slots_free -= 1
        task = asyncio.create_task(self._run(job))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, job: FakeJob) -> None:
        await self.behave(job)

    async def made(self, frame: Any) -> None:
        """A job's frame: kept for a replay, and sent when there is a link."""
        if self._ledger.made(frame) and self._session.is_open:
            await self._send(self._session, frame)

    async def _replay(self, session: ProviderSession, job: FakeJob, from_seq: int) -> None:
        if from_seq == 0 and job.accepted is not None:
            await self._send(session, job.accepted)
        for frame in job.frames[from_seq:]:
            await self._send(session, frame)
        if job.terminal is not None:
            await self._send(session, job.terminal)

    # --- waiting -------------------------------------------------------------------------------

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something of this provider's fulfils the condition."""
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(condition)

    async def offered(self, count: int = 1) -> FakeJob:
        """Wait for that many offers in all; the last of them."""
        await self.until(lambda: len(self.jobs) >= count)
        return self.jobs[count - 1]
