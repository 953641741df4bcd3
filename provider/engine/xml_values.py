"""The grammar of function-XML's parameters: `<parameter=name>`, a value typed by its schema, `</parameter>`.

A value ends where the parser ends it: at the first `</parameter>` that begins a line. So a raw string's rule
is lazy, and a value can't hold what the parser would count as structure: an opener, or a closing sequence.
Whatever admits a string takes raw text (docs/contract.md, "What becomes a call", 4); all else is JSON.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any, Final

from provider.engine.lark import ANYTHING, Rules, alternatives, holds, json_value, literal, regex, without
from provider.engine.references import pointed_at, standing_alone
from provider.engine.schemas import Schema
from provider.toolcalls.value_types import ParameterTypes, Types

_CLOSE: Final = "</parameter>"
_ORDERED_ANYHOW: Final = 64  # parameters whose order is free: llguidance's rule parameters have 64 bits
_COUNTED: Final = 2000  # longer `maxLength`s aren't counted: the automaton grows with them
_STRUCTURE: Final = holds(
    (r"<parameter=", r"<function=", r"<tool_call>", r"</parameter>\s*</(function|tool_call)>")
)
_ANY_NAME: Final = r"<parameter=[A-Za-z0-9_-]{1,128}>"


def parameter_rules(rules: Rules, index: int, schema: Schema, *, lenient: bool, loose: bool) -> str:
    """Add the rules for a tool's parameters; returns what stands between `<function=name>` and its closer."""
    if "properties" not in schema:
        any_parameter = f"{regex(_ANY_NAME)} {_raw(rules)} {literal(chr(10))}"
        return f"({any_parameter})*"
    required = frozenset(schema.get("required", ()))
    names = [name for name in schema["properties"] if not set("<>\n") & set(name)]
    parts = []
    for position, name in enumerate(names):
        value = _Value(rules, f"{index}_{position}", schema, lenient=lenient, loose=loose)
        body = f"{literal(f'<parameter={name}>')} {value.rule(schema['properties'][name])} {literal(chr(10))}"
        parts.append((rules.add(f"p{index}_{position}", body), name in required))
    if len(parts) > _ORDERED_ANYHOW:
        return " ".join(part if needed else f"{part}?" for part, needed in parts)
    return _any_order(rules, index, parts)


def _any_order(rules: Rules, index: int, parts: list[tuple[str, bool]]) -> str:
    """Each parameter at most once, the required ones present, in whatever order the model likes."""
    if not parts:
        return ""
    needed = [f"bit_set({bit})" for bit, (_, required) in enumerate(parts) if required]
    end = '""'
    if needed:
        # llguidance's `and` takes two conditions, no more.
        end += f" %if {functools.reduce(lambda all_before, one: f'and({all_before}, {one})', needed)}"
    name = f"q{index}"
    more = (f"{part} {name}::set_bit({bit}) %if bit_clear({bit})" for bit, (part, _) in enumerate(parts))
    rules.add(f"{name}::_", alternatives((end, *more)))
    return f"{name}::0x0"


def _raw(rules: Rules) -> str:
    """Any text between the tags, the empty one included."""
    return rules.add("raw", without(rf"\n({ANYTHING}\n)?{_CLOSE}", (_STRUCTURE,)), lazy=True)


class _Value:
    """The rule of one parameter's value, from behind `<parameter=name>` to behind `</parameter>`."""

    def __init__(self, rules: Rules, suffix: str, root: Schema, *, lenient: bool, loose: bool) -> None:
        self._rules = rules
        self._suffix = suffix
        self._root = root
        self._lenient = lenient
        self._loose = loose
        self._count = 0

    def rule(self, schema: Any, hops: int = 8) -> str:
        """`hops`: how deep into references and unions to look before any text will do."""
        if not isinstance(schema, Mapping) or hops == 0:
            return _raw(self._rules)
        target = schema.get("$ref")
        if isinstance(target, str) and pointed_at(self._root, target) is None:
            return self._json(schema)  # the compiler says what is wrong with it
        if "string" not in self._types(schema):
            return self._json(schema)
        if isinstance(target, str):
            return self.rule(pointed_at(self._root, target), hops - 1)
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values:
            return self._choice(values)
        if schema.get("type") == "string":
            return self._string(schema)
        branches = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(branches, list) and branches:
            rules = dict.fromkeys(self.rule(branch, hops - 1) for branch in branches)
            raw = _raw(self._rules)
            return raw if raw in rules else f"({alternatives(rules)})"
        return _raw(self._rules)

    def _types(self, schema: Schema) -> Types:
        return ParameterTypes({**self._root, "properties": {"value": schema}}).of("value")

    def _json(self, schema: Schema) -> str:
        body = json_value(standing_alone(schema, self._root), lenient=self._lenient, loose=self._loose)
        return f"{literal(chr(10))} {self._add(body)} {literal(chr(10) + _CLOSE)}"

    def _choice(self, values: list[Any]) -> str:
        texts = (
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values
        )
        return "(" + alternatives(literal(f"\n{text}\n{_CLOSE}") for text in texts) + ")"

    def _string(self, schema: Schema) -> str:
        pattern = schema.get("pattern")
        least, most = schema.get("minLength", 0), schema.get("maxLength", _COUNTED + 1)
        if isinstance(pattern, str):
            inner = anchored(pattern)
        elif least or most <= _COUNTED:
            inner = f"(?s:.{{{int(least)},{int(most) if most <= _COUNTED else ''}}})"
        else:
            return _raw(self._rules)
        # The second exclusion keeps a pattern that admits line ends from running over the closing tag.
        early = rf"{ANYTHING}\n{_CLOSE}(?s:.+)"
        return self._add(without(rf"\n{inner}\n{_CLOSE}", (_STRUCTURE, early)), lazy=True)

    def _add(self, body: str, *, lazy: bool = False) -> str:
        self._count += 1
        return self._rules.add(f"v{self._suffix}_{self._count}", body, lazy=lazy)


def anchored(pattern: str) -> str:
    """A JSON Schema `pattern`, which may match anywhere, as a regex of the whole text.

    Anchors elsewhere than at both ends of the whole are left to the compiler, which refuses them.
    """
    starts, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith(r"\$")
    inner = pattern[starts : len(pattern) - ends]
    if (starts or ends) and "|" in inner:
        return f"(?:{pattern})"
    return f"{'' if starts else ANYTHING}(?:{inner}){'' if ends else ANYTHING}"
