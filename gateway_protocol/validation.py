"""Is this a request that can be served? Both ends ask it with this code, the gateway first.

    raw bytes ──parse_body──▶ dict ──check_request──▶ CheckedRequest ──check_for_model──▶ may be offered

The order of checks, the first failure of which wins, is docs/contract.md's: body size and JSON → scalar
fields → message shapes → message count → history calls → IDs → aggregate sizes → tool results → tools →
tool_choice → model and family; prompt length is the engine's. Each is one pass, linear in the body's size.
All raise `ApiError` and nothing else.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from gateway_protocol import limits, strict_json
from gateway_protocol.canonical import canonical_request
from gateway_protocol.checks.fields import unsupported_field
from gateway_protocol.checks.history import check_history, check_message_count
from gateway_protocol.checks.messages import check_messages
from gateway_protocol.checks.scalars import check_scalars
from gateway_protocol.checks.tools import check_tool_choice, check_tools
from gateway_protocol.errors import ApiError, ErrorCode
from gateway_protocol.families import FAMILIES, Family
from gateway_protocol.openai_types import CheckedRequest, Contract, ScalarFields
from gateway_protocol.template_input import template_messages

__all__ = ["CheckedRequest", "Contract", "check_for_model", "check_request", "parse_body"]

_SCALARS: Final = tuple(field.name for field in fields(ScalarFields))
# fmt: off
_KNOWN_FIELDS: Final = frozenset({
    "model", "messages", "tools", "tool_choice", "parallel_tool_calls", "stream", "stream_options",
    "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "seed",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "logprobs", "top_logprobs",
    "response_format", "include_reasoning", "reasoning_effort", "chat_template_kwargs", "user", "metadata",
    "n", "modalities", "functions", "function_call", "audio", "web_search_options", "prediction",
})
# fmt: on
_UNKNOWN_SHOWN: Final = 16
_UNKNOWN_CHARS: Final = 64


def parse_body(raw: bytes) -> dict[str, Any]:
    """The JSON object in a request's body. Raises `request_body_too_large` or `invalid_json`."""
    if len(raw) > limits.REQUEST_BODY_BYTES:
        raise ApiError(
            ErrorCode.REQUEST_BODY_TOO_LARGE,
            f"The body is {len(raw)} bytes; at most {limits.REQUEST_BODY_BYTES} are taken.",
        )
    try:
        body = strict_json.loads(raw)
    except strict_json.JsonError as error:
        raise ApiError(ErrorCode.INVALID_JSON, f"The body is not valid JSON: {error}.") from None
    if not isinstance(body, dict):
        raise ApiError(ErrorCode.INVALID_JSON, "The body must be a JSON object.")
    return body


def check_request(
    body: dict[str, Any], *, contract: Contract, max_messages: int = limits.MESSAGES_DEFAULT
) -> CheckedRequest:
    """Every check that needs no model. `max_messages` 0: no cap. `body` is not changed.

    `body` is what `parse_body` gave, or a job offer's `request`, which is checked again on its provider.
    """
    scalars = check_scalars(body)
    messages = check_messages(body)
    check_message_count(messages, max_messages)
    check_history(messages)
    tools = check_tools(body)
    tool_choice = check_tool_choice(body, tools, contract)
    return CheckedRequest(
        **{name: getattr(scalars, name) for name in _SCALARS},
        body=canonical_request(body),
        messages=template_messages(messages),
        tools=tools,
        tool_choice=tool_choice,
        unknown_fields=_unknown_fields(body),
        has_tool_history=any(message.calls or message.role == "tool" for message in messages),
    )


def check_for_model(
    req: CheckedRequest,
    *,
    family: Family,
    can_force: bool,
    contract: Contract,
    force_enabled: bool = True,
    can_constrain: bool = False,
    can_logprobs: bool = True,
) -> None:
    """What only the model's family and its device decide; no model need be loaded for it.

    `can_force`: a grammar can force a call there (`register`'s `forced`). `force_enabled`: `tools.force`.
    `can_constrain`: a grammar can hold an answer to `response_format`. `can_logprobs`: the engine gives them.
    Under `malibu` a call that can't be forced is left to the model, never refused. Raises `ApiError`.
    """
    if req.response_format is not None and not can_constrain:
        raise unsupported_field("response_format", "can't be honoured: this device can't constrain an answer")
    if req.logprobs and not can_logprobs:
        raise unsupported_field("logprobs", "can't be honoured: this device gives none")
    forcible = can_force and force_enabled and FAMILIES[family].first_turn
    if contract == "strict" and req.tool_choice.forced and not forcible:
        raise unsupported_field("tool_choice", "can't be honoured: a call can't be forced on this device")
    if req.has_tool_history and not FAMILIES[family].multi_turn:
        raise ApiError(
            ErrorCode.UNSUPPORTED_MODEL_FOR_MULTI_TURN,
            "This model takes no tool calls or tool results in the history of a conversation.",
        )


def _unknown_fields(body: dict[str, Any]) -> tuple[str, ...]:
    """Bounded, since the names are a stranger's and go into the log."""
    unknown = sorted(name for name, value in body.items() if value is not None and name not in _KNOWN_FIELDS)
    return tuple(name[:_UNKNOWN_CHARS] for name in unknown[:_UNKNOWN_SHOWN])
