"""What an agent asks of a server, one case after another, under each contract: real MLX decoding, and
grammars that force and hold it. Then answers in JSON, and functions with `strict`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import jsonschema_rs
import openai
import pytest
import pytest_asyncio

from provider.jobs.plan import AnswerRules
from tests.e2e.tiny_model import (
    DIALOGUES,
    TINY,
    buffered,
    calls_of,
    reasoning_of,
    request,
    streamed,
    tiny_stack,
)
from tests.fakes.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

WEATHER: dict[str, Any] = DIALOGUES["two-tools"]["tools"][0]
CLOCK: dict[str, Any] = DIALOGUES["two-tools"]["tools"][1]
WRITE: dict[str, Any] = DIALOGUES["write-long"]["tools"][0]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in (WEATHER, CLOCK, WRITE)}
PARIS, TOKYO = ("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Tokyo"})
TOWER = DIALOGUES["capital"]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["malibu", "strict"])
async def it(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stack]:
    rules = AnswerRules(contract=request.param)
    async with tiny_stack(tmp_path_factory.mktemp("tiny"), rules=rules) as stack:
        yield stack


def strict(it: Stack) -> bool:
    return it.rules.contract == "strict"


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


async def both(it: Stack, asked: dict[str, Any]) -> tuple[list[tuple[str, Any]], str | None, str]:
    """Calls, content and finish reason, the same buffered and streamed."""
    answer, stream = await asyncio.gather(buffered(it.openai, asked), streamed(it.openai, asked))
    [choice] = answer.choices
    calls = calls_of(choice.message)
    assert (stream.named, stream.finish_reason) == (calls, choice.finish_reason)
    assert bool(calls) == (choice.finish_reason == "tool_calls")
    if not calls:
        assert stream.content == choice.message.content
    return calls, choice.message.content, choice.finish_reason


def fits(calls: list[tuple[str, Any]]) -> bool:
    return all(jsonschema_rs.is_valid(SCHEMAS[name], arguments) for name, arguments in calls)


# --- the eleven cases ---------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "auto"}, {"tool_choice": None}], ids=str)
async def test_tool_choice_auto(it: Stack, fields: dict[str, Any]) -> None:
    assert await both(it, request("weather-paris", **fields)) == ([PARIS], None, "tool_calls")
    told = await both(it, request("capital", tools=[WEATHER], **fields))
    assert told == ([], "Paris is the capital of France.", "stop")


async def test_streaming_tool_call_deltas(it: Stack) -> None:
    stream = await streamed(it.openai, request("write-long"))
    [call] = stream.calls
    # How many pieces is a matter of the machine's speed; that there are several isn't.
    assert len(call.pieces) > 1
    assert call.pieces[0].startswith("{")
    assert call.arguments["content"].startswith('"Once," said the fox,\n\tthe hill was an island.')
    stream = await streamed(it.openai, request("two-cities", parallel_tool_calls=True))
    assert stream.named == [PARIS, TOKYO]


async def test_parallel_tool_calls(it: Stack) -> None:
    two, one = ([PARIS, TOKYO], None, "tool_calls"), ([PARIS], None, "tool_calls")
    assert await both(it, request("two-cities", parallel_tool_calls=True)) == two
    assert await both(it, request("two-cities", parallel_tool_calls=False)) == one
    assert await both(it, request("two-cities")) == (two if strict(it) else one)
    assert await both(it, request("two-cities", tool_choice="required", parallel_tool_calls=False)) == one


async def test_tool_result_round_trip(it: Stack) -> None:
    asked = request("two-cities", parallel_tool_calls=True)
    first = (await buffered(it.openai, asked)).choices[0].message
    assert first.tool_calls is not None
    paris, tokyo = (call.id for call in first.tool_calls)
    results = [
        {"role": "tool", "tool_call_id": tokyo, "content": "24 degrees, rain"},
        {"role": "tool", "tool_call_id": paris, "content": "18 degrees, sunny"},
    ]
    # In any order: the template gets them as they come, so in the order it knows by heart here.
    for order in (results, results[::-1]):
        messages = [*asked["messages"], first.model_dump(exclude_none=True), *order]
        calls, content, finish = await both(it, asked | {"messages": messages})
        assert (calls, finish) == ([], "stop")
        assert content
    assert content == "Paris is sunny at 18 degrees, Tokyo has rain at 24."


@pytest.mark.parametrize("name", ["capital", "lighthouse", "spiders"])
async def test_tool_choice_required(it: Stack, name: str) -> None:
    """The model would answer in text; held to a call, it makes one that fits its schema."""
    asked = request(name, tools=[WEATHER, CLOCK, WRITE], tool_choice="required", max_tokens=600)
    asked["parallel_tool_calls"] = False
    calls, content, finish = await both(it, asked)
    assert (len(calls), content, finish) == (1, None, "tool_calls")
    assert fits(calls)


@pytest.mark.parametrize("tool", [WEATHER, CLOCK], ids=["get_weather", "get_time"])
async def test_tool_choice_named(it: Stack, tool: dict[str, Any]) -> None:
    name = tool["function"]["name"]
    asked = request("two-tools", tools=[WRITE, CLOCK, WEATHER], tool_choice=named(name), max_tokens=600)
    for fields in ({"parallel_tool_calls": False}, {}):
        calls, content, finish = await both(it, asked | fields)
        assert (content, finish) == (None, "tool_calls")
        # Never another function; more than once only where the contract allows several calls.
        assert {call for call, _ in calls} == {name}
        assert len(calls) == 1 or (strict(it) and not fields)
        assert fits(calls)


async def test_tool_choice_none_after_a_tool_turn(it: Stack) -> None:
    asked = request("result-then-call", tool_choice="none")
    if not strict(it):
        with pytest.raises(openai.BadRequestError) as refused:
            await buffered(it.openai, asked)
        assert (refused.value.code, refused.value.param) == ("unsupported_tool_choice", "tool_choice")
        return
    # It would call write_file here; it isn't shown the tools and can't open a call.
    calls, content, finish = await both(it, asked | {"max_tokens": 60})
    assert calls == []
    assert content is not None
    assert "<tool_call>" not in content
    assert finish in ("stop", "length")
    assert [each.tools for each in it.engine.asked[-2:]] == [None, None]


@pytest.mark.parametrize(
    ("name", "fields", "reason"),
    [
        ("capital", {}, "stop"),
        ("capital", {"max_tokens": 3}, "length"),
        ("stopword", {"stop": ["STOP"]}, "stop"),
        ("weather-paris", {}, "tool_calls"),
        ("weather-paris", {"max_tokens": 8}, "length"),
        ("weather-paris", {"tool_choice": "required"}, "tool_calls"),
        ("weather-paris", {"tool_choice": named("get_weather")}, "tool_calls"),
    ],
    ids=str,
)
async def test_finish_reasons(it: Stack, name: str, fields: dict[str, Any], reason: str) -> None:
    asked = request(name, **fields)
    assert (await buffered(it.openai, asked)).choices[0].finish_reason == reason
    assert (await streamed(it.openai, asked)).finish_reason == reason


@pytest.mark.parametrize("name", ["capital", "weather-paris", "weather-think", "result-paris"])
async def test_usage_buffered_and_streamed(it: Stack, name: str) -> None:
    usage = (await buffered(it.openai, request(name))).usage
    stream = await streamed(it.openai, request(name))
    assert usage is not None
    assert stream.usage is not None
    for field in ("prompt_tokens", "completion_tokens", "total_tokens", "completion_tokens_details"):
        assert stream.usage[field] == usage.to_dict()[field]
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.completion_tokens_details is not None
    assert bool(usage.completion_tokens_details.reasoning_tokens) == (name == "weather-think")


@pytest.mark.parametrize("name", ["spiders", "weather-think", "weather-think-opened"])
async def test_include_reasoning(it: Stack, name: str) -> None:
    thought = {"spiders": "A spider has eight legs."}.get(name, "I need the weather in Cairo")
    shown = request(name, extra_body={"include_reasoning": True})
    message = (await buffered(it.openai, shown)).choices[0].message
    stream = await streamed(it.openai, shown)
    assert (reasoning_of(message) or "").strip().startswith(thought)
    assert stream.reasoning == reasoning_of(message)
    message = (await buffered(it.openai, request(name))).choices[0].message
    stream = await streamed(it.openai, request(name))
    assert (reasoning_of(message), stream.reasoning) == (None, "")
    assert thought not in (message.content or "") + stream.content


@pytest.mark.parametrize(
    "choice",
    ["sometimes", 1, True, [], {}, {"type": "function"}, named(""), named("undeclared"), {"type": "any"}],
    ids=str,
)
async def test_malformed_tool_choice(it: Stack, choice: Any) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            await it.openai.chat.completions.create(
                **request("weather-paris", tool_choice=choice, stream=stream)
            )
        assert (refused.value.code, refused.value.param) == ("invalid_request", "tool_choice")


@pytest.mark.parametrize("choice", ["required", named("get_weather")], ids=["required", "named"])
async def test_a_choice_without_tools(it: Stack, choice: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await buffered(it.openai, request("capital", tool_choice=choice))
    assert (refused.value.code, refused.value.param) == ("invalid_request", "tool_choice")


# --- what only a grammar can promise ------------------------------------------------------------


async def test_auto_can_only_call_what_is_declared(it: Stack) -> None:
    """The model knows by heart a call of a function that isn't there, and half a call."""
    for name in ("undeclared", "broken"):
        calls, _, finish = await both(it, request(name, max_tokens=200))
        assert finish in ("tool_calls", "length")
        assert {call for call, _ in calls} <= {"get_weather"}
        assert fits(calls)


