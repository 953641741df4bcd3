"""A checked chat request: what the rest of the product works with once `validation` has passed a body.

An unchecked request is a plain `dict`; a checked one is a `CheckedRequest`, so that no room can take the
one for the other. Field names are OpenAI's; meanings that differ or need a unit are told here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

Contract = Literal["malibu", "strict"]
ToolChoiceKind = Literal["auto", "none", "required", "named"]


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`name` is the function's name when `kind` is "named", else `None`."""

    kind: ToolChoiceKind = "auto"
    name: str | None = None

    @property
    def forced(self) -> bool:
        """Whether the buyer asks for a call in any case."""
        return self.kind in ("required", "named")


AUTO: Final = ToolChoice("auto")
"""The model decides."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One declared function. `parameters` is its JSON Schema, `None`: it takes an empty object.

    `strict`: finished arguments must fit the schema. `raw`: the tool as the buyer wrote it.
    """

    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool
    raw: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """What the visible answer must be; `text` is the absence of one.

    `schema`: the JSON Schema it must fit, `{}` for any JSON object (`json_object`).
    """

    kind: Literal["json_object", "json_schema"]
    schema: dict[str, Any]
    name: str | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarFields:
    """The fields of a request that stand alone; `None` where the buyer gave none (or `null`).

    `max_tokens`: `max_completion_tokens` where given, else `max_tokens`; not yet lowered to what is left.
    `top_k`: 0 (also for -1) switches it off. `top_logprobs`: alternatives for each token, 0 to 20.
    `enable_thinking`: from `chat_template_kwargs`, else false for a `reasoning_effort` of none or minimal.
    """

    model: str
    stream: bool = False
    include_usage: bool = False
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] = field(default_factory=dict)
    logprobs: bool = False
    top_logprobs: int = 0
    response_format: ResponseFormat | None = None
    include_reasoning: bool = False
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    parallel_tool_calls: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRequest(ScalarFields):
    """A request that has passed every check that needs no model (`validation.check_request`).

    `body`: the buyer's JSON after the changes that a receipt allows (`canonical.canonical_request`).
    `messages`: as a chat template takes them (`template_input`). `unknown_fields`: names of top-level
    fields that were ignored, for one line in the log: at most 16, shortened to 64 characters.
    `has_tool_history`: an assistant call or a tool result is among the messages.
    """

    body: dict[str, Any]
    messages: tuple[dict[str, Any], ...]
    tools: tuple[ToolSpec, ...]
    tool_choice: ToolChoice
    unknown_fields: tuple[str, ...]
    has_tool_history: bool

    def offer_request(self) -> dict[str, Any]:
        """What a provider is sent: `body` plus `stream` and `stream_options`.

        `check_request` makes an equal `CheckedRequest` of it.
        """
        offered = {**self.body, "stream": self.stream}
        if self.stream:
            offered["stream_options"] = {"include_usage": self.include_usage}
        return offered
