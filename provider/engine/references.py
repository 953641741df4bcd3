"""Local references of a JSON Schema that is taken apart or put into another one. Pure.

A subschema's `#/…` names a place in the root it was written for. Moved, the root goes along as a definition
of the new one, under a name of its own, and the references point into that copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from provider.engine.schemas import Schema


def standing_alone(schema: Schema, root: Schema) -> dict[str, Any]:
    """A subschema of `root` as a schema of its own."""
    if not any(True for _ in _references(schema)):
        return dict(schema)
    return {**moved(schema, "root"), "$defs": {"root": moved(root, "root")}}


def moved(node: Any, home: str) -> Any:
    """The same, its references pointing to `#/$defs/<home>` and below."""
    if isinstance(node, Mapping):
        return {
            key: f"#/$defs/{home}{value[1:]}" if key == "$ref" and _is_pointer(value) else moved(value, home)
            for key, value in node.items()
        }
    return [moved(item, home) for item in node] if isinstance(node, list) else node


def pointed_at(root: Any, reference: str) -> Any:
    """What a local JSON Pointer names (RFC 6901), or `None`."""
    if not _is_pointer(reference):
        return None
    node = root
    for part in reference[2:].split("/") if reference != "#" else ():
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isdigit() and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node


def _is_pointer(reference: Any) -> bool:
    return isinstance(reference, str) and (reference == "#" or reference.startswith("#/"))


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for item in node:
            yield from _references(item)
