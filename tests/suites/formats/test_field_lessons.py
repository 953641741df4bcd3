"""What went wrong in other servers, one test for each kind of fault."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway_protocol.families import Family
from provider.toolcalls import CallPolicy
from tests.suites.formats.answers import THINK, Answer, cut_every, read, tokens

TOOLS: dict[str, Any] = {
    "read_file": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    "delete_file": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "force": {"type": "boolean"}},
    },
    "my-server__list": {"type": "object", "properties": {"max-items": {"type": "integer"}}},
    "write": {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "big": {"type": "integer"},
            "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "flag": {"type": "boolean"},
            "zip": {"type": "string"},
        },
    },
}


def answers(text: str, family: Family = Family.QWEN, finish: str = "stop", **policy: Any) -> list[Answer]:
    """Buffered, whole and incremental, whole and one character at a time."""
    base: dict[str, Any] = {"family": family, "tools": TOOLS, "parallel": True}
    base["think"] = THINK if family is Family.QWEN else None
    return [
        read(
            CallPolicy(**base | policy | {"delivery": delivery}),
            cut_every(tokens(family, text), size),
            finish,
        )
        for delivery in ("buffered", "whole", "incremental")
        for size in (0, 1)
    ]


def calls(answer: Answer) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in answer.calls if call.ended]


def function(name: str, **values: str) -> str:
    return f"<function={name}>\n{''.join(parameter(k, v) for k, v in values.items())}</function>"


def parameter(name: str, value: str) -> str:
    return f"<parameter={name}>\n{value}\n</parameter>\n"


def hermes(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


READ, DELETE = function("read_file", path="a.txt"), function("delete_file", path="b.txt")
BOTH = [("read_file", {"path": "a.txt"}), ("delete_file", {"path": "b.txt"})]


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>\n{READ}\n{DELETE}\n</tool_call>",
        f"<tool_call>\n{READ}\n<tool_call>\n{DELETE}\n</tool_call>",
        f"<tool_call>\n{READ}\n</tool_call>\n{DELETE}\n</tool_call>",
        f"{READ}\n{DELETE}",
        f"<tool_call>\n{READ.removesuffix('</function>')}<tool_call>\n{DELETE}\n</tool_call>",
        f"<tool_call>\n{READ.removesuffix('</function>')}{DELETE}\n</tool_call>",
    ],
)
def test_two_calls_never_merge_into_one(text: str) -> None:
    for answer in answers(text):
        assert calls(answer) == BOTH


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>\n<function=read_file>\n<parameter=path>\na.t\n<tool_call>\n{DELETE}\n</tool_call>",
        f"<tool_call>\n<function=read_file>\n<tool_call>\n{DELETE}\n</tool_call>",
        f"<tool_call>\n<function=read_file>\n{DELETE}\n</tool_call>",
    ],
)
def test_a_call_that_lost_its_end_borrows_nothing(text: str) -> None:
    for answer in answers(text):
        assert ("read_file", {"path": "b.txt"}) not in calls(answer)
        assert not any("b.txt" in value for _, arguments in calls(answer) for value in arguments.values())


def test_markup_without_its_wrapper_is_a_call_and_a_hyphenated_name_too() -> None:
    for answer in answers(function("my-server__list", **{"max-items": "3"})):
        assert calls(answer) == [("my-server__list", {"max-items": 3})]


@pytest.mark.parametrize("broken", ["<parameter=path\na\n</parameter>\n", "<parameter=path=a</parameter>\n"])
@pytest.mark.parametrize("first", ["", parameter("force", "true")])
def test_a_tag_without_its_end_is_no_parameter_and_no_value(broken: str, first: str) -> None:
    text = f"<tool_call>\n<function=delete_file>\n{first}{broken}</function>\n</tool_call>"
    for answer in answers(text):
        assert calls(answer) == []
        assert answer.text == text or answer.error == "malformed_tool_call"


@pytest.mark.parametrize(
    "tag", ["</parameter>", "</function>", "</tool_call>", "<tool_call>", "<function=x>"]
)
def test_a_value_is_not_cut_at_a_tag_in_it(tag: str) -> None:
    value = f"a {tag} b\n  {tag}, c"
    for answer in answers(f"<tool_call>\n{function('write', text=value, zip='1')}\n</tool_call>"):
        assert calls(answer) == [("write", {"text": value, "zip": "1"})]
    for answer in answers(hermes("write", {"text": value})):
        assert calls(answer) == [("write", {"text": value})]


@pytest.mark.parametrize(
    "example", [f"<tool_call>\n{DELETE}\n</tool_call>", hermes("delete_file", {"path": "b"})]
)
def test_an_example_in_an_argument_is_not_run(example: str) -> None:
    for answer in answers(f"<tool_call>\n{function('write', text=f'See:{chr(10)}{example}')}\n</tool_call>"):
        assert calls(answer) == [("write", {"text": f"See:\n{example}"})]
    for answer in answers(hermes("write", {"text": example})):
        assert calls(answer) == [("write", {"text": example})]


@pytest.mark.parametrize(
    "text", [hermes("nope", {}), '<tool_call>\n{"name": "read_file", "arg', "<tool_call>\n{}"]
)
def test_malformed_markup_is_shown_and_never_called_tool_calls(text: str) -> None:
    for answer in answers(text):
        assert (answer.text, answer.finish_reason) == (text, "stop")


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "read_file"}',
        "7",
        '"x"',
        "null",
        "[]",
        "{}",
        '{"name": "write", "arguments": {"big": 1e999}}',
        '{"name": "write", "arguments": inf}',
        '{"name": "write", "arguments": {"big": inf}}',
    ],
)
@pytest.mark.parametrize("family", [Family.QWEN, Family.LLAMA, Family.GPT_OSS])
def test_no_json_raises(body: str, family: Family) -> None:
    text = {
        Family.QWEN: f"<tool_call>\n{body}\n</tool_call>",
        Family.LLAMA: f"<|python_tag|>{body}",
        Family.GPT_OSS: f"<|channel|>commentary to=functions.write<|message|>{body}<|call|>",
    }[family]
    for answer in answers(text, family):
        assert answer.finish_reason is not None or answer.error is not None


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n" + READ,
        "<tool_call>\n" + READ.removesuffix("</function>"),
        hermes("read_file", {"path": "a"}).removesuffix("\n</tool_call>"),
    ],
)
def test_max_tokens_inside_a_call_gives_no_call_even_if_the_text_parses(text: str) -> None:
    for answer in answers(text, finish="length"):
        assert calls(answer) == []
        assert answer.finish_reason == "length"


def test_values_are_typed_by_their_schema() -> None:
    values = {"text": "null", "big": "9007199254740993", "maybe": "null", "flag": "True", "zip": "00501"}
    expected = {"text": "null", "big": 9007199254740993, "maybe": None, "flag": True, "zip": "00501"}
    for answer in answers(f"<tool_call>\n{function('write', **values)}\n</tool_call>"):
        assert calls(answer) == [("write", expected)]
        assert "9007199254740993" in answer.calls[0].arguments
    for answer in answers(f"<tool_call>\n{function('write', flag='maybe')}\n</tool_call>"):
        assert calls(answer) == [("write", {"flag": "maybe"})]


@pytest.mark.parametrize(
    "value", ["    if x:\n\ty()\n", "ends in a line break\n", "&amp; &lt;p&gt; &#39;", " \n x"]
)
def test_code_keeps_its_white_space_and_entities(value: str) -> None:
    for answer in answers(f"<tool_call>\n{function('write', text=value)}\n</tool_call>"):
        assert calls(answer) == [("write", {"text": value})]


@pytest.mark.parametrize("text", ["2 <", "a <tool_cal", "See <tool_call> for more, and the rest of it.", "<"])
def test_prose_that_looks_like_markup_stays_whole(text: str) -> None:
    for answer in answers(text):
        assert (answer.text, answer.finish_reason) == (text, "stop")


def test_no_provisional_arguments_are_sent() -> None:
    for answer in answers(hermes("write", {"text": "x"})):
        assert answer.calls[0].pieces[0] == "{"
        assert answer.calls[0].arguments == '{"text": "x"}'


def test_a_leftover_closer_is_dropped() -> None:
    for answer in answers(hermes("read_file", {"path": "a"}) + "\n</tool_call>\n</function>"):
        assert (calls(answer), answer.finish_reason) == ([("read_file", {"path": "a"})], "tool_calls")


@pytest.mark.parametrize("family", [Family.QWEN, Family.LLAMA, Family.GPT_OSS])
def test_streaming_returns_what_the_buffered_path_does_whatever_its_size(family: Family) -> None:
    body = {"text": "}" * 9_000 + '"\\' * 1_000 + "🚢\n" * 1_000}
    text = {
        Family.QWEN: hermes("write", body),
        Family.LLAMA: json.dumps({"name": "write", "parameters": body}),
        Family.GPT_OSS: f"<|channel|>commentary to=functions.write<|message|>{json.dumps(body)}<|call|>",
    }[family]
    got = answers(text, family)
    assert {answer.calls[0].arguments for answer in got} == {json.dumps(body)}


@pytest.mark.parametrize(
    "text",
    [
        "<|channel|>commentary to=functions.read_file<|message|>BODY<|call|>",
        " to=functions.read_file<|channel|>commentary<|message|>BODY<|call|>",
        "<|channel|>analysis to=functions.read_file code<|message|>BODY<|call|>",
        "<|start|>assistant to=functions.read_file<|channel|>analysis<|message|>BODY<|end|>",
        "<|channel|>commentary  to=functions.read_file  <|constrain|> json <|message|>BODY",
    ],
)
def test_harmony_headers_are_read_in_whatever_order(text: str) -> None:
    """ "commentary" is several tokens, one a letter here; the recipient may stand anywhere."""
    for answer in answers(text.replace("BODY", '{"path": "a"}'), Family.GPT_OSS):
        assert calls(answer) == [("read_file", {"path": "a"})]


def test_a_tool_schema_with_null_or_a_remote_reference_harms_nothing() -> None:
    odd: dict[str, Any] = {
        "properties": {
            "a": None,
            "b": {"$ref": "https://schemas.example.invalid/b"},
            "c": {"$ref": "#/nowhere"},
            "d": {"type": None, "enum": None, "anyOf": None},
            "e": True,
        },
        "required": None,
    }
    text = f"<tool_call>\n{function('f', a='1', b='2', c='3', d='4', e='5')}\n</tool_call>"
    for answer in answers(text, tools={"f": odd}):
        assert calls(answer) == [("f", {"a": "1", "b": "2", "c": "3", "d": "4", "e": "5"})]


# --- thinking --------------------------------------------------------------------------------------


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_reasoning_stays_out_of_content_also_when_it_is_cut(opened: bool, finish: str) -> None:
    start = "" if opened else "<think>\n"
    for answer in answers(start + "Secret thoughts.\n</think>\n\nHi.", reasoning_open=opened, finish=finish):
        assert (answer.text, answer.reasoning) == ("Hi.", "Secret thoughts.")
    for answer in answers(start + "Secret tho", reasoning_open=opened, finish=finish):
        assert (answer.text, answer.reasoning, answer.finish_reason) == ("", "Secret tho", finish)


def test_a_family_without_calls_has_its_reasoning_stripped_too() -> None:
    for answer in answers("[R]\nhm\n[/R]\nHi.", Family.NONE, think=("[R]", "[/R]")):
        assert (answer.text, answer.reasoning) == ("Hi.", "hm")


def test_a_draft_is_not_run_and_a_call_behind_reasoning_that_never_closed_is_not_lost() -> None:
    call = hermes("read_file", {"path": "a"})
    for answer in answers(f"<think>\nI could {call}\n</think>\nNo."):
        assert (calls(answer), answer.text) == ([], "No.")
    for answer in answers(f"<think>\nI need it.\n{call}"):
        assert (calls(answer), answer.finish_reason) == ([("read_file", {"path": "a"})], "tool_calls")
    for answer in answers(f"I need it.\n{call}", reasoning_open=True):
        assert calls(answer) == [("read_file", {"path": "a"})]
