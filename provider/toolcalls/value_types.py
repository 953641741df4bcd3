"""Type the text of a function-XML parameter by the function's JSON Schema.

A string stays a string; other types are parsed, several in the order that loses nothing; an integer never
goes through a float; what doesn't parse for its type stays a string (docs/contract.md, "What becomes a
call", 4). A schema that says nothing of the type admits text, so text it stays. Of a schema only the types
are read, local references included: nothing is fetched and no pattern is run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from provider.toolcalls.json_scanner import JsonScanner
from provider.toolcalls.literals import LiteralError, number, to_json
from provider.toolcalls.marks import Fault

Types = frozenset[str]

STRING: Final = frozenset({"string"})
# Spellings that tool authors use for JSON Schema's own; anything else says nothing.
_SPELLINGS: Final = {
    "string": "string",
    "str": "string",
    "text": "string",
    "integer": "integer",
    "int": "integer",
    "number": "number",
    "float": "number",
    "double": "number",
    "boolean": "boolean",
    "bool": "boolean",
    "null": "null",
    "array": "array",
    "list": "array",
    "tuple": "array",
    "object": "object",
    "dict": "object",
}
_SCHEMA_STEPS: Final = 64
_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]*")
_WHOLE: Final = re.compile(r"[+-]?[0-9]+(?:\.0+)?")
_DECIMAL: Final = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]*[1-9]")
_JSON_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


class ParameterTypes:
    """What one function's schema says of its parameters, looked up once for each name."""

    def __init__(self, schema: Mapping[str, Any] | None) -> None:
        self._schema = schema if isinstance(schema, Mapping) else {}
        self._known: dict[str, Types] = {}
        properties = self._schema.get("properties")
        self._properties = properties if isinstance(properties, Mapping) else {}
        self.declared = self._properties.keys()
        # The schema says nothing of names, or that others may come.
        self.any_name = not self.declared or bool(self._schema.get("additionalProperties"))
        required = self._schema.get("required")
        self.required = frozenset(required) if isinstance(required, list | tuple) else frozenset[str]()

    def of(self, name: str) -> Types:
        """The types that the parameter may have; text only where nothing is said."""
        if name not in self._known:
            rest = self._schema.get("additionalProperties")
            self._known[name] = frozenset(self._admitted(self._properties.get(name, rest))) or STRING
        return self._known[name]

    def _admitted(self, schema: Any) -> set[str]:
        """The union over a schema's branches, of at most `_SCHEMA_STEPS` subschemas (it may be recursive)."""
        waiting, types, seen = [schema], set[str](), set[int]()
        while waiting and len(seen) < _SCHEMA_STEPS:
            current = waiting.pop()
            if not isinstance(current, Mapping) or id(current) in seen:
                continue
            seen.add(id(current))
            waiting.append(self._referred(current.get("$ref")))
            for keyword in ("anyOf", "oneOf", "allOf"):
                branches = current.get(keyword)
                waiting += branches if isinstance(branches, list | tuple) else []
            types |= _named_types(current)
        return types

    def _referred(self, reference: Any) -> Any:
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found: Any = self._schema
        for step in reference[1:].split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping):
                return None
            found = found.get(key)
        return found


def _named_types(schema: Mapping[str, Any]) -> set[str]:
    """What one schema says for itself: `type`, else its values, else the keywords that only one type has."""
    said = schema.get("type")
    names = said if isinstance(said, list | tuple) else [said]
    types = {_SPELLINGS[name] for name in names if isinstance(name, str) and name in _SPELLINGS}
    if not types:
        values = schema.get("enum")
        values = list(values) if isinstance(values, list | tuple) else []
        types = {_type_of(value) for value in values + ([schema["const"]] if "const" in schema else [])}
    if not types and ("properties" in schema or "additionalProperties" in schema):
        types = {"object"}
    if not types and ("items" in schema or "prefixItems" in schema):
        types = {"array"}
    if schema.get("nullable") is True:
        types.add("null")
    return types


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string")):
        if isinstance(value, kind):
            return name
    return "object" if isinstance(value, Mapping) else "array"


def typed(text: str, types: Types, depth: int) -> str:
    """The JSON text of a parameter's value, at most `depth` levels deep.

    Raises `LiteralError` for an array or object that names a key twice or is nested too deeply.
    """
    if types != STRING:
        bare = text.strip()
        parsed = _exact(bare, types, depth) if "string" in types else _lenient(bare, types, depth)
        if parsed is not None:
            return parsed
    return json.dumps(text, ensure_ascii=False)


def _exact(text: str, types: Types, depth: int) -> str | None:
    """Where text is allowed too: only what the other type would write in just this way."""
    if "null" in types and text == "null":
        return text
    if "boolean" in types and text in ("true", "false"):
        return text
    if types & {"integer", "number"} and _INTEGER.fullmatch(text):
        return text
    if "number" in types and _DECIMAL.fullmatch(text):
        return text
    try:
        return _container(text, types, depth)
    except LiteralError:
        return None


def _lenient(text: str, types: Types, depth: int) -> str | None:
    """Where text isn't allowed: whatever can be read as one of the types."""
    lowered = text.lower()
    if "null" in types and lowered in ("null", "none"):
        return "null"
    if "boolean" in types and lowered in ("true", "false"):
        return lowered
    if types & {"integer", "number"} and _WHOLE.fullmatch(text):
        if "number" in types and _JSON_NUMBER.fullmatch(text):
            return text
        return number(text.partition(".")[0])
    if "number" in types:
        spelled = text if _JSON_NUMBER.fullmatch(text) else number(text)
        if spelled is not None:
            return spelled
    parsed = _container(text, types, depth)
    if parsed is None and _may_hold(text, types):
        try:
            parsed = to_json(text, depth)
        except LiteralError as error:
            if error.fault is not Fault.ARGUMENTS:
                raise
    return parsed if parsed is not None and _may_hold(parsed, types) else None


def _container(text: str, types: Types, depth: int) -> str | None:
    if not _may_hold(text, types):
        return None
    scanner = JsonScanner(depth)
    end = scanner.feed(text)
    if scanner.fault in (Fault.DEPTH, Fault.REPEATED):
        raise LiteralError(scanner.fault)
    return scanner.take() if scanner.done and end == len(text) else None


def _may_hold(text: str, types: Types) -> bool:
    opener = text[:1]
    return (opener == "{" and "object" in types) or (opener in ("[", "(") and "array" in types)
