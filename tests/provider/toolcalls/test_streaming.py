"""What leaves when: the first delta of a call, its brace, its pieces, and what is held back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway_protocol.families import Family
from provider.toolcalls import CallPolicy, OutputInterpreter
from provider.toolcalls.events import (
    Event,
    Failed,
    Finished,
    ReasoningDelta,
    StopGeneration,
    TextDelta,
    ToolCallArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)
from tests.suites.formats.answers import Piece, tokens

TOOLS: dict[str, Any] = {
    "f": {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}},
    "g": {"type": "object", "properties": {}},
}


def steps(
    pieces: list[str] | list[Piece],
    delivery: str = "incremental",
    family: Family = Family.QWEN,
    **policy: Any,
) -> list[str]:
    """What each piece lets out, in words: text, ~reasoning, name(, argument text, ) and !failure."""
    interpreter = OutputInterpreter(
        CallPolicy(
            family=family,
            tools=TOOLS,
            delivery=delivery,  # type: ignore[arg-type]
            think=("<think>", "</think>"),
            **policy,
        )
    )
    fed = [piece if isinstance(piece, tuple) else (piece, None) for piece in pieces]
    said = ["".join(map(word, interpreter.feed(*piece))) for piece in fed]
    return [*said, "".join(map(word, interpreter.finish("stop")))]


def word(event: Event) -> str:
    match event:
        case TextDelta():
            return event.text
        case ReasoningDelta():
            return f"~{event.text}"
        case ToolCallStart():
            return f"{event.name}("
        case ToolCallArgumentsDelta():
            return f"[{event.text}]"
        case ToolCallEnd():
            return ")"
        case StopGeneration():
            return "."
        case Finished():
            return f"#{event.finish_reason.value}"
        case Failed():
            return f"!{event.code.value}"


def test_a_call_starts_once_its_name_is_complete_and_its_arguments_have_begun() -> None:
    pieces = [
        "Hi.",
        "\n",
        "<tool_call>",
        '\n{"name": "',
        'f"',
        ', "arguments": ',
        "{",
        '"a": "x',
        "\\",
        "n",
        '"}',
    ]
    assert steps([*pieces, "}", "\n", "</tool_call>"]) == [
        *("Hi.", "", "", "", "", "", "f([{]", '["a": "x]', "", "[\\n]", '["}]', "", "", ").", "#tool_calls")
    ]


def test_function_xml_streams_strings_and_waits_for_what_may_be_a_closer() -> None:
    pieces = ["<tool_call>\n<function=f>\n", "<parameter=a>", "\n", "one", "\n", "two <b>", " </para"]
    pieces += ["meter>", " three", "\n", "</parameter>", "\n<parameter=n>\n4", "2\n</parameter>"]
    pieces += ["\n</function>", "\n</tool_call>"]
    assert steps(pieces) == [
        *("", 'f([{]["a": ]', "", '["one]', "", "[\\ntwo <b>]", "[ ]", ""),
        *("[</parameter> three]", "", "", '[", "n": ]', "", "", "[42}]).", "#tool_calls"),
    ]


def test_function_xml_waits_behind_a_closer_on_a_line_of_its_own() -> None:
    """What follows may be text of the value, or words that are nobody's before the next parameter."""
    head = ["<function=f>", "<parameter=a>\n", "one", "\n</parameter>", "\ntwo", " three"]
    started = ["", 'f([{]["a": ]', '["one]', "", "", ""]
    whole = steps([*head, "\n</parameter>", "\n</function>"])
    assert whole == [*started, "", '[\\n</parameter>\\ntwo three"}]).', "#tool_calls"]
    split = steps([*head, "\n<parameter=n>\n1\n</parameter>", "\n</function>"])
    assert split == [*started, "", '[", "n": 1}]).', "#tool_calls"]


def test_a_function_without_parameters_starts_at_its_closer() -> None:
    pieces = ["<function=g>", "\n", "</function>"]
    assert steps(pieces) == ["", "", "g([{][}]).", "#tool_calls"]


