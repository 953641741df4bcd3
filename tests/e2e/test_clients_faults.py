"""Each way in which servers break their clients: here it isn't so, and where it were so, it would be noticed.

A stream is held to every rule by `strict_reader`; the first half breaks a good stream in one way at a time
and shows that the reader minds. The second half goes through the faults that no reading of a stream can show.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from gateway_protocol.families import Family
from provider.engine.spec import ModelSpec
from provider.jobs.plan import AnswerRules
from tests.e2e.agents import CODE, hermes, xml
from tests.e2e.strict_reader import Read, events, read
from tests.fakes.stack import GPT_OSS, PLAIN, QWEN, Stack
from tests.fakes.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

LLAMA = ModelSpec("llama-3.3-test", Family.LLAMA, context_length=40_000)
MODELS = (QWEN, GPT_OSS, PLAIN, LLAMA)
SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "text": {"type": "string"},
        "lines": {"type": "array", "items": {"type": "integer"}},
        "ratio": {"type": "number"},
        "count": {"type": "integer"},
        "force": {"type": "boolean"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "limit": {"type": ["integer", "null"]},
        "options": {"type": "object"},
    },
    "required": ["path"],
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": SCHEMA}}
    for name in ("write_file", "my-server__read")
]
ARGUMENTS = {"path": "a.py", "text": CODE}
BIG = {"path": "big.txt", "text": "".join(f"{n}: naïve 🧲\n" for n in range(4_000))}
TYPED = {
    "path": "007",
    "text": "true",
    "lines": [1, 2, 3],
    "ratio": 0.5,
    "count": 12345678901234567890,
    "force": False,
    "note": None,
    "limit": None,
    "options": {"deep": {"er": [1.25, "x"]}},
}


def harmony(name: str, arguments: dict[str, Any]) -> str:
    body = json.dumps(arguments, ensure_ascii=False)
    return (
        "<|channel|>analysis<|message|>Which one?<|end|><|start|>assistant<|channel|>commentary "
        f"to=functions.{name} <|constrain|>json<|message|>{body}<|call|>"
    )


def llama(name: str, arguments: dict[str, Any]) -> str:
    return json.dumps({"name": name, "parameters": arguments}, ensure_ascii=False)


MARKUPS: dict[str, tuple[str, Callable[[str, dict[str, Any]], str]]] = {
    "hermes": (QWEN.id, hermes),
    "xml": (QWEN.id, xml),
    "bare xml": (QWEN.id, lambda *call: xml(*call).removeprefix("<tool_call>\n").split("\n</tool_call>")[0]),
    "harmony": (GPT_OSS.id, harmony),
    "llama": (LLAMA.id, llama),
    "tagged llama": (LLAMA.id, lambda *call: "<|python_tag|>" + llama(*call)),
}
MALFORMED = {
    "list": '<tool_call>\n{"name": "write_file", "arguments": [1]}\n</tool_call>',
    "not closed": '<tool_call>\n{"name": "write_file", "arguments": {"path": "a',
    "no name": '<tool_call>\n{"arguments": {"path": "a"}}\n</tool_call>',
    "twice": '<tool_call>\n{"name": "write_file", "arguments": {"path": "a", "path": "b"}}\n</tool_call>',
    "infinity": '<tool_call>\n{"name": "write_file", "arguments": {"ratio": Infinity}}\n</tool_call>',
    "undeclared": '<tool_call>\n{"name": "rm_rf", "arguments": {}}\n</tool_call>',
    "xml without end": "<tool_call>\n<function=write_file>\n<parameter=path>\na",
    "no call": "<tool_call>\nnothing at all\n</tool_call>",
}
THOUGHTS = {
    "closed": ("<think>\nSecret.\n</think>\n\nIt is 4.", "stop", "It is 4."),
    "blank": ("<think>\n\n</think>\n\nIt is 4.", "stop", "It is 4."),
    "cut": ("<think>\nSecret and more", "length", ""),
    "never closed": ("<think>\nSecret and more", "stop", ""),
}


def script() -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for name, (_, markup) in MARKUPS.items():
        for size in (1, 7):
            text = markup("write_file", ARGUMENTS)
            lines.append({"match": f"{name}, by {size}.", "text": text, "chars_per_token": size})
        lines.append({"match": f"{name}, big.", "text": markup("write_file", BIG), "chars_per_token": 16})
    lines += [{"match": f"malformed: {name}.", "text": text} for name, text in MALFORMED.items()]
    lines += [
        {"match": f"thought: {name}.", "text": text, "finish_reason": finish, "chars_per_token": 2}
        for name, (text, finish, _) in THOUGHTS.items()
    ]
    two = hermes("write_file", ARGUMENTS) + "\n" + xml("my-server__read", {"path": "b"})
    return [
        *lines,
        {"match": "typed", "text": xml("write_file", TYPED)},
        {"match": "two calls", "text": two},
        {"match": "blank first", "text": "\n\n" + two},
        {"match": "second undeclared", "text": hermes("write_file", ARGUMENTS) + "\n" + hermes("rm_rf", {})},
        {"match": "prose first", "text": "I will.\n\n\n" + two},
        {"match": "cut off", "text": hermes("write_file", ARGUMENTS)[:70], "finish_reason": "length"},
        {"text": "Hello."},
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def it(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with Stack(tmp_path_factory.mktemp("stack"), *script(), models=MODELS) as stack:
        yield stack


def body(ask: str, model: str = QWEN.id, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": ask}], "tools": TOOLS, **fields}


async def raw(it: Stack, asked: dict[str, Any]) -> str:
    async with it.http.post(
        f"{it.gateway.url}/v1/chat/completions", json=asked | {"stream": True}
    ) as response:
        assert response.status == 200
        return (await response.read()).decode()


async def streamed(it: Stack, asked: dict[str, Any], *, usage: bool = True) -> Read:
    fields: dict[str, Any] = {"stream_options": {"include_usage": True}} if usage else {}
    return read(events(await raw(it, asked | fields)), include_usage=usage)


# --- a stream broken in one way at a time ---------------------------------------------------------

Chunks = list[dict[str, Any]]


def call_deltas(chunks: Chunks) -> list[dict[str, Any]]:
    return [
        c["choices"][0]["delta"] for c in chunks if c["choices"] and "tool_calls" in c["choices"][0]["delta"]
    ]


def finish_of(chunks: Chunks) -> dict[str, Any]:
    [chunk] = [c for c in chunks if c["choices"] and c["choices"][0]["finish_reason"]]
    return chunk


def text_chunk(like: dict[str, Any], text: str) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    return like | {"choices": [choice]}


def no_id(chunks: Chunks) -> None:
    del call_deltas(chunks)[0]["tool_calls"][0]["id"]


def no_index(chunks: Chunks) -> None:
    for delta in call_deltas(chunks)[1:]:
        delta["tool_calls"][0].pop("index", None)


def repeat_head(chunks: Chunks) -> None:
    head, piece, *_ = (delta["tool_calls"][0] for delta in call_deltas(chunks))
    piece["id"] = head["id"]
    piece["function"]["name"] = head["function"]["name"]


def one_piece(chunks: Chunks) -> None:
    call_deltas(chunks)[0]["tool_calls"][0]["function"]["arguments"] = json.dumps(ARGUMENTS)


def blank_content(chunks: Chunks) -> None:
    chunks.insert(1, text_chunk(chunks[0], "\n\n"))


def content_behind(chunks: Chunks) -> None:
    chunks.insert(-2, text_chunk(chunks[0], "Done."))


def finish_stop(chunks: Chunks) -> None:
    finish_of(chunks)["choices"][0]["finish_reason"] = "stop"


def cut(chunks: Chunks) -> None:
    del chunks[chunks.index(finish_of(chunks)) :]


def no_usage(chunks: Chunks) -> None:
    del chunks[-1]


def error_event(chunks: Chunks) -> None:
    chunks[-2:] = [{"error": {"message": "malformed", "code": "malformed_tool_call"}}]


def another_head(chunks: Chunks) -> None:
    chunks[2]["id"] = "chatcmpl-other"


def no_role(chunks: Chunks) -> None:
    del chunks[0]["choices"][0]["delta"]["role"]


BROKEN = [
    ("no-id", no_id),
    ("no-index", no_index),
    ("repeat-head", repeat_head),
    ("one-piece", one_piece),
    ("blank-content", blank_content),
    ("content", content_behind),
    ("finish-stop", finish_stop),
    ("cut", cut),
    ("no-usage", no_usage),
    ("error-event", error_event),
    ("head", another_head),
    ("role", no_role),
]


@pytest.mark.parametrize(("fault", "breaking"), BROKEN, ids=[fault for fault, _ in BROKEN])
async def test_a_broken_stream_would_be_noticed(
    it: Stack, fault: str, breaking: Callable[[Chunks], None]
) -> None:
    asked = body("two calls", parallel_tool_calls=True, stream_options={"include_usage": True})
    good = events(await raw(it, asked))
    assert read(good, include_usage=True).named == [
        ("write_file", ARGUMENTS),
        ("my-server__read", {"path": "b"}),
    ]
    chunks = copy.deepcopy(good)
    breaking(chunks)
    with pytest.raises(AssertionError, match=f"^{fault}:"):
        read(chunks, include_usage=True)


async def test_a_missing_done_or_an_unasked_usage_would_be_noticed(it: Stack) -> None:
    text = await raw(it, body("hello", stream_options={"include_usage": True}))
    with pytest.raises(AssertionError, match=r"^usage-unasked:"):
        read(events(text), include_usage=False)
    with pytest.raises(AssertionError, match=r"^no-done:"):
        events(text.replace("data: [DONE]\n\n", ""))


# --- calls ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["auto", "incremental", "whole"])
def delivery(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def delivering(tmp_path_factory: pytest.TempPathFactory, delivery: Any) -> AsyncIterator[Stack]:
    folder = tmp_path_factory.mktemp(delivery)
    async with Stack(folder, *script(), models=MODELS, rules=AnswerRules(streaming=delivery)) as stack:
        yield stack


@pytest.mark.parametrize("size", [1, 7])
@pytest.mark.parametrize("markup", MARKUPS)
async def test_raw_markup_dedent_unescape(delivering: Stack, markup: str, size: int) -> None:
    """Calls are calls, in each markup, and every character of their arguments is the model's."""
    model, _ = MARKUPS[markup]
    asked = body(f"{markup}, by {size}.", model)
    answer = await streamed(delivering, asked)
    assert (answer.named, answer.content, answer.finish_reason) == (
        [("write_file", ARGUMENTS)],
        "",
        "tool_calls",
    )
    _, completion = await delivering.post(asked)
    [choice] = completion["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    [call] = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "write_file", "arguments": answer.calls[0].text}


@pytest.mark.parametrize("markup", MARKUPS)
async def test_one_piece(delivering: Stack, markup: str) -> None:
    """A large file comes in many pieces, none of them over 2 KiB."""
    model, _ = MARKUPS[markup]
    [call] = (await streamed(delivering, body(f"{markup}, big.", model))).calls
    assert call.arguments == BIG
    assert len(call.pieces) > len(call.text.encode()) // 2048
    assert max(len(piece.encode()) for piece in call.pieces) <= 2048


async def test_xml_strings(it: Stack) -> None:
    answer = await streamed(it, body("typed"))
    assert answer.named == [("write_file", TYPED)]


@pytest.mark.parametrize(("ask", "shown"), [("blank first", ""), ("prose first", "I will.")])
async def test_blank_content(delivering: Stack, ask: str, shown: str) -> None:
    """Blank text before a call is dropped with it; prose is shown, without the blank lines behind it."""
    answer = await streamed(delivering, body(ask, parallel_tool_calls=True))
    assert (answer.content, len(answer.calls)) == (shown, 2)


@pytest.mark.parametrize("name", MALFORMED)
async def test_error_event(it: Stack, name: str) -> None:
    """A call that is none doesn't fail in public: it is the text that the model wrote."""
    asked = body(f"malformed: {name}.", parallel_tool_calls=True)
    answer = await streamed(it, asked)
    assert (answer.content, answer.calls, answer.finish_reason) == (MALFORMED[name], [], "stop")
    _, completion = await it.post(asked)
    message = completion["choices"][0]["message"]
    assert (message["content"], message.get("tool_calls")) == (MALFORMED[name], None)


async def test_error_event_behind_a_call(it: Stack) -> None:
    """Once a call is out, a later failure must show: one event, the first call whole before it."""
    asked = body("second undeclared", parallel_tool_calls=True)
    *chunks, last = events(await raw(it, asked))
    assert (last["error"]["code"], last["error"]["retryable"]) == ("malformed_tool_call", False)
    pieces = [delta["tool_calls"][0] for delta in call_deltas(chunks)]
    assert {piece["index"] for piece in pieces} == {0}
    assert json.loads("".join(piece["function"]["arguments"] for piece in pieces)) == ARGUMENTS
    assert not any(chunk["choices"][0]["finish_reason"] for chunk in chunks)
    _, completion = await it.post(asked)
    assert completion["choices"][0]["finish_reason"] == "stop"
    assert "tool_calls" not in completion["choices"][0]["message"]


@pytest.mark.parametrize("fault", ["exit", "raise"])
async def test_cut(tmp_path: Path, fault: str) -> None:
    """An engine that dies in the arguments: an error event and [DONE], never a silent end."""
    line = {"text": hermes("write_file", ARGUMENTS), "fault": fault, "fault_after_tokens": 20}
    rules = AnswerRules(streaming="incremental")
    async with Stack(tmp_path, line, rules=rules) as it:
        chunks = events(await raw(it, body("cut")))
        with pytest.raises(AssertionError, match=r"^error-event:"):
            read(chunks, include_usage=False)
        assert call_deltas(chunks[:-1])
        assert chunks[-1]["error"]["code"] == "provider_error"
        assert not any(c["choices"][0]["finish_reason"] for c in chunks[:-1])
        await eventually(lambda: it.engine.status().ready)
        # The gateway may not know yet that the engine is back: the SDK tries again, as it does by default.
        patient = it.openai.with_options(max_retries=5)
        stream = await patient.chat.completions.create(**body("cut"), stream=True)
        with pytest.raises(openai.APIError) as raised:
            async for _ in stream:
                pass
        assert raised.value.code == "provider_error"


async def test_cut_by_the_limit(delivering: Stack, delivery: str) -> None:
    answer = await streamed(delivering, body("cut off"))
    assert answer.finish_reason == "length"
    # Where the call was held back, it is the text that there was.
    assert bool(answer.calls) == (delivery == "incremental")


@pytest.mark.parametrize("usage", [True, False])
async def test_no_usage_and_usage_unasked(it: Stack, usage: bool) -> None:
    answer = await streamed(it, body("two calls"), usage=usage)
    assert (answer.usage is not None) == usage


# --- requests -------------------------------------------------------------------------------------

CALL_ID = "call_" + "5" * 32


def turn(call_id: str = CALL_ID, **fields: Any) -> dict[str, Any]:
    function = {"name": "write_file", "arguments": '{"path":"a.py"}'}
    return {
        "role": "assistant",
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
        **fields,
    }


def result(content: Any = "ok", call_id: str = CALL_ID, **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **fields}


PARTS = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
USER = {"role": "user", "content": "Hello"}
ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    ("empty-400: null", {"messages": [USER, turn(content=None), result()]}),
    ("empty-400: absent", {"messages": [USER, turn(), result()]}),
    ("empty-400: empty", {"messages": [USER, turn(content=""), result()]}),
    ("empty-400: no parts", {"messages": [USER, turn(content=[]), result()]}),
    ("tool-parts-400", {"messages": [USER, turn(content=None), result(PARTS)]}),
    ("tool-parts-400: none", {"messages": [USER, turn(content=None), result([])]}),
    ("tool-parts-400: empty", {"messages": [USER, turn(content=None), result("")]}),
    ("user-parts-400", {"messages": [{"role": "user", "content": PARTS}]}),
    ("user-parts-400: assistant", {"messages": [USER, {"role": "assistant", "content": PARTS}, USER]}),
    ("extra-400: store", {"store": False}),
    ("extra-400: name", {"messages": [USER, turn(content=None), result(name="write_file")]}),
    ("extra-400: reasoning", {"messages": [USER, turn(reasoning_content="x", reasoning="x"), result()]}),
    ("extra-400: index", {"messages": [USER, turn(content=None, refusal=None, index=0), result()]}),
    ("extra-400: unknown", {"service_tier": "auto", "prompt_cache_key": "x", "whatever": {"a": [1]}}),
    ("developer-400", {"messages": [{"role": "developer", "content": "Be brief."}, USER]}),
    ("developer-400: parts", {"messages": [{"role": "developer", "content": PARTS}, USER]}),
    (
        "an empty result list of calls",
        {"messages": [USER, {"role": "assistant", "content": "x", "tool_calls": []}]},
    ),
    ("foreign ids", {"messages": [USER, turn("pyd_ai_1f"), result(call_id="pyd_ai_1f")]}),
    ("an unanswered call", {"messages": [USER, turn(content=None), USER]}),
]
for flag in (True, False, None):
    function = {**TOOLS[0]["function"], "strict": flag}
    ACCEPTED.append((f"extra-400: strict {flag}", {"tools": [{"type": "function", "function": function}]}))


