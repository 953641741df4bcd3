"""The first stage: fields that stand alone, and those that no request may carry.

Ranges are OpenAI's where OpenAI has the field (docs/contract.md, "Requests").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from gateway_protocol import limits
from gateway_protocol.checks import fields
from gateway_protocol.checks.fields import invalid_request, unsupported_field
from gateway_protocol.checks.response_format import check_response_format
from gateway_protocol.openai_types import ScalarFields

# Each changes what the answer is, and none can be honoured: never dropped silently.
_REFUSED: Final = ("functions", "function_call", "audio", "web_search_options", "prediction")
_REASONING_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_NO_THINKING: Final = ("none", "minimal")
_TOKEN_ID: Final = re.compile(r"[0-9]{1,10}")
_LOGIT_BIAS_LIMIT: Final = 100


def check_scalars(body: Mapping[str, Any]) -> ScalarFields:
    """Every field that can be judged without another one's help; raises at the first that is wrong."""
    model = fields.string(body, "model")
    if not model:
        raise invalid_request("model", "is required and must name a model")
    _refuse_unsupported(body)
    stream, include_usage = _streaming(body)
    logprobs, top_logprobs = _logprobs(body)
    effort, enable_thinking = _reasoning(body)
    most = fields.integer(body, "max_tokens", minimum=1)
    completion_most = fields.integer(body, "max_completion_tokens", minimum=1)
    top_k = fields.integer(body, "top_k", minimum=-1)
    fields.string(body, "user")
    fields.json_object(body, "metadata")
    return ScalarFields(
        model=model,
        stream=stream,
        include_usage=include_usage,
        max_tokens=most if completion_most is None else completion_most,
        temperature=fields.number(body, "temperature", minimum=0, maximum=2),
        top_p=fields.number(body, "top_p", minimum=0, maximum=1),
        top_k=None if top_k is None else max(top_k, 0),
        min_p=fields.number(body, "min_p", minimum=0, maximum=1),
        stop=_stop(body),
        seed=fields.integer(body, "seed", minimum=-(2**63), maximum=2**64 - 1),
        presence_penalty=fields.number(body, "presence_penalty", minimum=-2, maximum=2),
        frequency_penalty=fields.number(body, "frequency_penalty", minimum=-2, maximum=2),
        repetition_penalty=fields.number(body, "repetition_penalty", above=0),
        logit_bias=_logit_bias(body),
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        response_format=check_response_format(body.get("response_format")),
        include_reasoning=bool(fields.boolean(body, "include_reasoning")),
        reasoning_effort=effort,
        enable_thinking=enable_thinking,
        parallel_tool_calls=fields.boolean(body, "parallel_tool_calls"),
    )


def _refuse_unsupported(body: Mapping[str, Any]) -> None:
    for name in _REFUSED:
        if body.get(name) is not None:
            raise unsupported_field(name, "is not supported")
    choices = fields.integer(body, "n")
    if choices not in (None, 1):
        raise unsupported_field("n", "can only be 1: one answer is made for each request")
    modalities = body.get("modalities")
    if modalities is None:
        return
    if not isinstance(modalities, list) or not all(isinstance(item, str) for item in modalities):
        raise invalid_request("modalities", "must be a list of strings")
    if any(item != "text" for item in modalities):
        raise unsupported_field("modalities", "can only be text")


def _streaming(body: Mapping[str, Any]) -> tuple[bool, bool]:
    stream = bool(fields.boolean(body, "stream"))
    options = fields.json_object(body, "stream_options")
    if options is None:
        return stream, False
    if not stream:
        raise invalid_request("stream_options", "is only allowed when 'stream' is true")
    return stream, bool(fields.boolean(options, "include_usage", path="stream_options.include_usage"))


def _stop(body: Mapping[str, Any]) -> tuple[str, ...]:
    value = body.get("stop")
    if value is None:
        return ()
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(item, str) and item for item in strings):
        raise invalid_request("stop", "must be a non-empty string or a list of non-empty strings")
    if not 1 <= len(strings) <= limits.STOP_STRINGS:
        raise invalid_request("stop", f"must hold 1 to {limits.STOP_STRINGS} strings")
    return tuple(strings)


def _logit_bias(body: Mapping[str, Any]) -> dict[int, float]:
    given = fields.json_object(body, "logit_bias") or {}
    biases: dict[int, float] = {}
    for token_id, bias in given.items():
        if not _TOKEN_ID.fullmatch(token_id):
            raise invalid_request("logit_bias", "must map token IDs, written as decimal strings, to numbers")
        if not fields.is_number(bias) or not -_LOGIT_BIAS_LIMIT <= bias <= _LOGIT_BIAS_LIMIT:
            raise invalid_request(
                "logit_bias", f"must hold numbers {-_LOGIT_BIAS_LIMIT} to {_LOGIT_BIAS_LIMIT}"
            )
        biases[int(token_id)] = float(bias)
    return biases


def _logprobs(body: Mapping[str, Any]) -> tuple[bool, int]:
    logprobs = bool(fields.boolean(body, "logprobs"))
    alternatives = fields.integer(body, "top_logprobs", minimum=0, maximum=limits.TOP_LOGPROBS)
    if alternatives is not None and not logprobs:
        raise invalid_request("top_logprobs", "is only allowed when 'logprobs' is true")
    return logprobs, alternatives or 0


def _reasoning(body: Mapping[str, Any]) -> tuple[str | None, bool | None]:
    effort = fields.string(body, "reasoning_effort")
    if effort is not None and effort not in _REASONING_EFFORTS:
        raise invalid_request("reasoning_effort", f"must be one of {', '.join(_REASONING_EFFORTS)}")
    options = fields.json_object(body, "chat_template_kwargs") or {}
    for name, value in options.items():
        if name != "enable_thinking" and value is not None:
            raise unsupported_field("chat_template_kwargs", "can only hold 'enable_thinking'")
    thinking = fields.boolean(options, "enable_thinking", path="chat_template_kwargs.enable_thinking")
    if thinking is None and effort in _NO_THINKING:
        thinking = False
    return effort, thinking
