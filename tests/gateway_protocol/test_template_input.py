"""What chat templates get: uniform messages, arguments as objects, schemas without `null` members."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway_protocol.openai_types import ToolSpec
from gateway_protocol.template_input import parsed_arguments, template_tools
from gateway_protocol.validation import check_request


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("{}", {}),
        ("", {}),
        (" \n", {}),
        ('{"b": 1, "a": {"x": [null, true]}}', {"b": 1, "a": {"x": [None, True]}}),
        ('{"n": 12345678901234567890}', {"n": 12345678901234567890}),
        ('{"a": 1, "a": 2}', {"a": 2}),
        ('{"path": "a', '{"path": "a'),
        ("[1]", "[1]"),
        ("null", "null"),
        ('"text"', '"text"'),
        ('{"a": NaN}', '{"a": NaN}'),
        ('{"a": 1e999}', '{"a": 1e999}'),
        ('{"a": "\\ud800"}', '{"a": "\\ud800"}'),
        ("not JSON", "not JSON"),
    ],
)
def test_arguments_are_objects_where_they_hold_one(arguments: str, expected: Any) -> None:
    parsed = parsed_arguments(arguments)
    assert parsed == expected
    assert type(parsed) is type(expected)
    if isinstance(parsed, dict):
        assert list(parsed) == list(expected)


def test_deep_arguments_stay_text() -> None:
    deep = '{"a":' * 50_000 + "1" + "}" * 50_000
    assert parsed_arguments(deep) == deep


def messages(*given: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    return check_request({"model": "m", "messages": list(given)}, contract="malibu").messages


def test_messages() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "\nb", "cache_control": {}}]
    call = {"id": "foreign", "function": {"name": "f", "arguments": '{"a": 1}'}, "index": 0}
    rendered = messages(
        {"role": "developer", "content": parts, "name": "boss"},
        {"role": "user", "content": "hi", "name": None, "x_other": {"a": None}, "tool_calls": [1]},
        {"role": "assistant", "tool_calls": [call], "reasoning_content": "hm", "reasoning": "hm", "name": 5},
        {"role": "tool", "tool_call_id": "foreign", "content": parts, "name": "f"},
        {"role": "assistant", "content": "bye", "reasoning_content": "", "tool_calls": []},
    )
    call_id = rendered[3]["tool_call_id"]
    assert rendered == (
        {"role": "system", "content": "a\nb", "name": "boss"},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": call_id, "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
            ],
        },
        {"role": "tool", "content": "a\nb", "name": "f", "tool_call_id": call_id},
        {"role": "assistant", "content": "bye"},
    )


def spec(parameters: dict[str, Any] | None, description: str | None = None) -> ToolSpec:
    return ToolSpec("f", description, parameters, strict=False, raw={})


def rendered_parameters(parameters: dict[str, Any] | None) -> Any:
    return template_tools([spec(parameters)])[0]["function"]["parameters"]


@pytest.mark.parametrize("parameters", [None, {}, {"type": None}, {"type": "object", "properties": None}])
def test_no_parameters_are_an_empty_object(parameters: dict[str, Any] | None) -> None:
    assert rendered_parameters(parameters) == {"type": "object", "properties": {}}


def test_a_tool_is_its_name_description_and_parameters() -> None:
    tool = ToolSpec("f", "Does f.", {"type": "object", "properties": {}}, strict=True, raw={"x": 1})
    assert template_tools([tool]) == [
        {
            "type": "function",
            "function": {
                "name": "f",
                "description": "Does f.",
                "parameters": {"type": "object", "properties": {}},
            },
        }
    ]
    assert template_tools([spec(None)])[0]["function"]["description"] == ""


SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "title": None,
    "required": ["a", None],
    "properties": {
        "a": {"type": ["string", "null"], "description": None, "default": None, "enum": ["x", None]},
        "b": {"const": {"keep": None}, "examples": [None, {"keep": None}], "format": None},
        "c": {"anyOf": [{"type": "string", "pattern": None}, None, {"type": "null"}], "minLength": None},
        "d": {"type": "array", "items": {"type": "object", "properties": {"e": None}, "required": None}},
        "default": {"type": "string", "title": None},
        "enum": {"properties": {"const": {"type": None}}},
        "nothing": None,
        "anything": True,
        "edit": {"$ref": "#/$defs/edit"},
        "remote": {"$ref": "https://example.invalid/schema.json"},
    },
    "$defs": {
        "edit": {"type": "object", "description": None, "properties": {"again": {"$ref": "#/$defs/edit"}}}
    },
}


def test_null_members_go_values_and_references_stay() -> None:
    before = copy.deepcopy(SCHEMA)
    assert rendered_parameters(SCHEMA) == {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "required": ["a"],
        "properties": {
            "a": {"type": ["string", "null"], "default": None, "enum": ["x", None]},
            "b": {"const": {"keep": None}, "examples": [None, {"keep": None}]},
            "c": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "d": {"type": "array", "items": {"type": "object", "properties": {"e": {}}}},
            "default": {"type": "string"},
            "enum": {"properties": {"const": {}}},
            "nothing": {},
            "anything": True,
            "edit": {"$ref": "#/$defs/edit"},
            "remote": {"$ref": "https://example.invalid/schema.json"},
        },
        "$defs": {"edit": {"type": "object", "properties": {"again": {"$ref": "#/$defs/edit"}}}},
    }
    assert before == SCHEMA


# In the manner of the templates that real models carry: a walk over properties that takes members for text.
WALKING = r"""
{%- for tool in tools %}{% set f = tool.function -%}
{{ "\n# " + f.name + ": " + f.description }}
{%- for name, field in f.parameters.properties|items -%}
{{ "\n- " + name }}
{%- if field is mapping and field.type is defined %}{{ " " + field.type | string }}{% endif %}
{%- if field is mapping and field.description is defined %}{{ ": " + field.description }}{% endif %}
{%- if field is mapping and field.title is defined %}{{ " (" + field.title + ")" }}{% endif %}
{%- endfor %}{% endfor %}
{%- for message in messages -%}
{{ "\n" + message.role + ": " + message.content }}
{%- for call in message.tool_calls or [] -%}
{{ "\n<" + call.function.name + ">" }}
{%- if call.function.arguments is string %}{{ call.function.arguments }}
{%- else %}
{%- for key, value in call.function.arguments|items %}{{ " " + key + "=" + value | tojson }}{% endfor %}
{%- endif %}{% endfor %}{% endfor %}"""


def test_a_template_that_walks_schemas_and_arguments_renders() -> None:
    request = check_request(
        {
            "model": "m",
            "messages": [
                {"role": "user", "content": "go"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": "1", "function": {"name": "f", "arguments": '{"n": 9007199254740993}'}},
                        {"id": "2", "function": {"name": "f", "arguments": '{"cut": "'}},
                        {"id": "3", "function": {"name": "f", "arguments": ""}},
                    ],
                },
                {"role": "tool", "tool_call_id": "1", "content": "x" * 2**18},
            ],
            "tools": [
                {"type": "function", "function": {"name": "f", "description": None, "parameters": SCHEMA}},
                {"type": "function", "function": {"name": "g"}},
            ],
        },
        contract="malibu",
    )
    template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(WALKING)
    text = template.render(messages=request.messages, tools=template_tools(request.tools))
    assert "# f: \n- a ['string', 'null']\n- b\n- c\n" in text
    assert "# g: " in text
    assert '<f> n=9007199254740993\n<f>{"cut": "\n<f>' in text
    assert text.endswith("tool: " + "x" * 2**18)
    json.dumps(template_tools(request.tools))
