"""The shape of `response_format`; whether this device can hold an answer to it is asked later."""

from __future__ import annotations

import re
from typing import Any, Final

from gateway_protocol.checks.fields import boolean, invalid_request
from gateway_protocol.openai_types import ResponseFormat

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PATH: Final = "response_format"


def check_response_format(value: Any) -> ResponseFormat | None:
    """`None` for `null` and `text`. `json_schema` needs a `name` and a `schema`, as OpenAI's does."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise invalid_request(_PATH, "must be an object")
    match value.get("type"):
        case "text":
            return None
        case "json_object":
            return ResponseFormat("json_object", {})
        case "json_schema":
            return _json_schema(value.get("json_schema"))
    raise invalid_request(f"{_PATH}.type", "must be text, json_object or json_schema")


def _json_schema(value: Any) -> ResponseFormat:
    path = f"{_PATH}.json_schema"
    if not isinstance(value, dict):
        raise invalid_request(path, "must be an object")
    name = value.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise invalid_request(f"{path}.name", "must be 1 to 64 letters, digits, '_' or '-'")
    description = value.get("description")
    if description is not None and not isinstance(description, str):
        raise invalid_request(f"{path}.description", "must be a string")
    schema = value.get("schema")
    if not isinstance(schema, dict):
        raise invalid_request(f"{path}.schema", "must be a JSON Schema object")
    strict = boolean(value, "strict", path=f"{path}.strict")
    return ResponseFormat("json_schema", schema, name=name, strict=bool(strict))
