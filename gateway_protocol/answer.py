"""The one fold of deltas into an answer: for buffered answers, for `response_sha256`, for the verifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway_protocol.messages import Delta, FinishReason, ToolCallDelta


@dataclass(frozen=True, slots=True)
class Answer:
    """What one buyer got, in the form that `response_sha256` covers (docs/protocol.md, "Receipts").

    `content`: `None` when there is none or a call was delivered. `tool_calls`: `{id, type, function: {name,
    arguments}}` in index order. `finish_reason`: `None` after an error.
    """

    content: str | None
    reasoning_content: str | None
    tool_calls: tuple[Mapping[str, Any], ...]
    finish_reason: str | None

    def as_dict(self) -> dict[str, Any]:
        """The four members as one JSON object."""
        return {
            "content": self.content,
            "reasoning_content": self.reasoning_content,
            "tool_calls": [dict(call) for call in self.tool_calls],
            "finish_reason": self.finish_reason,
        }


# A buffered answer that failed: the buyer got an error envelope and nothing of the output.
NO_ANSWER: Final = Answer(None, None, (), None)


class _Call:
    """One tool call in the making: head fields from its first delta, arguments joined."""

    __slots__ = ("call_id", "name", "pieces")

    def __init__(self) -> None:
        self.call_id = ""
        self.name = ""
        self.pieces: list[str] = []

    def add(self, delta: ToolCallDelta) -> None:
        self.call_id = self.call_id or delta.id or ""
        if delta.function is not None:
            self.name = self.name or delta.function.name or ""
            if delta.function.arguments:
                self.pieces.append(delta.function.arguments)

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.call_id,
            "type": "function",
            "function": {"name": self.name, "arguments": "".join(self.pieces)},
        }


class AnswerCollector:
    """Folds the deltas of one answer, in order, each once. Linear in their size."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _Call] = {}
        self._logprobs: list[Any] = []

    def add(self, delta: Delta, logprobs: Mapping[str, Any] | None = None) -> None:
        """Take the next delta and its `logprobs`, as a chunk carries them."""
        if delta.content:
            self._content.append(delta.content)
        if delta.reasoning_content:
            self._reasoning.append(delta.reasoning_content)
        for call in delta.tool_calls or ():
            self._calls.setdefault(call.index, _Call()).add(call)
        if logprobs is not None:
            self._logprobs.extend(logprobs.get("content") or ())

    def answer(self, finish_reason: FinishReason | str | None) -> Answer:
        """The answer so far. Text streamed beside a call is dropped, as in a buffered answer."""
        content = None if self._calls else "".join(self._content)
        return Answer(
            content=content or None,
            reasoning_content="".join(self._reasoning) or None,
            tool_calls=tuple(self._calls[index].as_dict() for index in sorted(self._calls)),
            finish_reason=None if finish_reason is None else str(finish_reason),
        )

    def message(self) -> dict[str, Any]:
        """The assistant message: `tool_calls` and `reasoning_content` are there only when delivered.

        An answer with neither text nor call has `content: ""`, as at OpenAI's; a receipt says `null`.
        """
        answer = self.answer(None)
        content = answer.content or (None if answer.tool_calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if answer.reasoning_content is not None:
            message["reasoning_content"] = answer.reasoning_content
        if answer.tool_calls:
            message["tool_calls"] = [dict(call) for call in answer.tool_calls]
        return message

    def logprobs(self) -> dict[str, Any] | None:
        """The tokens of the delivered content; `None` where there is none, so also beside a call."""
        if self._calls or not self._logprobs:
            return None
        return {"content": list(self._logprobs), "refusal": None}
