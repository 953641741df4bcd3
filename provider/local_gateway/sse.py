"""Server-sent events as bytes: pure, one writer for a whole stream.

The chunks are those of `gateway_protocol.completion`, byte for byte what its dicts encode to; but all that is
the same in each chunk of a stream is encoded once, so that a delta of text alone, which nearly all are, costs
one string escape (docs/contract.md, "Streaming").
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any, Final

from gateway_protocol import completion
from gateway_protocol.messages import Delta, FinishReason, Usage

DONE: Final = b"data: [DONE]\n\n"
KEEPALIVE: Final = b": keepalive\n\n"
ACCEPTED: Final = b": accepted\n\n"


def to_json(value: Any) -> str:
    """Compact JSON, not ASCII-escaped."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def data(value: Any) -> bytes:
    """One event that carries `value` as JSON."""
    return f"data: {to_json(value)}\n\n".encode()


class ChunkWriter:
    """Writes the chunks of one stream; `id`, `created` and `model` are the same in all of them."""

    def __init__(self, *, id: str, created: int, model: str, include_usage: bool) -> None:
        self._same: dict[str, Any] = {"id": id, "created": created, "model": model}
        self._include_usage = include_usage
        empty = to_json(completion.chunk(**self._same, include_usage=include_usage))
        # The one place in a chunk with nothing in it where its delta goes.
        self._before, self._after = f"data: {empty}\n\n".split('"delta":{}', 1)
        self._before += '"delta":'

    def delta(self, delta: Delta, logprobs: Mapping[str, Any] | None = None) -> bytes:
        """A chunk with one delta and no finish reason."""
        if logprobs is not None:
            return data(self._chunk(delta=delta, logprobs=logprobs))
        return f"{self._before}{_delta_json(delta)}{self._after}".encode()

    def finish(self, finish_reason: FinishReason, receipt: str | None) -> bytes:
        """The one chunk with a finish reason; the receipt travels in it."""
        return data(self._chunk(finish_reason=finish_reason, receipt=receipt))

    def usage(self, usage: Usage) -> bytes:
        """The chunk that `stream_options.include_usage` asks for."""
        return data(completion.usage_chunk(**self._same, usage=usage))

    def _chunk(self, **fields: Any) -> dict[str, Any]:
        return completion.chunk(**self._same, include_usage=self._include_usage, **fields)


def _delta_json(delta: Delta) -> str:
    if delta.tool_calls is None and delta.role is None:
        if delta.content is not None and delta.reasoning_content is None:
            return f'{{"content":{encode_basestring(delta.content)}}}'
        if delta.reasoning_content is not None and delta.content is None:
            return f'{{"reasoning_content":{encode_basestring(delta.reasoning_content)}}}'
    return to_json(completion.delta_dict(delta))
