"""Schemas made fit for a grammar: caps, normal form, closed objects, the rungs of the ladder."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider.engine import schemas
from provider.engine.references import moved, pointed_at, standing_alone
from provider.engine.xml_values import anchored


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        (nested(40), "schema"),
        (nested(5000), "schema"),
        ({"properties": {f"p{i}": {} for i in range(501)}}, "properties"),
        ({"properties": {"a": {"enum": list(range(1001))}}}, "enum"),
        ({"anyOf": [{"const": i} for i in range(1001)]}, "anyOf"),
        ({"properties": {"a": {"type": "string", "minLength": 10_001}}}, "minLength"),
        ({"description": "x" * 70_000}, "schema"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_costs_too_much_is_named(schema: dict[str, Any], keyword: str) -> None:
    found = schemas.oversize(schema)
    assert found is not None
    assert found.keyword == keyword


@pytest.mark.parametrize(
    "schema",
    [
        nested(15),
        {"properties": {f"p{i}": {} for i in range(500)}},
        {"properties": {"a": {"enum": list(range(1000))}}},
        {},
    ],
    ids=["nested", "properties", "enum", "empty"],
)
def test_what_is_within_the_caps_passes(schema: dict[str, Any]) -> None:
    assert schemas.oversize(schema) is None


def test_arguments_are_always_an_object_of_known_types() -> None:
    assert schemas.normalise(None) == schemas.EMPTY_OBJECT
    assert schemas.normalise("nonsense") == schemas.ANY_OBJECT
    assert schemas.normalise({"$schema": "http://example.com", "$id": "x", "type": "dict"}) == {
        "type": "object"
    }
    assert schemas.normalise(
        {
            "properties": {
                "a": {"type": "float", "minimum": None},
                "b": {"type": "any"},
                "c": {"type": "list", "items": {"type": "int"}},
                "d": {"type": "string", "nullable": True, "enum": ["x"]},
                "e": {"const": None},
                "type": {"type": "str"},
                "f": None,
            }
        }
    ) == {
        "type": "object",
        "properties": {
            "a": {"type": "number"},
            "b": {},
            "c": {"type": "array", "items": {"type": "integer"}},
            "d": {"type": ["string", "null"], "nullable": True, "enum": ["x", None]},
            "e": {"const": None},
            "type": {"type": "string"},
            "f": {},
        },
    }


def test_objects_that_name_their_properties_are_closed() -> None:
    closed = schemas.close_objects(
        {
            "type": "object",
            "properties": {
                "inner": {"type": "object", "properties": {"a": {}}},
                "open": {"type": "object"},
                "said": {"type": "object", "properties": {}, "additionalProperties": True},
                "items": {"type": "array", "items": {"properties": {"b": {}}}},
                "either": {"anyOf": [{"properties": {"c": {}}}, {"type": "null"}]},
            },
        }
    )
    properties = closed["properties"]
    assert closed["additionalProperties"] is False
    assert properties["inner"]["additionalProperties"] is False
    assert "additionalProperties" not in properties["open"]
    assert properties["said"]["additionalProperties"] is True
    assert properties["items"]["items"]["additionalProperties"] is False
    assert properties["either"]["anyOf"][0]["additionalProperties"] is False


def test_what_is_combined_in_place_stays_open() -> None:
    """Closing one half of a combination would shut out what the other half asks for."""
    for schema in (
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
        {"properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}}]},
        {
            "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"b": {}}}],
            "$defs": {"base": {"properties": {"a": {}}}},
        },
        {"$ref": "#/$defs/base", "properties": {"b": {}}, "$defs": {"base": {"properties": {"a": {}}}}},
    ):
        assert jsonschema_rs.validator_for(schemas.close_objects(schema)).is_valid({"a": 1, "b": 2}), schema


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYWORDS = st.sampled_from(
    ["type", "properties", "items", "anyOf", "allOf", "$ref", "$defs", "enum", "pattern", "required", "not"]
)
ANYTHING = st.recursive(
    JSON,
    lambda inner: st.dictionaries(KEYWORDS, inner | st.lists(inner, max_size=3), max_size=4),
    max_leaves=12,
)


@given(ANYTHING)
def test_nothing_that_json_can_say_breaks_it(schema: Any) -> None:
    assert schemas.oversize(schema) is None
    prepared = schemas.close_objects(schemas.normalise(schema))
    assert prepared["type"] == "object"
    list(schemas.patterns_of(prepared))
    for rung in schemas.LADDER:
        rung.change(prepared)


def test_names_of_required_parameters_that_are_no_names_are_dropped() -> None:
    schema = {"properties": {"a": {}}, "required": [{}, ["a"], None, "a"]}
    assert schemas.names_only(schema)["required"] == ["a"]


def test_the_rungs_keep_ever_less() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": "(?=x)"}, "b": {"type": "integer"}},
        "required": ["a", "z"],
    }
    changed = {rung.name: rung.change(schema) for rung in schemas.LADDER}
    assert changed["exact"] == changed["lenient"] == schema
    assert changed["without patterns"]["properties"]["a"] == {"type": "string"}
    assert changed["names"] == {
        "type": "object",
        "properties": {"a": {}, "b": {}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert changed["any object"] == {"type": "object"}


def test_references_survive_a_move() -> None:
    root = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/x"}, "b": {"$ref": "#"}, "c": {"type": "integer"}},
        "$defs": {"x": {"type": "array", "items": {"$ref": "#/properties/c"}}},
    }
    assert standing_alone(root["properties"]["c"], root) == {"type": "integer"}
    alone = standing_alone(root["properties"]["a"], root)
    validator = jsonschema_rs.validator_for(alone)
    assert validator.is_valid([1, 2])
    assert not validator.is_valid(["x"])
    assert moved({"properties": {"$ref": {"$ref": "#/x"}}}, "h") == {
        "properties": {"$ref": {"$ref": "#/$defs/h/x"}}
    }
    assert pointed_at(root, "#/$defs/x") == root["$defs"]["x"]
    assert pointed_at({"a/b": [{"~": 1}]}, "#/a~1b/0/~0") == 1
    assert pointed_at(root, "#/nowhere/1") is None
    assert pointed_at(root, "https://example.com") is None


@pytest.mark.parametrize(
    ("pattern", "regex"),
    [
        ("^[a-z]+$", "(?:[a-z]+)"),
        ("foo", "(?s:.*)(?:foo)(?s:.*)"),
        ("^foo", "(?:foo)(?s:.*)"),
        ("^a|b$", "(?:^a|b$)"),
        (r"^cost\$", r"(?:cost\$)(?s:.*)"),
    ],
)
def test_patterns_match_the_whole_value(pattern: str, regex: str) -> None:
    assert anchored(pattern) == regex
