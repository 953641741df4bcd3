"""The messages of the gateway–provider link as frozen pydantic models, discriminated by `type`.

Shapes are those of docs/protocol.md, "Messages". Unknown fields are ignored (a newer peer);
sizes, encoding and unknown types are `codec`'s business; who may send what when is `session`'s.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt

from gateway_protocol.errors import ApiError, ErrorCode, Fault

PROTOCOL_VERSION = 1
SUBPROTOCOL = "malibu.provider.v1"


class Wire(BaseModel):
    """Base of every wire model: immutable, tolerant of fields from a newer peer."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


class ProviderState(StrEnum):
    READY = "ready"
    BUSY = "busy"
    DRAINING = "draining"
    PAUSED = "paused"
    DEGRADED = "degraded"


class ModelState(StrEnum):
    """`ready`: can take a job now; `unloaded`: on disk, loaded on demand (also routable)."""

    READY = "ready"
    LOADING = "loading"
    UNLOADED = "unloaded"
    FAILED = "failed"


class NotRoutableReason(StrEnum):
    """Why a provider gets no jobs: the closed set of `heartbeat_ack.reasons`."""

    MODEL_NOT_IN_DEMAND = "model_not_in_demand"
    BELOW_MINIMUM_VERSION = "below_minimum_version"
    DRAINING = "draining"
    FAILED_RECENT_JOBS = "failed_recent_jobs"
    NO_FREE_SLOT = "no_free_slot"
    PAUSED_BY_POLICY = "paused_by_policy"
    MODEL_NOT_READY = "model_not_ready"
    CONTRACT_MISMATCH = "contract_mismatch"
    KEY_NOT_ALLOWED = "key_not_allowed"
    DEGRADED = "degraded"
    STALE_HEARTBEAT = "stale_heartbeat"


class RefusedCode(StrEnum):
    """Why a gateway refused a registration."""

    MALFORMED = "malformed"
    BAD_SIGNATURE = "bad_signature"
    KEY_MISMATCH = "key_mismatch"
    KEY_NOT_ALLOWED = "key_not_allowed"
    TOKEN_REFUSED = "token_refused"
    GATEWAY_URL_MISMATCH = "gateway_url_mismatch"
    NONCE_REUSED = "nonce_reused"
    UNSUPPORTED_VERSION = "unsupported_version"
    BELOW_MINIMUM_VERSION = "below_minimum_version"
    TOO_MANY = "too_many"


class NackCode(StrEnum):
    """Why a frame was not acted upon; a nack never ends the session."""

    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    NOT_JSON = "not_json"
    UNEXPECTED = "unexpected"
    UNKNOWN_JOB = "unknown_job"
    STALE_ATTEMPT = "stale_attempt"
    BAD_CHAIN = "bad_chain"
    BAD_SEQUENCE = "bad_sequence"


class CloseCode:
    """Websocket close codes and what they mean to a provider (protocol.md, "Reconnect")."""

    NORMAL = 1000
    GOING_AWAY = 1001
    POLICY = 1008
    TOO_BIG = 1009
    INTERNAL = 1011
    RESTART = 1012
    MALFORMED = 4001
    REFUSED = 4003
    VERSION = 4004
    REPLACED = 4009
    TOO_MANY = 4429


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


# --- parts ---------------------------------------------------------------------------------


class Software(Wire):
    name: str
    version: str
    mlx: str | None = None
    mlx_lm: str | None = None
    python: str | None = None


class Machine(Wire):
    chip: str | None = None
    memory_bytes: NonNegativeInt | None = None
    gpu_cores: NonNegativeInt | None = None
    os: str | None = None


class ToolCallSupport(Wire):
    """`first_turn`, `multi_turn`: by family; `forced`: a grammar can force a call on this device."""

    first_turn: bool
    multi_turn: bool
    forced: bool


class OfferedModel(Wire):
    id: str
    family: Literal["qwen", "gpt_oss", "llama", "none"]
    context_length: PositiveInt
    max_output_tokens: PositiveInt
    tool_calls: ToolCallSupport
    revision: str | None = None
    weights_sha256: str | None = None
    state: ModelState


