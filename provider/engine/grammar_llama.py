"""Llama's calls: JSON objects; one that begins a line of the output opens them, or a tag does. Pure.

The price of having no marker: free text can't begin a line with a JSON object whose first key is one of a
call's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from provider.engine.grammar_spec import (
    GrammarSpec,
    GrammarTool,
    answer_value,
    json_calls,
    lead,
    repeated,
    text_exclusions,
)
from provider.engine.lark import ANYTHING, Rules, alternatives, escaped, json_value, literal, regex, without
from provider.engine.references import moved
from provider.toolcalls.families import LLAMA_SEPARATOR, PYTHON_TAG

_BEGINS: Final = rf"([\s{LLAMA_SEPARATOR}]*|{ANYTHING}\n)\{{\s*"


def llama(spec: GrammarSpec, rules: Rules) -> str:
    if spec.answer is not None and not spec.callable:
        return answer_value(spec, rules)
    if spec.forced:
        rules.add("call", json_calls(spec, rules, "parameters", loose=False))
        return f"{lead(spec, rules)}call{repeated(spec, literal(f'{LLAMA_SEPARATOR} '), 'call')}"
    # What the parser may take for a call is none of free text's; any other object is.
    exclusions = text_exclusions(spec, PYTHON_TAG)
    text = without(ANYTHING, (*exclusions, rf'{_BEGINS}"(name|type|id|parameters|arguments)"{ANYTHING}'))
    if not spec.callable:
        return rules.add("TEXT", text)
    if spec.answer is not None:
        return lead(spec, rules) + rules.add("value", _answer_or_call(spec, spec.answer))
    rules.add("call", json_calls(spec, rules, "parameters", loose=True))
    more = repeated(spec, regex(rf" ?{LLAMA_SEPARATOR}? ?\n?"), "call")
    tagged = f"{rules.marker(PYTHON_TAG)} call{more}"
    rules.add("TEXT", text)
    no_call = rf'{_BEGINS}"(type|id|parameters|arguments)"{ANYTHING}'
    rules.add("upto_name", without(rf'{_BEGINS}"name"', (*exclusions, no_call)), lazy=True)
    rest = rules.add("named", alternatives(_named(spec, rules)))
    paths = ["TEXT", f"upto_name {rest}{more}"]
    if rules.is_token(PYTHON_TAG):
        paths[0] = f"TEXT ({tagged})?"
    return alternatives(paths)


def _named(spec: GrammarSpec, rules: Rules) -> Iterator[str]:
    """Each function behind `{"name"`."""
    for index, tool in enumerate(spec.callable):
        head = regex(rf': ?"{escaped(tool.name)}", ?"parameters": ?')
        yield f"{head} a{index} {literal('}')}"


def _answer_or_call(spec: GrammarSpec, answer: GrammarTool) -> str:
    """One JSON value: both begin with a brace, and rules that do can't be told apart by a greedy lexer."""
    homes: dict[str, Any] = {"answer": moved(answer.schema, "answer")}
    branches: list[dict[str, Any]] = [{"$ref": "#/$defs/answer"}]
    for index, tool in enumerate(spec.callable):
        homes[f"tool{index}"] = moved(tool.schema, f"tool{index}")
        call = {"name": {"const": tool.name}, "parameters": {"$ref": f"#/$defs/tool{index}"}}
        fixed = {"required": list(call), "additionalProperties": False}
        branches.append({"type": "object", "properties": call, **fixed})
    lenient = any(tool.lenient for tool in spec.callable)
    merged = {"anyOf": branches, "$defs": homes}
    return json_value(merged, lenient=lenient, loose=False)
