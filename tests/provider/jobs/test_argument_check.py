"""Arguments that don't fit their schema are delivered all the same, and said."""

from __future__ import annotations

from typing import Any

import pytest

from provider.jobs.argument_check import ArgumentCheck
from provider.toolcalls.events import Finished, TextDelta, ToolCallArgumentsDelta, ToolCallEnd, ToolCallStart

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
TOOLS: dict[str, dict[str, Any] | None] = {
    "count": SCHEMA,
    "free": None,
    "odd": {"type": "matrix"},
    "far": {"$ref": "https://example.com/schema.json"},
}


@pytest.mark.parametrize(
    ("name", "pieces", "misfits"),
    [
        ("count", ["{", '"n": 3}'], []),
        ("count", ["{", '"n": 30}'], ["count"]),
        ("count", ["{}"], ["count"]),
        ("free", ['{"n": 30}'], []),
        ("odd", ["{}"], []),  # a schema that can't be read judges nothing
        ("far", ["{}"], []),
    ],
)
def test_it_names_what_doesnt_fit(name: str, pieces: list[str], misfits: list[str]) -> None:
    check = ArgumentCheck(TOOLS)
    check.see(TextDelta("before", 0))
    check.see(ToolCallStart(0, "call_1", name))
    for piece in pieces:
        check.see(ToolCallArgumentsDelta(0, piece))
    check.see(ToolCallEnd(0))
    check.see(Finished("tool_calls"))
    assert check.misfits == misfits


def test_a_cut_call_is_not_judged() -> None:
    check = ArgumentCheck(TOOLS)
    check.see(ToolCallStart(0, "call_1", "count"))
    check.see(ToolCallArgumentsDelta(0, '{"n": 30'))
    check.see(Finished("length"))
    assert check.misfits == []