async def test_reasoning_stays_free_before_a_forced_call(it: Stack) -> None:
    asked = request("weather-think", tool_choice="required", extra_body={"include_reasoning": True})
    message = (await buffered(it.openai, asked)).choices[0].message
    assert reasoning_of(message) == "I need the weather in Cairo, so I call get_weather."
    assert calls_of(message) == [("get_weather", {"city": "Cairo"})]


@pytest.mark.parametrize("seed", range(3))
async def test_a_hot_model_is_held_as_well(it: Stack, seed: int) -> None:
    asked = request("capital", tools=[WEATHER, CLOCK], tool_choice="required", max_tokens=800, seed=seed)
    asked |= {"temperature": 1.5, "extra_body": {"top_k": 0}}
    calls, _, finish = await both(it, asked)
    assert finish in ("tool_calls", "length")
    assert fits(calls)


# --- response_format ----------------------------------------------------------------------------

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "enum": ["Ada", "Bob"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "languages": {"type": "array", "items": {"type": "string", "maxLength": 10}, "maxItems": 2},
    },
    "required": ["name", "age", "languages"],
    "additionalProperties": False,
}


def as_json(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


async def test_json_object(it: Stack) -> None:
    free = request("json", response_format={"type": "json_object"})
    calls, content, finish = await both(it, free)
    assert (calls, finish) == ([], "stop")
    assert content is not None
    assert json.loads(content) == {"name": "Ada", "age": 36, "languages": ["English", "French"]}
    # A question to which it would answer in prose.
    _, content, finish = await both(
        it, request("sum", response_format={"type": "json_object"}, max_tokens=200)
    )
    assert content is not None
    assert content.startswith("{")
    # Nothing but JSON from the first character on; a small model need not find its end.
    assert finish == "length" or isinstance(json.loads(content), dict)


@pytest.mark.parametrize("name", ["json", "sum", "spiders"])
async def test_json_schema(it: Stack, name: str) -> None:
    asked = request(name, response_format=as_json(PERSON, strict=True), max_tokens=200)
    calls, content, finish = await both(it, asked)
    assert (calls, finish) == ([], "stop")
    assert content is not None
    assert jsonschema_rs.is_valid(PERSON, json.loads(content))


@pytest.mark.parametrize("form", [{"type": "json_object"}, as_json(PERSON)], ids=["object", "schema"])
async def test_with_tools_it_is_a_call_or_the_schema(it: Stack, form: dict[str, Any]) -> None:
    assert await both(it, request("weather-paris", response_format=form)) == ([PARIS], None, "tool_calls")
    asked = request("json", tools=[WEATHER], response_format=form, max_tokens=300)
    calls, content, finish = await both(it, asked)
    if not calls:
        assert (content is not None, finish) == (True, "stop")
        assert jsonschema_rs.is_valid(
            form.get("json_schema", {}).get("schema", {}), json.loads(content or "")
        )
    assert fits(calls)


async def test_text_is_the_default_format(it: Stack) -> None:
    told = await both(it, request("sum", response_format={"type": "text"}))
    assert told == ([], "Two plus two is four.", "stop")


@pytest.mark.parametrize(
    ("form", "code", "param"),
    [
        ({"type": "xml"}, "invalid_request", "response_format"),
        ({"type": "json_schema"}, "invalid_request", "response_format"),
        (as_json({"type": "object", "not": {}}), "unsupported_field", "response_format"),
        (
            as_json({"type": "object", "properties": {"a": {"$ref": "https://example.com/s.json"}}}),
            "unsupported_field",
            "response_format",
        ),
    ],
    ids=["unknown", "no schema", "not", "remote"],
)
async def test_a_format_that_cant_be_honoured_is_named(
    it: Stack, form: dict[str, Any], code: str, param: str
) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            await it.openai.chat.completions.create(**request("sum", response_format=form, stream=stream))
        assert refused.value.code == code
        assert (refused.value.param or "").startswith(param)


# --- function.strict ----------------------------------------------------------------------------


def weather(schema: dict[str, Any], *, strict: bool | None) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": "get_weather", "description": "Weather", "parameters": schema, "strict": strict},
    }


