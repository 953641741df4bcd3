"""What `parse` and the explain route show."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway_protocol.errors import ApiError
from gateway_protocol.families import Family
from gateway_protocol.messages import Delta, FunctionDelta, ToolCallDelta
from gateway_protocol.openai_types import ToolChoice
from provider.toolcalls import split_special, to_delta
from provider.toolcalls.events import (
    ReasoningDelta,
    StopGeneration,
    TextDelta,
    ToolCallArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)
from provider.toolcalls.explain import RawOutput, explain, run_case

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("f", "g")
]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": [1, 2]}}\n</tool_call>'


def output(text: str, **changes: Any) -> RawOutput:
    return RawOutput(text=text, **{"model": "Qwen3-8B", "tools": TOOLS} | changes)


def test_a_completion_is_what_a_buyer_would_get() -> None:
    said = explain(output("<think>\nhm\n</think>\n\nOne moment.\n" + CALL))
    assert isinstance(said, dict)
    [choice] = said["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["reasoning_content"] == "hm"
    [call] = choice["message"]["tool_calls"]
    assert (call["type"], call["function"]) == ("function", {"name": "f", "arguments": '{"a": [1, 2]}'})
    assert "usage" not in said
    hidden = explain(output("<think>\nhm\n</think>\n\nHi.", include_reasoning=False))
    assert isinstance(hidden, dict)
    assert "reasoning_content" not in hidden["choices"][0]["message"]


@pytest.mark.parametrize("streaming", ["whole", "incremental"])
@pytest.mark.parametrize("chunk_chars", [None, 1, 7])
def test_chunks_are_a_stream(streaming: str, chunk_chars: int | None) -> None:
    said = explain(output("Hi. " + CALL, streaming=streaming, chunk_chars=chunk_chars), stream=True)
    assert isinstance(said, list)
    assert said[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {(one["id"], one["created"], one["model"]) for one in said} == {
        ("chatcmpl-explain", 0, "Qwen3-8B")
    }
    deltas = [one["choices"][0]["delta"] for one in said]
    content = [delta["content"] for delta in deltas if "content" in delta]
    assert "".join(content) == "Hi."
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert calls[0]["function"] == {"name": "f", "arguments": ""}
    assert calls[1]["function"] == {"arguments": "{"}
    assert "".join(call["function"]["arguments"] for call in calls) == '{"a": [1, 2]}'
    assert [one["choices"][0]["finish_reason"] for one in said if one["choices"][0]["finish_reason"]] == [
        "tool_calls"
    ]


def test_an_error_is_an_envelope_and_ends_a_stream() -> None:
    text = "<|channel|>commentary<|message|>Hm.<|end|><|channel|>commentary to=python<|message|>1<|call|>"
    buffered = explain(output(text, model="gpt-oss-20b"))
    assert isinstance(buffered, dict)
    assert buffered["error"]["code"] == "malformed_tool_call_final_json"
    assert buffered["error"]["inference_ran"] is True
    streamed = explain(output(text, model="gpt-oss-20b"), stream=True)
    assert isinstance(streamed, list)
    assert [one.get("error", {}).get("code") for one in streamed] == [
        None,
        None,
        "malformed_tool_call_final_json",
    ]


def test_the_contract_and_the_choice_are_honoured() -> None:
    strict = output(CALL + CALL.replace('"f"', '"g"'), contract="strict")
    assert len(_message(explain(strict))["tool_calls"]) == 2
    one = output(CALL + CALL, contract="strict", parallel=False)
    refused = explain(one)
    assert isinstance(refused, dict)
    assert refused["error"]["code"] == "upstream_error"
    assert len(_message(explain(output(CALL + CALL)))["tool_calls"]) == 1
    assert len(_message(explain(output(CALL + CALL, parallel=True)))["tool_calls"]) == 2
    turned_off = explain(output(CALL, contract="strict", tool_choice=ToolChoice("none")))
    assert isinstance(turned_off, dict)
    assert turned_off["error"]["code"] == "upstream_error"


def _message(said: Any) -> dict[str, Any]:
    message = said["choices"][0]["message"]
    assert isinstance(message, dict)
    return message


def test_the_family_is_the_models_unless_it_is_said() -> None:
    assert _message(explain(output(CALL, model="SmolLM2-135M")))["content"] == CALL
    assert _message(explain(output(CALL, model="SmolLM2-135M", family=Family.QWEN)))["tool_calls"]
    assert _message(explain(output("a</x>b", model="other", think=("<x>", "</x>"))))["content"] == "b"


def test_the_prompt_is_taken_to_have_opened_what_the_text_only_closes() -> None:
    assert _message(explain(output("hm\n</think>\n\nHi.")))["content"] == "Hi."
    assert _message(explain(output("hm\n</think>\n\nHi.", reasoning_open=False)))["content"].startswith("hm")
    assert _message(explain(output("<think>hm</think>Hi.")))["content"] == "Hi."
    assert _message(explain(output("hm", reasoning_open=True)))["content"] == ""
    drafted = _message(explain(output(CALL + "\n</think>\n\nHi.")))
    assert (drafted["content"], "tool_calls" in drafted) == ("Hi.", False)
    unfinished = explain(output("I could <tool_call>\n<function=f>\n<parameter=a>\nx</think>Hi."))
    assert _message(unfinished)["content"] == "Hi."


@pytest.mark.parametrize(
    "call",
    [
        '<tool_call>\n{"name": "f", "arguments": {"a": "</think>"}}\n</tool_call>',
        "<tool_call>\n<function=f>\n<parameter=a>\n</think>\n</parameter>\n</function>\n</tool_call>",
        "<function=f><parameter=a></think></parameter></function>",
        "<tool_call>f(a='</think>')</tool_call>",
    ],
)
def test_a_marker_in_a_calls_text_or_between_quotation_marks_closes_nothing(call: str) -> None:
    for text in (call, "One moment.\n" + call):
        [made] = _message(explain(output(text)))["tool_calls"]
        assert json.loads(made["function"]["arguments"]) == {"a": "</think>"}
    mention = "The tag `</think>` closes it."
    assert _message(explain(output(mention)))["content"] == mention


def test_tools_that_are_none_are_refused_as_in_a_request() -> None:
    with pytest.raises(ApiError) as raised:
        explain(output("x", tools=[{"type": "function", "function": {"name": "a b"}}]))
    assert raised.value.param == "tools[0].function.name"
    case = {"id": "x", "family": "llama3", "tools": [1], "text": "x"}
    assert run_case(case)["buffered"]["error"]["code"] == "invalid_tools"


def test_a_line_of_cases_gives_one_line() -> None:
    case = {
        "id": "c1",
        "family": "qwen_hermes",
        "tools": TOOLS,
        "text": CALL,
        "finish": "stop",
        "parallel": False,
    }
    line = json.loads(json.dumps(run_case(case, 3)))
    assert set(line) == {"id", "buffered", "streamed"}
    assert set(line["buffered"]) == set(line["streamed"]) == {"finish_reason", "message"}
    with pytest.raises(KeyError):
        run_case(case | {"family": "other"})


def test_special_tokens_are_cut_out_where_a_family_is_told_by_them() -> None:
    text = "<|channel|>final<|message|>é <|end|"
    assert split_special(Family.GPT_OSS, text) == [
        *(("<|channel|>", 200005), ("final", None), ("<|message|>", 200008), ("é <|end|", None))
    ]
    assert split_special(Family.QWEN, "<|im_end|>x") == [("<|im_end|>x", None)]
    assert split_special(Family.QWEN, "") == split_special(Family.GPT_OSS, "") == []


def test_each_event_has_its_delta() -> None:
    assert to_delta(TextDelta("x", 3)) == Delta(content="x")
    assert to_delta(ReasoningDelta("x")) == Delta(reasoning_content="x")
    start = ToolCallDelta(
        index=1, id="call_1", type="function", function=FunctionDelta(name="f", arguments="")
    )
    assert to_delta(ToolCallStart(1, "call_1", "f")) == Delta(tool_calls=(start,))
    piece = ToolCallDelta(index=1, function=FunctionDelta(arguments="{"))
    assert to_delta(ToolCallArgumentsDelta(1, "{")) == Delta(tool_calls=(piece,))
    assert to_delta(ToolCallEnd(1)) is None
    assert to_delta(StopGeneration()) is None
