"""The life of one job on the provider, as a table.

    OFFERED ──▶ QUEUED ──▶ RUNNING ──▶ SETTLING ──▶ ENDED
       │           │                      ▲           ▲
       ├───────────┴── rejected, failed ──┘           │
       └── abandoned, from anywhere ──────────────────┘

`OFFERED`: being checked. `QUEUED`: with the engine, not admitted. `RUNNING`: `job_accepted` is made.
`SETTLING`: its terminal frame is made, kept until the gateway has it. `ENDED`: over, or not asked for.
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
    ENDED = "ended"


class JobEvent(StrEnum):
    """What may happen to a job. `REJECT`, `FINISH`: its terminal frame, `job_rejected` or another."""

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
        (JobState.OFFERED, JobEvent.REJECT): JobState.SETTLING,
        (JobState.OFFERED, JobEvent.FINISH): JobState.SETTLING,
        (JobState.QUEUED, JobEvent.ADMIT): JobState.RUNNING,
        (JobState.QUEUED, JobEvent.REJECT): JobState.SETTLING,
        (JobState.QUEUED, JobEvent.FINISH): JobState.SETTLING,
        (JobState.RUNNING, JobEvent.FINISH): JobState.SETTLING,
        (JobState.SETTLING, JobEvent.ACKNOWLEDGE): JobState.ENDED,
        **{(state, JobEvent.ABANDON): JobState.ENDED for state in JobState if state is not JobState.ENDED},
    }
)


def transition(state: JobState, event: JobEvent) -> JobState:
    """The state after `event`; raises `IllegalTransition` where the table has no entry."""
    try:
        return _TABLE[state, event]
    except KeyError:
        raise IllegalTransition(state, event) from None
