"""The provider's jobs, whatever becomes of the link: outlives sessions and is given to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gateway_protocol.messages import ActiveJob, JobChunk, JobCompleted, JobFailed
from gateway_protocol.session.job_frames import ClosedAttempts, JobFrame, JobPhase, advance
from gateway_protocol.session.moves import IllegalMove


@dataclass(slots=True)
class ProviderJob:
    """`next_seq`: chunks made. `acknowledged`: frames that the gateway is known to have."""

    job_id: str
    attempt: int
    phase: JobPhase = JobPhase.OFFERED
    next_seq: int = 0
    acknowledged: int = 0
    cancelled: bool = False

    @property
    def ended(self) -> bool:
        return self.phase is JobPhase.ENDED


class ProviderJobs:
    """The provider's attempts from offer to acknowledged ending. At most one attempt of a job is open.

    The dispatcher reports each frame when it is made, on or off a link: `made(frame)`.
    """

    def __init__(self) -> None:
        self._open: dict[str, ProviderJob] = {}
        self._closed = ClosedAttempts()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[ProviderJob]:
        return iter([*self._open.values()])

    def get(self, job_id: str, attempt: int) -> ProviderJob | None:
        job = self._open.get(job_id)
        return job if job is not None and job.attempt == attempt else None

    def latest_attempt(self, job_id: str) -> int:
        """The highest attempt of a job ever seen here, 0 for none."""
        job = self._open.get(job_id)
        return max(job.attempt if job else 0, self._closed.latest(job_id))

    def open(self, job_id: str, attempt: int) -> None:
        """An offer came. Raises `IllegalMove` unless it is a later attempt than any before."""
        if job_id in self._open or attempt <= self._closed.latest(job_id):
            raise IllegalMove("the job is open already, or this attempt is over")
        self._open[job_id] = ProviderJob(job_id, attempt)

    def made(self, frame: JobFrame) -> bool:
        """A frame was made, once, in order. False: nobody waits for it any more, don't keep or send it.

        Raises `IllegalMove` for a second terminal frame, a gap in `seq` or a frame out of order.
        """
        job = self.get(frame.job_id, frame.attempt)
        if job is None:
            if frame.attempt <= self._closed.latest(frame.job_id):
                return False
            raise IllegalMove("the job was never offered")
        phase = advance(job.phase, frame.type)
        if isinstance(frame, JobChunk | JobCompleted | JobFailed) and frame.seq != job.next_seq:
            raise IllegalMove(f"seq {frame.seq} where {job.next_seq} comes next")
        job.phase = phase
        if isinstance(frame, JobChunk):
            job.next_seq += 1
        return True

    def active_jobs(self) -> tuple[ActiveJob, ...]:
        """For `register`: every attempt whose ending isn't acknowledged."""
        return tuple(
            ActiveJob(job_id=job.job_id, attempt=job.attempt, next_seq=job.next_seq)
            for job in self._open.values()
        )

    def close(self, job: ProviderJob) -> None:
        """Acknowledged to the end, or abandoned: forget it, but remember that it was."""
        del self._open[job.job_id]
        self._closed.add(job.job_id, job.attempt)
