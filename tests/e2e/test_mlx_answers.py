"""What the fixture model knows by heart, through openai-python, HTTP, link, engine's child and MLX."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.tiny_model import (
    DIALOGUES,
    TINY,
    buffered,
    calls_of,
    of_kind,
    reasoning_of,
    request,
    streamed,
    tiny_stack,
)
from tests.fakes.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT_KINDS = ("plain", "long", "unicode", "second_turn", "system")
JSON_BODY = re.compile(r"<tool_call>\n(\{.*?\})\n</tool_call>", re.DOTALL)
XML_ARGUMENTS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "write-notes": [
        ("write_file", {"path": "notes.txt", "content": "buy milk\n  and bread\ncall <b>Ann</b>"})
    ],
    "write-bare": [("write_file", {"path": "empty.txt", "content": ""})],
    "search-xml": [("search", {"query": "bicycles", "limit": 5})],
    "two-xml": [
        ("write_file", {"path": "a.txt", "content": "A"}),
        ("write_file", {"path": "b.txt", "content": "B"}),
    ],
}
# All but the one that only thinks of a call.
CALLING = [name for name in of_kind("hermes_call", "xml_call", "two_calls") if name != "draft"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def it(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with tiny_stack(tmp_path_factory.mktemp("tiny")) as stack:
        yield stack


def visible(name: str) -> str:
    """The dialogue's output without its reasoning."""
    return str(DIALOGUES[name]["raw"]).rsplit("</think>", 1)[-1].lstrip("\n")


def counted(usage: Any) -> tuple[int, int]:
    """Tokens of prompt and answer; how many of the former were cached depends on what came before."""
    fields = usage if isinstance(usage, dict) else usage.to_dict()
    assert 0 <= fields["prompt_tokens_details"]["cached_tokens"] < fields["prompt_tokens"]
    return fields["prompt_tokens"], fields["completion_tokens"]


def reasoned(name: str) -> str:
    raw = str(DIALOGUES[name]["raw"])
    return raw.split("</think>")[0].removeprefix("<think>").strip("\n") if "</think>" in raw else ""


def written(name: str) -> list[tuple[str, Any]]:
    """The calls of a dialogue as (name, arguments), read without the product's parser."""
    if name in XML_ARGUMENTS:
        return XML_ARGUMENTS[name]
    bodies = [json.loads(body) for body in JSON_BODY.findall(visible(name))]
    return [(body["name"], body["arguments"]) for body in bodies]


@pytest.mark.parametrize("kind", TEXT_KINDS)
async def test_text(it: Stack, kind: str) -> None:
    async def both(name: str) -> None:
        answer = await buffered(it.openai, request(name))
        [choice] = answer.choices
        assert choice.message.content == DIALOGUES[name]["raw"]
        assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
        stream = await streamed(it.openai, request(name))
        assert (stream.content, stream.finish_reason) == (DIALOGUES[name]["raw"], "stop")
        assert counted(stream.usage) == counted(answer.usage)
        if kind == "long":
            # Nobody holds the answer back; how many tokens come at once is a matter of the machine's speed.
            assert len(stream.pieces) > 1

    await asyncio.gather(*map(both, of_kind(kind)))


@pytest.mark.parametrize("name", of_kind("unicode"))
async def test_no_piece_is_half_a_character(it: Stack, name: str) -> None:
    stream = await streamed(it.openai, request(name))
    assert "\ufffd" not in "".join(stream.pieces)
    assert stream.usage is not None
    # Some characters really were several tokens: there are fewer pieces than tokens.
    assert len(stream.pieces) < stream.usage["completion_tokens"] - 1


@pytest.mark.parametrize("kind", ["hermes_call", "xml_call", "two_calls"])
async def test_calls(it: Stack, kind: str) -> None:
    async def both(name: str) -> None:
        asked = request(name, parallel_tool_calls=True)
        [choice] = (await buffered(it.openai, asked)).choices
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        assert calls_of(choice.message) == written(name)
        stream = await streamed(it.openai, asked)
        assert stream.finish_reason == "tool_calls"
        assert [(call.name, call.text) for call in stream.calls] == [
            (call.function.name, call.function.arguments)
            for call in choice.message.tool_calls or ()
            if call.type == "function"
        ]
        # The same words, but for the prose before the call, which only a stream can show.
        assert stream.content == visible(name).split("<tool_call>")[0].rstrip("\n")
        assert stream.reasoning == ""

    await asyncio.gather(*(both(name) for name in of_kind(kind) if name in CALLING))


