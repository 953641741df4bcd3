"""The stages between message shapes and tools: counts, history calls, IDs, sizes, results.

Each is one pass over the messages and raises at its first failure; their order is docs/contract.md's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gateway_protocol import limits
from gateway_protocol.checks.fields import utf8_size
from gateway_protocol.checks.messages import HistoryCall, Message
from gateway_protocol.errors import ApiError, ErrorCode
from gateway_protocol.tool_call_ids import rewrite


def check_message_count(messages: Sequence[Message], most: int) -> None:
    """`most` 0: no cap."""
    if most and len(messages) > most:
        raise ApiError(
            ErrorCode.MESSAGES_TOO_LONG,
            f"The request holds {len(messages)} messages; at most {most} are taken.",
        )


def check_history(messages: Sequence[Message]) -> None:
    """History calls, IDs, aggregate sizes and tool results, in this order."""
    calls = [call for message in messages for call in message.calls]
    argument_bytes = _check_calls(calls)
    _check_ids(messages)
    result_bytes = [utf8_size(message.content) for message in messages if message.role == "tool"]
    _check_total(
        argument_bytes,
        limits.HISTORY_ARGUMENTS_TOTAL_BYTES,
        ErrorCode.TOOL_CALL_ARGUMENTS_AGGREGATE_TOO_LARGE,
        "The arguments of all calls in the history",
    )
    _check_total(
        result_bytes,
        limits.TOOL_RESULTS_BYTES,
        ErrorCode.TOOL_RESULTS_AGGREGATE_TOO_LARGE,
        "All tool results together",
    )
    _check_each(result_bytes, limits.TOOL_RESULT_BYTES, ErrorCode.TOOL_RESULT_TOO_LARGE, "A tool result")


def _check_calls(calls: Sequence[HistoryCall]) -> list[int]:
    if len(calls) > limits.HISTORY_TOOL_CALLS:
        raise ApiError(
            ErrorCode.TOO_MANY_TOOL_CALLS,
            f"The history holds {len(calls)} tool calls; at most {limits.HISTORY_TOOL_CALLS} are taken.",
        )
    sizes = [utf8_size(call.arguments) for call in calls]
    _check_each(
        sizes,
        limits.HISTORY_ARGUMENTS_BYTES,
        ErrorCode.TOOL_CALL_ARGUMENTS_TOO_LARGE,
        "The arguments of a call in the history",
    )
    return sizes


def _check_ids(messages: Sequence[Message]) -> None:
    """A result answers a call that stands before it; no ID is used by two calls or two results."""
    called: set[str] = set()
    answered: set[str] = set()
    for index, message in enumerate(messages):
        for position, call in enumerate(message.calls):
            path = f"messages[{index}].tool_calls[{position}].id"
            _add_once(called, _usable(call.call_id, path), path, "an earlier call has the same ID")
        if message.role == "tool":
            path = f"messages[{index}].tool_call_id"
            call_id = _usable(message.tool_call_id, path)
            if call_id not in called:
                raise ApiError(
                    ErrorCode.TOOL_CALL_ID_NOT_FOUND, f"'{path}' is not the ID of an earlier assistant call."
                )
            _add_once(answered, call_id, path, "an earlier message holds the result of this call")


def _usable(call_id: Any, path: str) -> str:
    if not isinstance(call_id, str) or not call_id:
        raise ApiError(ErrorCode.INVALID_TOOL_CALL_ID, f"'{path}' must be a non-empty string.")
    return rewrite(call_id)


def _add_once(seen: set[str], call_id: str, path: str, message: str) -> None:
    if call_id in seen:
        raise ApiError(ErrorCode.DUPLICATE_TOOL_CALL_ID, f"'{path}': {message}.")
    seen.add(call_id)


def _check_each(sizes: Iterable[int], most: int, code: ErrorCode, what: str) -> None:
    for size in sizes:
        if size > most:
            raise ApiError(code, f"{what} is {size} bytes of UTF-8; at most {most} are taken.")


def _check_total(sizes: Iterable[int], most: int, code: ErrorCode, what: str) -> None:
    total = sum(sizes)
    if total > most:
        raise ApiError(code, f"{what} are {total} bytes of UTF-8; at most {most} are taken.")
