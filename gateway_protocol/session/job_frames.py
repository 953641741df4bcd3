"""The frames of one attempt of one job, as a table that both sides keep to.

    OFFERED ──job_accepted──▶ ACCEPTED ──job_chunk──▶ STREAMING ⟲ job_chunk
       │  job_rejected, job_failed  │ job_completed, job_failed  │
       └──────────────▶ ENDED ◀─────┴────────────────────────────┘

Frames of an attempt are numbered: chunks 0 … n-1, then the terminal frame n (`job_rejected`, which carries no
number, counts as 0). An acknowledgement covers the terminal frame when its `seq` is n, and only then is the
attempt forgotten by its provider: so neither a chunk nor an ending is lost with a link.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import StrEnum
from typing import Final

from gateway_protocol.messages import JobAccepted, JobChunk, JobCompleted, JobFailed, JobRejected
from gateway_protocol.session.moves import Table

# How many finished jobs are remembered, to tell their late frames from those of jobs never heard of.
_REMEMBERED: Final = 4096

JobFrame = JobAccepted | JobRejected | JobChunk | JobCompleted | JobFailed


class JobPhase(StrEnum):
    OFFERED = "offered"
    ACCEPTED = "accepted"
    STREAMING = "streaming"
    ENDED = "ended"


_ENDINGS: Final = {"job_completed": JobPhase.ENDED, "job_failed": JobPhase.ENDED}
_TABLE: Final = Table(
    {
        JobPhase.OFFERED: {
            "job_accepted": JobPhase.ACCEPTED,
            "job_rejected": JobPhase.ENDED,
            "job_failed": JobPhase.ENDED,
        },
        JobPhase.ACCEPTED: {"job_chunk": JobPhase.STREAMING, **_ENDINGS},
        JobPhase.STREAMING: {"job_chunk": JobPhase.STREAMING, **_ENDINGS},
    }
)


def advance(phase: JobPhase, frame_type: str) -> JobPhase:
    """The phase after a frame; raises `IllegalMove` where the table has no entry."""
    return _TABLE.after(phase, frame_type)


class ClosedAttempts:
    """The latest finished attempt of recent jobs; bounded, the oldest are forgotten first."""

    def __init__(self) -> None:
        self._attempts: OrderedDict[str, int] = OrderedDict()

    def add(self, job_id: str, attempt: int) -> None:
        self._attempts[job_id] = max(attempt, self._attempts.get(job_id, 0))
        self._attempts.move_to_end(job_id)
        if len(self._attempts) > _REMEMBERED:
            self._attempts.popitem(last=False)

    def latest(self, job_id: str) -> int:
        """The highest attempt that is over, 0 for none."""
        return self._attempts.get(job_id, 0)
