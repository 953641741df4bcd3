"""What a session tells its edge to do, in order. Values only: `match` on their types.

`Send` is for both sides: put the message on the wire, before anything that a later event leads to.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gateway_protocol.messages import (
    Challenge,
    Draining,
    Heartbeat,
    HeartbeatAck,
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
    Refused,
    Register,
    Registered,
)


@dataclass(frozen=True, slots=True)
class Send:
    """An answer that the protocol itself asks for: an acknowledgement, a nack, a cancel."""

    message: JobAck | JobCancel | Nack


@dataclass(frozen=True, slots=True)
class NackReceived:
    """The peer didn't act upon one of our frames: worth a log line and a counter, nothing else."""

    nack: Nack


# --- at the provider -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChallengeReceived:
    """Answer with `register`. `supported`: the gateway speaks our version; else close with 4004."""

    challenge: Challenge
    supported: bool


@dataclass(frozen=True, slots=True)
class LinkOpened:
    """Job frames may be sent from here on; `JobResumed` and `JobAbandoned` follow for each job there is."""

    registered: Registered


@dataclass(frozen=True, slots=True)
class LinkRefused:
    refused: Refused


@dataclass(frozen=True, slots=True)
class HeartbeatAcknowledged:
    ack: HeartbeatAck


@dataclass(frozen=True, slots=True)
class JobOffered:
    """Accept or reject it, also while draining (the offer may have crossed our `draining`)."""

    offer: JobOffer


@dataclass(frozen=True, slots=True)
class JobAcknowledged:
    """Every frame up to `seq` has arrived. `done`: the terminal frame, too; the job can be forgotten."""

    job_id: str
    attempt: int
    seq: int
    done: bool


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Stop generating; the job still ends in a terminal frame."""

    job_id: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class JobResumed:
    """Send again: `job_accepted` if `from_seq` is 0, chunks from `from_seq` on, the ending if made."""

    job_id: str
    attempt: int
    from_seq: int


class AbandonReason(StrEnum):
    NOT_RESUMED = "not_resumed"
    SUPERSEDED = "superseded"
    CANNOT_RESUME = "cannot_resume"
    NACKED = "nacked"


@dataclass(frozen=True, slots=True)
class JobAbandoned:
    """Nobody waits for this attempt: stop generating, drop its frames, send nothing more of it."""

    job_id: str
    attempt: int
    reason: AbandonReason


@dataclass(frozen=True, slots=True)
class DrainRequested:
    deadline_ms: int | None


# --- at the gateway ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RegistrationReceived:
    """Check the signature and the pin, then `admit` and send `registered`, or send `refused`."""

    register: Register


@dataclass(frozen=True, slots=True)
class HeartbeatReceived:
    heartbeat: Heartbeat


@dataclass(frozen=True, slots=True)
class JobWasAccepted:
    accepted: JobAccepted


@dataclass(frozen=True, slots=True)
class ChunkReceived:
    """The next chunk, its link checked. `first_content`: the first with text, reasoning or a tool delta."""

    chunk: JobChunk
    first_content: bool


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The one terminal frame of an attempt. `chain`, `chunks`: what arrived, for checking the receipt."""

    terminal: JobCompleted | JobFailed | JobRejected
    chain: str
    chunks: int


@dataclass(frozen=True, slots=True)
class JobBroken:
    """The provider broke the protocol in this job (chain, sequence, order): over, and its fault."""

    job_id: str
    attempt: int
    code: NackCode
    had_content: bool


@dataclass(frozen=True, slots=True)
class JobLost:
    """The provider came back without this attempt. `had_content`: too late to offer it elsewhere."""

    job_id: str
    attempt: int
    had_content: bool


@dataclass(frozen=True, slots=True)
class DrainingReceived:
    draining: Draining


ProviderEvent = (
    Send
    | NackReceived
    | ChallengeReceived
    | LinkOpened
    | LinkRefused
    | HeartbeatAcknowledged
    | JobOffered
    | JobAcknowledged
    | CancelRequested
    | JobResumed
    | JobAbandoned
    | DrainRequested
)
GatewayEvent = (
    Send
    | NackReceived
    | RegistrationReceived
    | HeartbeatReceived
    | JobWasAccepted
    | ChunkReceived
    | JobEnded
    | JobBroken
    | JobLost
    | DrainingReceived
)