class ModelStatus(Wire):
    id: str
    state: ModelState


class Measured(Wire):
    model: str
    decode_tokens_per_s: float
    prefill_tokens_per_s: float
    at_ms: NonNegativeInt


class Capacity(Wire):
    slots: NonNegativeInt
    measured: Measured | None = None


class ActiveJob(Wire):
    """`next_seq`: the sequence number after the last chunk this provider has made for the job."""

    job_id: str
    attempt: PositiveInt
    next_seq: NonNegativeInt


class ResumeJob(Wire):
    job_id: str
    attempt: PositiveInt
    from_seq: NonNegativeInt


class PreviousKey(Wire):
    """The pinned key's consent to its successor: that key and its signature over the new one."""

    public_key: str
    signature: str


class MemoryStatus(Wire):
    active_bytes: NonNegativeInt = 0
    cache_bytes: NonNegativeInt = 0
    limit_bytes: NonNegativeInt = 0


class MachineStatus(Wire):
    thermal: str | None = None
    power_source: str | None = None
    low_power: bool | None = None


class Counters(Wire):
    jobs_completed: NonNegativeInt = 0
    jobs_failed: NonNegativeInt = 0
    jobs_cancelled: NonNegativeInt = 0
    prompt_tokens: NonNegativeInt = 0
    completion_tokens: NonNegativeInt = 0


class Usage(Wire):
    """Token counts as the receipt states them; `reasoning_tokens` is part of `completion_tokens`."""

    prompt_tokens: NonNegativeInt
    completion_tokens: NonNegativeInt
    cached_tokens: NonNegativeInt = 0
    reasoning_tokens: NonNegativeInt = 0


class FunctionDelta(Wire):
    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(Wire):
    """First delta of an index: id, type, name, `arguments: ""`; later ones: index and a piece."""

    index: NonNegativeInt
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta | None = None


class Delta(Wire):
    """An OpenAI choice delta. Never `content` and `tool_calls` in one."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCallDelta, ...] | None = None

    @property
    def is_content(self) -> bool:
        """Whether this counts as first content: text, reasoning or a tool delta."""
        return bool(self.content or self.reasoning_content or self.tool_calls)


class JobError(Wire):
    code: ErrorCode
    type: str
    message: str
    param: str | None = None
    http_status: int
    retryable: bool
    fault: Fault
    inference_ran: bool = False

    @classmethod
    def of(cls, error: ApiError) -> JobError:
        return cls(
            code=error.code,
            type=error.rule.type,
            message=error.message,
            param=error.param,
            http_status=error.http_status,
            retryable=error.retryable,
            fault=error.fault,
            inference_ran=error.inference_ran,
        )

    def to_api_error(self, retry_after_ms: int | None = None) -> ApiError:
        return ApiError(
            self.code,
            self.message,
            param=self.param,
            retry_after_ms=retry_after_ms,
            inference_ran=self.inference_ran,
            fault=self.fault,
        )


# --- gateway → provider ----------------------------------------------------------------------


class Challenge(Wire):
    """`nonce`: 32 random bytes, base64url without padding."""

    type: Literal["challenge"] = "challenge"
    protocol_versions: tuple[int, ...]
    gateway_id: str
    nonce: str
    time_ms: NonNegativeInt


class Registered(Wire):
    type: Literal["registered"] = "registered"
    session_id: str
    heartbeat_interval_ms: PositiveInt
    resume_window_ms: NonNegativeInt
    minimum_version: str | None = None
    recommended_version: str | None = None
    features: tuple[str, ...] = ()
    resume: tuple[ResumeJob, ...] = ()


class Refused(Wire):
    """`retry_after_ms` null: don't retry by yourself."""

    type: Literal["refused"] = "refused"
    code: RefusedCode
    message: str
    retry_after_ms: NonNegativeInt | None = None