@pytest.mark.parametrize("fields", [row[1] for row in ACCEPTED], ids=[row[0] for row in ACCEPTED])
@pytest.mark.parametrize("contract", ["malibu", "strict"])
async def test_what_is_not_refused(it: Stack, strictly: Stack, contract: str, fields: dict[str, Any]) -> None:
    stack = strictly if contract == "strict" else it
    status, answer = await stack.post(body("Hello") | fields)
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "Hello.")
    assert (await streamed(stack, body("Hello") | fields)).content == "Hello."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def strictly(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    rules = AnswerRules(contract="strict")
    async with Stack(tmp_path_factory.mktemp("strict"), *script(), models=MODELS, rules=rules) as stack:
        yield stack


async def test_parts_are_joined_with_nothing_between(it: Stack) -> None:
    messages = [{"role": "user", "content": PARTS}, turn(content=None), result(PARTS)]
    await it.post(body("") | {"messages": messages})
    asked = it.engine.asked[-1].messages
    assert (asked[0]["content"], asked[2]["content"]) == ("Hello", "Hello")


# --- the rest -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", THOUGHTS)
async def test_think_leak(it: Stack, name: str) -> None:
    _, finish, content = THOUGHTS[name]
    for tools in (TOOLS, None):
        asked = body(f"thought: {name}.") | {"tools": tools}
        answer = await streamed(it, asked)
        assert answer.reasoning == ""
        assert (answer.content, answer.finish_reason) == (content, finish)
        _, completion = await it.post(asked)
        message = completion["choices"][0]["message"]
        assert message["content"] == answer.content
        assert "reasoning_content" not in message


async def test_flaky_503(it: Stack) -> None:
    """While nobody can serve, 503 says when to come back; a client that does goes through."""
    it.core.jobs.pause("user_active")
    await eventually(lambda: not it.core.board.routable)
    async with it.http.post(f"{it.gateway.url}/v1/chat/completions", json=body("hello")) as response:
        answer = await response.json()
    assert (response.status, answer["error"]["code"]) == (503, "no_provider_available")
    assert int(response.headers["Retry-After"]) >= 1
    assert response.headers.get("x-should-retry") != "false"
    asking = it.openai.with_options(max_retries=8).chat.completions.create(**body("hello"))
    it.core.jobs.resume()
    assert (await asking).choices[0].message.content == "Hello."


async def test_no_models(it: Stack) -> None:
    models = [model async for model in await it.openai.models.list()]
    assert {model.id for model in models} == {spec.id for spec in MODELS}
    for model in models:
        assert (model.object, bool(model.owned_by), model.created > 0) == ("model", True, True)
        assert (await it.openai.models.retrieve(model.id)).id == model.id
    with pytest.raises(openai.NotFoundError) as missing:
        await it.openai.models.retrieve("no/such")
    assert missing.value.code == "model_not_found"
