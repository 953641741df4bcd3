"""A checked conversation and its tools in the one shape that chat templates can rely on.

Templates are strangers' programs over these values: they break on `null`, on a list where they expect text,
on arguments as text. So roles, content and schemas are made uniform here, and nothing is ever fetched: a
`$ref` is data like any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from gateway_protocol import strict_json
from gateway_protocol.checks.messages import HistoryCall, Message
from gateway_protocol.openai_types import ToolSpec
from gateway_protocol.tool_call_ids import rewrite

_VALUES: Final = frozenset({"default", "const", "enum", "examples", "example"})
_SCHEMAS_BY_NAME: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)


def template_messages(messages: Iterable[Message]) -> tuple[dict[str, Any], ...]:
    """Checked messages for a template: `developer` is `system`, `content` always a string, IDs rewritten.

    Keys: role, content, and where there is one name, reasoning_content, tool_calls, tool_call_id.
    """
    return tuple(_message(message) for message in messages)


def _message(message: Message) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    rendered: dict[str, Any] = {"role": role, "content": message.content}
    if message.name is not None:
        rendered["name"] = message.name
    if message.reasoning_content is not None and role == "assistant":
        rendered["reasoning_content"] = message.reasoning_content
    if message.calls:
        rendered["tool_calls"] = [_call(call) for call in message.calls]
    if role == "tool":
        rendered["tool_call_id"] = rewrite(message.tool_call_id)
    return rendered


def _call(call: HistoryCall) -> dict[str, Any]:
    return {
        "id": rewrite(call.call_id),
        "type": "function",
        "function": {"name": call.name, "arguments": parsed_arguments(call.arguments)},
    }


def parsed_arguments(arguments: str) -> dict[str, Any] | str:
    """A history call's arguments as the object that templates iterate over, integers exact.

    OpenAI takes any string here, and agents send back calls that were cut or never parsed. Blank text is a
    call without arguments; text that holds no JSON object (cut, a list, `NaN`) is passed on as it is, since
    most templates print a string unchanged and dropping it would alter the conversation.
    """
    if not arguments.strip():
        return {}
    try:
        value = strict_json.loads(arguments)
    except strict_json.JsonError:
        return arguments
    return value if isinstance(value, dict) else arguments


def template_tools(tools: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """`[{"type": "function", "function": {name, description, parameters}}]`, all three always there.

    `null` members are dropped deep in each schema, but never inside a value that the schema states
    (`default`, `const`, `enum`, `examples`). Keys beside the three (`strict`) are not for the model.
    """
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description or "",
                "parameters": _parameters(tool.parameters),
            },
        }
        for tool in tools
    ]


def _parameters(parameters: dict[str, Any] | None) -> dict[str, Any]:
    schema = _schema(parameters) if parameters else {}
    return {
        **({} if "type" in schema else {"type": "object"}),
        **schema,
        "properties": schema.get("properties", {}),
    }


def _schema(schema: dict[str, Any]) -> dict[str, Any]:
    cleaned: dict[str, Any] = {}
    for keyword, value in schema.items():
        if value is None and keyword not in _VALUES:
            continue
        if keyword in _VALUES:
            cleaned[keyword] = value
        elif keyword in _SCHEMAS_BY_NAME and isinstance(value, dict):
            # A property may be named like a keyword, and one whose schema is null takes anything.
            cleaned[keyword] = {name: {} if part is None else _part(part) for name, part in value.items()}
        else:
            cleaned[keyword] = _part(value)
    return cleaned


def _part(value: Any) -> Any:
    if isinstance(value, dict):
        return _schema(value)
    if isinstance(value, list):
        return [_part(item) for item in value if item is not None]
    return value