async def test_arguments_stream_while_they_are_generated(it: Stack) -> None:
    stream = await streamed(it.openai, request("write-long"))
    [call] = stream.calls
    # How many pieces is a matter of the machine's speed; that there are several isn't.
    assert len(call.pieces) > 1


async def test_a_call_and_its_result(it: Stack) -> None:
    """The loop of every agent, as `model_dump` keeps the turn, and again with a stream's pieces."""
    asked = request("weather-paris")
    first = (await buffered(it.openai, asked)).choices[0].message
    assert first.tool_calls is not None
    [call] = first.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "18 degrees, sunny"}
    turn = first.model_dump(exclude_none=True)
    second = await buffered(it.openai, asked | {"messages": [*asked["messages"], turn, result]})
    assert second.choices[0].message.content == "It is sunny in Paris, 18 degrees."

    [piece] = (await streamed(it.openai, asked)).calls
    function = {"name": piece.name, "arguments": piece.text}
    turn = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": piece.id, "type": "function", "function": function}],
    }
    result = {"role": "tool", "tool_call_id": piece.id, "content": "18 degrees, sunny"}
    again = await streamed(it.openai, asked | {"messages": [*asked["messages"], turn, result]})
    assert again.content == "It is sunny in Paris, 18 degrees."


@pytest.mark.parametrize("name", of_kind("after_tool_result"))
async def test_after_a_tool_result(it: Stack, name: str) -> None:
    message = (await buffered(it.openai, request(name))).choices[0].message
    stream = await streamed(it.openai, request(name))
    if name == "result-then-call":
        assert calls_of(message) == stream.named == written(name)
    else:
        assert message.content == stream.content == DIALOGUES[name]["raw"]


@pytest.mark.parametrize("shown", [False, True], ids=["hidden", "shown"])
async def test_reasoning(it: Stack, shown: bool) -> None:
    async def both(name: str) -> None:
        asked = request(name, extra_body={"include_reasoning": True} if shown else {})
        answer = await buffered(it.openai, asked)
        message = answer.choices[0].message
        stream = await streamed(it.openai, asked)
        if name in CALLING:
            assert calls_of(message) == stream.named == written(name)
        else:
            assert message.content == stream.content == visible(name)
        assert (reasoning_of(message) or "") == stream.reasoning
        assert stream.reasoning.strip("\n") == (reasoned(name) if shown else "")
        assert answer.usage is not None
        assert answer.usage.completion_tokens_details is not None
        thought = answer.usage.completion_tokens_details.reasoning_tokens
        assert thought is not None
        assert 0 < thought < answer.usage.completion_tokens
        assert counted(stream.usage) == counted(answer.usage)

    thoughtful = [name for name in DIALOGUES if reasoned(name)]
    assert len(thoughtful) == 7
    await asyncio.gather(*map(both, thoughtful))


@pytest.mark.parametrize("name", ["spiders-off", "coins-off"])
async def test_thinking_turned_off(it: Stack, name: str) -> None:
    asked = request(name, extra_body={"include_reasoning": True})
    assert (await buffered(it.openai, asked)).choices[0].message.content == DIALOGUES[name]["raw"]
    # The field that says so elsewhere means the same where the template has the switch.
    del asked["extra_body"]["chat_template_kwargs"]
    message = (await buffered(it.openai, asked | {"reasoning_effort": "none"})).choices[0].message
    assert (message.content, reasoning_of(message)) == (DIALOGUES[name]["raw"], None)


async def test_usage_only_where_asked(it: Stack) -> None:
    stream = await streamed(it.openai, request("weather-paris"), include_usage=False)
    assert all("usage" not in chunk for chunk in stream.chunks)
    stream = await streamed(it.openai, request("weather-paris"))
    assert all(chunk["usage"] is None for chunk in stream.chunks[:-1])
    assert stream.usage is not None
    assert stream.usage["total_tokens"] == stream.usage["prompt_tokens"] + stream.usage["completion_tokens"]


async def test_a_seed_repeats_an_answer(it: Stack) -> None:
    wild: dict[str, Any] = {
        "model": TINY.id,
        "messages": [{"role": "user", "content": "Say anything at all"}],
        "temperature": 1.8,
        "top_p": 1,
        "max_tokens": 40,
        "extra_body": {"top_k": 0},
    }

    async def said(**fields: Any) -> str:
        return (await buffered(it.openai, wild | fields)).choices[0].message.content or ""

    first = await said(seed=7)
    assert await said(seed=7) == first
    assert (await streamed(it.openai, wild | {"seed": 7})).content == first
    assert await said(seed=-(2**63)) == await said(seed=-(2**63))
    others = {await said(seed=8), await said(), await said()}
    assert len(others | {first}) == 4


