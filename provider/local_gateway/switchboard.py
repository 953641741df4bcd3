"""What providers do, applied to jobs: registrations, heartbeats, frames, lost links. Nothing here waits."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Protocol

import structlog

from gateway_protocol.consents import CONSENTS
from gateway_protocol.errors import ApiError, ErrorCode
from gateway_protocol.messages import (
    CloseCode,
    Heartbeat,
    HeartbeatAck,
    JobAccepted,
    JobCancel,
    JobChunk,
    JobCompleted,
    JobFailed,
    JobRejected,
    Nack,
    NackCode,
    ProviderState,
    Refused,
    RefusedCode,
    Register,
    Registered,
    ResumeJob,
)
from gateway_protocol.session import GatewaySession, events
from provider.local_gateway.broker import Broker
from provider.local_gateway.endings import contract_breach, counts, judged, receipt_mismatch
from provider.local_gateway.handshake import Dialled, check_registration, keys_to_pin, refused
from provider.local_gateway.jobs import Attempt
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
        new_keys = keys_to_pin(register, pinned)
        if new_keys and len(self._keys.all()) + len(new_keys) > self._settings.caps.pinned_keys:
            return refused(RefusedCode.TOO_MANY, "this gateway has pinned all the keys it takes", 60_000)
        for key in new_keys:
            self._keys.pin(provider_id, key)
        record = self._record_for(register, new_keys)
        if record.link is not None:
            former = record.link
            former.close(CloseCode.REPLACED, "a newer session of this identity")
            self.lost(record, former)
        record.link = link
        admission = session.admit(register, record.jobs)
        link.send(self._registered(admission.resume))
        self._directory.put(record)
        record.list_models()
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

    def _record_for(self, register: Register, new_keys: list[str]) -> ProviderRecord:
        bars = self._directory.bars(register, self._allowed)
        record = self._directory.records.get(register.provider_id)
        candidate = registered_candidate(register, bars, record.candidate if record else None)
        if record is None:
            record = ProviderRecord(register.provider_id, [register.public_key], register, candidate)
        elif new_keys:
            # A job that outlives a change of keys may be signed with any of those that it has seen.
            record.keys = [*record.keys, *new_keys][-CONSENTS:]
        record.register = register
        record.draining = False
        record.nacked.clear()
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
                    self._chunk(record, link, attempt, chunk)
            case events.Send(message):
                link.send(message)
            case events.JobWasAccepted(accepted):
                attempt = record.attempts.get((accepted.job_id, accepted.attempt))
                if attempt is not None:
                    self._accepted(record, link, attempt, accepted)
            case events.JobEnded():
                self._job_ended(record, event)
            case events.JobBroken(job_id, number, code):
                log.warning("provider_broke_protocol", provider_id=record.provider_id, code=str(code))
                disorder = ApiError(ErrorCode.PROVIDER_ERROR, "The provider's answer is not in order.")
                self._lose(record, job_id, number, disorder)
            case events.JobLost(job_id, number):
                self._lose(record, job_id, number, None)
            case events.HeartbeatReceived(heartbeat):
                self._heartbeat(record, link, heartbeat)
            case events.DrainingReceived():
                record.draining = True
                record.candidate.state = ProviderState.DRAINING
                self._broker.dispatch.refresh(record.provider_id, self._loop.time())
            case events.NackReceived(nack):
                if nack.code not in record.nacked:  # a line for each kind: it may nack every frame
                    record.nacked.add(nack.code)
                    log.warning("provider_nacked", provider_id=record.provider_id, code=str(nack.code))
            case events.RegistrationReceived():
                pass  # before a session is open only; `peers` takes it

    def _accepted(self, record: ProviderRecord, link: Link, attempt: Attempt, accepted: JobAccepted) -> None:
        try:
            attempt.check.accepted(accepted.prompt_tokens, accepted.cached_tokens)
        except ApiError as breach:
            self._break_off(record, link, attempt, breach, accepted.type)
            return
        attempt.accepted = True
        if attempt.job is not None:
            attempt.job.accepted(accepted)

    def _chunk(self, record: ProviderRecord, link: Link, attempt: Attempt, chunk: JobChunk) -> None:
        try:
            attempt.check.delta(chunk.delta)
        except ApiError as breach:
            self._break_off(record, link, attempt, breach, chunk.type)
            return
        attempt.collector.add(chunk.delta, chunk.logprobs)
        self._broker.meter.add(self._loop.time())
        if attempt.job is not None:
            attempt.job.chunk(chunk)

    def _break_off(
        self, record: ProviderRecord, link: Link, attempt: Attempt, breach: ApiError, frame_type: str
    ) -> None:
        """The answer breaks the contract: over here, before the buyer sees it, and stopped there."""
        log.warning("provider_broke_contract", provider_id=record.provider_id, reason=breach.message)
        job_id, number = attempt.job_id, attempt.number
        link.send(
            Nack(
                in_reply_to=frame_type,
                job_id=job_id,
                attempt=number,
                code=NackCode.UNEXPECTED,
                message=breach.message,
            )
        )
        link.send(JobCancel(job_id=job_id, attempt=number, reason="contract_broken"))
        record.jobs.close(job_id, number)
        self._lose(record, job_id, number, breach)

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

    def _lose(self, record: ProviderRecord, job_id: str, number: int, broken: ApiError | None) -> None:
        """The attempt is over without an ending. `broken`: what its provider did; `None`: it forgot it."""
        attempt = record.attempts.get((job_id, number))
        if attempt is None:
            return
        job = attempt.job
        self._broker.blame(attempt)
        self._broker.release(record, attempt)
        if job is None:
            return
        if broken is not None:
            job.misled(broken)
        else:
            job.forgotten()

    def _job_ended(self, record: ProviderRecord, ended: events.JobEnded) -> None:
        frame = ended.terminal
        attempt = record.attempts.get((frame.job_id, frame.attempt))
        if attempt is None:
            return
        job, now = attempt.job, self._loop.time()
        lie = self._lie(record, attempt, ended)
        error = None if isinstance(frame, JobCompleted) else judged(frame, attempt)
        if lie is not None or (job is not None and error is not None and counts(error)):
            self._broker.blame(attempt)
        elif error is None:
            self._broker.dispatch.succeeded(record.provider_id, now)
            self._broker.dispatch.remember(attempt.spec.prefixes[:1], record.provider_id)
        if not isinstance(frame, JobRejected) and frame.usage is not None and lie is None:
            uncounted = frame.usage.completion_tokens - ended.chunks
            self._broker.meter.spread(attempt.offered_at, now, uncounted)
        self._broker.release(record, attempt)
        if job is None:
            if lie is None:
                self._broker.left_over(attempt, frame)
        elif lie is not None:
            job.misled(lie)
        elif isinstance(frame, JobCompleted):
            job.completed(frame)
        elif error is not None and isinstance(frame, JobFailed):
            job.failed(frame, error)
        elif error is not None:
            job.rejected(error)

    def _lie(self, record: ProviderRecord, attempt: Attempt, ended: events.JobEnded) -> ApiError | None:
        """What the buyer is told where an ending isn't to be believed."""
        mismatch = receipt_mismatch(record, attempt, ended, self._settings.contract)
        if mismatch is not None:
            log.warning("receipt_mismatch", provider_id=record.provider_id, field=mismatch)
            return ApiError(ErrorCode.PROVIDER_ERROR, "The provider's receipt doesn't fit its answer.")
        breach = contract_breach(attempt, ended)
        if breach is not None:
            log.warning("provider_broke_contract", provider_id=record.provider_id, reason=breach.message)
        return breach