def test_the_python_form_starts_at_its_parenthesis() -> None:
    pieces = ["<tool_call>", "f", "(", "a='x", "'", ", n=1", ")", "</tool_call>"]
    assert steps(pieces) == ["", "", "f([{]", "", "", '["a": "x"]', '[, "n": 1}]', ").", "#tool_calls"]


def test_llama_streams_too() -> None:
    pieces = ['{"name"', ': "f", "par', 'ameters": {', '"a": 1', "}", "}"]
    assert steps(pieces, family=Family.LLAMA) == ["", "", "f([{]", '["a": 1]', "[}]", ").", "#tool_calls"]


def test_harmony_streams_too() -> None:
    text = "<|channel|>analysis<|message|>Hm.<|end|><|channel|>commentary to=functions.f<|message|>"
    pieces: list[Piece] = [
        *tokens(Family.GPT_OSS, text),
        (' {"a"', None),
        (": 1}", None),
        ("<|call|>", 200012),
    ]
    said = steps(pieces, family=Family.GPT_OSS)
    assert [one for one in said if one] == ["~Hm.", 'f([{]["a"]', "[: 1}]", ").", "#tool_calls"]


@pytest.mark.parametrize("delivery", ["whole", "buffered"])
def test_elsewhere_nothing_of_a_call_leaves_before_it_is_complete(delivery: str) -> None:
    pieces = ["Hi.", " \n", '<tool_call>{"name": "f", "arguments": {"a": "x', '"}}', "</tool_call>"]
    said = steps(pieces, delivery)
    last = 'f([{]["a": "x"}])'
    assert said == [
        "Hi.",
        "",
        "",
        "",
        *((last + ".", "#tool_calls") if delivery == "whole" else (".", last + "#tool_calls")),
    ]


def test_white_space_before_a_call_is_dropped_and_before_text_it_is_not() -> None:
    assert steps(["\n", " \n", "<tool_call>", '{"name": "g"}</tool_call>'], "whole")[:2] == ["", ""]
    assert steps(["\n", " \n", "x", " ", "y "], "whole") == ["", "", "\n \nx", "", " y", " #stop"]


def test_a_call_that_fails_before_its_start_becomes_text_with_the_space_before_it() -> None:
    pieces = ["Hi.", "\n\n", '<tool_call>{"name": "nope', '", "arguments": {}}', "</tool_call>", " more"]
    for delivery in ("whole", "incremental"):
        assert steps(pieces, delivery) == [
            *(
                "Hi.",
                "",
                "",
                '\n\n<tool_call>{"name": "nope", "arguments": {}}',
                "</tool_call>",
                " more",
                "#stop",
            )
        ]


@pytest.mark.parametrize(
    ("rest", "error"),
    [
        ('": "x",}}\n</tool_call>', "malformed_tool_call_final_json"),
        ('": "x"\n</tool_call>', "malformed_tool_call_final_json"),
        ('": "x"}} or so</tool_call>', "malformed_tool_call_final_json"),
        ('": "x",}}', "malformed_tool_call"),
        ('": "x', "malformed_tool_call"),
        ('": 1, "a": 2}}</tool_call>', "malformed_tool_call"),
        ('": ' + "[" * 40, "malformed_tool_call"),
    ],
)
def test_a_failure_once_a_delta_is_out_is_an_error(rest: str, error: str) -> None:
    """`malformed_tool_call`: open when it broke or when the turn ended. `…_final_json`: it closed, and its
    arguments are not one JSON object."""
    said = steps(['<tool_call>{"name": "f", "arguments": {"a', *rest])
    assert said[0] == 'f([{]["a]'
    assert [one.partition("!")[2] for one in said if "!" in one] == [error]
    assert not any("#" in one for one in said)


def test_an_undeclared_name_fails_a_stream_with_a_call_in_it() -> None:
    good = '<tool_call>{"name": "g", "arguments": {}}</tool_call>'
    said = steps([good, '<tool_call>{"name": "nope"', "and on"], "whole", parallel=True)
    assert said == ["g([{][}])", "!malformed_tool_call", "", ""]


