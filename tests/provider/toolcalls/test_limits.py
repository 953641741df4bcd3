"""The choke point, with an engine that emits what it may not: caps to the byte, contracts, strict schemas."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway_protocol.families import Family
from gateway_protocol.openai_types import ToolChoice
from provider.toolcalls import CallPolicy
from provider.toolcalls.limits import fits
from tests.suites.formats.answers import Answer, cut_every, read, tokens

MIB = 1024 * 1024
TOOLS: dict[str, Any] = {"f": {"type": "object", "properties": {"a": {"type": "string"}}}, "g": None}


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def harmony(name: str, arguments: str) -> str:
    return f"<|start|>assistant<|channel|>commentary to=functions.{name}<|message|>{arguments}<|call|>"


def llama(name: str, arguments: str) -> str:
    return f'{{"name": "{name}", "parameters": {arguments}}};'


def xml(name: str, value: str) -> str:
    return f"<tool_call>\n<function={name}>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"


def sized(size: int, char: str = "x") -> str:
    """An arguments object of exactly `size` UTF-8 bytes."""
    inner = size - len('{"a": ""}')
    width = len(char.encode())
    return '{"a": "' + char * (inner // width) + "x" * (inner % width) + '"}'


def answer(
    text: str, delivery: str = "buffered", size: int = 4096, finish: str = "stop", **policy: Any
) -> Answer:
    policy = {"family": Family.QWEN, "tools": TOOLS, "parallel": True, "delivery": delivery, **policy}
    pieces = cut_every(tokens(policy["family"], text), size)
    return read(CallPolicy(**policy), pieces, finish)


# --- sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("char", ["x", "é", "🚢"])
@pytest.mark.parametrize("delivery", ["buffered", "whole", "incremental"])
def test_one_call_may_have_a_mebibyte_of_arguments_and_not_a_byte_more(delivery: str, char: str) -> None:
    at = answer(hermes("f", sized(MIB, char)), delivery)
    assert [len(call.arguments.encode()) for call in at.calls] == [MIB]
    text = hermes("f", sized(MIB + 1, char))
    over = answer(text, delivery)
    if delivery == "incremental":
        assert over.error == "malformed_tool_call"
        assert len(over.calls[0].arguments.encode()) <= MIB
    else:
        assert (over.text, over.calls, over.finish_reason) == (text, [], "stop")


def test_the_cap_counts_the_arguments_that_are_sent() -> None:
    """Of function-XML the JSON text that it becomes: two bytes for a line break."""
    base = len('{"a": ""}')
    assert answer(xml("f", "q" + "\n" * ((MIB - base) // 2) + "q"), "whole").calls == []
    assert len(answer(xml("f", "q" + "\n" * ((MIB - base) // 2 - 2) + "q"), "whole").calls) == 1


def test_a_mebibyte_too_much_on_harmony_is_an_error() -> None:
    over = answer(harmony("f", sized(MIB + 1)), family=Family.GPT_OSS)
    assert over.error == "malformed_tool_call_final_json"
    assert len(answer(harmony("f", sized(MIB)), family=Family.GPT_OSS).calls) == 1


@pytest.mark.parametrize(
    "family_write", [(Family.QWEN, hermes), (Family.GPT_OSS, harmony), (Family.LLAMA, llama)]
)
@pytest.mark.parametrize("delivery", ["buffered", "whole", "incremental"])
def test_one_answer_may_have_two_mebibytes_and_not_a_byte_more(delivery: str, family_write: Any) -> None:
    family, write = family_write
    text = write("f", sized(MIB)) + write("f", sized(MIB - 2))
    at = answer(text + write("g", "{}"), delivery, family=family)
    assert [len(call.arguments) for call in at.calls] == [MIB, MIB - 2, 2]
    over = answer(text + write("g", "{ }"), delivery, family=family)
    assert over.error == "response_byte_cap_exceeded"
    assert sum(len(call.arguments) for call in over.calls) <= 2 * MIB


# --- contracts -------------------------------------------------------------------------------------

ONE = hermes("f", '{"a": "x"}')
TWO = ONE + "\n" + hermes("g", "{}")
DELIVERIES = ("buffered", "whole", "incremental")


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize(
    ("contract", "parallel", "omitted", "calls"),
    [
        ("malibu", None, "one", 1),
        ("malibu", None, "all", 2),
        ("malibu", False, "one", 1),
        ("malibu", False, "all", 1),
        ("malibu", True, "one", 2),
        ("strict", None, "one", 2),
        ("strict", True, "one", 2),
    ],
)
def test_how_many_calls_an_answer_has(
    contract: str, parallel: bool | None, omitted: str, calls: int, delivery: str
) -> None:
    for size in (0, 1, 5):
        got = answer(TWO, delivery, size, contract=contract, parallel=parallel, parallel_when_omitted=omitted)
        assert [call.name for call in got.calls] == ["f", "g"][:calls]
        assert got.finish_reason == "tool_calls"
        assert got.stopped == (calls == 1)


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize(
    ("family", "write"),
    [
        (Family.QWEN, hermes),
        (Family.QWEN, lambda name, _: xml(name, "x")),
        (Family.GPT_OSS, harmony),
        (Family.LLAMA, llama),
    ],
)
def test_strict_with_one_call_fails_at_the_name_of_a_second(
    family: Family, write: Any, delivery: str
) -> None:
    first, second = write("f", '{"a": "x"}'), write("g", '{"a": 1}')
    policy = {"contract": "strict", "parallel": False, "family": family}
    for size in (0, 1, 3):
        one = answer(first, delivery, size, **policy)
        assert ([call.name for call in one.calls], one.finish_reason) == (["f"], "tool_calls")
        assert one.stopped
        two = answer(first + second, delivery, size, **policy)
        assert two.error == "upstream_error"
        assert "parallel_tool_calls" in two.message
        assert [call.name for call in two.calls] == ([] if delivery == "buffered" else ["f"])
        assert all(call.ended for call in two.calls)


def test_strict_fails_as_soon_as_the_second_name_is_complete() -> None:
    begun = ONE + '\n<tool_call>\n{"name": "g'
    assert answer(begun, contract="strict", parallel=False).finish_reason == "tool_calls"
    assert answer(begun + '"', contract="strict", parallel=False).error == "upstream_error"


@pytest.mark.parametrize(
    "rest", ["\n<tool_call>\n{", "\n<tool_call>\n{]", " and <tool_call> text", "\n<function="]
)
def test_what_else_an_engine_says_while_it_stops_is_nothing(rest: str) -> None:
    for delivery in DELIVERIES:
        for size in (0, 1):
            got = answer(ONE + rest, delivery, size, contract="strict", parallel=False)
            assert (got.finish_reason, len(got.calls)) == ("tool_calls", 1)


CALLS = [
    (Family.QWEN, hermes("f", "{}")),
    (Family.QWEN, xml("f", "x")),
    (Family.QWEN, xml("f", "x").removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")),
    (Family.QWEN, "<tool_call>f(a='x')</tool_call>"),
    (Family.QWEN, "<tool_call><function=f"),
    (Family.LLAMA, llama("f", "{}")),
    (Family.GPT_OSS, harmony("f", "{}")),
]


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize(("family", "call"), CALLS)
@pytest.mark.parametrize("turned_off", ["none", "no tools"])
def test_strict_fails_closed_on_a_call_that_may_not_come(
    family: Family, call: str, turned_off: str, delivery: str
) -> None:
    policy: dict[str, Any] = {"contract": "strict", "parallel": None, "family": family}
    policy |= {"choice": ToolChoice("none")} if turned_off == "none" else {"tools": {}}
    complete = call if call.endswith((">", ";")) else call + ">"
    for size in (0, 1, 3):
        got = answer(complete, delivery, size, **policy)
        assert (got.error, got.calls, got.text) == ("upstream_error", [], "")
        assert ("none" in got.message) if turned_off == "none" else ("declares none" in got.message)


@pytest.mark.parametrize(
    "text",
    [
        "Wrap it in <tool_call> and </tool_call>.",
        "<function=f> is how it begins.",
        '{"name": "Oban", "pier": 2}',
        "```\n" + ONE + "\n```",
        '<tool_call>\n{"name": ',
    ],
)
def test_strict_leaves_prose_about_calls_alone(text: str) -> None:
    for family in (Family.QWEN, Family.LLAMA):
        got = answer(text, contract="strict", choice=ToolChoice("none"), family=family)
        assert (got.text, got.finish_reason) == (text, "stop")


@pytest.mark.parametrize(("family", "call"), CALLS[:4] + CALLS[5:6])
def test_malibu_without_tools_is_plain_text(family: Family, call: str) -> None:
    for delivery in DELIVERIES:
        got = answer(call, delivery, 1, family=family, tools={})
        assert (got.text, got.finish_reason) == (call, "stop")


def test_malibu_without_tools_on_harmony_is_an_error() -> None:
    got = answer(harmony("f", "{}"), family=Family.GPT_OSS, tools={})
    assert got.error == "malformed_tool_call_final_json"


# --- strict functions ------------------------------------------------------------------------------

STRICT: dict[str, Any] = {
    "f": {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 1}, "s": {"type": "string", "pattern": "^a+$"}},
        "required": ["n"],
        "additionalProperties": False,
    }
}


@pytest.mark.parametrize(
    ("arguments", "good"),
    [
        ('{"n": 1}', True),
        ('{"n": 123456789012345678901234567890}', True),
        ('{"n": 1, "s": "aa"}', True),
        ('{"n": 0}', False),
        ('{"n": "1"}', False),
        ("{}", False),
        ('{"n": 1, "s": "b"}', False),
        ('{"n": 1, "x": 2}', False),
    ],
)
def test_the_finished_arguments_of_a_strict_function_fit_its_schema(arguments: str, good: bool) -> None:
    text = hermes("f", arguments)
    for delivery in DELIVERIES:
        loose = answer(text, delivery, tools=STRICT)
        assert [call.arguments for call in loose.calls] == [arguments]
        got = answer(text, delivery, tools=STRICT, strict_tools=frozenset({"f"}))
        if good:
            assert [call.arguments for call in got.calls] == [arguments]
        elif delivery == "incremental":
            assert got.error == "malformed_tool_call_final_json"
        else:
            assert (got.text, got.calls) == (text, [])


def test_a_schema_reaches_for_nothing_and_runs_in_linear_time() -> None:
    assert fits('{"a": 1}', {"$ref": "https://schemas.example.invalid/a.json"})
    hostile = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    assert not fits(json.dumps({"a": "a" * 5_000 + "!"}), hostile)
    assert fits('{"a": 1}', {"type": "nonsense"})
    assert not fits('{"a": "\\ud83d"}', {"type": "object", "required": ["b"]})
