"""The life of one job on the provider, as a table.

    OFFERED ──▶ QUEUED ──▶ RUNNING ──▶ SETTLING ──▶ ENDED
       │           │           │           ▲
       ├───────────┼───────────┼───────────┘  (cancelled, timed out, failed)
       └───────────┴──▶ REJECTED

`OFFERED`: being checked. `QUEUED`: with the engine, not admitted. `RUNNING`: `job_accepted` is out.
`SETTLING`: its terminal frame is made, and kept until the gateway has it. `ENDED`, `REJECTED`: over.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class JobState(StrEnum):
    OFFERED = "offered"
    QUEUED = "queued"
    RUNNING = "running"
    SETTLING = "settling"
    REJECTED = "rejected"
    ENDED = "ended"


class JobEvent(StrEnum):
    """What may happen to a job. `FINISH` is any terminal frame but a rejection."""

    SUBMIT = "submit"
    ADMIT = "admit"
    REJECT = "reject"
    FINISH = "finish"
    ACKNOWLEDGE = "acknowledge"
    ABANDON = "abandon"


class IllegalTransition(Exception):
    """A job was told something that can't happen to it in its state: a bug, never a peer's doing."""

    def __init__(self, state: JobState, event: JobEvent) -> None:
        super().__init__(f"a job that is {state} can't {event}")
        self.state = state
        self.event = event


_TABLE: Mapping[tuple[JobState, JobEvent], JobState] = MappingProxyType(
    {
        (JobState.OFFERED, JobEvent.SUBMIT): JobState.QUEUED,
        (JobState.OFFERED, JobEvent.REJECT): JobState.REJECTED,
        (JobState.OFFERED, JobEvent.FINISH): JobState.SETTLING,
        (JobState.OFFERED, JobEvent.ABANDON): JobState.ENDED,
        (JobState.QUEUED, JobEvent.ADMIT): JobState.RUNNING,
        (JobState.QUEUED, JobEvent.REJECT): JobState.REJECTED,
        (JobState.QUEUED, JobEvent.FINISH): JobState.SETTLING,
        (JobState.QUEUED, JobEvent.ABANDON): JobState.ENDED,
        (JobState.RUNNING, JobEvent.FINISH): JobState.SETTLING,
        (JobState.RUNNING, JobEvent.ABANDON): JobState.ENDED,
        (JobState.SETTLING, JobEvent.ACKNOWLEDGE): JobState.ENDED,
        (JobState.SETTLING, JobEvent.ABANDON): JobState.ENDED,
    }
)

OVER: frozenset[JobState] = frozenset({JobState.REJECTED, JobState.ENDED})


def transition(state: JobState, event: JobEvent) -> JobState:
    """The state after `event`; raises `IllegalTransition` where the table has no entry."""
    try:
        return _TABLE[state, event]
    except KeyError:
        raise IllegalTransition(state, event) from None
