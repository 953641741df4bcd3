"""The provider's end of one link."""

from __future__ import annotations

from typing import Final

from gateway_protocol.codec import FrameError, UnknownMessage, decode_from_gateway
from gateway_protocol.limits import OPEN_ATTEMPTS
from gateway_protocol.messages import (
    PROTOCOL_VERSION,
    Challenge,
    Drain,
    FromGateway,
    HeartbeatAck,
    JobAck,
    JobCancel,
    JobOffer,
    Nack,
    NackCode,
    Refused,
    Registered,
    ResumeJob,
)
from gateway_protocol.session import events
from gateway_protocol.session.events import ProviderEvent
from gateway_protocol.session.link import LinkPhase, LinkSession, answer_to, nack
from gateway_protocol.session.provider_jobs import ProviderJobs

_ENDINGS: Final = ("job_rejected", "job_completed", "job_failed")


class ProviderSession(LinkSession):
    """The provider's end of one link."""

    def __init__(self, jobs: ProviderJobs) -> None:
        super().__init__()
        self.jobs = jobs

    def receive_frame(self, frame: str | bytes) -> list[ProviderEvent]:
        """Decode and receive; a frame that can't be decoded becomes a nack."""
        if self.phase is LinkPhase.CLOSED:
            return []
        try:
            message = decode_from_gateway(frame)
        except FrameError as error:
            return [*answer_to(error)]
        return self.receive(message)

    def receive(self, message: FromGateway | UnknownMessage) -> list[ProviderEvent]:
        """What a message of the gateway asks for."""
        if self.phase is LinkPhase.CLOSED or isinstance(message, UnknownMessage):
            return []
        if (out_of_place := self._moved_by(message)) is not None:
            return [out_of_place]
        match message:
            case JobAck():
                return self._acknowledged(message)
            case HeartbeatAck():
                return [events.HeartbeatAcknowledged(message)]
            case JobOffer():
                return self._offered(message)
            case JobCancel():
                return self._cancelled(message)
            case Challenge():
                return [events.ChallengeReceived(message, PROTOCOL_VERSION in message.protocol_versions)]
            case Registered():
                return [events.LinkOpened(message), *self._resumed(message.resume)]
            case Refused():
                return [events.LinkRefused(message)]
            case Drain():
                return [events.DrainRequested(message.deadline_ms)]
            case Nack():
                return [events.NackReceived(message), *self._nacked(message)]

    def _offered(self, offer: JobOffer) -> list[ProviderEvent]:
        latest = self.jobs.latest_attempt(offer.job_id)
        if offer.attempt == latest:
            return []
        if offer.attempt < latest:
            return [nack(offer.type, NackCode.STALE_ATTEMPT, "a later attempt is known", offer)]
        found: list[ProviderEvent] = []
        older = self.jobs.get(offer.job_id, latest)
        if older is not None:
            self.jobs.close(older)
            found.append(events.JobAbandoned(older.job_id, older.attempt, events.AbandonReason.SUPERSEDED))
        if len(self.jobs) >= OPEN_ATTEMPTS:
            return [nack(offer.type, NackCode.UNEXPECTED, "too many endings are not acknowledged", offer)]
        self.jobs.open(offer.job_id, offer.attempt)
        return [*found, events.JobOffered(offer)]

    def _acknowledged(self, ack: JobAck) -> list[ProviderEvent]:
        job = self.jobs.get(ack.job_id, ack.attempt)
        if job is None:
            return self._late_or_unknown(ack)
        frames = job.next_seq + job.ended
        if ack.seq >= frames:
            return [nack(ack.type, NackCode.BAD_SEQUENCE, "more is acknowledged than was made", ack)]
        if ack.seq < job.acknowledged:
            return []
        job.acknowledged = ack.seq + 1
        done = job.ended and job.acknowledged == frames
        if done:
            self.jobs.close(job)
        return [events.JobAcknowledged(job.job_id, job.attempt, ack.seq, done)]

    def _cancelled(self, cancel: JobCancel) -> list[ProviderEvent]:
        job = self.jobs.get(cancel.job_id, cancel.attempt)
        if job is None:
            return self._late_or_unknown(cancel)
        if job.ended or job.cancelled:
            return []
        job.cancelled = True
        return [events.CancelRequested(job.job_id, job.attempt, cancel.reason)]

    def _nacked(self, nack: Nack) -> list[ProviderEvent]:
        """The gateway could make nothing of an ending, so it will never acknowledge it."""
        job = None if nack.job_id is None else self.jobs.get(nack.job_id, nack.attempt or 0)
        if job is None or not job.ended or nack.in_reply_to not in _ENDINGS:
            return []
        self.jobs.close(job)
        return [events.JobAbandoned(job.job_id, job.attempt, events.AbandonReason.NACKED)]

    def _late_or_unknown(self, message: JobAck | JobCancel) -> list[ProviderEvent]:
        if message.attempt <= self.jobs.latest_attempt(message.job_id):
            return []
        return [nack(message.type, NackCode.UNKNOWN_JOB, "no such job here", message)]

    def _resumed(self, resume: tuple[ResumeJob, ...]) -> list[ProviderEvent]:
        found: list[ProviderEvent] = []
        named = {(item.job_id, item.attempt): item.from_seq for item in resume}
        for job in self.jobs:
            from_seq = named.pop((job.job_id, job.attempt), None)
            if from_seq is not None and job.acknowledged <= from_seq <= job.next_seq:
                job.acknowledged = from_seq
                found.append(events.JobResumed(job.job_id, job.attempt, from_seq))
                continue
            self.jobs.close(job)
            reason = events.AbandonReason.NOT_RESUMED
            if from_seq is not None:
                reason = events.AbandonReason.CANNOT_RESUME
                found.append(nack("registered", NackCode.BAD_SEQUENCE, "from_seq is out of what is kept"))
            found.append(events.JobAbandoned(job.job_id, job.attempt, reason))
        if named:
            found.append(nack("registered", NackCode.UNKNOWN_JOB, "resume names a job that is not here"))
        return found
