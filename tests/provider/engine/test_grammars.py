"""From a request's constraint to a matcher: what can't be compiled is loosened or refused, never silently."""

from __future__ import annotations

from typing import Any

import psutil
import pytest

from gateway_protocol.errors import ErrorCode
from gateway_protocol.families import Family
from gateway_protocol.openai_types import ToolChoice
from provider.engine import grammars as grammars_module
from provider.engine.base import Constraint, Rejected
from provider.engine.grammars import Grammars, Held
from provider.engine.ladder import keyword_of
from tests.provider.engine.holding import chosen, constraint, grammars, held, tool, verdict
from tests.provider.engine.test_grammar_walks import random_output
from tests.provider.engine.vocabularies import qwen, small_harmony, small_qwen, small_text

GOOD = tool("good", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})


def with_value(schema: Any, name: str = "odd") -> dict[str, Any]:
    return tool(name, {"type": "object", "properties": {"value": schema, "n": {"type": "integer"}}})


UNKNOWN = {
    "not": {"not": {"type": "string"}},
    "uniqueItems": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    "contains": {"type": "array", "contains": {"const": 1}},
    "propertyNames": {"type": "object", "propertyNames": {"pattern": "^a"}},
    "if": {"if": {"const": 1}, "then": {"type": "integer"}},
    "format": {"type": "string", "format": "phone"},
    "oneOf": {"oneOf": [{"type": "string"}, {"type": "string", "minLength": 2}]},
    "pattern": {"type": "string", "pattern": "^(?=a)b"},
    "$ref": {"$ref": "#/$defs/nowhere"},
    "type": {"type": "matrix"},
}


def call(arguments: str, name: str = "odd") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@pytest.mark.parametrize("keyword", UNKNOWN)
class TestWhatCantBeCompiled:
    def test_malibu_loosens_that_tool_alone(self, keyword: str) -> None:
        words = small_qwen()
        prepared = held(
            grammars(words, "hermes").prepare(
                constraint("hermes", [GOOD, with_value(UNKNOWN[keyword])], "required"), reasoning_open=False
            )
        )
        assert len(prepared.loosened) == 1
        assert prepared.loosened[0].startswith("tools[1]: ")
        assert prepared.loosened[0].endswith(f"for {keyword}")
        assert verdict(prepared, words, call('{"n": 1}', "good")) == "whole"
        assert verdict(prepared, words, call('{"n": "one"}', "good")).startswith("refused")
        assert verdict(prepared, words, call('{"n": 1}')) == "whole"

    def test_strict_refuses_it_by_name(self, keyword: str) -> None:
        made = grammars(small_qwen(), "hermes")
        asked = constraint("hermes", [GOOD, with_value(UNKNOWN[keyword])], strict=True)
        refused = made.prepare(asked, reasoning_open=False)
        assert isinstance(refused, Rejected)
        assert refused.code is ErrorCode.UNSUPPORTED_FIELD
        assert refused.param == "tools[1].function.parameters"
        assert '"odd"' in refused.message
        assert f'"{keyword}"' in refused.message
        assert "this device" in refused.message

    def test_a_strict_function_refuses_it_under_either_contract(self, keyword: str) -> None:
        made = grammars(small_qwen(), "hermes")
        tools = [GOOD, with_value(UNKNOWN[keyword])]
        for strict, refused in ((frozenset({"odd"}), True), (frozenset({"good"}), False)):
            asked = Constraint(Family.QWEN, tools, chosen("auto"), True, strict_tools=strict)
            assert isinstance(made.prepare(asked, reasoning_open=False), Rejected) is refused

    def test_an_answer_by_it_is_refused(self, keyword: str) -> None:
        schema = {"type": "object", "properties": {"value": UNKNOWN[keyword]}, "required": ["value"]}
        for tools in ([], [GOOD]):
            refused = grammars(small_qwen(), "hermes").prepare(
                constraint("hermes", tools, answer=schema), reasoning_open=False
            )
            assert isinstance(refused, Rejected)
            assert refused.param == "response_format"
            assert f'"{keyword}"' in refused.message


def test_function_xml_is_loosened_too() -> None:
    words = small_qwen()
    for keyword, schema in UNKNOWN.items():
        prepared = held(
            grammars(words, "xml").prepare(
                constraint("xml", [GOOD, with_value(schema)], "required"), reasoning_open=False
            )
        )
        text = "<tool_call>\n<function=odd>\n<parameter=n>\n7\n</parameter>\n</function>\n</tool_call>"
        assert verdict(prepared, words, text) == "whole", keyword


