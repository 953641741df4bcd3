"""What the daemon asks of an engine, and what an engine answers: the `Engine` protocol.

An engine runs jobs as one continuous batch. It lives behind a child process (`process`), so nothing here
imports MLX. One job is one `Generation`:

    submit ─▶ Admitted ─▶ Tokens* ─▶ Finished | Failed
         └──▶ Rejected          cancel() at any point ─▶ Finished(reason="cancelled")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from gateway_protocol.errors import ErrorCode
from gateway_protocol.families import Family
from gateway_protocol.messages import ModelState
from gateway_protocol.openai_types import ToolChoice


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What the buyer asked for; `None`: the model's `generation_config.json`, else temperature 1, top_p 1.

    `top_logprobs`: `None` for no logprobs at all, else the number of alternatives, 0 to 20.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    top_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the decoder is held to, by family.

    `response_schema`: a JSON Schema the visible answer must fit (`{}`: any JSON object), or `None`.
    `strict_tools`: names whose schema must compile, else the job is refused.
    """

    family: Family
    tools: Sequence[Mapping[str, Any]]
    choice: ToolChoice
    parallel: bool
    response_schema: Mapping[str, Any] | None = None
    strict_tools: frozenset[str] = frozenset()
    refuse_uncompilable: bool = False


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One job for the engine.

    `generation_id`: unique for each attempt. `messages`: as the chat template takes them (arguments as
    objects). `tools`: withheld (`None`) where the model must not see them. `max_tokens`: the buyer's number,
    lowered by the engine (`token_budget`); `None` when the buyer gave none. `tenant` `None`: no prompt cache.
    `constraint`: what a grammar must hold (`grammar`), `None` for free text. `watched`: its reader may end
    the answer at any token, as for a stop string: each is handed on at once.
    """

    generation_id: str
    model: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    tenant: str | None = None
    constraint: Constraint | None = None
    watched: bool = False


class TokenLogprob(NamedTuple):
    token: str
    token_bytes: bytes
    logprob: float


class Token(NamedTuple):
    """One generated token.

    `text`: what it adds to the decoded output (special tokens spelled out, `""` while a code point is
    incomplete; the text of a later token then holds all of it). The end-of-turn token is not reported,
    except Harmony's `<|call|>` and `<|return|>`, whose IDs the parser needs.
    """

    text: str
    token_id: int
    logprob: TokenLogprob | None = None
    top_logprobs: tuple[TokenLogprob, ...] = ()


class StopCause(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Admitted:
    """The prompt is counted, a slot and memory are held. `reasoning_open`: the prompt ends inside reasoning.

    `max_tokens`: the number that generation will not exceed.
    `call_enforced`: a grammar holds the decoder, so a call is valid by construction. `loosened`: schemas that
    the grammar couldn't hold whole, in words for the log.
    """

    prompt_tokens: int
    cached_tokens: int
    max_tokens: int
    reasoning_open: bool = False
    call_enforced: bool = False
    loosened: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rejected:
    """Refused before any inference, with the buyer's error code."""

    code: ErrorCode
    message: str
    param: str | None = None
    retry_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one or several steps, in order; never empty.

    `together`: the engine handed them on in one go, since it is faster than anyone reads: they share a chunk.
    """

    tokens: tuple[Token, ...]
    together: bool = False


@dataclass(frozen=True, slots=True)
class Finished:
    """`generated`: tokens the engine sampled for this job in all, the stop token included.

    `steps_after_cancel`: batch steps this job still took part in after the engine had read its cancel.
    """

    cause: StopCause
    generated: int
    steps_after_cancel: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine could not go on. `cause`: a short code for logs and status, such as `child_exited`."""

    cause: str
    message: str
    code: ErrorCode = ErrorCode.PROVIDER_ERROR
    retry_after_ms: int | None = None


EngineEvent = Admitted | Rejected | Tokens | Finished | Failed


class ThinkMarkers(NamedTuple):
    """The strings that open and close reasoning in a model's output."""

    open: str
    close: str


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the provider tells of a model, known before its weights are loaded.

    `can_force`: a grammar can hold it to a call. `can_constrain`: one can hold its answer to a schema,
    whatever its family.
    """

    id: str
    family: Family
    context_length: int
    max_output_tokens: int
    think: ThinkMarkers | None
    can_force: bool
    can_constrain: bool = False
    revision: str | None = None
    weights_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A snapshot for heartbeat and status. `detail`: why it isn't ready, in words for the owner.

    `submitted`, `cancels`: jobs and cancels that the engine's child was sent, over all restarts.
    `parked`: it has no child, until the machine may serve again.
    """

    ready: bool
    detail: str | None
    device: str
    models: Mapping[str, ModelState]
    slots_total: int
    slots_free: int
    queued: int
    running: int
    active_bytes: int = 0
    cache_bytes: int = 0
    limit_bytes: int = 0
    restarts: int = 0
    steps: int = 0
    generated_tokens: int = 0
    submitted: int = 0
    cancels: int = 0
    child_pid: int | None = None
    parked: bool = False

    def offered(self, model: str) -> ModelState:
        """A model's state as a gateway is told it. One that is being loaded while the engine serves takes
        jobs, as one that isn't loaded yet does: they wait for it in the engine's line."""
        state = self.models.get(model, ModelState.UNLOADED)
        return ModelState.UNLOADED if self.ready and state is ModelState.LOADING else state


class Generation(Protocol):
    """One submitted job. Events are fetched; after `Rejected`, `Finished` or `Failed` none follow."""

    async def events(self) -> list[EngineEvent]:
        """Wait for the next events, return all that are there (at least one), in order."""
        ...

    def cancel(self) -> None:
        """Stop this job within one step; idempotent. The last event is still delivered."""
        ...

    def pause(self, paused: bool) -> None:
        """Hold back (True) or go on with (False) this job's decoding: the outbox is full."""
        ...


class Engine(Protocol):
    """`start` returns once the child is up and the first model is loading; `status().ready` tells when it
    serves."""

    async def start(self) -> None: ...

    def submit(self, request: GenerationRequest) -> Generation: ...

    def models(self) -> Mapping[str, ModelInfo]: ...

    def status(self) -> EngineStatus: ...

    async def wait_change(self) -> None:
        """Return at the next change of `status()` that a heartbeat should carry (ready, models, restart)."""
        ...

    async def aclose(self) -> None: ...
