"""What messages are made of: models, capacity, usage, deltas, errors (docs/protocol.md, "Messages")."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway_protocol.errors import ApiError, ErrorCode, Fault
from gateway_protocol.limits import JOB_ID_PATTERN, SAFE_INTEGER
from gateway_protocol.messages.codes import ModelState, NackCode

# Larger ones are no numbers that every JSON reader keeps, nor any that can be waited for or stored.
Count = Annotated[int, Field(ge=0, le=SAFE_INTEGER)]
Positive = Annotated[int, Field(ge=1, le=SAFE_INTEGER)]
# Short, so that no frame which repeats one can become too large to be sent.
JobId = Annotated[str, Field(pattern=rf"^{JOB_ID_PATTERN}$")]
Name = Annotated[str, Field(min_length=1, max_length=512)]
Rate = Annotated[float, Field(ge=0, le=SAFE_INTEGER, allow_inf_nan=False)]


class Wire(BaseModel):
    """Base of every wire model: immutable, tolerant of fields from a newer peer."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


class Software(Wire):
    name: str
    version: str
    mlx: str | None = None
    mlx_lm: str | None = None
    python: str | None = None


class Machine(Wire):
    chip: str | None = None
    memory_bytes: Count | None = None
    gpu_cores: Count | None = None
    os: str | None = None


class ToolCallSupport(Wire):
    """`first_turn`, `multi_turn`: by family; `forced`: a grammar can force a call on this device."""

    first_turn: bool
    multi_turn: bool
    forced: bool


class OfferedModel(Wire):
    id: str
    family: Literal["qwen", "gpt_oss", "llama", "none"]
    context_length: Positive
    max_output_tokens: Positive
    tool_calls: ToolCallSupport
    revision: str | None = None
    weights_sha256: str | None = None
    state: ModelState


class ModelStatus(Wire):
    id: str
    state: ModelState


class Measured(Wire):
    model: str
    decode_tokens_per_s: Rate
    prefill_tokens_per_s: Rate
    at_ms: Count


class Capacity(Wire):
    slots: Count
    measured: Measured | None = None


class ActiveJob(Wire):
    """`next_seq`: the sequence number after the last chunk this provider has made for the job."""

    job_id: JobId
    attempt: Positive
    next_seq: Count


class ResumeJob(Wire):
    job_id: JobId
    attempt: Positive
    from_seq: Count


class PreviousKey(Wire):
    """The pinned key's consent to its successor: that key and its signature over the new one."""

    public_key: str
    signature: str


class MemoryStatus(Wire):
    active_bytes: Count = 0
    cache_bytes: Count = 0
    limit_bytes: Count = 0


class MachineStatus(Wire):
    thermal: str | None = None
    power_source: str | None = None
    low_power: bool | None = None


class Counters(Wire):
    jobs_completed: Count = 0
    jobs_failed: Count = 0
    jobs_cancelled: Count = 0
    prompt_tokens: Count = 0
    completion_tokens: Count = 0


class Usage(Wire):
    """Token counts as the receipt states them; `reasoning_tokens` is part of `completion_tokens`."""

    prompt_tokens: Count
    completion_tokens: Count
    cached_tokens: Count = 0
    reasoning_tokens: Count = 0


class FunctionDelta(Wire):
    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(Wire):
    """First delta of an index: id, type, name, `arguments: ""`; later ones: index and a piece."""

    index: Count
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
    http_status: Count
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


class Nack(Wire):
    """Either direction. `in_reply_to`: the `type` of the frame that was not acted upon, if known.

    `job_id`, `attempt`: the job that this frame named, as far as it could be read.
    """

    type: Literal["nack"] = "nack"
    in_reply_to: str | None = None
    job_id: JobId | None = None
    attempt: Positive | None = None
    code: NackCode
    message: str
