"""What a provider says to a gateway (docs/protocol.md, "Messages", P→G)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from gateway_protocol.messages.codes import FinishReason, ProviderState
from gateway_protocol.messages.parts import (
    ActiveJob,
    Capacity,
    Count,
    Counters,
    Delta,
    JobError,
    JobId,
    Machine,
    MachineStatus,
    MemoryStatus,
    ModelStatus,
    Nack,
    Name,
    OfferedModel,
    Positive,
    PreviousKey,
    Software,
    Usage,
    Wire,
)


class Register(Wire):
    """`previous`: the last key's consent to this one; `earlier`: the consents before it, newest first."""

    type: Literal["register"] = "register"
    protocol_version: int
    provider_id: Name
    public_key: str
    signature: str
    previous: PreviousKey | None = None
    earlier: tuple[PreviousKey, ...] = ()
    software: Software
    machine: Machine
    models: tuple[OfferedModel, ...]
    capacity: Capacity
    contract: Literal["malibu", "strict"]
    features: tuple[str, ...] = ()
    active_jobs: tuple[ActiveJob, ...] = ()


class Heartbeat(Wire):
    type: Literal["heartbeat"] = "heartbeat"
    state: ProviderState
    reason: str | None = None
    slots_total: Count
    slots_free: Count
    queued: Count = 0
    models: tuple[ModelStatus, ...] = ()
    memory: MemoryStatus = MemoryStatus()
    machine: MachineStatus = MachineStatus()
    counters: Counters = Counters()


class JobAccepted(Wire):
    type: Literal["job_accepted"] = "job_accepted"
    job_id: JobId
    attempt: Positive
    prompt_tokens: Count
    cached_tokens: Count = 0


class JobRejected(Wire):
    type: Literal["job_rejected"] = "job_rejected"
    job_id: JobId
    attempt: Positive
    error: JobError
    retry_after_ms: Count | None = None


class JobChunk(Wire):
    """`seq` starts at 0. `chain`: this link of the hash chain, lower-case hex (`receipts`)."""

    type: Literal["job_chunk"] = "job_chunk"
    job_id: JobId
    attempt: Positive
    seq: Count
    delta: Delta
    logprobs: dict[str, Any] | None = None
    chain: str


class JobCompleted(Wire):
    """`seq`: the number of chunks made, that is the sequence number after the last chunk's."""

    type: Literal["job_completed"] = "job_completed"
    job_id: JobId
    attempt: Positive
    seq: Count
    finish_reason: FinishReason
    usage: Usage
    receipt: str


class JobFailed(Wire):
    """Also the terminal frame of a cancelled job. `receipt` null: no inference ran."""

    type: Literal["job_failed"] = "job_failed"
    job_id: JobId
    attempt: Positive
    seq: Count
    error: JobError
    usage: Usage | None = None
    receipt: str | None = None


class Draining(Wire):
    type: Literal["draining"] = "draining"
    in_flight: Count
    deadline_ms: Count


FromProvider = Annotated[
    Register | Heartbeat | JobAccepted | JobRejected | JobChunk | JobCompleted | JobFailed | Draining | Nack,
    Field(discriminator="type"),
]
