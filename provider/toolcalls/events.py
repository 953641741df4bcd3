"""What the parser makes of a model's output: one sequence of events, folded two ways.

    tokens ──lexer──parser──▶ events ──choke point (limits)──▶ delivery ──▶ events

A consumer sees, for each output: any number of `TextDelta` and `ReasoningDelta`; for each call one
`ToolCallStart`, then `ToolCallArgumentsDelta`s, then `ToolCallEnd`; and last exactly one `Finished` or
`Failed`. `StopGeneration` may come before that: tell the engine to stop; if it is `final`, call `finish` at
once, else go on feeding what still comes and call `finish` when the engine has ended.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway_protocol.errors import ErrorCode
from gateway_protocol.messages import FinishReason


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of visible content. `start`: offset in characters of its first character in the raw output.

    The pieces of raw output that visible content is made of keep their order, so a consumer can join
    tokens (for logprobs) to what was delivered: the text is raw_output[start:start + len(text)].
    """

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of reasoning, without its markers."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A declared call whose arguments have begun. `index` counts the response's calls from 0."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArgumentsDelta:
    """The next piece of the call's `arguments`; never empty, never half an escape."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    index: int


@dataclass(frozen=True, slots=True)
class StopGeneration:
    """Nothing after this point can be delivered: the engine is to stop now.

    `final` false: an engine that goes on all the same and makes a second call breaks its promise, which ends
    the answer in an error (`strict` with `parallel_tool_calls: false`).
    """

    final: bool = True


@dataclass(frozen=True, slots=True)
class Finished:
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer ends in an error; what was emitted before stands on a stream."""

    code: ErrorCode
    message: str


Event = (
    TextDelta
    | ReasoningDelta
    | ToolCallStart
    | ToolCallArgumentsDelta
    | ToolCallEnd
    | StopGeneration
    | Finished
    | Failed
)
