"""The default contract through HTTP and the openai SDK, with scripted output of each family."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import openai
import pytest

from provider.jobs.plan import AnswerRules
from tests.fakes.stack import GPT_OSS, PLAIN, QWEN, Stack
from tests.fakes.waiting import eventually

LLAMA = type(QWEN)("llama-3.3-test", type(QWEN.family)("llama"), context_length=40_000)
HERMES = '<tool_call>\n{"name": "write_file", "arguments": {"path": "a.py", "text": "x\\n  y"}}\n</tool_call>'
XML = (
    "<tool_call>\n<function=write_file>\n<parameter=path>\na.py\n</parameter>\n"
    "<parameter=text>\nx\n  y\n</parameter>\n</function>\n</tool_call>"
)
HARMONY = (
    "<|channel|>analysis<|message|>Write it.<|end|><|start|>assistant<|channel|>commentary "
    'to=functions.write_file <|constrain|>json<|message|>{"path": "a.py", "text": "x\\n  y"}<|call|>'
)
LLAMA_JSON = '{"name": "write_file", "parameters": {"path": "a.py", "text": "x\\n  y"}}'
BIG = "".join(f"line {number}: {'🧲 = 鉄' * 3}\\n" for number in range(1500))
LINES: tuple[dict[str, Any], ...] = (
    {"match": "hermes", "text": "I will.\n" + HERMES},
    {"match": "xml", "text": XML},
    {"match": "harmony", "text": HARMONY},
    {"match": "llama", "text": LLAMA_JSON},
    {"match": "two", "text": HERMES + "\n" + XML},
    {"match": "on and on", "text": HERMES + "\nmore" * 4_000, "ms_per_token": 3},
    {
        "match": "big",
        "text": f'<tool_call>\n{{"name": "write_file", "arguments": {{"text": "{BIG}"}}}}\n</tool_call>',
    },
    {"match": "malformed", "text": '<tool_call>\n{"name": "write_file", "arguments": [1]}\n</tool_call>'},
    {"match": "undeclared", "text": HERMES.replace("write_file", "rm_rf")},
    {"match": "harmful", "text": HARMONY.replace("write_file", "rm_rf")},
    {"match": "cut", "text": HERMES[:60], "finish_reason": "length"},
    {"match": "thinking", "text": "<think>\nLet me see.\n</think>\n\nIt is 4."},
    {"match": "after reasoning", "text": "<think>\nI could <tool_call> now.\n</think>\n\n" + HERMES},
    {"match": "rain", "text": "It rains."},
    {"text": "Hello."},
)
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "write_file",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
            },
        },
    }
]
ARGUMENTS = {"path": "a.py", "text": "x\n  y"}


def stack(folder: Path, **options: Any) -> Stack:
    return Stack(folder, *LINES, models=(QWEN, GPT_OSS, PLAIN, LLAMA), **options)


def body(ask: str, model: str = QWEN.id, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": ask}], "tools": TOOLS, **fields}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("model", "ask"),
    [(QWEN.id, "hermes"), (QWEN.id, "xml"), (GPT_OSS.id, "harmony"), (LLAMA.id, "llama")],
)
@pytest.mark.parametrize("streaming", ["auto", "incremental", "whole"])
async def test_each_family_by_the_sdk(tmp_path: Path, model: str, ask: str, streaming: Any) -> None:
    async with stack(tmp_path, rules=AnswerRules(streaming=streaming)) as it:
        answer = await it.openai.chat.completions.create(**body(ask, model))
        [choice] = answer.choices
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        assert choice.message.tool_calls is not None
        [call] = choice.message.tool_calls
        assert call.type == "function"
        assert re.fullmatch("call_[0-9a-f]{32}", call.id)
        assert json.loads(call.function.arguments) == ARGUMENTS

        arguments, names, finishes, usage = "", [], [], None
        stream = await it.openai.chat.completions.create(
            **body(ask, model), stream=True, stream_options={"include_usage": True}
        )
        async for chunk in stream:
            usage = chunk.usage or usage
            for part in chunk.choices:
                finishes += [part.finish_reason] if part.finish_reason else []
                for piece in part.delta.tool_calls or ():
                    assert piece.function is not None
                    names += [piece.function.name] if piece.function.name else []
                    arguments += piece.function.arguments or ""
        assert (names, finishes) == (["write_file"], ["tool_calls"])
        assert arguments == call.function.arguments
        assert usage == answer.usage


@pytest.mark.asyncio
@pytest.mark.parametrize("parallel", [None, False])
async def test_one_call_unless_parallel(tmp_path: Path, parallel: bool | None) -> None:
    async with stack(tmp_path) as it:
        fields = {} if parallel is None else {"parallel_tool_calls": parallel}
        for asked in (body("two", **fields), body("two", **fields, tool_choice=None)):
            _, answer = await it.post(asked)
            assert len(answer["choices"][0]["message"]["tool_calls"]) == 1
        assert len((await it.stream(body("two", **fields))).calls) == 1
        _, both = await it.post(body("two", parallel_tool_calls=True))
        assert len(both["choices"][0]["message"]["tool_calls"]) == 2


@pytest.mark.asyncio
async def test_parallel_when_omitted_can_be_all(tmp_path: Path) -> None:
    async with stack(tmp_path, rules=AnswerRules(parallel_when_omitted="all")) as it:
        assert len((await it.stream(body("two"))).calls) == 2
        assert len((await it.stream(body("two", parallel_tool_calls=False))).calls) == 1


@pytest.mark.asyncio
async def test_generation_stops_after_the_call(tmp_path: Path) -> None:
    async with stack(tmp_path) as it:
        _, answer = await it.post(body("on and on"))
        tokens_of_the_call = -(-len(HERMES) // 4)
        assert answer["usage"]["completion_tokens"] == tokens_of_the_call
        await eventually(lambda: it.engine.status().running == 0)
        # What one step had under way may be generated, the 4,000 lines after the call not.
        assert it.engine.status().generated_tokens < tokens_of_the_call + 3_000


@pytest.mark.asyncio
async def test_a_large_argument_arrives_in_pieces_and_whole(tmp_path: Path) -> None:
    async with stack(tmp_path) as it:
        streamed = await it.stream(body("big"))
        pieces = [piece for delta in streamed.deltas for piece in delta.get("tool_calls") or ()]
        assert len(pieces) > 20
        assert all(len(piece["function"]["arguments"].encode()) <= 2048 for piece in pieces)
        assert json.loads(streamed.calls[0]["arguments"])["text"] == BIG.replace("\\n", "\n")
        _, answer = await it.post(body("big"))
        assert answer["choices"][0]["message"]["tool_calls"][0]["function"] == {
            "name": "write_file",
            "arguments": streamed.calls[0]["arguments"],
        }


@pytest.mark.asyncio
@pytest.mark.parametrize("ask", ["malformed", "undeclared"])
async def test_what_is_no_call_is_text(tmp_path: Path, ask: str) -> None:
    text = next(line["text"] for line in LINES if line.get("match") == ask)
    async with stack(tmp_path) as it:
        _, answer = await it.post(body(ask))
        assert answer["choices"][0]["message"]["content"] == text
        assert answer["choices"][0]["finish_reason"] == "stop"
        streamed = await it.stream(body(ask))
        assert (streamed.content, streamed.calls, streamed.finish_reasons) == (text, [], ["stop"])


@pytest.mark.asyncio
async def test_an_undeclared_call_of_gpt_oss_is_502(tmp_path: Path) -> None:
    async with stack(tmp_path) as it:
        status, answer = await it.post(body("harmful", GPT_OSS.id))
        assert (status, answer["error"]["code"]) == (502, "malformed_tool_call_final_json")
        assert answer["error"]["retryable"] is True
        assert "Write it." not in json.dumps(answer)
        streamed = await it.stream(body("harmful", GPT_OSS.id))
        assert [error["code"] for error in streamed.errors] == ["malformed_tool_call_final_json"]
        assert (streamed.content, streamed.done, streamed.finish_reasons) == ("", True, [])


@pytest.mark.asyncio
async def test_error_events_raise_in_the_sdk_with_their_code(tmp_path: Path) -> None:
    async with stack(tmp_path) as it:
        stream = await it.openai.chat.completions.create(**body("harmful", GPT_OSS.id), stream=True)
        with pytest.raises(openai.APIError) as raised:
            async for _ in stream:
                pass
        assert raised.value.code == "malformed_tool_call_final_json"


@pytest.mark.asyncio
async def test_a_cut_call_ends_in_length(tmp_path: Path) -> None:
    async with stack(tmp_path) as it:
        _, answer = await it.post(body("cut"))
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["choices"][0]["message"]["content"] == HERMES[:60]
        assert (await it.stream(body("cut"))).finish_reasons == ["length"]


@pytest.mark.asyncio
async def test_reasoning_only_where_it_is_asked_for(tmp_path: Path) -> None:
    async with stack(tmp_path) as it:
        hidden = await it.stream(body("thinking"))
        assert (hidden.content, hidden.reasoning) == ("It is 4.", "")
        shown = await it.stream(body("thinking", include_reasoning=True))
        assert (shown.content, shown.reasoning.strip()) == ("It is 4.", "Let me see.")
        _, answer = await it.post(body("thinking", include_reasoning=True))
        message = answer["choices"][0]["message"]
        assert (message["content"], message["reasoning_content"]) == (shown.content, shown.reasoning)
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
        called = await it.stream(body("after reasoning"))
        assert [call["name"] for call in called.calls] == ["write_file"]


@pytest.mark.asyncio
async def test_a_tool_loop_by_the_sdk(tmp_path: Path) -> None:
    async with stack(tmp_path) as it:
        messages: list[Any] = [{"role": "user", "content": "hermes"}]
        first = await it.openai.chat.completions.create(model=QWEN.id, messages=messages, tools=TOOLS)
        message = first.choices[0].message
        assert message.tool_calls is not None
        messages += [
            message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"},
        ]
        second = await it.openai.chat.completions.create(model=QWEN.id, messages=messages, tools=TOOLS)
        assert second.choices[0].message.content == "It rains."
        [rendered] = [request for request in it.engine.asked if len(request.messages) == 3]
        call = rendered.messages[1]["tool_calls"][0]
        assert call["function"]["arguments"] == ARGUMENTS


@pytest.mark.asyncio
async def test_required_and_named_are_auto_where_nothing_forces(tmp_path: Path) -> None:
    async with stack(tmp_path) as it:
        for choice in ("required", {"type": "function", "function": {"name": "write_file"}}):
            assert len((await it.stream(body("hermes", tool_choice=choice))).calls) == 1
            assert (await it.stream(body("hello", tool_choice=choice))).content == "Hello."
        status, answer = await it.post(body("hello", tool_choice="none"))
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (
            400,
            "unsupported_tool_choice",
            "tool_choice",
        )


@pytest.mark.asyncio
async def test_without_tools_markup_is_text(tmp_path: Path) -> None:
    async with stack(tmp_path) as it:
        for model, ask in ((QWEN.id, "hermes"), (QWEN.id, "xml"), (LLAMA.id, "llama"), (PLAIN.id, "hermes")):
            text = next(line["text"] for line in LINES if line.get("match") == ask)
            asked = {"model": model, "messages": [{"role": "user", "content": ask}]}
            assert (await it.stream(asked)).content == text
            _, answer = await it.post(asked)
            assert answer["choices"][0]["message"]["content"] == text


@pytest.mark.asyncio
async def test_a_hundred_streams_at_once_keep_apart(tmp_path: Path) -> None:
    def markup(number: int) -> str:
        arguments = {"path": f"{number}.txt", "text": f"{number} " * (number % 17 + 1)}
        return f"<tool_call>\n{json.dumps({'name': 'write_file', 'arguments': arguments})}\n</tool_call>"

    lines = [
        {"match": f"case {number}.", "text": markup(number), "chars_per_token": 3} for number in range(100)
    ]
    async with Stack(tmp_path, *lines, slots=8, gateway={"queue_length": 100}, queue_seconds=60.0) as it:
        asked = [body(f"case {number}.") for number in range(100)]
        streams = await asyncio.gather(*(it.stream(each) for each in asked))
        answers = await asyncio.gather(*(it.post(each) for each in asked))
    for number, (streamed, (status, answer)) in enumerate(zip(streams, answers, strict=True)):
        assert (status, streamed.done, streamed.finish_reasons) == (200, True, ["tool_calls"])
        [call] = answer["choices"][0]["message"]["tool_calls"]
        assert call["function"]["arguments"] == streamed.calls[0]["arguments"]
        assert json.loads(call["function"]["arguments"])["path"] == f"{number}.txt"
