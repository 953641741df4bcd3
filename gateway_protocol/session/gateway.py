"""The gateway's end of one link."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from gateway_protocol.codec import FrameError, UnknownMessage, decode_from_provider
from gateway_protocol.messages import (
    Draining,
    FromGateway,
    FromProvider,
    Heartbeat,
    JobAccepted,
    JobAck,
    JobCancel,
    JobChunk,
    JobCompleted,
    JobFailed,
    JobOffer,
    JobRejected,
    Nack,
    NackCode,
    Register,
    ResumeJob,
)
from gateway_protocol.session import events
from gateway_protocol.session.events import GatewayEvent, Send
from gateway_protocol.session.gateway_jobs import Breach, GatewayJob, GatewayJobs
from gateway_protocol.session.job_frames import JobFrame, JobPhase
from gateway_protocol.session.link import LinkPhase, LinkSession, answer_to, nack
from gateway_protocol.session.moves import IllegalMove

# Why a frame can't have said what it was meant to say of its job.
_UNREADABLE: Final = (NackCode.MALFORMED, NackCode.NOT_JSON, NackCode.TOO_LARGE)


class Admission(NamedTuple):
    """Put `resume` into `registered`; once that is sent, act on `events` (jobs lost, cancels to repeat)."""

    resume: tuple[ResumeJob, ...]
    events: list[GatewayEvent]


class GatewaySession(LinkSession):
    """The gateway's end of one link. Its jobs are known from `admit` on."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs = GatewayJobs()

    def admit(self, register: Register, jobs: GatewayJobs) -> Admission:
        """The registration is good: take over the jobs of its identity (close an older session first)."""
        if self.phase is not LinkPhase.REGISTERING:
            raise IllegalMove(f"admit in phase {self.phase}")
        self.jobs = jobs
        found = jobs.reconcile(register.active_jobs)
        lost = [events.JobLost(job.job_id, job.attempt, job.had_content) for job in found.lost]
        return Admission(found.resume, [*lost, *(Send(_cancel_of(job)) for job in found.cancelled)])

    def send(self, message: FromProvider | FromGateway) -> str:
        """As `LinkSession.send`; an offer opens the job, a cancel is remembered until the job has ended."""
        if isinstance(message, JobOffer) and self.phase is LinkPhase.DRAINING:
            raise IllegalMove("an offer to a provider that is draining")
        frame = super().send(message)
        if isinstance(message, JobOffer):
            self.jobs.offer(message.job_id, message.attempt)
        elif isinstance(message, JobCancel) and (job := self.jobs.get(message.job_id, message.attempt)):
            job.cancel_reason = message.reason
        return frame

    def acknowledgements(self, withheld: Collection[str] = ()) -> list[JobAck]:
        """Cumulative acks for all chunks since the last call: send them every 100 ms or 64 chunks or so.

        `withheld`: see `GatewayJobs.acknowledgements`.
        """
        return self.jobs.acknowledgements(withheld) if self.is_open else []

    def receive_frame(self, frame: str | bytes) -> list[GatewayEvent]:
        """Decode and receive; a frame that can't be decoded becomes a nack and ends the job that it names."""
        if self.phase is LinkPhase.CLOSED:
            return []
        try:
            message = decode_from_provider(frame)
        except FrameError as error:
            job = self.jobs.named(error.job_id, error.attempt)
            if job is None or error.nack_code not in _UNREADABLE:
                return [*answer_to(error)]
            return self._broken(job, error.in_reply_to, Breach(error.nack_code, error.message))
        return self.receive(message)

    def receive(self, message: FromProvider | UnknownMessage) -> list[GatewayEvent]:
        """What a message of the provider asks for."""
        if self.phase is LinkPhase.CLOSED or isinstance(message, UnknownMessage):
            return []
        if (out_of_place := self._moved_by(message)) is not None:
            return [out_of_place]
        match message:
            case JobChunk() | JobAccepted() | JobCompleted() | JobFailed() | JobRejected():
                return self._job_frame(message)
            case Heartbeat():
                return [events.HeartbeatReceived(message)]
            case Register():
                return [events.RegistrationReceived(message)]
            case Draining():
                return [events.DrainingReceived(message)]
            case Nack():
                return [events.NackReceived(message), *self._nacked(message)]

    def _job_frame(self, frame: JobFrame) -> list[GatewayEvent]:
        job = self.jobs.get(frame.job_id, frame.attempt)
        if job is None:
            return self._late_or_unknown(frame)
        first_content = isinstance(frame, JobChunk) and not job.had_content and frame.delta.is_content
        try:
            if not self.jobs.take(job, frame):
                return []
        except Breach as breach:
            return self._broken(job, frame.type, breach)
        if isinstance(frame, JobChunk):
            job.had_content = job.had_content or first_content
            return [events.ChunkReceived(frame, first_content)]
        if isinstance(frame, JobAccepted):
            return [events.JobWasAccepted(frame)]
        return [_ack_of(frame), events.JobEnded(frame, job.chain.hex(), job.expected_seq)]

    def _late_or_unknown(self, frame: JobFrame) -> list[GatewayEvent]:
        """A late frame is dropped; a late ending is acknowledged, so that the provider can forget it."""
        if not self.jobs.is_over(frame.job_id, frame.attempt):
            return [nack(frame.type, NackCode.UNKNOWN_JOB, "no such job here", frame)]
        return [] if isinstance(frame, JobChunk | JobAccepted) else [_ack_of(frame)]

    def _nacked(self, nack: Nack) -> list[GatewayEvent]:
        """An offer or a cancel that its provider did not take: nothing more comes of that attempt."""
        job = self.jobs.named(nack.job_id, nack.attempt)
        refused = nack.in_reply_to == "job_cancel" or (
            nack.in_reply_to == "job_offer" and job is not None and job.phase is JobPhase.OFFERED
        )
        if job is None or not refused:
            return []
        self.jobs.close(job.job_id, job.attempt)
        return [events.JobBroken(job.job_id, job.attempt, nack.code, job.had_content)]

    def _broken(self, job: GatewayJob, frame_type: str | None, breach: Breach) -> list[GatewayEvent]:
        """The job can't be completed correctly any more: it is over here, and stopped there."""
        self.jobs.close(job.job_id, job.attempt)
        job.cancel_reason = str(breach.code)
        return [
            nack(frame_type, breach.code, breach.message, job),
            Send(_cancel_of(job)),
            events.JobBroken(job.job_id, job.attempt, breach.code, job.had_content),
        ]


def _cancel_of(job: GatewayJob) -> JobCancel:
    return JobCancel(job_id=job.job_id, attempt=job.attempt, reason=job.cancel_reason or "cancelled")


def _ack_of(terminal: JobCompleted | JobFailed | JobRejected) -> Send:
    seq = 0 if isinstance(terminal, JobRejected) else terminal.seq
    return Send(JobAck(job_id=terminal.job_id, attempt=terminal.attempt, seq=seq))