def test_a_second_call_that_breaks_fails_the_stream_once_it_is_known_how() -> None:
    good = '<tool_call>{"name": "g", "arguments": {}}</tool_call>'
    bad = '<tool_call>{"name": "f", "arguments": [}'
    said = steps([good, bad, "</tool_call>"], "whole", parallel=True)
    assert said == ["g([{][}])", "", "!malformed_tool_call_final_json", ""]
    assert steps([good, bad], "whole", parallel=True)[-1] == "!malformed_tool_call"


def test_a_long_call_leaves_in_pieces_of_at_most_two_kibibytes_that_split_nothing() -> None:
    body = json.dumps({"a": '\\"\n' * 3_000 + "🚢é" * 2_000}, ensure_ascii=False)
    escaped = json.dumps({"a": "🚢\\" * 3_000})
    for arguments in (body, escaped):
        interpreter = OutputInterpreter(CallPolicy(family=Family.QWEN, tools=TOOLS))
        events = interpreter.feed(f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>')
        pieces = [event.text for event in events if isinstance(event, ToolCallArgumentsDelta)]
        assert "".join(pieces) == arguments
        assert max(len(piece.encode()) for piece in pieces) <= 2048
        assert len(pieces) > 8
        for piece in pieces[1:-1]:
            json.loads(f'["{piece}"]' if not piece.startswith('"a"') else f'{{{piece}"}}')


def test_reasoning_counts_and_is_told_without_its_markers() -> None:
    policy = CallPolicy(family=Family.QWEN, tools=TOOLS, think=("<think>", "</think>"))
    interpreter = OutputInterpreter(policy)
    seen = []
    for piece in ["<think>", "\n", "Hm", " so", "\n", "\n", "yes", "\n", "</think>", "\n\n", "Hi", "."]:
        events = interpreter.feed(piece)
        seen.append(("".join(map(word, events)), interpreter.in_reasoning))
    assert seen == [
        *(("", True), ("", True), ("~Hm", True), ("~ so", True), ("", True), ("", True), ("~\n\nyes", True)),
        *(("", True), ("", True), ("", False), ("Hi", False), (".", False)),
    ]


def test_harmonys_hidden_tokens_count_as_reasoning() -> None:
    interpreter = OutputInterpreter(CallPolicy(family=Family.GPT_OSS, tools=TOOLS))
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi.<|return|>"
    )
    counted = []
    for piece in tokens(Family.GPT_OSS, text):
        interpreter.feed(*piece)
        counted.append((piece[0], interpreter.in_reasoning))
    assert [piece for piece, hidden in counted if hidden] == ["<|message|>", "Hm.", "<|end|>"]


def test_generation_stops_at_the_closer_and_what_follows_is_nothing() -> None:
    interpreter = OutputInterpreter(CallPolicy(family=Family.QWEN, tools=TOOLS))
    assert StopGeneration() not in interpreter.feed(
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call'
    )
    assert interpreter.feed(">\nAnd <tool_call>")[-1] == StopGeneration(final=True)
    assert interpreter.feed("more") == []
    assert interpreter.finish("length") == [Finished("tool_calls")]  # type: ignore[arg-type]


def test_the_ids_are_those_that_were_minted() -> None:
    interpreter = OutputInterpreter(CallPolicy(family=Family.QWEN, tools=TOOLS), mint_id=lambda: "call_x")
    events = interpreter.feed('<tool_call>{"name": "g"}</tool_call>')
    assert [event.call_id for event in events if isinstance(event, ToolCallStart)] == ["call_x"]


def test_offsets_stay_exact_across_everything_that_is_not_content() -> None:
    pieces = ["<think>", "x", "</think>\n\n", "a", " ", "b<", "c", " <tool_call>", " d", "e"]
    interpreter = OutputInterpreter(
        CallPolicy(family=Family.QWEN, tools=TOOLS, think=("<think>", "</think>"))
    )
    events = [event for piece in pieces for event in interpreter.feed(piece)] + interpreter.finish("stop")
    raw = "".join(pieces)
    texts = [event for event in events if isinstance(event, TextDelta)]
    assert "".join(event.text for event in texts) == "a b<c <tool_call> de"
    assert all(raw[event.start : event.start + len(event.text)] == event.text for event in texts)
    assert [event.start for event in texts] == sorted(event.start for event in texts)