def test_a_refusal_quotes_nothing_of_the_schema() -> None:
    """Its words reach the log; a schema is the buyer's."""
    secret = {"type": "object", "properties": {"value": {"not": {"const": "s3cret"}}}}
    refused = grammars(small_qwen(), "hermes").prepare(
        constraint("hermes", [tool("odd", secret)], strict=True), reasoning_open=False
    )
    assert isinstance(refused, Rejected)
    assert "s3cret" not in refused.message
    assert keyword_of("something else entirely") == "schema"


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


HOSTILE: dict[str, dict[str, Any]] = {
    "nested without end": nested(2000),
    "deeply nested": nested(55),
    "recursive": {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"x": {"$ref": "#/$defs/a"}}}}},
    "a circle of references": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
    },
    "10,000 enum values": {"properties": {"v": {"enum": [f"value {i}" for i in range(10_000)]}}},
    "an exploding pattern": {"properties": {"v": {"type": "string", "pattern": "^(.*a.{18}b|.*b.{17}a)$"}}},
    "nested repetitions": {
        "properties": {"v": {"type": "string", "pattern": "^(([a-z]{1,99}){1,99}){1,99}$"}}
    },
    "a remote reference": {"properties": {"v": {"$ref": "https://example.com/schema.json"}}},
    "a file reference": {"properties": {"v": {"$ref": "file:///etc/passwd"}}},
    "1 MiB": {"properties": {"v": {"type": "string", "description": "x" * 1_048_576}}},
    "5,000 properties": {"properties": {f"property_{i}": {"type": "integer"} for i in range(5000)}},
    "a product of alternatives": {
        "allOf": [{"anyOf": [{"properties": {f"p{i}{j}": {}}} for j in range(9)]} for i in range(9)]
    },
    "a long string": {"properties": {"v": {"type": "string", "minLength": 1_000_000}}},
    "many patterns": {
        "properties": {f"p{i}": {"type": "string", "pattern": f"^a{{{i}}}b*$"} for i in range(99)}
    },
    "500 numbers in bounds": {
        "properties": {f"p{i}": {"type": "number", "minimum": i / 7, "maximum": i * 1e9} for i in range(500)}
    },
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("markup", ["hermes", "xml"])
class TestHostileSchemas:
    def test_it_is_bounded_and_the_request_is_served_or_refused(self, kind: str, markup: str) -> None:
        words = small_qwen()
        before = psutil.Process().memory_info().rss
        made = grammars(words, markup)
        hostile = tool("hostile", {"type": "object", **HOSTILE[kind]})
        prepared = made.prepare(
            constraint(markup, [GOOD, hostile], "hostile", parallel=False), reasoning_open=False
        )
        # Over the time budget the request goes on without a grammar.
        assert prepared is None or isinstance(prepared, Held)
        if prepared is not None:
            for seed in range(3):
                random_output(prepared, words, seed)  # asserts that no mask fails
        assert psutil.Process().memory_info().rss - before < 400_000_000
        refused = made.prepare(constraint(markup, [GOOD, hostile], strict=True), reasoning_open=False)
        if prepared is not None and prepared.loosened:
            assert isinstance(refused, Rejected)
            assert refused.param == "tools[1].function.parameters"
            assert len(refused.message) < 200


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_schemas_on_a_real_vocabulary(kind: str) -> None:
    words = qwen()
    hostile = tool("hostile", {"type": "object", **HOSTILE[kind]})
    prepared = grammars(words, "hermes").prepare(
        constraint("hermes", [GOOD, hostile], "hostile", parallel=False), reasoning_open=False
    )
    assert prepared is None or isinstance(prepared, Held)
    if prepared is not None:
        random_output(prepared, words, 1)


def test_a_crowd_of_tools_keeps_their_names() -> None:
    """Past the request's budget a function's schema is reduced to the names of its parameters."""
    words = small_text()
    large = {"type": "object", "properties": {"n": {"type": "integer", "description": "x" * 30_000}}}
    tools = [tool(f"tool_{i}", large) for i in range(40)]
    prepared = held(grammars(words, "hermes").prepare(constraint("hermes", tools), reasoning_open=False))
    assert 0 < len(prepared.loosened) < 40
    assert verdict(prepared, words, call('{"n": "text"}', "tool_39")) == "whole"
    assert verdict(prepared, words, call('{"n": "text"}', "tool_0")).startswith("refused")
    assert verdict(prepared, words, call("{}", "tool_40")).startswith("refused")


