"""What must hold for any call and any garbage, whatever the cut."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway_protocol.families import Family
from provider.toolcalls import CallPolicy
from provider.toolcalls.families import MARKUP
from provider.toolcalls.lexer import Kind
from tests.suites.formats.answers import THINK, Answer, Piece, read, tokens

SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
DELIVERIES = ("buffered", "whole", "incremental")

names = st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True)
# What spells a special token would be read as one (`tokens`), which a model that quotes it doesn't write.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40).filter(lambda text: "<|" not in text)
# Text that is likely to be mistaken for markup.
tricky = st.lists(
    st.sampled_from(
        [
            "<",
            ">",
            "</",
            "\n",
            " ",
            "parameter",
            "</parameter>",
            "<parameter=x>",
            "</function>",
            "<function=f>",
            "</tool_call>",
            "<tool_call>",
            '"',
            "\\",
            "{",
            "}",
            "'",
            "```",
            "a",
            "é",
            "🚢",
            "\r\n",
            "\t",
            ";",
        ]
    ),
    max_size=8,
).map("".join)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    scalars | texts | tricky,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)


@st.composite
def pieces_of(draw: st.DrawFn, family: Family, text: str) -> list[Piece]:
    """`text` cut at random places, special tokens left whole, an empty piece here and there."""
    out: list[Piece] = []
    for stretch, token_id in tokens(family, text):
        if token_id is not None:
            out.append((stretch, token_id))
            continue
        places = sorted(draw(st.sets(st.integers(0, len(stretch)), max_size=12)))
        for start, end in zip([0, *places], [*places, len(stretch)], strict=True):
            out.append((stretch[start:end], None))
    return out


def answers(family: Family, tools: dict[str, Any], pieces: list[Piece], finish: str = "stop") -> list[Answer]:
    return [
        read(
            CallPolicy(
                family=family,
                tools=tools,
                parallel=True,
                delivery=delivery,  # type: ignore[arg-type]
                think=THINK if family is Family.QWEN else None,
            ),
            pieces,
            finish,
        )
        for delivery in DELIVERIES
    ]


# --- a call, written as each family writes it, comes back ------------------------------------------


def hermes(name: str, arguments: dict[str, Any]) -> str:
    return (
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"
    )


def hermes_escaped(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>{json.dumps({'arguments': arguments, 'name': name})}</tool_call>"


def llama(name: str, arguments: dict[str, Any]) -> str:
    return json.dumps({"name": name, "parameters": arguments}, ensure_ascii=False)


def llama_tagged(name: str, arguments: dict[str, Any]) -> str:
    return "<|python_tag|>" + json.dumps({"name": name, "parameters": arguments}, indent=1)


def harmony(name: str, arguments: dict[str, Any]) -> str:
    body = json.dumps(arguments, ensure_ascii=False)
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{body}<|call|>"


def python_form(name: str, arguments: dict[str, Any]) -> str:
    members = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    return f"<tool_call>\n{name}({members})\n</tool_call>"


JSON_WRITERS = [
    (Family.QWEN, hermes),
    (Family.QWEN, hermes_escaped),
    (Family.LLAMA, llama),
    (Family.LLAMA, llama_tagged),
    (Family.GPT_OSS, harmony),
]


@pytest.mark.parametrize(("family", "write"), JSON_WRITERS, ids=[write.__name__ for _, write in JSON_WRITERS])
@SETTINGS
@given(data=st.data(), name=names, arguments=st.dictionaries(texts | tricky, values, max_size=4))
def test_a_json_call_comes_back(
    family: Family,
    write: Callable[[str, dict[str, Any]], str],
    data: st.DataObject,
    name: str,
    arguments: dict[str, Any],
) -> None:
    text = write(name, arguments)
    pieces = data.draw(pieces_of(family, text))
    written = []
    for answer in answers(family, {name: None}, pieces):
        assert answer.finish_reason == "tool_calls", answer
        assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == [(name, arguments)]
        written.append(answer.calls[0].arguments)
    assert len(set(written)) == 1


@SETTINGS
@given(
    data=st.data(), name=names, arguments=st.dictionaries(names, values.filter(lambda v: v == v), max_size=4)
)
def test_a_python_call_comes_back(data: st.DataObject, name: str, arguments: dict[str, Any]) -> None:
    pieces = data.draw(pieces_of(Family.QWEN, python_form(name, arguments)))
    for answer in answers(Family.QWEN, {name: None}, pieces):
        assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == [(name, arguments)]


TYPED = {
    "string": texts | tricky,
    "integer": st.integers(),
    "number": st.floats(allow_nan=False, allow_infinity=False) | st.integers(),
    "boolean": st.booleans(),
    "null": st.none(),
    "array": st.lists(values, max_size=3),
    "object": st.dictionaries(texts, values, max_size=3),
}


@st.composite
def typed_calls(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """A schema, and arguments that fit it."""
    kinds = draw(st.dictionaries(names, st.sampled_from(sorted(TYPED)), max_size=4))
    wrap = draw(st.sampled_from(["plain", "anyOf", "list", "ref"]))
    schema: dict[str, Any] = {"type": "object", "properties": {}, "$defs": {}}
    for name, kind in kinds.items():
        said: dict[str, Any] = {"type": kind}
        if wrap == "anyOf":
            said = {"anyOf": [said]}
        elif wrap == "list":
            said = {"type": [kind]}
        elif wrap == "ref":
            schema["$defs"][name] = said
            said = {"$ref": f"#/$defs/{name}"}
        schema["properties"][name] = said
    return schema, {name: draw(TYPED[kind]) for name, kind in kinds.items()}


def function_xml(name: str, arguments: dict[str, Any], *, wrapped: bool) -> str:
    members = "".join(
        f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
        for key, value in arguments.items()
    )
    call = f"<function={name}>\n{members}</function>"
    return f"<tool_call>\n{call}\n</tool_call>" if wrapped else call


def _has_closers(value: Any) -> bool:
    """Text whose tags are not those of whole words in a line: there structure may say otherwise."""
    return isinstance(value, str) and ("<parameter=" in value or "</" in value or "<function=" in value)


@SETTINGS
@given(data=st.data(), name=names, typed=typed_calls(), wrapped=st.booleans())
def test_a_function_xml_call_comes_back(
    data: st.DataObject, name: str, typed: tuple[dict[str, Any], dict[str, Any]], wrapped: bool
) -> None:
    schema, arguments = typed
    arguments = {key: value for key, value in arguments.items() if not _has_closers(value)}
    pieces = data.draw(pieces_of(Family.QWEN, function_xml(name, arguments, wrapped=wrapped)))
    written = []
    for answer in answers(Family.QWEN, {name: schema}, pieces):
        assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == [(name, arguments)]
        written.append(answer.calls[0].arguments)
    assert len(set(written)) == 1


@SETTINGS
@given(
    data=st.data(),
    before=st.text("ab \n", max_size=10),
    after=st.text("ab \n", max_size=10),
    closer=st.sampled_from(["</parameter>", "</function>", "</tool_call>", "<tool_call>", "<function=f>"]),
)
def test_a_value_keeps_a_tag_in_mid_sentence(
    data: st.DataObject, before: str, after: str, closer: str
) -> None:
    value = f"x{before}{closer} is{after}y"
    text = function_xml("f", {"k": value, "l": "z"}, wrapped=True)
    pieces = data.draw(pieces_of(Family.QWEN, text))
    for answer in answers(Family.QWEN, {"f": None}, pieces):
        assert [json.loads(call.arguments) for call in answer.calls] == [{"k": value, "l": "z"}]


# --- garbage ---------------------------------------------------------------------------------------

QWEN_BITS = [
    *("<tool_call>", "</tool_call>", "<function=f>", "<function=nope>", "<function=", "</function>"),
    *("<parameter=a>", "<parameter=b>", "<parameter=zz>", "<parameter=", "</parameter>", "\n", "\n", " "),
    *('{"name": "f", "arguments": {"a": "x"}}', '{"name": ', '"f"', '"arguments"', ": ", "{", "}", "[", "]"),
    *(
        '"',
        "\\",
        ",",
        "1",
        "null",
        "f(",
        "a='x'",
        ")",
        "```",
        "```\n",
        "text",
        "é",
        "🚢",
        "<",
        ">",
        "</",
        "=",
    ),
    *("<|im_end|>", "<|python_tag|>", ";", '{"name": "f", "parameters": {}}', "\t", "\r\n"),
]
THINK_BITS = ["<think>", "</think>", "<think>\n", "\n</think>\n\n"]
HARMONY_BITS = [
    *("<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|constrain|>"),
    *("assistant", "commentary", "analysis", "final", " to=functions.f", " to=functions.nope", " to=python"),
    *(" ", "json", '{"a": ', '"x"', "}", "{}", "text", "\n", "é"),
]
TOOLS: dict[str, Any] = {
    "f": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": ["integer", "null"]}}}
}


def garbage(bits: list[str]) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(bits), max_size=24).map("".join)


def without_turn_end(family: Family, text: str) -> str:
    """The end-of-turn token is no part of an answer, nor is white space behind it."""
    for marker, kind in MARKUP[family].fixed.items():
        if kind is Kind.END_OF_TURN and text.rstrip().endswith(marker):
            return without_turn_end(family, text.rstrip().removesuffix(marker))
    return text


def _same_at_another_cut(family: Family, text: str, pieces: list[Piece], finish: str) -> list[Answer]:
    whole, cut = (answers(family, TOOLS, way, finish) for way in (tokens(family, text), pieces))
    assert [one.result() for one in whole] == [one.result() for one in cut]
    assert [one.reasoning for one in whole] == [one.reasoning for one in cut]
    assert [one.text for one in whole] == [one.text for one in cut]
    for answer in (*whole, *cut):
        assert {call.name for call in answer.calls} <= {"f"}
    return cut


@settings(SETTINGS, max_examples=150)
@given(data=st.data(), finish=st.sampled_from(["stop", "length"]), text=garbage(QWEN_BITS))
@pytest.mark.parametrize("family", [Family.QWEN, Family.LLAMA, Family.NONE])
def test_garbage_loses_nothing_and_calls_nobody(
    family: Family, data: st.DataObject, finish: str, text: str
) -> None:
    pieces = data.draw(pieces_of(family, text))
    for answer in _same_at_another_cut(family, text, pieces, finish):
        if not answer.calls and answer.error is None:
            assert answer.text == without_turn_end(family, text)
        if answer.error is not None:
            assert answer.calls, "an error only once a tool delta is out"


@settings(SETTINGS, max_examples=120)
@given(
    data=st.data(), finish=st.sampled_from(["stop", "length"]), text=garbage([*QWEN_BITS, *THINK_BITS * 3])
)
def test_garbage_with_reasoning_is_the_same_at_every_cut(data: st.DataObject, finish: str, text: str) -> None:
    _same_at_another_cut(Family.QWEN, text, data.draw(pieces_of(Family.QWEN, text)), finish)


@settings(SETTINGS, max_examples=150)
@given(data=st.data(), finish=st.sampled_from(["stop", "length"]), text=garbage(HARMONY_BITS))
def test_harmony_garbage_is_the_same_at_every_cut(data: st.DataObject, finish: str, text: str) -> None:
    pieces = data.draw(pieces_of(Family.GPT_OSS, text))
    for answer in _same_at_another_cut(Family.GPT_OSS, text, pieces, finish):
        assert answer.error in (None, "malformed_tool_call_final_json")


@settings(SETTINGS, max_examples=80)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=200), data=st.data())
@pytest.mark.parametrize("family", [Family.QWEN, Family.LLAMA, Family.NONE])
def test_any_text_passes(family: Family, text: str, data: st.DataObject) -> None:
    for answer in answers(family, TOOLS, data.draw(pieces_of(family, text))):
        assert answer.text == without_turn_end(family, text)


@settings(SETTINGS, max_examples=120)
@given(text=garbage(QWEN_BITS), data=st.data(), finish=st.sampled_from(["stop", "length"]))
@pytest.mark.parametrize("family", [Family.QWEN, Family.LLAMA])
def test_streams_say_what_the_buffered_answer_says(
    family: Family, text: str, data: st.DataObject, finish: str
) -> None:
    buffered, whole, incremental = answers(family, TOOLS, data.draw(pieces_of(family, text)), finish)
    for streamed in (whole, incremental):
        if streamed.error is not None:
            assert buffered.error is None
            assert not buffered.calls
            continue
        ended = [(call.name, call.arguments) for call in streamed.calls if call.ended]
        assert ended == [(call.name, call.arguments) for call in buffered.calls]
        assert streamed.finish_reason == buffered.finish_reason
        if not streamed.calls:
            assert streamed.text == buffered.text
