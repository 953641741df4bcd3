"""Thirty functions as real agents declare them: what a forced call has to fit, whatever the model."""

from __future__ import annotations

from typing import Any

from tests.provider.engine.holding import tool

STRING: dict[str, Any] = {"type": "string"}
SHORT: dict[str, Any] = {"type": "string", "maxLength": 12}


def obj(properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required or [], **more}


def enum(*values: Any) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


def between(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


def some(items: Any, most: int = 3, least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


POINT = obj({"x": between(-90, 90), "y": between(-180, 180)}, ["x", "y"])
FUNCTIONS: dict[str, dict[str, Any] | None] = {
    "get_weather": obj({"city": SHORT, "unit": enum("celsius", "fahrenheit")}, ["city"]),
    "set-light": obj({"room": enum("kitchen", "hall"), "on": {"type": "boolean"}}, ["room", "on"]),
    "fs__read-file": obj({"path": SHORT, "offset": {"type": ["integer", "null"]}}, ["path"]),
    "Exit": obj({}),
    "get_goal": None,
    "add": obj({"a": between(0, 99), "b": between(0, 99)}, ["a", "b"]),
    "roll_dice": obj({"sides": {"type": "integer", "enum": [4, 6, 8, 20]}}, ["sides"]),
    "distance": obj({"start": POINT, "end": POINT}, ["start", "end"]),
    "tag_note": obj({"tags": some(enum("work", "home", "later"), 3, 1)}, ["tags"]),
    "edit": obj(
        {"path": SHORT, "edits": some(obj({"old": SHORT, "new": SHORT}, ["old", "new"]), 2, 1)},
        ["path", "edits"],
    ),
    "remind": obj({"when": {"anyOf": [enum("now", "tomorrow"), between(1, 60)]}}, ["when"]),
    "optional_all": obj({"one": SHORT, "two": {"type": "boolean"}, "three": between(1, 3)}),
    "maybe_null": obj({"value": {"anyOf": [SHORT, {"type": "null"}]}}, ["value"]),
    "use_defs": obj(
        {"home": {"$ref": "#/$defs/address"}, "work": {"$ref": "#/$defs/address"}},
        ["home"],
        **{"$defs": {"address": obj({"street": SHORT, "number": between(1, 999)}, ["street", "number"])}},
    ),
    "use_definitions": obj(
        {"colour": {"$ref": "#/definitions/colour"}}, ["colour"], definitions={"colour": enum("red", "blue")}
    ),
    "tree": obj(
        {"root": {"$ref": "#/$defs/node"}},
        ["root"],
        **{"$defs": {"node": obj({"label": enum("a", "b"), "next": {"$ref": "#/$defs/node"}}, ["label"])}},
    ),
    "order": obj(
        {"size": enum("S", "M", "L"), "count": between(1, 9), "gift": {"const": True}}, ["size", "count"]
    ),
    "zip_code": obj({"code": {"type": "string", "pattern": "^[0-9]{5}$"}}, ["code"]),
    "colour": obj({"hex": {"type": "string", "pattern": "^#[0-9a-f]{6}$"}}, ["hex"]),
    "slug": obj({"slug": {"type": "string", "pattern": "^[a-z]{2,8}(-[a-z]{2,8})?$"}}, ["slug"]),
    "pick": obj({"choice": {"oneOf": [obj({"id": between(1, 9)}, ["id"]), enum("none")]}}, ["choice"]),
    "matrix": obj(
        {"rows": some(some({"type": "integer", "minimum": 0, "maximum": 9}, 2, 2), 2, 2)}, ["rows"]
    ),
    "deep": obj({"a": obj({"b": obj({"c": obj({"d": {"type": "boolean"}}, ["d"])}, ["c"])}, ["b"])}, ["a"]),
    "price": obj(
        {"amount": {"type": "number", "minimum": 0, "maximum": 100}, "currency": enum("EUR", "USD")},
        ["amount"],
    ),
    "mixed-enum": obj({"level": {"enum": ["low", 1, True, None]}}, ["level"]),
    "short_text": obj({"text": {"type": "string", "minLength": 1, "maxLength": 10}}, ["text"]),
    "numbers": obj(
        {"values": some(between(0, 9), 4, 1), "total": {"type": "integer", "minimum": 0, "maximum": 36}},
        ["values"],
    ),
    "camelCaseName": obj(
        {
            "firstArg": {"type": "boolean"},
            "second_arg": {"type": "boolean"},
            "third-arg": {"type": "boolean"},
        },
        ["firstArg"],
    ),
    "closed": obj({"only": {"type": "boolean"}}, ["only"], additionalProperties=False),
    "keys": obj(
        {"map": {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2}}, ["map"]
    ),
}
TOOLS = [tool(name, parameters) for name, parameters in FUNCTIONS.items()]
