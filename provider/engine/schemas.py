"""JSON Schemas from strangers, made fit for a grammar: caps, normal form, closed objects, fallbacks.

Pure. A schema here only guides the decoder; finished arguments are checked against the buyer's own schema
elsewhere. So each change either keeps the set of valid arguments or makes it smaller (closing objects), but
for the rungs of `LADDER`, which are taken only when the grammar compiler refuses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from gateway_protocol.limits import KIB

Schema = Mapping[str, Any]

# Judgement, not contract: compile time grows with the square of the property count (1,000: 130 ms), and a
# thread that compiles can't be stopped, so these caps are the real guard.
SCHEMA_BYTES: Final = 64 * KIB
SCHEMA_DEPTH: Final = 32
SCHEMA_PROPERTIES: Final = 500
ENUM_VALUES: Final = 1000
REPETITIONS: Final = 10_000
TOOLS: Final = 128
REQUEST_BYTES: Final = 512 * KIB

ANY_OBJECT: Final[Schema] = {"type": "object"}
EMPTY_OBJECT: Final[Schema] = {"type": "object", "properties": {}, "additionalProperties": False}

# Names that real tool definitions use for JSON Schema's types (Python's and OpenAPI's).
_TYPES: Final = MappingProxyType(
    {
        "dict": "object",
        "map": "object",
        "list": "array",
        "tuple": "array",
        "str": "string",
        "text": "string",
        "int": "integer",
        "long": "integer",
        "float": "number",
        "double": "number",
        "bool": "boolean",
        "any": None,
        "": None,
    }
)
_PLACES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLES = ("items", "additionalProperties", "additionalItems", "not", "if", "then", "else", "contains")
_IN_PLACE = ("anyOf", "oneOf", "allOf", "not", "if", "then", "else", "$ref", "$dynamicRef")
_DATA = ("const", "enum", "default", "example", "examples")


@dataclass(frozen=True, slots=True)
class Oversize:
    """A cap that a schema breaks: the keyword (or `schema` for the whole) and what was found, in words."""

    keyword: str
    detail: str


def size_of(schema: Any) -> int:
    """UTF-8 bytes of a schema as compact JSON; only for what `oversize` has passed for depth."""
    return len(json.dumps(schema, ensure_ascii=False, separators=(",", ":")).encode(errors="replace"))


def oversize(schema: Any) -> Oversize | None:
    """The first cap that `schema` breaks. Linear, without recursion: the schema may be anything."""
    stack: list[tuple[Any, int]] = [(schema, 1)]
    properties = 0
    while stack:
        node, depth = stack.pop()
        if depth > 2 * SCHEMA_DEPTH:  # one level of schema is two of JSON: "properties" and its member
            return Oversize("schema", f"nested deeper than {SCHEMA_DEPTH}")
        if isinstance(node, list):
            stack.extend((item, depth + 1) for item in node)
        elif isinstance(node, dict):
            stack.extend((value, depth + 1) for value in node.values())
            found = _oversize_member(node)
            if found is not None:
                return found
            members = node.get("properties")
            properties += len(members) if isinstance(members, dict) else 0
    if properties > SCHEMA_PROPERTIES:
        return Oversize("properties", f"{properties} of them, over {SCHEMA_PROPERTIES}")
    size = size_of(schema)
    return Oversize("schema", f"{size} bytes, over {SCHEMA_BYTES}") if size > SCHEMA_BYTES else None


def _oversize_member(node: dict[str, Any]) -> Oversize | None:
    for keyword in ("enum", "anyOf", "oneOf", "allOf"):
        values = node.get(keyword)
        if isinstance(values, list) and len(values) > ENUM_VALUES:
            return Oversize(keyword, f"{len(values)} values, over {ENUM_VALUES}")
    for keyword in ("minLength", "minItems", "minProperties"):
        value = node.get(keyword)
        if isinstance(value, int | float) and value > REPETITIONS:
            return Oversize(keyword, f"{value}, over {REPETITIONS}")
    return None


def normalise(schema: Any) -> dict[str, Any]:
    """A schema for a call's arguments: known types, no `null` keywords, always an object."""
    if not isinstance(schema, Mapping):
        return dict(EMPTY_OBJECT if schema is None else ANY_OBJECT)
    root: dict[str, Any] = _rewrite(dict(schema), _known_types)
    root["type"] = "object"
    return root


def normalise_answer(schema: Schema) -> dict[str, Any]:
    """The same for `response_format`, whose root may be any type."""
    return dict(_rewrite(dict(schema), _known_types))


