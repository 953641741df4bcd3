"""The `strict` table of docs/contract.md through HTTP, each cell buffered and streamed, after a tool turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from provider.jobs.plan import AnswerRules
from tests.fakes.stack import GPT_OSS, PLAIN, QWEN, Stack
from tests.fakes.waiting import eventually

STRICT = AnswerRules(contract="strict")
ONE = '<tool_call>\n{"name": "look_up", "arguments": {"city": "Oulu"}}\n</tool_call>'
TWO = ONE + '\n<tool_call>\n{"name": "look_up", "arguments": {"city": "Turku"}}\n</tool_call>'
LINES: tuple[dict[str, Any], ...] = (
    {"match": "two calls", "text": TWO + "\nand on it goes" * 100, "ms_per_token": 5, "ignore_stop": True},
    {"match": "one call", "text": ONE + "\nand on it goes" * 100, "ms_per_token": 5, "ignore_stop": True},
    {"text": "Hello."},
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
EARLIER = "call_" + "0123456789abcdef" * 2


def body(ask: str, **fields: Any) -> dict[str, Any]:
    call = {"id": EARLIER, "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    return {
        "model": QWEN.id,
        "messages": [
            {"role": "user", "content": "Before."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": EARLIER, "content": "rain"},
            {"role": "user", "content": ask},
        ],
        "tools": TOOLS,
        **fields,
    }


def stack(folder: Path, **options: Any) -> Stack:
    return Stack(folder, *LINES, rules=STRICT, **options)


def cities(calls: list[dict[str, Any]]) -> list[str]:
    return [json.loads(call["arguments"])["city"] for call in calls]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "auto"},
        {"tool_choice": "auto", "parallel_tool_calls": True},
        {"parallel_tool_calls": True},
        {},
    ],
    ids=["auto", "auto, true", "true", "nothing"],
)
async def test_every_call_arrives_where_parallel_isnt_false(tmp_path: Path, fields: dict[str, Any]) -> None:
    async with stack(tmp_path) as it:
        status, answer = await it.post(body("two calls", **fields))
        assert status == 200
        message = ChatCompletion.model_validate(answer).choices[0].message
        assert message.content is None
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
        calls = [call["function"] for call in answer["choices"][0]["message"]["tool_calls"]]
        assert cities(calls) == ["Oulu", "Turku"]

        streamed = await it.stream(body("two calls", **fields))
        assert [ChatCompletionChunk.model_validate(chunk) for chunk in streamed.chunks]
        assert streamed.finish_reasons == ["tool_calls"]
        assert [call["arguments"] for call in streamed.calls] == [call["arguments"] for call in calls]
        assert streamed.done


@pytest.mark.asyncio
async def test_false_with_one_call_delivers_it(tmp_path: Path) -> None:
    async with stack(tmp_path) as it:
        asked = body("one call", parallel_tool_calls=False)
        status, answer = await it.post(asked)
        assert (status, answer["choices"][0]["finish_reason"]) == (200, "tool_calls")
        streamed = await it.stream(asked)
        assert (cities(streamed.calls), streamed.finish_reasons) == (["Oulu"], ["tool_calls"])
        await eventually(lambda: it.engine.status().cancels == 2)


def envelope(message: str, request_id: str) -> dict[str, Any]:
    return {
        "message": message,
        "type": "upstream_error",
        "param": None,
        "code": "upstream_error",
        "retryable": False,
        "request_id": request_id,
        "inference_ran": True,
    }


@pytest.mark.asyncio
async def test_a_second_call_under_false_fails_closed(tmp_path: Path) -> None:
    async with stack(tmp_path) as it:
        asked = body("two calls", parallel_tool_calls=False)
        status, answer = await it.post(asked)
        assert status == 502
        error = answer["error"]
        assert error == envelope(error["message"], error["request_id"])
        assert "parallel_tool_calls" in error["message"]

        streamed = await it.stream(asked)
        assert cities(streamed.calls) == ["Oulu"]
        assert [each["code"] for each in streamed.errors] == ["upstream_error"]
        assert "error" in streamed.events[-1]
        assert (streamed.finish_reasons, streamed.done) == ([], True)
        await eventually(lambda: it.engine.status().cancels == 2)


@pytest.mark.asyncio
@pytest.mark.parametrize("case", ["none", "no tools"])
async def test_a_call_that_was_turned_off_fails_closed(tmp_path: Path, case: str) -> None:
    async with stack(tmp_path) as it:
        asked = body("one call", **({"tool_choice": "none"} if case == "none" else {"tools": None}))
        status, answer = await it.post(asked)
        assert status == 502
        error = answer["error"]
        assert error == envelope(error["message"], error["request_id"])

        streamed = await it.stream(asked)
        assert streamed.calls == []
        assert [each["code"] for each in streamed.errors] == ["upstream_error"]
        assert (streamed.finish_reasons, streamed.done) == ([], True)
        assert [request.tools for request in it.engine.asked] == [None, None]
        await eventually(lambda: it.engine.status().cancels == 2)


@pytest.mark.asyncio
async def test_none_without_a_call_answers(tmp_path: Path) -> None:
    async with stack(tmp_path) as it:
        asked = body("hello", tool_choice="none")
        status, answer = await it.post(asked)
        assert (status, answer["choices"][0]["message"]["content"]) == (200, "Hello.")
        assert (await it.stream(asked)).content == "Hello."


@pytest.mark.asyncio
@pytest.mark.parametrize("device", ["gpu", "cpu"])
@pytest.mark.parametrize("model", [QWEN.id, GPT_OSS.id, PLAIN.id])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "look_up"}}], ids=["required", "named"]
)
async def test_what_cant_be_forced_is_refused_before_any_model_is_loaded(
    tmp_path: Path, device: str, model: str, choice: Any
) -> None:
    async with stack(tmp_path, device=device, preload=False) as it:
        before = it.engine.status()
        assert before.device == device
        asked = body("one call", tool_choice=choice) | {
            "model": model,
            "messages": [{"role": "user", "content": "one call"}],
        }
        for fields in ({}, {"stream": True}):
            status, answer = await it.post(asked | fields)
            error = answer["error"]
            assert status == 400
            assert (error["code"], error["type"]) == ("unsupported_field", "invalid_request_error")
            assert (error["param"], error["retryable"], error["inference_ran"]) == (
                "tool_choice",
                False,
                False,
            )
            assert "this device" in error["message"]
        assert it.engine.asked == []
        after = it.engine.status()
        assert after.models == before.models
        assert "ready" not in {str(state) for state in after.models.values()}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "choice",
    [
        "sometimes",
        7,
        True,
        [],
        {},
        {"type": "function"},
        {"type": "function", "function": {}},
        {"type": "function", "function": {"name": "undeclared"}},
        {"type": "tool", "function": {"name": "look_up"}},
    ],
    ids=str,
)
async def test_malformed_choices_are_named(tmp_path: Path, choice: Any) -> None:
    async with stack(tmp_path) as it:
        status, answer = await it.post(body("one call", tool_choice=choice))
        error = answer["error"]
        assert (status, error["code"], error["param"]) == (400, "invalid_request", "tool_choice")
        assert it.engine.asked == []
