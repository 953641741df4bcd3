"""What providers do, applied to jobs: registrations, heartbeats, frames, lost links. Nothing here waits."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Protocol

import structlog

from gateway_protocol.completion import NO_ANSWER
from gateway_protocol.errors import ApiError, ErrorCode, Fault
from gateway_protocol.messages import (
    CloseCode,
    Heartbeat,
    HeartbeatAck,
    JobCompleted,
    JobFailed,
    JobRejected,
    ProviderState,
    Refused,
    Register,
    Registered,
    ResumeJob,
)
from gateway_protocol.receipts import Terminal
from gateway_protocol.session import GatewaySession, events
from provider.local_gateway.broker import Broker
from provider.local_gateway.handshake import Dialled, check_registration
from provider.local_gateway.jobs import GATEWAYS_OWN, Attempt
from provider.local_gateway.proof import Expected, ReceiptMismatch, check_receipt
from provider.local_gateway.providers import (
    Directory,
    Link,
    ProviderRecord,
    apply_heartbeat,
    registered_candidate,
)
from provider.local_gateway.settings import GatewaySettings

log = structlog.get_logger("gateway")


class ProviderKeys(Protocol):
    """The pinned keys, kept over restarts where there is a state file. Old keys are kept:

    receipts outlive them.
    """

    def pinned(self, provider_id: str) -> str | None: ...

    def pin(self, provider_id: str, public_key: str) -> None: ...

    def all(self) -> list[str]:
        """Every key that was ever pinned, oldest first."""
        ...


class Switchboard:
    """`wall_ms`: milliseconds since the epoch."""

    def __init__(
        self,
        settings: GatewaySettings,
        directory: Directory,
        broker: Broker,
        keys: ProviderKeys,
        wall_ms: Callable[[], int],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._directory = directory
        self._broker = broker
        self._keys = keys
        self._wall_ms = wall_ms
        self._allowed = settings.access.provider_keys

    # --- links ---------------------------------------------------------------------------------

    def register(
        self, link: Link, session: GatewaySession, register: Register, dialled: Dialled
    ) -> ProviderRecord | Refused:
        """Let a provider in, or say why not. What its jobs need has been sent when this returns."""
        provider_id = register.provider_id
        pinned = self._keys.pinned(provider_id)
        refusal = check_registration(register, dialled, pinned=pinned, allowed=self._allowed)
        if refusal is not None:
            return refusal
        if pinned != register.public_key:
            self._keys.pin(provider_id, register.public_key)
        record = self._record_for(register)
        if record.link is not None:
            former = record.link
            former.close(CloseCode.REPLACED, "a newer session of this identity")
            self.lost(record, former)
        record.link = link
        admission = session.admit(register, record.jobs)
        link.send(self._registered(admission.resume))
        self._directory.put(record)
        record.candidate.models = record.servable()
        record.candidate.in_flight = len(record.attempts)
        self._broker.dispatch.put(record.candidate, self._loop.time())
        for attempt in [*record.attempts.values()]:
            if attempt.job is not None and record.jobs.get(attempt.job_id, attempt.number) is not None:
                attempt.job.link_back()
        for event in admission.events:
            self.event(record, link, event)
        log.info("provider_registered", provider_id=provider_id, models=len(register.models))
        self._broker.pump(provider_id)
        return record

    def _record_for(self, register: Register) -> ProviderRecord:
        bars = self._directory.bars(register, self._allowed)
        record = self._directory.records.get(register.provider_id)
        candidate = registered_candidate(register, bars, record.candidate if record else None)
        if record is None:
            record = ProviderRecord(register.provider_id, register.public_key, register, candidate)
        if record.public_key != register.public_key:
            # A job that outlived the rotation may be signed with either key.
            record.previous_key, record.public_key = record.public_key, register.public_key
        record.register = register
        record.draining = False
        record.states, record.heartbeat, record.heartbeat_at = {}, None, self._loop.time()
        return record

    def allow(self, keys: frozenset[str] | None) -> None:
        """Replace the list of keys that may serve. Others that are here stay connected and are told why."""
        self._allowed = keys
        for record in self._directory.records.values():
            record.candidate.barred = self._directory.bars(record.register, keys)
            if record.link is not None:
                self.acknowledge(record, record.link)
                self._broker.pump(record.provider_id)

    def _registered(self, resume: tuple[ResumeJob, ...]) -> Registered:
        timers = self._settings.timers
        return Registered(
            session_id=f"sess_{secrets.token_hex(16)}",
            heartbeat_interval_ms=max(1, round(timers.heartbeat * 1000)),
            resume_window_ms=round(timers.resume_window * 1000),
            minimum_version=self._settings.minimum_version,
            recommended_version=self._settings.recommended_version,
            resume=resume,
        )

    def lost(self, record: ProviderRecord, link: Link) -> None:
        """A link is gone. Its jobs wait for the provider's return; what nobody waits for is let go."""
        if record.link is not link:
            return
        record.link = None
        record.losses += 1
        self._broker.dispatch.remove(record.provider_id)
        for attempt in [*record.attempts.values()]:
            if attempt.job is not None:
                attempt.job.link_lost()
            else:
                self._drop(record, attempt)
        log.info("provider_lost", provider_id=record.provider_id)
        self._loop.call_later(self._settings.timers.resume_window, self._forget, record, record.losses)

    def _forget(self, record: ProviderRecord, losses: int) -> None:
        """Nothing can be resumed any more, unless it was back in the meantime."""
        known = self._directory.records.get(record.provider_id)
        if known is record and record.link is None and record.losses == losses:
            self._directory.forget(record.provider_id)

    def _drop(self, record: ProviderRecord, attempt: Attempt) -> None:
        record.jobs.close(attempt.job_id, attempt.number)
        self._broker.release(record, attempt)

    # --- frames --------------------------------------------------------------------------------

    def event(self, record: ProviderRecord, link: Link, event: events.GatewayEvent) -> None:
        """Apply one event of an open session."""
        match event:
            case events.ChunkReceived(chunk):
                attempt = record.attempts.get((chunk.job_id, chunk.attempt))
                if attempt is not None:
                    attempt.collector.add(chunk.delta, chunk.logprobs)
                    self._broker.meter.add(self._loop.time())
                    if attempt.job is not None:
                        attempt.job.chunk(chunk)
            case events.Send(message):
                link.send(message)
            case events.JobWasAccepted(accepted):
                attempt = record.attempts.get((accepted.job_id, accepted.attempt))
                if attempt is not None and attempt.job is not None:
                    attempt.job.accepted(accepted)
            case events.JobEnded():
                self._job_ended(record, event)
            case events.JobBroken(job_id, number, code):
                log.warning("provider_broke_protocol", provider_id=record.provider_id, code=str(code))
                self._lose(record, job_id, number, broken=True)
            case events.JobLost(job_id, number):
                self._lose(record, job_id, number, broken=False)
            case events.HeartbeatReceived(heartbeat):
                self._heartbeat(record, link, heartbeat)
            case events.DrainingReceived():
                record.draining = True
                record.candidate.state = ProviderState.DRAINING
                self._broker.dispatch.refresh(record.provider_id, self._loop.time())
            case events.NackReceived(nack):
                log.warning("provider_nacked", provider_id=record.provider_id, code=str(nack.code))
            case events.RegistrationReceived():
                pass  # before a session is open only; `peers` takes it

    def _heartbeat(self, record: ProviderRecord, link: Link, heartbeat: Heartbeat) -> None:
        now = self._loop.time()
        apply_heartbeat(record, heartbeat, now)
        for attempt in [*record.attempts.values()]:
            # An ending that never comes must not hold a slot for ever.
            dropped = attempt.dropped_at
            if dropped is not None and now - dropped > self._settings.timers.resume_window:
                self._drop(record, attempt)
        self.acknowledge(record, link)
        self._broker.pump(record.provider_id)

    def acknowledge(self, record: ProviderRecord, link: Link) -> None:
        """Tell the provider whether it gets jobs, and if not, why."""
        self._broker.dispatch.refresh(record.provider_id, self._loop.time())
        reasons = self._broker.reasons(record)
        barred = record.candidate.reasons(self._loop.time())
        link.send(HeartbeatAck(routable=not barred, reasons=tuple(reasons), time_ms=self._wall_ms()))

    def watch(self, record: ProviderRecord, link: Link) -> None:
        """Once an interval: notice that heartbeats have stopped though the link lives, and say so."""
        silent = self._loop.time() - record.heartbeat_at
        if silent > 3 * self._settings.timers.heartbeat and not record.candidate.stale:
            record.candidate.stale = True
            self.acknowledge(record, link)

    # --- ends of jobs --------------------------------------------------------------------------

    def _lose(self, record: ProviderRecord, job_id: str, number: int, *, broken: bool) -> None:
        attempt = record.attempts.get((job_id, number))
        if attempt is None:
            return
        job = attempt.job
        self._broker.blame(attempt)
        self._broker.release(record, attempt)
        if job is None:
            return
        if broken:
            job.misled(ApiError(ErrorCode.PROVIDER_ERROR, "The provider's answer is not in order."))
        else:
            job.forgotten()

    def _job_ended(self, record: ProviderRecord, ended: events.JobEnded) -> None:
        frame = ended.terminal
        attempt = record.attempts.get((frame.job_id, frame.attempt))
        if attempt is None:
            return
        job, now = attempt.job, self._loop.time()
        mismatch = self._receipt_mismatch(record, attempt, ended)
        if mismatch is not None:
            log.warning("receipt_mismatch", provider_id=record.provider_id, field=mismatch)
        if mismatch is not None or (job is not None and self._is_fault(frame)):
            self._broker.dispatch.failed(record.provider_id, now, attempt.offered_at)
        elif isinstance(frame, JobCompleted):
            self._broker.dispatch.succeeded(record.provider_id, now)
            self._broker.dispatch.remember(attempt.spec.prefixes[:1], record.provider_id)
        if not isinstance(frame, JobRejected) and frame.usage is not None and mismatch is None:
            uncounted = frame.usage.completion_tokens - ended.chunks
            self._broker.meter.spread(attempt.offered_at, now, uncounted)
        self._broker.release(record, attempt)
        if job is None:
            if mismatch is None:
                self._broker.left_over(attempt, frame)
        elif mismatch is not None:
            job.misled(ApiError(ErrorCode.PROVIDER_ERROR, "The provider's receipt doesn't fit its answer."))
        elif isinstance(frame, JobCompleted):
            job.completed(frame)
        elif isinstance(frame, JobFailed):
            job.failed(frame)
        else:
            job.rejected(frame)

    @staticmethod
    def _is_fault(frame: JobCompleted | JobFailed | JobRejected) -> bool:
        """Whether the ending counts against the provider; being full doesn't."""
        if isinstance(frame, JobCompleted):
            return False
        if frame.error.code in GATEWAYS_OWN:
            return True
        return frame.error.fault is Fault.PROVIDER and frame.error.code not in (
            ErrorCode.PROVIDER_OVERLOADED,
            ErrorCode.NO_PROVIDER_AVAILABLE,
        )

    def _receipt_mismatch(
        self, record: ProviderRecord, attempt: Attempt, ended: events.JobEnded
    ) -> str | None:
        """The claim of the receipt that doesn't hold, `None` if all do or there rightly is none."""
        frame = ended.terminal
        if isinstance(frame, JobRejected):
            return None
        if frame.receipt is None:
            return "missing" if isinstance(frame, JobFailed) and frame.error.inference_ran else None
        completed = isinstance(frame, JobCompleted)
        reason = frame.finish_reason if isinstance(frame, JobCompleted) else None
        buffered = not attempt.spec.request.stream
        answer = NO_ANSWER if buffered and not completed else attempt.collector.answer(reason)
        expected = Expected(
            job_id=attempt.job_id,
            attempt=attempt.number,
            provider_id=record.provider_id,
            model=attempt.model,
            revision=attempt.revision,
            contract=self._settings.contract,
            request_sha256=attempt.spec.request_sha256,
            chain=ended.chain,
            chunks=ended.chunks,
            terminals=frozenset({Terminal.COMPLETED} if completed else {Terminal.FAILED, Terminal.CANCELLED}),
            answer=answer,
            finish_reason=reason,
            usage=frame.usage,
        )
        try:
            check_receipt(frame.receipt, record.signing_keys(), expected)
        except ReceiptMismatch as mismatch:
            return mismatch.field
        return None
