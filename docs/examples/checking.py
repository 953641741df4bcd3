"""Validate each call before you run it: its name, its arguments, its schema."""

import json

import jsonschema_rs  # any JSON Schema validator will do


def checked_arguments(name: str, arguments: str, tools: list[dict]) -> dict:
    """The arguments of one call as an object. Raises ValueError, with words a model can act upon."""
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}
    if name not in schemas:
        raise ValueError(f"there is no tool called {name}")
    try:
        value = json.loads(arguments)
    except json.JSONDecodeError as error:
        raise ValueError(f"the arguments are not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("the arguments must be a JSON object")
    try:
        jsonschema_rs.validate(schemas[name] or {}, value)
    except jsonschema_rs.ValidationError as error:
        raise ValueError(f"the arguments don't fit the schema: {error.message}") from None
    return value
