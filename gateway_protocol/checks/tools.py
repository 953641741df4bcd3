"""The last stages that need no model: `tools`, then `tool_choice`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway_protocol.checks.fields import invalid_request
from gateway_protocol.errors import ApiError, ErrorCode
from gateway_protocol.limits import FUNCTION_NAME_CHARS
from gateway_protocol.openai_types import Contract, ToolChoice, ToolSpec

_NAME: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{FUNCTION_NAME_CHARS}}}")
_PATH: Final = "tool_choice"


def check_tools(body: Mapping[str, Any]) -> tuple[ToolSpec, ...]:
    """The declared functions in order; `null` and `[]` are none. Raises `invalid_tools`."""
    tools = body.get("tools")
    if tools is None:
        return ()
    if not isinstance(tools, list):
        raise _invalid_tools("tools", "must be a list of tools")
    specs = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools))
    declared: set[str] = set()
    for index, spec in enumerate(specs):
        if spec.name in declared:
            raise _invalid_tools(f"tools[{index}].function.name", f"is declared twice: {spec.name}")
        declared.add(spec.name)
    return specs


def check_tool_choice(body: Mapping[str, Any], tools: Sequence[ToolSpec], contract: Contract) -> ToolChoice:
    """The choice as the contract has it; whether a call can be forced on this device is asked later."""
    choice = _parsed_choice(body.get(_PATH))
    if choice.kind == "none" and contract == "malibu":
        raise ApiError(
            ErrorCode.UNSUPPORTED_TOOL_CHOICE,
            "'tool_choice' can't be none here: leave 'tools' out to turn tools off.",
            param=_PATH,
        )
    if choice.kind == "required" and not tools:
        raise invalid_request(_PATH, "can't be required: the request declares no tools")
    if choice.kind == "named" and choice.name not in {tool.name for tool in tools}:
        raise invalid_request(_PATH, "names a function that 'tools' doesn't declare")
    return choice


def _parsed_choice(value: Any) -> ToolChoice:
    if value is None or value == "auto":
        return ToolChoice("auto")
    if value == "none":
        return ToolChoice("none")
    if value == "required":
        return ToolChoice("required")
    if isinstance(value, dict) and value.get("type") == "function":
        function = value.get("function")
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            return ToolChoice("named", function["name"])
    raise invalid_request(
        _PATH, 'must be "auto", "none", "required" or {"type": "function", "function": {"name": …}}'
    )


def _tool(tool: Any, path: str) -> ToolSpec:
    if not isinstance(tool, dict):
        raise _invalid_tools(path, "must be an object")
    if tool.get("type") != "function":
        raise _invalid_tools(f"{path}.type", "must be function")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise _invalid_tools(f"{path}.function", "must be an object")
    path = f"{path}.function"
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _invalid_tools(
            f"{path}.name", f"must be 1 to {FUNCTION_NAME_CHARS} ASCII letters, digits, '_' or '-'"
        )
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        raise _invalid_tools(f"{path}.description", "must be a string")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise _invalid_tools(f"{path}.parameters", "must be a JSON Schema object")
    strict = function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise _invalid_tools(f"{path}.strict", "must be true, false or null")
    return ToolSpec(name, description, parameters, bool(strict), tool)


def _invalid_tools(param: str, message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_TOOLS, f"'{param}' {message}.", param=param)