class HeartbeatAck(Wire):
    type: Literal["heartbeat_ack"] = "heartbeat_ack"
    routable: bool
    reasons: tuple[NotRoutableReason, ...] = ()
    time_ms: NonNegativeInt


class JobOffer(Wire):
    """`request`: the buyer's body as normalised for the receipt, plus `stream` and `stream_options`.

    `tenant` absent: the prompt cache is neither read nor written.
    """

    type: Literal["job_offer"] = "job_offer"
    job_id: str
    attempt: PositiveInt
    request: dict[str, Any]
    tenant: str | None = None
    first_content_budget_ms: PositiveInt | None = None
    deadline_ms: PositiveInt


class JobAck(Wire):
    """Cumulative: every frame up to and including number `seq` has arrived.

    Terminal frames count: `job_completed` and `job_failed` by their `seq`, `job_rejected` as 0.
    """

    type: Literal["job_ack"] = "job_ack"
    job_id: str
    attempt: PositiveInt
    seq: NonNegativeInt


class JobCancel(Wire):
    type: Literal["job_cancel"] = "job_cancel"
    job_id: str
    attempt: PositiveInt
    reason: str


class Drain(Wire):
    type: Literal["drain"] = "drain"
    deadline_ms: NonNegativeInt | None = None


# --- provider → gateway ----------------------------------------------------------------------


class Register(Wire):
    type: Literal["register"] = "register"
    protocol_version: int
    provider_id: str
    public_key: str
    signature: str
    previous: PreviousKey | None = None
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
    slots_total: NonNegativeInt
    slots_free: NonNegativeInt
    queued: NonNegativeInt = 0
    models: tuple[ModelStatus, ...] = ()
    memory: MemoryStatus = MemoryStatus()
    machine: MachineStatus = MachineStatus()
    counters: Counters = Counters()


class JobAccepted(Wire):
    type: Literal["job_accepted"] = "job_accepted"
    job_id: str
    attempt: PositiveInt
    prompt_tokens: NonNegativeInt
    cached_tokens: NonNegativeInt = 0


class JobRejected(Wire):
    type: Literal["job_rejected"] = "job_rejected"
    job_id: str
    attempt: PositiveInt
    error: JobError
    retry_after_ms: NonNegativeInt | None = None


class JobChunk(Wire):
    """`seq` starts at 0. `chain`: this link of the hash chain, lower-case hex (`receipts`)."""

    type: Literal["job_chunk"] = "job_chunk"
    job_id: str
    attempt: PositiveInt
    seq: NonNegativeInt
    delta: Delta
    logprobs: dict[str, Any] | None = None
    chain: str


class JobCompleted(Wire):
    """`seq`: the number of chunks made, that is the sequence number after the last chunk's."""

    type: Literal["job_completed"] = "job_completed"
    job_id: str
    attempt: PositiveInt
    seq: NonNegativeInt
    finish_reason: FinishReason
    usage: Usage
    receipt: str


class JobFailed(Wire):
    """Also the terminal frame of a cancelled job. `receipt` null: no inference ran."""

    type: Literal["job_failed"] = "job_failed"
    job_id: str
    attempt: PositiveInt
    seq: NonNegativeInt
    error: JobError
    usage: Usage | None = None
    receipt: str | None = None


class Draining(Wire):
    type: Literal["draining"] = "draining"
    in_flight: NonNegativeInt
    deadline_ms: NonNegativeInt


class Nack(Wire):
    """Either direction. `in_reply_to`: the `type` of the frame that was not acted upon, if known."""

    type: Literal["nack"] = "nack"
    in_reply_to: str | None = None
    code: NackCode
    message: str


FromGateway = Annotated[
    Challenge
    | Registered
    | Refused
    | HeartbeatAck
    | JobOffer
    | JobAck
    | JobCancel
    | Drain
    | Nack,
    Field(discriminator="type"),
]
FromProvider = Annotated[
    Register
    | Heartbeat
    | JobAccepted
    | JobRejected
    | JobChunk
    | JobCompleted
    | JobFailed
    | Draining
    | Nack,
    Field(discriminator="type"),
]