def test_what_is_compiled_is_kept() -> None:
    made = grammars(small_qwen(), "hermes")
    asked = constraint("hermes", [GOOD, with_value(UNKNOWN["not"])])
    first, second = (held(made.prepare(asked, reasoning_open=False)) for _ in range(2))
    assert first.prototype is second.prototype
    assert first.loosened == second.loosened
    rows = first.row(), second.row()
    assert rows[0] is not rows[1]


def test_nothing_to_hold_is_no_grammar() -> None:
    made = grammars(small_qwen(), "hermes")
    assert made.prepare(constraint("hermes", []), reasoning_open=False) is None
    assert made.prepare(constraint("hermes", [], "none"), reasoning_open=False) is not None


def test_over_the_budget_auto_goes_free_and_promises_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars_module, "COMPILE_SECONDS", 0.0)
    words = small_qwen()
    made = Grammars(words.tokenizer, words.ids, family=Family.QWEN, chat_template="", think=None)
    many = [
        tool(f"t{i}", {"type": "object", "properties": {f"p{j}": {} for j in range(99)}}) for i in range(50)
    ]
    assert made.prepare(constraint("hermes", many), reasoning_open=False) is None
    assert made.prepare(constraint("hermes", many, "required"), reasoning_open=False) is None
    for asked in (
        constraint("hermes", many, strict=True),
        constraint("hermes", many, answer={}),
        Constraint(Family.QWEN, many, chosen("auto"), True, strict_tools=frozenset({"t1"})),
    ):
        assert isinstance(made.prepare(asked, reasoning_open=False), Rejected)
    made.close()


def test_a_model_without_harmonys_tokens_cant_be_held() -> None:
    words = small_text()
    made = Grammars(words.tokenizer, words.ids, family=Family.GPT_OSS, chat_template="", think=None)
    assert not made.can_hold
    assert made.prepare(constraint("harmony", [GOOD], "required"), reasoning_open=False) is None
    assert grammars(small_harmony(), "harmony").can_hold


def test_no_schema_means_any_object() -> None:
    words = small_qwen()
    prepared = grammars(words, "hermes").prepare(constraint("hermes", [], answer={}), reasoning_open=False)
    assert verdict(prepared, words, '{"a": [1, null], "b": {}}') == "whole"
    for text in ("[1]", "3", '"a"', "true"):
        assert verdict(prepared, words, text).startswith("refused"), text


def test_a_family_without_markup_can_answer_by_schema() -> None:
    words = small_text()
    made = Grammars(words.tokenizer, words.ids, family=Family.NONE, chat_template="", think=None)
    answer = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    asked = Constraint(Family.NONE, [GOOD], chosen("auto"), True, response_schema=answer)
    prepared = made.prepare(asked, reasoning_open=False)
    assert verdict(prepared, words, '{"n": 1}') == "whole"
    assert verdict(prepared, words, "<tool_call>").startswith("refused")
    assert not held(prepared).calls
    assert made.prepare(Constraint(Family.NONE, [GOOD], chosen("auto"), True), reasoning_open=False) is None


@pytest.mark.parametrize("name", ["auto", "none", "required"])
def test_a_function_named_like_a_mode_can_be_asked_for(name: str) -> None:
    words = small_qwen()
    tools = [tool(name), tool("other")]
    asked = Constraint(Family.QWEN, tools, ToolChoice("named", name), False, refuse_uncompilable=True)
    prepared = grammars(words, "hermes").prepare(asked, reasoning_open=False)
    call = '<tool_call>\n{"name": "%s", "arguments": {}}\n</tool_call>'
    assert verdict(prepared, words, call % name) == "whole"
    assert verdict(prepared, words, call % "other").startswith("refused")
    assert verdict(prepared, words, "Hello").startswith("refused")
    # What the mode of that name holds was compiled for itself.
    by_mode = grammars(words, "hermes").prepare(
        Constraint(Family.QWEN, tools, chosen(name), False), reasoning_open=False
    )
    assert verdict(by_mode, words, "Hello").startswith("refused") is (name == "required")