def _rewrite(node: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """`node` with `change` applied to every subschema, children first; data (`enum`) is left alone.

    Recursive: for what `oversize` has passed.
    """
    if isinstance(node, bool) or not isinstance(node, dict):
        return node if isinstance(node, bool) else {}
    out: dict[str, Any] = {}
    for key, value in node.items():
        if value is None and key not in _DATA:
            continue
        if key in _PLACES and isinstance(value, dict):
            out[key] = {name: _rewrite(sub, change) for name, sub in value.items()}
        elif isinstance(value, list) and (key in _LISTS or key == "items"):
            out[key] = [_rewrite(sub, change) for sub in value]
        elif key in _SINGLES and isinstance(value, dict | bool):
            out[key] = _rewrite(value, change)
        else:
            out[key] = value
    return change(out)


def _known_types(node: dict[str, Any]) -> dict[str, Any]:
    for key in ("$schema", "$id", "id"):  # nothing is fetched, and a local $ref must stay local
        if isinstance(node.get(key), str):
            del node[key]
    kind = node.get("type")
    if isinstance(kind, str):
        known = _TYPES.get(kind.lower(), kind)
        if known is None:
            del node["type"]
        else:
            node["type"] = known
    if node.get("nullable") is True and isinstance(node.get("type"), str):
        node["type"] = [node["type"], "null"]
        if isinstance(node.get("enum"), list) and None not in node["enum"]:
            node["enum"] = [*node["enum"], None]
    return node


def close_objects(schema: dict[str, Any]) -> dict[str, Any]:
    """Say `additionalProperties: false` wherever an object names its properties and is silent.

    Models copy keys from the prompt into their arguments; closed objects keep those out, and can't name a
    key twice. Left open: what is combined in place with another schema, which may name further keys.
    """
    combined = set(_combined_refs(schema))
    root: dict[str, Any] = _close(schema)
    for place in ("$defs", "definitions"):
        for name in root[place] if isinstance(root.get(place), dict) else ():
            if f"#/{place}/{name}" in combined:
                root[place][name] = schema[place][name]
    return root


def _close(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    mixed = any(key in node for key in _IN_PLACE)
    out = dict(node)
    for key, value in node.items():
        if key in _PLACES and isinstance(value, dict):
            out[key] = {name: _close(sub) for name, sub in value.items()}
        elif key in ("items", "additionalProperties"):
            out[key] = [_close(sub) for sub in value] if isinstance(value, list) else _close(value)
        elif key == "prefixItems" or (key in ("anyOf", "oneOf") and "properties" not in node):
            out[key] = [_close(sub) for sub in value] if isinstance(value, list) else value
    silent = not any(
        k in node for k in ("additionalProperties", "unevaluatedProperties", "patternProperties")
    )
    if silent and not mixed and isinstance(node.get("properties"), dict):
        out["additionalProperties"] = False
    return out


def _combined_refs(node: Any) -> Iterator[str]:
    """Every local `$ref` that stands beside or inside something that adds properties of its own."""
    if isinstance(node, list):
        for item in node:
            yield from _combined_refs(item)
    if not isinstance(node, dict):
        return
    reference = node.get("$ref")
    if isinstance(reference, str) and ("properties" in node or "allOf" in node):
        yield reference
    for key, value in node.items():
        if isinstance(value, list) and (
            key == "allOf" or (key in ("anyOf", "oneOf") and "properties" in node)
        ):
            yield from (sub["$ref"] for sub in value if isinstance(sub, dict) and "$ref" in sub)
        if key not in _DATA:
            yield from _combined_refs(value)


def without_patterns(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without regular expressions: lookaround and backreferences can't be compiled."""

    def strip(node: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in node.items() if key not in _REGEX_KEYWORDS}

    return dict(_rewrite(schema, strip))


_REGEX_KEYWORDS = ("pattern", "patternProperties")


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of the ladder. `lenient`: the compiler may drop what it doesn't know."""

    name: str
    lenient: bool
    change: Callable[[dict[str, Any]], Schema]


EXACT: Final = Rung("exact", False, lambda schema: schema)
ANY: Final = Rung("any object", False, lambda schema: ANY_OBJECT)
NAMES: Final = Rung("names", False, lambda schema: names_only(schema))
WITHOUT_PATTERNS: Final = Rung("without patterns", True, without_patterns)
LADDER: Final = (
    EXACT,
    Rung("lenient", True, lambda schema: schema),
    WITHOUT_PATTERNS,
    NAMES,
    ANY,
)


def names_only(schema: Mapping[str, Any]) -> Schema:
    """Which parameters there are and which are required, and nothing of their values."""
    names = schema.get("properties")
    if not isinstance(names, Mapping) or len(names) > SCHEMA_PROPERTIES:
        return ANY_OBJECT
    required = schema.get("required")
    return {
        "type": "object",
        "properties": {str(name): {} for name in names},
        "required": _strings(required, among=names),
        "additionalProperties": False,
    }


def _strings(listed: Any, *, among: Mapping[str, Any]) -> list[str]:
    if not isinstance(listed, list):
        return []
    return [name for name in listed if isinstance(name, str) and name in among]


def patterns_of(node: Any) -> Iterator[str]:
    """Every regular expression in a schema (values of `pattern`, names under `patternProperties`)."""
    if isinstance(node, list):
        for item in node:
            yield from patterns_of(item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key == "pattern" and isinstance(value, str):
                yield value
            elif key == "patternProperties" and isinstance(value, dict):
                yield from value
            if key not in _DATA:
                yield from patterns_of(value)
