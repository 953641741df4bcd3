"""Text and markers: what is held back, for how long, and that nothing is lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway_protocol.families import FAMILIES, Family
from provider.toolcalls.families import MARKUP
from provider.toolcalls.lexer import Kind, Lexer
from provider.toolcalls.lines import LineTracker
from provider.toolcalls.turn_end import TurnEnd


def qwen() -> Lexer:
    return MARKUP[Family.QWEN].lexer({}, FAMILIES[Family.QWEN].think)


def kinds(text: str) -> list[tuple[Kind, str]]:
    lexer = qwen()
    return [(one.kind, one.text) for one in (*lexer.feed(text), *lexer.finish())]


BITS = [
    "<",
    ">",
    "</",
    "<tool_call>",
    "</parameter>",
    "<parameter=",
    "a b",
    "=",
    "\n",
    "<function=f>",
    "<think>",
]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(BITS), max_size=10).map("".join), st.integers(1, 6))
def test_nothing_is_lost_and_a_cut_changes_no_marker(text: str, size: int) -> None:
    lexer = qwen()
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    cut = [one for piece in pieces for one in lexer.feed(piece)] + lexer.finish()
    assert "".join(one.text for one in cut) == text
    assert all(text[one.start : one.start + len(one.text)] == one.text for one in cut)
    markers = [(one.kind, one.text, one.name) for one in cut if one.kind is not Kind.TEXT]
    whole = qwen()
    assert markers == [
        (one.kind, one.text, one.name)
        for one in (*whole.feed(text), *whole.finish())
        if one.kind is not Kind.TEXT
    ]


def test_a_marker_has_a_name_up_to_its_end() -> None:
    lexer = qwen()
    assert [(one.kind, one.name) for one in lexer.feed("<function=my-f><parameter=a.b c><parameter=>")] == [
        (Kind.FUNCTION_OPEN, "my-f"),
        (Kind.PARAMETER_OPEN, "a.b c"),
        (Kind.PARAMETER_OPEN, ""),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call",
        "<parameter=a<b>",
        "<parameter=a\nb>",
        "<parameter=" + "x" * 200 + ">",
        "< tool_call>",
        "<TOOL_CALL>",
    ],
)
def test_what_only_looks_like_a_marker_is_text(text: str) -> None:
    assert {kind for kind, _ in kinds(text)} == {Kind.TEXT}


def test_a_name_may_be_as_long_as_a_declared_one() -> None:
    name = "n" * 500
    lexer = MARKUP[Family.QWEN].lexer({"f": {"properties": {name: {}}}, "g": None}, None)
    assert [one.name for one in lexer.feed(f"<parameter={name}>")] == [name]


def test_text_is_held_only_while_it_may_become_a_marker() -> None:
    lexer = qwen()
    held = []
    for char in "a<b<tool_x<parameter=y<":
        lexer.feed(char)
        held.append(lexer.holding)
    assert held == [
        *("", "<", "", "<", "<t", "<to", "<too", "<tool", "<tool_", ""),
        *("<" + "parameter=y"[:length] for length in range(12)),
        "<",
    ]


def test_a_family_without_markers_passes_everything() -> None:
    lexer = MARKUP[Family.NONE].lexer({}, None)
    assert [one.text for one in lexer.feed("<tool_call>")] == ["<tool_call>"]
    assert MARKUP[Family.NONE].lexer({}, ("", "</x>")).feed("</x>")[0].kind is Kind.THINK_CLOSE


def test_the_end_of_a_turn_is_text_only_if_more_follows() -> None:
    lexer, end = qwen(), TurnEnd()
    assert [one.text for one in end.feed(lexer.feed("a<|im_end|>\n"))] == ["a"]
    assert end.holding
    assert [one.text for one in end.feed(lexer.feed("b"))] == ["<|im_end|>", "\n", "b"]
    assert end.feed(lexer.feed("<|im_end|> ")) == []


@pytest.mark.parametrize(
    ("text", "fenced"),
    [
        ("```", True),
        ("```xml\ncode", True),
        ("```\n```", False),
        ("a\n```\nb\n```\nc", False),
        ("a ``` b", False),
        ("``\n`", False),
        ("  ```\n", True),
        ("````", True),
        ("\n\n```py", True),
    ],
)
def test_a_fence_is_a_line_that_begins_with_three_backticks(text: str, fenced: bool) -> None:
    whole, by_char = LineTracker(), LineTracker()
    whole.feed(text)
    for char in text:
        by_char.feed(char)
    assert whole.fenced == by_char.fenced == fenced


@settings(max_examples=300, deadline=None)
@given(st.text("{ \n;`x", max_size=20), st.data())
def test_where_an_object_may_begin_does_not_depend_on_the_cut(text: str, data: st.DataObject) -> None:
    whole = LineTracker(";").bare_object(text)
    tracker, start = LineTracker(";"), 0
    found = None
    while start < len(text) and found is None:
        size = data.draw(st.integers(1, 4))
        at = tracker.bare_object(text[start : start + size])
        found = None if at is None else start + at
        start += size
    assert found == whole
    if whole is not None:
        before = text[:whole]
        assert not before.strip(" \n;") or re.search(r"\n\Z", before)
