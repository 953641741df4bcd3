"""Reads a stream as the strictest of clients does: what any client minds is an `AssertionError` here.

Each rule has a name, by which `test_clients_faults.py` shows that breaking it is noticed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from openai.types.chat import ChatCompletionChunk

CALL_ID = re.compile("call_[0-9a-f]{32}")


@dataclass
class Call:
    id: str
    name: str
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def arguments(self) -> Any:
        return json.loads(self.text)


@dataclass
class Read:
    """A whole stream that ended well. `pieces`: the texts of its content deltas."""

    pieces: list[str] = field(default_factory=list)
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    finish_reason: str = ""
    usage: dict[str, Any] | None = None
    receipt: str | None = None
    chunks: list[dict[str, Any]] = field(default_factory=list)

    @property
    def content(self) -> str:
        return "".join(self.pieces)

    @property
    def named(self) -> list[tuple[str, Any]]:
        """The calls as (name, arguments)."""
        return [(call.name, call.arguments) for call in self.calls]


def events(raw: str) -> list[dict[str, Any]]:
    """The JSON events of a recorded stream. Asserts the frame around them: comments, data lines, `[DONE]`."""
    assert raw.endswith("\n\n"), "frame: the stream doesn't end in a blank line"
    data = []
    for block in raw.removesuffix("\n\n").split("\n\n"):
        if not block.startswith(":"):
            assert re.fullmatch(r"data: .*", block), f"frame: {block!r} is no data line"
            data.append(block.removeprefix("data: "))
    assert data, "frame: nothing was sent"
    assert data[-1] == "[DONE]", "no-done: the last line isn't [DONE]"
    assert "[DONE]" not in data[:-1], "frame: [DONE] is not the last line"
    return [json.loads(item) for item in data[:-1]]


def read(chunks: Iterable[dict[str, Any]], *, include_usage: bool) -> Read:
    """Fold the events of a stream, holding every rule of docs/contract.md ("Streaming") on the way."""
    answer = Read()
    for chunk in chunks:
        assert "error" not in chunk, f"error-event: {chunk}"
        answer.chunks.append(chunk)
        assert answer.usage is None, "usage: a chunk comes behind the usage chunk"
        if chunk["choices"]:
            _choice(answer, chunk)
        else:
            assert include_usage, "usage-unasked: a chunk without choices"
            assert answer.finish_reason, "usage: before the finish chunk"
            answer.usage = chunk["usage"]
        ChatCompletionChunk.model_validate(chunk)
    assert len({(c["id"], c["created"], c["model"]) for c in answer.chunks}) == 1, "head: it changes"
    assert answer.finish_reason, "cut: no finish chunk"
    assert (answer.usage is not None) == include_usage, "no-usage: asked for, not sent"
    if answer.calls:
        assert answer.finish_reason in ("tool_calls", "length"), "finish-stop: calls were sent"
    else:
        assert answer.finish_reason != "tool_calls", "finish: no call was sent"
    for call in answer.calls[: None if answer.finish_reason == "tool_calls" else -1]:
        assert isinstance(call.arguments, dict), "arguments: no JSON object"
    return answer


def _choice(answer: Read, chunk: dict[str, Any]) -> None:
    [choice] = chunk["choices"]
    delta = choice["delta"]
    assert choice["index"] == 0
    assert not answer.finish_reason, "finish: a chunk comes behind the finish chunk"
    if len(answer.chunks) == 1:
        assert delta == {"role": "assistant", "content": ""}, "role: it is the first delta"
    else:
        assert "role" not in delta, "role: again"
        assert delta.get("content") != "", "content: an empty piece"
    assert not (delta.get("content") and delta.get("tool_calls")), "content: beside a call in one delta"
    if delta.get("content"):
        assert not answer.calls, "content: behind a call"
        answer.pieces.append(delta["content"])
    answer.reasoning += delta.get("reasoning_content") or ""
    for piece in delta.get("tool_calls") or ():
        _call_piece(answer, piece)
    if choice["finish_reason"] is not None:
        answer.finish_reason = choice["finish_reason"]
        answer.receipt = (chunk.get("malibu") or {}).get("receipt")


def _call_piece(answer: Read, piece: dict[str, Any]) -> None:
    assert isinstance(piece.get("index"), int), "no-index: on each delta of a call"
    function = piece["function"]
    if piece["index"] == len(answer.calls):
        assert set(piece) == {"index", "id", "type", "function"}, "no-id: a call's first delta is its head"
        assert CALL_ID.fullmatch(piece["id"]), "no-id: not an ID of ours"
        assert piece["type"] == "function"
        assert function["name"], "no-id: a call without its name"
        assert function["arguments"] == "", "one-piece: arguments come behind the head"
        assert answer.content.strip() or not answer.content, "blank-content: before a call"
        assert piece["id"] not in [call.id for call in answer.calls], "no-id: an ID again"
        answer.calls.append(Call(piece["id"], function["name"]))
    else:
        assert piece["index"] == len(answer.calls) - 1, "no-index: not the open call's"
        assert set(piece) == {"index", "function"}, "repeat-head: id or type again"
        assert set(function) == {"arguments"}, "repeat-head: the name again"
        assert function["arguments"], "arguments: an empty piece"
        answer.calls[-1].pieces.append(function["arguments"])
