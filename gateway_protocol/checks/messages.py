"""The second stage: every message has a known role and content and calls of the right shape.

What comes out is a flat, typed view of the conversation for the later stages; unknown keys of a message are
not looked at. IDs are taken as they are here: whether they are right is the fourth stage's question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway_protocol.checks.fields import invalid_request, unsupported_field
from gateway_protocol.errors import ApiError

_ROLES: Final = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class HistoryCall:
    """A call in the history. `arguments` is any string, as at OpenAI; `call_id` anything at all."""

    call_id: Any
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """`content`: parts joined with nothing between, `""` where an assistant message has none.

    `tool_call_id`: of a `tool` message, anything at all. `name`, `reasoning_content`: strings or `None`.
    """

    role: str
    content: str
    calls: tuple[HistoryCall, ...] = ()
    tool_call_id: Any = None
    name: str | None = None
    reasoning_content: str | None = None


def check_messages(body: Mapping[str, Any]) -> list[Message]:
    """All messages in order; raises `invalid_request` or `unsupported_field` at the first wrong one."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise invalid_request("messages", "is required and must be a list of at least one message")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: Any, path: str) -> Message:
    if not isinstance(message, dict):
        raise invalid_request(path, "must be an object")
    role = message.get("role")
    if role not in _ROLES:
        raise invalid_request(f"{path}.role", f"must be one of {', '.join(_ROLES)}")
    calls = _calls(message.get("tool_calls"), f"{path}.tool_calls") if role == "assistant" else ()
    return Message(
        role=role,
        content=_content(message, calls, f"{path}.content"),
        calls=calls,
        tool_call_id=message.get("tool_call_id") if role == "tool" else None,
        name=_text_or_none(message.get("name")),
        reasoning_content=_text_or_none(message.get("reasoning_content")),
    )


def _content(message: Mapping[str, Any], calls: tuple[HistoryCall, ...], path: str) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        refuse = invalid_request if message["role"] == "tool" else unsupported_field
        return "".join(_text_part(part, f"{path}[{index}]", refuse) for index, part in enumerate(content))
    if content is not None:
        raise invalid_request(path, "must be a string or a list of text parts")
    # A turn cut inside its reasoning has nothing else to send back.
    if message["role"] == "assistant" and (calls or _text_or_none(message.get("reasoning_content"))):
        return ""
    raise invalid_request(path, "must be a string or a list of text parts, not null or absent")


def _text_part(part: Any, path: str, refuse: Callable[[str, str], ApiError]) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise invalid_request(path, "must be an object with a 'type'")
    if part["type"] != "text":
        raise refuse(f"{path}.type", "can only be text: this API takes no other content parts")
    text = part.get("text")
    if not isinstance(text, str):
        raise invalid_request(f"{path}.text", "must be a string")
    return text


def _calls(value: Any, path: str) -> tuple[HistoryCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise invalid_request(path, "must be a list of calls")
    return tuple(_call(call, f"{path}[{index}]") for index, call in enumerate(value))


def _call(call: Any, path: str) -> HistoryCall:
    if not isinstance(call, dict):
        raise invalid_request(path, "must be an object")
    if call.get("type") not in (None, "function"):
        raise invalid_request(f"{path}.type", "must be function")
    function = call.get("function")
    if not isinstance(function, dict):
        raise invalid_request(f"{path}.function", "must be an object")
    name = function.get("name")
    # Not held to the pattern of declared names: a session may have begun on a server with another one.
    if not isinstance(name, str) or not name:
        raise invalid_request(f"{path}.function.name", "must be a non-empty string")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        raise invalid_request(f"{path}.function.arguments", "must be a string that holds a JSON object")
    return HistoryCall(call.get("id"), name, arguments)


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
