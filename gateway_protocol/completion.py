"""From deltas to what the buyer gets: the fold (in `answer`) and the plain dicts of the wire.

    Delta* ─▶ AnswerCollector ─▶ Answer ─▶ chat_completion(…)     `stream: false`, response_sha256, verifying
    Delta ──▶ chunk(…)  … chunk(…, finish_reason) … usage_chunk   `stream: true`, one dict for each event

Shapes are OpenAI's (`ChatCompletion`, `ChatCompletionChunk`), plus `reasoning_content` and `malibu`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway_protocol.answer import NO_ANSWER, Answer, AnswerCollector
from gateway_protocol.errors import ApiError
from gateway_protocol.messages import Delta, FinishReason, ToolCallDelta, Usage

__all__ = [
    "NO_ANSWER",
    "Answer",
    "AnswerCollector",
    "chat_completion",
    "chunk",
    "delta_dict",
    "error_event",
    "logprob_entry",
    "logprobs_of",
    "usage_chunk",
    "usage_dict",
]

# What OpenAI's API gives for a token so unlikely that its logarithm is no number JSON can hold.
_LEAST_LOGPROB: Final = -9999.0


# --- logprobs ------------------------------------------------------------------------------------


def logprob_entry(
    token: str, token_bytes: bytes, logprob: float, top: Sequence[tuple[str, bytes, float]] = ()
) -> dict[str, Any]:
    """One token as an element of `logprobs.content`; `top`: its alternatives, likeliest first."""
    return {
        "token": token,
        "logprob": _finite(logprob),
        "bytes": list(token_bytes),
        "top_logprobs": [
            {"token": text, "logprob": _finite(value), "bytes": list(raw)} for text, raw, value in top
        ],
    }


def logprobs_of(entries: Sequence[Any]) -> dict[str, Any]:
    """The `logprobs` object of a choice, a chunk or a `job_chunk`."""
    return {"content": list(entries), "refusal": None}


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LEAST_LOGPROB


# --- chunks and completions ----------------------------------------------------------------------


def delta_dict(delta: Delta) -> dict[str, Any]:
    """A delta as JSON sees it: only what is set."""
    out: dict[str, Any] = {}
    if delta.role is not None:
        out["role"] = delta.role
    if delta.content is not None:
        out["content"] = delta.content
    if delta.reasoning_content is not None:
        out["reasoning_content"] = delta.reasoning_content
    if delta.tool_calls is not None:
        out["tool_calls"] = [_tool_call_dict(call) for call in delta.tool_calls]
    return out


def _tool_call_dict(call: ToolCallDelta) -> dict[str, Any]:
    out: dict[str, Any] = {"index": call.index}
    if call.id is not None:
        out["id"] = call.id
    if call.type is not None:
        out["type"] = call.type
    if call.function is not None:
        function = {"name": call.function.name, "arguments": call.function.arguments}
        out["function"] = {key: value for key, value in function.items() if value is not None}
    return out


def chunk(
    *,
    id: str,
    created: int,
    model: str,
    delta: Delta | None = None,
    finish_reason: FinishReason | str | None = None,
    logprobs: Mapping[str, Any] | None = None,
    include_usage: bool = False,
    receipt: str | None = None,
) -> dict[str, Any]:
    """One `chat.completion.chunk`. The finish chunk has no delta, a `finish_reason` and the receipt.

    `include_usage`: the stream will end in a usage chunk, so this one says `usage: null` as OpenAI's do.
    `created`: seconds since the epoch, the same in all chunks of a response.
    """
    out = _chunk_head(id, created, model)
    out["choices"] = [
        {
            "index": 0,
            "delta": {} if delta is None else delta_dict(delta),
            "logprobs": logprobs,
            "finish_reason": None if finish_reason is None else str(finish_reason),
        }
    ]
    if include_usage:
        out["usage"] = None
    if receipt is not None:
        out["malibu"] = {"receipt": receipt}
    return out


def usage_chunk(*, id: str, created: int, model: str, usage: Usage) -> dict[str, Any]:
    """The chunk that `stream_options.include_usage` asks for: no choices, the token counts."""
    return {**_chunk_head(id, created, model), "choices": [], "usage": usage_dict(usage)}


def _chunk_head(id: str, created: int, model: str) -> dict[str, Any]:
    return {"id": id, "object": "chat.completion.chunk", "created": created, "model": model}


def usage_dict(usage: Usage) -> dict[str, Any]:
    """Token counts in OpenAI's shape."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def chat_completion(
    *,
    id: str,
    created: int,
    model: str,
    collector: AnswerCollector,
    finish_reason: FinishReason | str,
    usage: Usage,
    receipt: str | None = None,
) -> dict[str, Any]:
    """A buffered `chat.completion` of everything the collector holds."""
    out: dict[str, Any] = {
        "id": id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": collector.message(),
                "logprobs": collector.logprobs(),
                "finish_reason": str(finish_reason),
            }
        ],
        "usage": usage_dict(usage),
    }
    if receipt is not None:
        out["malibu"] = {"receipt": receipt}
    return out


def error_event(error: ApiError, request_id: str, receipt: str | None = None) -> dict[str, Any]:
    """The envelope of a failed answer, with the receipt of the work that was done."""
    out = error.envelope(request_id)
    if receipt is not None:
        out["malibu"] = {"receipt": receipt}
    return out
