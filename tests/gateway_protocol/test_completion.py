"""Folding deltas, and the shapes on the wire against the OpenAI SDK's own models."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway_protocol.completion import (
    NO_ANSWER,
    AnswerCollector,
    chat_completion,
    chunk,
    delta_dict,
    error_event,
    logprob_entry,
    logprobs_of,
    usage_chunk,
    usage_dict,
)
from gateway_protocol.errors import ApiError, ErrorCode
from gateway_protocol.messages import Delta, FinishReason, FunctionDelta, ToolCallDelta, Usage

SAME: dict[str, Any] = {"id": "chatcmpl-1", "created": 1_700_000_000, "model": "org/Model"}
USAGE = Usage(prompt_tokens=12, completion_tokens=7, cached_tokens=4, reasoning_tokens=2)
ROLE = Delta(role="assistant", content="")


def head(index: int, call_id: str, name: str) -> Delta:
    function = FunctionDelta(name=name, arguments="")
    return Delta(tool_calls=(ToolCallDelta(index=index, id=call_id, type="function", function=function),))


def piece(index: int, text: str) -> Delta:
    return Delta(tool_calls=(ToolCallDelta(index=index, function=FunctionDelta(arguments=text)),))


TEXT_ANSWER = [ROLE, Delta(content="Hel"), Delta(content="lo"), Delta(content=" 🙂")]
REASONED_ANSWER = [ROLE, Delta(reasoning_content="Hm"), Delta(reasoning_content="m."), Delta(content="42")]
CALL_ANSWER = [
    ROLE,
    Delta(content="Let me see."),
    head(0, "call_a", "read_file"),
    piece(0, "{"),
    piece(0, '"path": "a"}'),
    head(1, "call_b", "list"),
    piece(1, "{"),
    piece(1, "}"),
]


def collected(deltas: list[Delta]) -> AnswerCollector:
    collector = AnswerCollector()
    for delta in deltas:
        collector.add(delta)
    return collector


def test_text_is_joined() -> None:
    answer = collected(TEXT_ANSWER).answer(FinishReason.STOP)
    assert answer.as_dict() == {
        "content": "Hello 🙂",
        "reasoning_content": None,
        "tool_calls": [],
        "finish_reason": "stop",
    }


def test_reasoning_is_kept_apart() -> None:
    answer = collected(REASONED_ANSWER).answer("length")
    assert (answer.content, answer.reasoning_content, answer.finish_reason) == ("42", "Hmm.", "length")


def test_text_beside_a_call_is_dropped() -> None:
    collector = collected(CALL_ANSWER)
    assert collector.answer(FinishReason.TOOL_CALLS).as_dict() == {
        "content": None,
        "reasoning_content": None,
        "tool_calls": [
            {
                "id": "call_a",
                "type": "function",
                "function": {"name": "read_file", "arguments": '{"path": "a"}'},
            },
            {"id": "call_b", "type": "function", "function": {"name": "list", "arguments": "{}"}},
        ],
        "finish_reason": "tool_calls",
    }


def test_calls_are_in_index_order_whatever_order_they_came_in() -> None:
    collector = collected([head(1, "call_b", "b"), head(0, "call_a", "a"), piece(1, "{}"), piece(0, "{ }")])
    calls = collector.answer("tool_calls").tool_calls
    assert [call["function"] for call in calls] == [
        {"name": "a", "arguments": "{ }"},
        {"name": "b", "arguments": "{}"},
    ]


def test_an_empty_answer_is_null_for_the_receipt_and_an_empty_text_for_the_buyer() -> None:
    collector = collected([ROLE])
    assert collector.answer("stop").content is None
    assert collector.message() == {"role": "assistant", "content": "", "refusal": None}


def test_the_message_holds_only_what_was_delivered() -> None:
    assert collected(TEXT_ANSWER).message() == {"role": "assistant", "content": "Hello 🙂", "refusal": None}
    assert collected(REASONED_ANSWER).message()["reasoning_content"] == "Hmm."
    message = collected(CALL_ANSWER).message()
    assert message["content"] is None
    assert [call["id"] for call in message["tool_calls"]] == ["call_a", "call_b"]


def test_after_an_error_the_finish_reason_is_null() -> None:
    assert collected(CALL_ANSWER[:4]).answer(None).as_dict() == {
        "content": None,
        "reasoning_content": None,
        "tool_calls": [
            {"id": "call_a", "type": "function", "function": {"name": "read_file", "arguments": "{"}}
        ],
        "finish_reason": None,
    }
    assert AnswerCollector().answer(None) == NO_ANSWER


@given(st.lists(st.text(max_size=5), max_size=8))
def test_how_a_text_is_cut_makes_no_difference(pieces: list[str]) -> None:
    whole = collected([Delta(content="".join(pieces))])
    cut = collected([Delta(content=part) for part in pieces])
    assert cut.answer("stop") == whole.answer("stop")
    assert cut.message() == whole.message()


# --- logprobs ------------------------------------------------------------------------------------

ENTRY = logprob_entry("Hel", b"Hel", -0.25, [("Hel", b"Hel", -0.25), ("He", b"He", -1.5)])


def test_logprobs_of_visible_text_are_joined() -> None:
    collector = AnswerCollector()
    collector.add(Delta(content="Hel"), logprobs_of([ENTRY]))
    collector.add(Delta(content="lo"), logprobs_of([]))
    collector.add(Delta(content="!"), None)
    assert collector.logprobs() == {"content": [ENTRY], "refusal": None}


def test_an_answer_with_calls_or_without_logprobs_has_none() -> None:
    collector = AnswerCollector()
    collector.add(Delta(content="Hel"), logprobs_of([ENTRY]))
    collector.add(CALL_ANSWER[2])
    assert collector.logprobs() is None
    assert collected(TEXT_ANSWER).logprobs() is None


@pytest.mark.parametrize("impossible", [float("-inf"), float("nan"), float("inf")])
def test_a_logprob_is_always_a_number_that_json_can_hold(impossible: float) -> None:
    entry = logprob_entry("a", b"a", impossible, [("b", b"b", impossible)])
    assert json.loads(json.dumps(entry, allow_nan=False))["logprob"] == -9999.0


# --- the SDK reads it ----------------------------------------------------------------------------


def streamed(deltas: list[Delta], finish_reason: str) -> list[dict[str, Any]]:
    chunks = [chunk(**SAME, delta=delta, include_usage=True) for delta in deltas]
    chunks.append(chunk(**SAME, finish_reason=finish_reason, include_usage=True, receipt="a.b.c"))
    chunks.append(usage_chunk(**SAME, usage=USAGE))
    return chunks


@pytest.mark.parametrize(
    ("deltas", "finish_reason"),
    [(TEXT_ANSWER, "stop"), (REASONED_ANSWER, "length"), (CALL_ANSWER, "tool_calls")],
)
def test_chunks_are_what_the_sdk_expects_and_add_up_to_the_buffered_answer(
    deltas: list[Delta], finish_reason: str
) -> None:
    state = ChatCompletionStreamState()
    for data in streamed(deltas, finish_reason):
        state.handle_chunk(ChatCompletionChunk.model_validate(json.loads(json.dumps(data)), strict=True))
    accumulated = state.current_completion_snapshot
    buffered = ChatCompletion.model_validate(
        chat_completion(
            **SAME, collector=collected(deltas), finish_reason=finish_reason, usage=USAGE, receipt="a.b.c"
        ),
        strict=True,
    )
    streamed_message = accumulated.choices[0].message
    message = buffered.choices[0].message
    assert accumulated.choices[0].finish_reason == buffered.choices[0].finish_reason == finish_reason
    assert accumulated.usage == buffered.usage
    assert [call.model_dump(include={"id", "function"}) for call in message.tool_calls or []] == [
        {
            "id": call.id,
            "function": {"name": call.function.name, "arguments": call.function.arguments},
        }
        for call in streamed_message.tool_calls or []
    ]
    if not message.tool_calls:
        assert streamed_message.content == message.content
    assert buffered.model_extra == {"malibu": {"receipt": "a.b.c"}}


def test_chunk_with_logprobs_is_what_the_sdk_expects() -> None:
    data = chunk(**SAME, delta=Delta(content="Hel"), logprobs=logprobs_of([ENTRY]))
    logprobs = ChatCompletionChunk.model_validate(data, strict=True).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert logprobs.content[0].top_logprobs[1].token == "He"
    collector = AnswerCollector()
    collector.add(Delta(content="Hel"), logprobs_of([ENTRY]))
    completion = chat_completion(**SAME, collector=collector, finish_reason="stop", usage=USAGE)
    read = ChatCompletion.model_validate(completion, strict=True).choices[0].logprobs
    assert read is not None
    assert read.content is not None
    assert read.content[0].bytes == [72, 101, 108]


def test_the_first_chunk_and_an_ordinary_one() -> None:
    assert chunk(**SAME, delta=ROLE) == {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "org/Model",
        "choices": [
            {
                "index": 0,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
        ],
    }
    assert chunk(**SAME, delta=piece(0, "{"))["choices"][0]["delta"] == {
        "tool_calls": [{"index": 0, "function": {"arguments": "{"}}]
    }


def test_a_delta_holds_only_what_is_set() -> None:
    assert delta_dict(head(2, "call_x", "f")) == {
        "tool_calls": [
            {"index": 2, "id": "call_x", "type": "function", "function": {"name": "f", "arguments": ""}}
        ]
    }
    assert delta_dict(Delta(reasoning_content="")) == {"reasoning_content": ""}
    assert delta_dict(Delta(tool_calls=(ToolCallDelta(index=0),))) == {"tool_calls": [{"index": 0}]}
    for delta in (*TEXT_ANSWER, *REASONED_ANSWER, *CALL_ANSWER):
        assert Delta.model_validate(delta_dict(delta)) == delta


def test_usage_comes_only_where_it_was_asked_for() -> None:
    assert "usage" not in chunk(**SAME, delta=ROLE)
    assert chunk(**SAME, delta=ROLE, include_usage=True)["usage"] is None
    last = usage_chunk(**SAME, usage=USAGE)
    assert last["choices"] == []
    assert last["usage"] == usage_dict(USAGE)
    assert usage_dict(USAGE) == {
        "prompt_tokens": 12,
        "completion_tokens": 7,
        "total_tokens": 19,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }


def test_the_receipt_travels_in_the_finish_chunk_and_in_the_error_event() -> None:
    assert chunk(**SAME, finish_reason="stop", receipt="a.b.c")["malibu"] == {"receipt": "a.b.c"}
    assert "malibu" not in chunk(**SAME, finish_reason="stop")
    error = ApiError(ErrorCode.MALFORMED_TOOL_CALL, "The call's markup broke.", inference_ran=True)
    event = error_event(error, "req_1", "a.b.c")
    assert event["error"]["code"] == "malformed_tool_call"
    assert event["malibu"] == {"receipt": "a.b.c"}
    assert error_event(error, "req_1") == error.envelope("req_1")