async def test_strict_functions_fit_their_schema(it: Stack) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"}, "days": {"enum": [3, 5]}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    for fields in ({}, {"tool_choice": "required"}):
        asked = request("weather-paris", tools=[weather(schema, strict=True)], **fields)
        calls, _, finish = await both(it, asked)
        assert finish == "tool_calls"
        assert [jsonschema_rs.is_valid(schema, arguments) for _, arguments in calls] == [True]


async def test_a_strict_schema_that_cant_be_compiled_is_refused(it: Stack) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "not": {"required": ["x"]}}
    asked = request("weather-paris", tools=[WRITE, weather(schema, strict=True)])
    with pytest.raises(openai.BadRequestError) as refused:
        await buffered(it.openai, asked)
    assert (refused.value.code, refused.value.param) == (
        "unsupported_field",
        "tools[1].function.parameters",
    )
    assert "get_weather" in refused.value.message
    assert '"not"' in refused.value.message


async def test_without_strict_such_a_schema_guides(it: Stack) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "not": {"required": ["x"]}}
    for flag in (None, False):
        asked = request("weather-paris", tools=[weather(schema, strict=flag)])
        if strict(it):
            with pytest.raises(openai.BadRequestError) as refused:
                await buffered(it.openai, asked)
            assert refused.value.param == "tools[0].function.parameters"
        else:
            assert await both(it, asked) == ([PARIS], None, "tool_calls")


async def test_the_model_is_the_one_that_was_asked_for(it: Stack) -> None:
    assert (await buffered(it.openai, request("capital"))).model == TINY.id
