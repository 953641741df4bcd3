"""Does an answer keep to its request? What one who only passes it on can tell, without the model. Pure.

    job_accepted ─▶ accepted     each delta, before it is passed on ─▶ delta     ending ─▶ completed, failed

A provider holds every answer to the contract where it is read (`provider.toolcalls`); a gateway can't trust
that, and a buyer runs what it is sent. So each call must be declared, allowed and whole, the finish reason
must say what came, and the usage must be possible. Text costs two comparisons a chunk; a call's arguments are
looked at once, when the answer is complete. Everything raises `ApiError`, the provider's fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway_protocol import strict_json, tool_call_ids
from gateway_protocol.answer import Answer
from gateway_protocol.errors import ApiError, ErrorCode, Fault
from gateway_protocol.families import FAMILIES, Family
from gateway_protocol.limits import (
    EMITTED_ARGUMENTS_BYTES,
    EMITTED_ARGUMENTS_DEPTH,
    EMITTED_ARGUMENTS_TOTAL_BYTES,
)
from gateway_protocol.messages import Delta, FinishReason, OfferedModel, ToolCallDelta, Usage
from gateway_protocol.openai_types import CheckedRequest

# A provider may count the token that ended the turn.
_END_OF_TURN: Final = 1
# Tokens of text are a byte long at least, but for markers that a family's text has around it.
_MARKERS: Final = 1024


@dataclass(frozen=True, slots=True)
class AnswerBounds:
    """What one request to one model allows.

    `names`: the functions that may be called, none where no call may come. `one_call`: the buyer said so.
    `context_length`, `most_tokens`: of prompt and answer together, of the answer. `unseen_bytes`: of a stop
    string, which is generated and not delivered.
    """

    names: frozenset[str]
    one_call: bool
    streamed: bool
    include_reasoning: bool
    context_length: int
    most_tokens: int
    unseen_bytes: int = 0

    @classmethod
    def of(cls, request: CheckedRequest, model: OfferedModel) -> AnswerBounds:
        callable_ = FAMILIES[Family(model.family)].first_turn and request.tool_choice.kind != "none"
        return cls(
            names=frozenset(tool.name for tool in request.tools) if callable_ else frozenset(),
            one_call=request.parallel_tool_calls is False,
            streamed=request.stream,
            include_reasoning=request.include_reasoning,
            context_length=model.context_length,
            most_tokens=min(request.max_tokens or model.max_output_tokens, model.max_output_tokens),
            unseen_bytes=max((len(stop.encode()) for stop in request.stop), default=0),
        )


class AnswerCheck:
    """One answer. Nothing of a delta that `delta` refuses may be passed on."""

    def __init__(self, bounds: AnswerBounds) -> None:
        self._bounds = bounds
        self._prompt_tokens: int | None = None
        self._ids: list[str] = []
        self._bytes = 0
        self._total_bytes = 0

    def accepted(self, prompt_tokens: int, cached_tokens: int) -> None:
        """The counts of `job_accepted`."""
        if prompt_tokens >= self._bounds.context_length or cached_tokens > prompt_tokens:
            raise _lie("The provider accepted a prompt of an impossible length.")
        self._prompt_tokens = prompt_tokens

    def delta(self, delta: Delta) -> None:
        """The next delta."""
        calls = delta.tool_calls
        if calls is None:
            if delta.content and self._ids:
                raise _lie("The provider sent text behind a tool call.")
            return
        if delta.content:
            raise _lie("The provider sent text and a tool call in one.")
        for call in calls:
            self._call(call)

    def completed(self, finish_reason: FinishReason, usage: Usage, answer: Answer) -> None:
        """The answer is whole, its provider says. `answer`: what was delivered."""
        calls = answer.tool_calls
        if calls and finish_reason is FinishReason.STOP:
            raise _lie("The provider ended an answer with tool calls as if it had none.")
        if not calls and finish_reason is FinishReason.TOOL_CALLS:
            raise _lie("The provider ended an answer without tool calls as if it had some.")
        # Only a last call may be cut, and then the answer says so.
        for call in calls if finish_reason is FinishReason.TOOL_CALLS else calls[:-1]:
            if not strict_json.is_object(call["function"]["arguments"], depth=EMITTED_ARGUMENTS_DEPTH):
                raise _fault(
                    ErrorCode.MALFORMED_TOOL_CALL_FINAL_JSON,
                    "A finished call's arguments are no JSON object.",
                )
        self._possible(usage)
        if not calls and finish_reason is FinishReason.STOP:
            self._delivered(usage, answer)

    def failed(self, usage: Usage | None) -> None:
        """The answer ended in an error, after so many tokens."""
        if usage is not None:
            self._possible(usage)

    # --- calls ---------------------------------------------------------------------------------

    def _call(self, call: ToolCallDelta) -> None:
        last = len(self._ids) - 1
        function = call.function
        if call.index == last and call.id is None and (function is None or function.name is None):
            if function is not None and function.arguments:
                self._arguments(function.arguments)
            return
        if call.index != last + 1 or not call.id or call.type is None or function is None:
            raise _lie("The provider's tool calls are not in order.")
        self._opened(call.id, function.name)
        if function.arguments:
            self._arguments(function.arguments)

    def _opened(self, call_id: str, name: str | None) -> None:
        bounds = self._bounds
        if not bounds.names:
            raise _fault(
                ErrorCode.UPSTREAM_ERROR, "A function was called although the request allows no call."
            )
        if bounds.one_call and self._ids:
            message = "A second function was called although parallel_tool_calls is false."
            raise _fault(ErrorCode.UPSTREAM_ERROR, message)
        if name not in bounds.names:
            raise self._malformed("A function was called that the request doesn't declare.")
        if call_id in self._ids or tool_call_ids.rewrite(call_id) != call_id:
            raise _lie("The provider gave a tool call an ID that can't be used.")
        self._ids.append(call_id)
        self._bytes = 0

    def _arguments(self, text: str) -> None:
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        self._bytes += size
        self._total_bytes += size
        if self._bytes > EMITTED_ARGUMENTS_BYTES:
            raise self._malformed("The arguments of a call are larger than 1 MiB.")
        if self._total_bytes > EMITTED_ARGUMENTS_TOTAL_BYTES:
            message = "The arguments of all tool calls together are larger than 2 MiB."
            raise _fault(ErrorCode.RESPONSE_BYTE_CAP_EXCEEDED, message)

    def _malformed(self, message: str) -> ApiError:
        """`malformed_tool_call` is an event's code; a buffered answer has the other."""
        streamed, buffered = ErrorCode.MALFORMED_TOOL_CALL, ErrorCode.MALFORMED_TOOL_CALL_FINAL_JSON
        return _fault(streamed if self._bounds.streamed else buffered, message)

    # --- usage ---------------------------------------------------------------------------------

    def _possible(self, usage: Usage) -> None:
        bounds = self._bounds
        if self._prompt_tokens is not None and usage.prompt_tokens != self._prompt_tokens:
            raise _lie("The provider's usage counts another prompt than the one it accepted.")
        if usage.cached_tokens > usage.prompt_tokens or usage.reasoning_tokens > usage.completion_tokens:
            raise _lie("The provider's usage doesn't add up.")
        room = min(bounds.most_tokens, max(0, bounds.context_length - usage.prompt_tokens))
        if usage.completion_tokens > room + _END_OF_TURN:
            raise _lie("The provider's usage counts more tokens than the answer may have.")

    def _delivered(self, usage: Usage, answer: Answer) -> None:
        """An answer of text that ended by itself: everything that was generated is there to be seen."""
        seen = len((answer.content or "").encode("utf-8", "surrogatepass")) + self._bounds.unseen_bytes
        hidden = usage.reasoning_tokens
        if self._bounds.include_reasoning:
            seen += len((answer.reasoning_content or "").encode("utf-8", "surrogatepass"))
            hidden = 0
        if usage.completion_tokens - hidden > seen + _MARKERS:
            raise _lie("The provider's usage counts more tokens than its answer can hold.")


def _fault(code: ErrorCode, message: str) -> ApiError:
    return ApiError(code, message, inference_ran=True, fault=Fault.PROVIDER)


def _lie(message: str) -> ApiError:
    return _fault(ErrorCode.PROVIDER_ERROR, message)
