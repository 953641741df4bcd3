"""A gateway's jobs at one provider, whatever becomes of the link: outlives sessions and is given to them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from gateway_protocol.messages import ActiveJob, JobAck, JobChunk, JobRejected, NackCode, ResumeJob
from gateway_protocol.receipts import CHAIN_START, chain_link
from gateway_protocol.session.job_frames import ClosedAttempts, JobFrame, JobPhase, advance
from gateway_protocol.session.moves import IllegalMove


@dataclass(slots=True)
class GatewayJob:
    """One attempt.

    `expected_seq`: the number of the next frame. `chain`: the last link. `acknowledged`: how many frames were
    acknowledged. `had_content`: text, reasoning or a tool delta has arrived. `cancel_reason`: set once the
    gateway wants it stopped.
    """

    job_id: str
    attempt: int
    phase: JobPhase = JobPhase.OFFERED
    expected_seq: int = 0
    acknowledged: int = 0
    chain: bytes = CHAIN_START
    had_content: bool = False
    cancel_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What a new link means for the jobs of the old one.

    `resume`: what `registered` names. `lost`: attempts that the provider doesn't have any more, already
    closed here. `cancelled`: resumed ones that are to be cancelled (again) once the link is open.
    """

    resume: tuple[ResumeJob, ...]
    lost: tuple[GatewayJob, ...]
    cancelled: tuple[GatewayJob, ...]


class Breach(Exception):
    """The provider broke the protocol in one job; `code` goes into the nack."""

    def __init__(self, code: NackCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class GatewayJobs:
    """Open attempts at one provider identity; of each job at most one."""

    def __init__(self) -> None:
        self._open: dict[str, GatewayJob] = {}
        self._closed = ClosedAttempts()
        self._unacknowledged: dict[str, GatewayJob] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[GatewayJob]:
        return iter([*self._open.values()])

    def get(self, job_id: str, attempt: int) -> GatewayJob | None:
        """The open attempt, `None` when it is over or was never offered here."""
        job = self._open.get(job_id)
        return job if job is not None and job.attempt == attempt else None

    def named(self, job_id: str | None, attempt: int | None) -> GatewayJob | None:
        """The open attempt that a frame is about; one that tells no attempt means the one that is open."""
        job = None if job_id is None else self._open.get(job_id)
        return job if job is not None and attempt in (None, job.attempt) else None

    def is_over(self, job_id: str, attempt: int) -> bool:
        """Whether frames of this attempt are late: it ended, was given up, or a later one was offered."""
        job = self._open.get(job_id)
        return attempt <= self._closed.latest(job_id) or (job is not None and attempt < job.attempt)

    def offer(self, job_id: str, attempt: int) -> None:
        """An offer is being sent. Raises `IllegalMove` unless it is later than every attempt before."""
        if job_id in self._open or attempt <= self._closed.latest(job_id):
            raise IllegalMove("the job is open at this provider, or this attempt is over")
        self._open[job_id] = GatewayJob(job_id, attempt)

    def close(self, job_id: str, attempt: int) -> None:
        """End of an attempt, or giving it up: what still comes of it is late. Idempotent."""
        if self.get(job_id, attempt) is not None:
            del self._open[job_id]
            self._unacknowledged.pop(job_id, None)
            self._closed.add(job_id, attempt)

    def take(self, job: GatewayJob, frame: JobFrame) -> bool:
        """Apply a frame of an open attempt; False for a duplicate. Raises `Breach`.

        A chunk's link is checked here. After a terminal frame the attempt is closed.
        """
        if frame.type == "job_accepted":
            if job.phase is not JobPhase.OFFERED:
                return False
        elif not isinstance(frame, JobRejected):
            seq = frame.seq
            if isinstance(frame, JobChunk) and seq < job.expected_seq:
                return False
            if seq != job.expected_seq:
                raise Breach(NackCode.BAD_SEQUENCE, f"seq {seq} where {job.expected_seq} comes next")
        try:
            phase = advance(job.phase, frame.type)
        except IllegalMove as error:
            raise Breach(NackCode.UNEXPECTED, str(error)) from None
        if isinstance(frame, JobChunk):
            link = chain_link(job.chain, frame.seq, frame.delta)
            if link.hex() != frame.chain:
                raise Breach(NackCode.BAD_CHAIN, f"the chain breaks at seq {frame.seq}")
            job.chain = link
            job.expected_seq += 1
            self._unacknowledged[job.job_id] = job
        job.phase = phase
        if phase is JobPhase.ENDED:
            self.close(job.job_id, job.attempt)
        return True

    @property
    def owes_acknowledgements(self) -> bool:
        """Whether chunks have arrived that are not acknowledged yet."""
        return bool(self._unacknowledged)

    def acknowledgements(self, withheld: Collection[str] = ()) -> list[JobAck]:
        """One cumulative `job_ack` for each job with chunks not acknowledged yet.

        `withheld`: IDs of jobs whose chunks go on waiting for theirs, so that their provider makes no more.
        """
        acks = []
        for job in [*self._unacknowledged.values()]:
            if job.job_id not in withheld:
                del self._unacknowledged[job.job_id]
                job.acknowledged = job.expected_seq
                acks.append(JobAck(job_id=job.job_id, attempt=job.attempt, seq=job.expected_seq - 1))
        return acks

    def reconcile(self, active: tuple[ActiveJob, ...]) -> Reconciliation:
        """Compare with what a provider that came back says it has.

        An attempt that it doesn't list, or of which it made fewer chunks than arrived, is lost.
        """
        listed = {(job.job_id, job.attempt): job.next_seq for job in active}
        resume, lost, cancelled = [], [], []
        for job in self:
            if listed.get((job.job_id, job.attempt), -1) < job.expected_seq:
                self.close(job.job_id, job.attempt)
                lost.append(job)
                continue
            job.acknowledged = job.expected_seq
            resume.append(ResumeJob(job_id=job.job_id, attempt=job.attempt, from_seq=job.expected_seq))
            if job.cancel_reason is not None:
                cancelled.append(job)
        self._unacknowledged.clear()
        return Reconciliation(tuple(resume), tuple(lost), tuple(cancelled))