@pytest.mark.parametrize(
    ("stop", "left"),
    [
        ("STOP", "alpha, beta "),
        (["nowhere", " STOP gam"], "alpha, beta"),
        (["delta", "alpha, b"], ""),
        ("omega", "alpha, beta STOP gamma, delta."),
    ],
    ids=str,
)
async def test_stop_strings(it: Stack, stop: Any, left: str) -> None:
    asked = request("stopword", stop=stop)
    answer = await buffered(it.openai, asked)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (left, "stop")
    stream = await streamed(it.openai, asked)
    assert (stream.content, stream.finish_reason) == (left, "stop")
    assert counted(stream.usage) == counted(answer.usage)


async def test_a_stop_string_isnt_looked_for_in_reasoning_or_calls(it: Stack) -> None:
    answer = await buffered(it.openai, request("spiders", stop="eight is"))
    assert answer.choices[0].message.content == "Three spiders have 24 legs."
    answer = await buffered(it.openai, request("weather-paris", stop=["Paris", "city"]))
    assert calls_of(answer.choices[0].message) == written("weather-paris")


@pytest.mark.parametrize(("limit", "field"), [(1, "max_tokens"), (9, "max_completion_tokens")])
async def test_max_tokens_end_in_length(it: Stack, limit: int, field: str) -> None:
    asked = request("lighthouse", **{field: limit})
    answer = await buffered(it.openai, asked)
    assert answer.choices[0].finish_reason == "length"
    content = answer.choices[0].message.content
    assert content
    assert str(DIALOGUES["lighthouse"]["raw"]).startswith(content)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == limit
    stream = await streamed(it.openai, asked)
    assert (stream.content, stream.finish_reason) == (content, "length")


async def test_max_tokens_in_a_call(it: Stack) -> None:
    """Cut while it is open: no call in a buffered answer; a stream says `length`, never `tool_calls`."""
    asked = request("write-long", max_tokens=60)
    [choice] = (await buffered(it.openai, asked)).choices
    assert (choice.finish_reason, choice.message.tool_calls) == ("length", None)
    assert str(DIALOGUES["write-long"]["raw"]).startswith(choice.message.content or "?")
    stream = await streamed(it.openai, asked)
    assert stream.finish_reason == "length"
    [cut] = stream.calls
    assert cut.text.startswith('{"path": "story.txt", "content": "')
    with pytest.raises(json.JSONDecodeError):
        json.loads(cut.text)


async def test_max_tokens_between_two_calls(it: Stack) -> None:
    asked = request("two-cities", parallel_tool_calls=True, max_tokens=40)
    [choice] = (await buffered(it.openai, asked)).choices
    assert (choice.finish_reason, choice.message.content) == ("length", None)
    assert calls_of(choice.message) == written("two-cities")[:1]


@pytest.mark.parametrize("top", [None, 0, 3])
async def test_logprobs(it: Stack, top: int | None) -> None:
    fields = {} if top is None else {"top_logprobs": top}
    asked = request("spiders", logprobs=True, **fields)
    answer = await buffered(it.openai, asked)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    entries = logprobs.content
    # Of the visible text alone, and all of it.
    assert b"".join(bytes(entry.bytes or ()) for entry in entries).decode() == visible("spiders")
    for entry in entries:
        assert len(entry.top_logprobs) == (top or 0)
        assert entry.logprob <= 0
        if top:
            assert entry.top_logprobs[0].token == entry.token
            assert sum(math.exp(each.logprob) for each in entry.top_logprobs) <= 1.0001
    stream = await streamed(it.openai, asked)
    pieces = [
        choice["logprobs"]["content"]
        for chunk in stream.chunks
        for choice in chunk["choices"]
        if choice["logprobs"]
    ]
    assert [entry["token"] for piece in pieces for entry in piece] == [entry.token for entry in entries]
    if not top:
        assert (await buffered(it.openai, request("spiders"))).choices[0].logprobs is None


async def test_logprobs_beside_a_call_are_null(it: Stack) -> None:
    answer = await buffered(it.openai, request("weather-paris", logprobs=True))
    assert answer.choices[0].logprobs is None
