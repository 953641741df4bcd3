"""A provider that signs what isn't so: its answer is stopped before the buyer, the job goes to another one,
and after a few of these it gets no more."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from gateway_protocol.errors import ApiError, ErrorCode, Fault
from gateway_protocol.messages import (
    Delta,
    FinishReason,
    FunctionDelta,
    NotRoutableReason,
    ToolCallDelta,
    Usage,
)
from provider.local_gateway.server import LocalGateway
from tests.fakes.fake_provider import (
    MODEL,
    Behaviour,
    FakeJob,
    FakeProvider,
    answering,
    offered_model,
    rejecting,
)
from tests.provider.local_gateway.conftest import (
    StartGateway,
    chat,
    eventually,
    functions,
    openai_client,
    refusal,
    stream,
)

TOOLS = functions("f", "g")


def saying(
    *calls: tuple[str, str], finish: FinishReason = FinishReason.TOOL_CALLS, text: str | None = None
) -> Behaviour:
    """Calls as (name, arguments), whatever the request allows."""

    async def behave(job: FakeJob) -> None:
        await job.accept()
        await job.begin()
        if text is not None:
            await job.text(text)
        for index, (name, arguments) in enumerate(calls):
            await job.call(index, name, *[arguments] * bool(arguments))
        await job.complete(finish)

    return behave


def deltas(*pieces: Delta) -> Behaviour:
    async def behave(job: FakeJob) -> None:
        await job.accept()
        await job.begin()
        for piece in pieces:
            await job.delta(piece)
        await job.complete(FinishReason.TOOL_CALLS)

    return behave


def opening(index: int, call_id: str | None, name: str = "f", arguments: str = "{}") -> Delta:
    function = FunctionDelta(name=name, arguments=arguments)
    return Delta(tool_calls=(ToolCallDelta(index=index, id=call_id, type="function", function=function),))


def more(index: int, text: str) -> Delta:
    return Delta(tool_calls=(ToolCallDelta(index=index, function=FunctionDelta(arguments=text)),))


def counting(finish: FinishReason = FinishReason.STOP, **counts: int) -> Behaviour:
    """An answer of one token, and another number in its usage."""

    async def behave(job: FakeJob) -> None:
        await job.accept()
        await job.begin()
        await job.text("Hello")
        usage = job.usage().model_copy(update=counts)
        job.usage = lambda: usage  # type: ignore[method-assign]
        await job.complete(finish)

    return behave


STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
FINAL_JSON = "malformed_tool_call_final_json"
GOOD_ID = "call_" + "a" * 32
# What the provider does, what the request says beside `tools`, the error of its only attempt.
CALLS: dict[str, tuple[Behaviour, dict[str, Any], str]] = {
    "a finish of calls without any": (saying(text="Hi"), {}, "provider_error"),
    "a finish of text after a call": (saying(("f", "{}"), finish=STOP), {}, "provider_error"),
    "an undeclared name": (saying(("h", "{}")), {}, "malformed_tool_call"),
    "no tools": (saying(("f", "{}")), {"tools": None}, "upstream_error"),
    "two though false": (saying(("f", "{}"), ("g", "{}")), {"parallel_tool_calls": False}, "upstream_error"),
    "arguments cut": (saying(("f", '{"a": "b')), {}, FINAL_JSON),
    "no arguments": (saying(("f", "")), {}, FINAL_JSON),
    "arguments of a scalar": (saying(("f", "1")), {}, FINAL_JSON),
    "an infinite number": (saying(("f", '{"a": Infinity}')), {}, FINAL_JSON),
    "a name twice": (saying(("f", '{"a": 1, "a": 2}')), {}, FINAL_JSON),
    "two objects": (saying(("f", "{}{}")), {}, FINAL_JSON),
    "nested too deep": (saying(("f", '{"a":' * 33 + "1" + "}" * 33)), {}, FINAL_JSON),
    "an earlier call cut": (saying(("f", "{"), ("g", "{}"), finish=LENGTH), {}, FINAL_JSON),
    "an index left out": (deltas(opening(1, GOOD_ID)), {}, "provider_error"),
    "a piece before its call": (deltas(more(0, "{}")), {}, "provider_error"),
    "no ID": (deltas(opening(0, None)), {}, "provider_error"),
    "a foreign ID": (deltas(opening(0, "chatcmpl-tool-1")), {}, "provider_error"),
    "an ID twice": (deltas(opening(0, GOOD_ID), opening(1, GOOD_ID)), {}, "provider_error"),
    "a piece of a call that is over": (
        deltas(opening(0, GOOD_ID), opening(1, "call_" + "b" * 32), more(0, " ")),
        {},
        "provider_error",
    ),
    "text behind a call": (deltas(opening(0, GOOD_ID), Delta(content="so")), {}, "provider_error"),
    "text beside a call": (
        deltas(opening(0, GOOD_ID).model_copy(update={"content": "so"})),
        {},
        "provider_error",
    ),
    "arguments over 1 MiB": (
        deltas(opening(0, GOOD_ID, arguments='{"a": "'), *[more(0, "x" * 60_000)] * 18, more(0, '"}')),
        {},
        "malformed_tool_call",
    ),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(("behave", "fields", "code"), CALLS.values(), ids=CALLS.keys())
async def test_no_call_that_breaks_the_contract_gets_through(
    start_gateway: StartGateway,
    http: aiohttp.ClientSession,
    behave: Behaviour,
    fields: dict[str, Any],
    code: str,
    streamed: bool,
) -> None:
    gateway = await start_gateway(attempts=1)
    asked = {"tools": TOOLS, "parallel_tool_calls": True, **fields}
    async with FakeProvider(gateway.link_url, behave=behave):
        if streamed:
            got = await stream(http, gateway, **asked)
            assert got.error is not None
            error, finished = got.error, got.finish_reasons
            assert got.done
        else:
            refused = await refusal(http, gateway, chat(**asked))
            error, finished = refused.error, []
            assert refused.status == 502
            if code == "malformed_tool_call":  # an event's code
                code = FINAL_JSON
    assert (error["code"], error["inference_ran"], finished) == (code, True, [])


@pytest.mark.asyncio
async def test_none_is_held_to(start_gateway: StartGateway, http: aiohttp.ClientSession) -> None:
    gateway = await start_gateway(attempts=1, contract="strict")
    async with FakeProvider(gateway.link_url, contract="strict", behave=saying(("f", "{}"))):
        got = await stream(http, gateway, tools=TOOLS, tool_choice="none")
        assert got.error is not None
        assert got.error["code"] == "upstream_error"
        assert not any("tool_calls" in delta for delta in got.deltas)


@pytest.mark.asyncio
async def test_a_model_whose_calls_are_not_read_makes_none(
    start_gateway: StartGateway, http: aiohttp.ClientSession
) -> None:
    gateway = await start_gateway(attempts=1)
    plain = offered_model("gemma")
    async with FakeProvider(gateway.link_url, models=(plain,), behave=saying(("f", "{}"))):
        got = await stream(http, gateway, model="gemma", tools=TOOLS)
        assert got.error is not None
        assert got.error["code"] == "upstream_error"


WHOLE: dict[str, tuple[Behaviour, dict[str, Any]]] = {
    "a last call cut by length": (saying(("f", "{}"), ("g", '{"a": "b'), finish=LENGTH), {}),
    "several where nothing was said": (saying(("f", "{}"), ("g", "{}")), {"parallel_tool_calls": None}),
    "numbers of any size": (saying(("f", '{"a": 1e999, "b": ' + "9" * 5000 + "}")), {}),
    "half a code point": (saying(("f", '{"a": "\\ud83d"}')), {}),
    "as deep as may be": (saying(("f", '{"a":' * 31 + "{}" + "}" * 31)), {}),
    "text before": (saying(("f", "{}"), text="Let me see. "), {}),
}


@pytest.mark.asyncio
@pytest.mark.parametrize(("behave", "fields"), WHOLE.values(), ids=WHOLE.keys())
async def test_what_the_contract_allows_passes(
    gateway: LocalGateway, http: aiohttp.ClientSession, behave: Behaviour, fields: dict[str, Any]
) -> None:
    asked = {"tools": TOOLS, "parallel_tool_calls": True, **fields}
    async with FakeProvider(gateway.link_url, behave=behave) as provider:
        got = await stream(http, gateway, **asked)
        assert got.error is None
        assert len(got.finish_reasons) == 1
        assert not provider.nacks


USAGE: dict[str, tuple[Behaviour, dict[str, Any]]] = {
    "another prompt": (counting(prompt_tokens=8), {}),
    "more cached than there is": (counting(cached_tokens=8), {}),
    "more reasoning than there is": (counting(reasoning_tokens=3), {}),
    "more than was asked for": (counting(LENGTH, completion_tokens=14), {"max_tokens": 12}),
    "more than the model gives": (counting(LENGTH, completion_tokens=8194), {}),
    "more than the text can hold": (counting(completion_tokens=2000), {}),
    "reasoning that was not shown": (
        counting(completion_tokens=2000, reasoning_tokens=1990),
        {"include_reasoning": True},
    ),
    "more than a number can hold": (counting(LENGTH, completion_tokens=2**52), {}),
}


@pytest.mark.asyncio
@pytest.mark.parametrize(("behave", "fields"), USAGE.values(), ids=USAGE.keys())
async def test_usage_that_cannot_be_is_not_charged(
    start_gateway: StartGateway, http: aiohttp.ClientSession, behave: Behaviour, fields: dict[str, Any]
) -> None:
    gateway = await start_gateway(attempts=1)
    async with FakeProvider(gateway.link_url, behave=behave):
        got = await refusal(http, gateway, chat(**fields))
        assert (got.status, got.error["code"]) == (502, "provider_error")
        assert not gateway.ledger.recent(10)


@pytest.mark.asyncio
async def test_usage_of_a_failed_answer_is_held_to_the_same(
    start_gateway: StartGateway, http: aiohttp.ClientSession
) -> None:
    async def behave(job: FakeJob) -> None:
        await job.accept()
        await job.begin()
        await job.text("Hello")
        usage = Usage(prompt_tokens=7, completion_tokens=10**9)
        job.usage = lambda: usage  # type: ignore[method-assign]
        await job.fail(ErrorCode.PROVIDER_ERROR)

    gateway = await start_gateway(attempts=1)
    async with FakeProvider(gateway.link_url, behave=behave):
        got = await stream(http, gateway)
        assert got.error is not None
        assert "usage" in got.error["message"]
        assert not gateway.ledger.recent(10)


@pytest.mark.asyncio
@pytest.mark.parametrize("fields", [{}, {"max_tokens": 5}, {"stop": ["x" * 4000]}])
async def test_usage_up_to_its_bounds_is_taken(
    gateway: LocalGateway, http: aiohttp.ClientSession, fields: dict[str, Any]
) -> None:
    most = {"completion_tokens": 6} if "max_tokens" in fields else {"completion_tokens": 1000}
    async with FakeProvider(gateway.link_url, behave=counting(**most)):
        got = await stream(http, gateway, stream_options={"include_usage": True}, **fields)
        assert got.events[-1]["usage"]["completion_tokens"] == most["completion_tokens"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "counts", [{"prompt_tokens": 40_960}, {"cached_tokens": 8}, {"prompt_tokens": 2**53 - 1}]
)
async def test_a_prompt_that_cannot_be_is_not_waited_for(
    gateway: LocalGateway, http: aiohttp.ClientSession, counts: dict[str, int]
) -> None:
    """The time to the first token is reckoned from the prompt's length."""

    async def behave(job: FakeJob) -> None:
        await job.accept(**counts)
        await job.until_cancelled()

    async with FakeProvider(gateway.link_url, behave=behave) as bad:
        got = await refusal(http, gateway, chat())
        assert (got.status, got.error["code"]) == (502, "provider_error")
        job = await bad.offered()
        await bad.until(job.cancelled.is_set)
        assert job.cancel_reason == "contract_broken"


@pytest.mark.asyncio
@pytest.mark.parametrize("bad", ["no tools", "an undeclared name", "an index left out"])
async def test_before_the_first_content_another_provider_answers(
    gateway: LocalGateway, http: aiohttp.ClientSession, bad: str
) -> None:
    """The buyer of the bad provider's job sees nothing of it, and the bad provider is told to stop."""
    behave, fields, _ = CALLS[bad]
    asked = {"tools": TOOLS, **fields}

    async def misbehave(job: FakeJob) -> None:
        await behave(job)

    async with FakeProvider(gateway.link_url, behave=misbehave, speed=100.0) as liar:
        first = await stream(http, gateway, **asked)
        assert first.error is not None  # no one else was there
        async with FakeProvider(gateway.link_url, speed=1.0):
            got = await stream(http, gateway, **asked)
    assert (got.text, got.error, got.done) == ("Hello there!", None, True)
    assert not any("tool_calls" in delta for delta in got.deltas)
    assert liar.nacks
    assert {(nack.job_id, nack.attempt) for nack in liar.nacks} == {
        (job.offer.job_id, job.offer.attempt) for job in liar.jobs
    }


@pytest.mark.asyncio
@pytest.mark.parametrize("bad", ["an undeclared name", "arguments cut", "a finish of calls without any"])
async def test_it_rests_after_three(
    start_gateway: StartGateway, http: aiohttp.ClientSession, bad: str
) -> None:
    gateway = await start_gateway(attempts=1, timers={"heartbeat": 3600.0})
    behave, fields, _ = CALLS[bad]
    async with FakeProvider(gateway.link_url, behave=behave) as provider:
        for _ in range(3):
            await stream(http, gateway, tools=TOOLS, **fields)
        await provider.heartbeat()
        await rests(provider)
        got = await refusal(http, gateway, chat())
        assert (got.status, got.error["code"]) == (503, "no_provider_available")


async def rests(provider: FakeProvider) -> None:
    async with asyncio.timeout(60):
        while NotRoutableReason.FAILED_RECENT_JOBS not in (await provider.acks.get()).reasons:
            pass


@pytest.mark.asyncio
async def test_retry_after_tells_when_the_rest_ends(
    start_gateway: StartGateway, http: aiohttp.ClientSession
) -> None:
    gateway = await start_gateway(attempts=1, timers={"heartbeat": 3600.0})
    behave = blaming(ErrorCode.PROVIDER_ERROR, Fault.PROVIDER)
    async with FakeProvider(gateway.link_url, behave=behave) as provider:
        for _ in range(3):
            await refusal(http, gateway, chat())
        got = await refusal(http, gateway, chat())
        assert got.status == 503
        assert 1 < int(got.headers["Retry-After"]) <= 31
        assert len(provider.jobs) == 3


@pytest.mark.asyncio
async def test_after_the_rest_it_is_there_without_a_word(
    start_gateway: StartGateway, http: aiohttp.ClientSession
) -> None:
    """No heartbeat has to come first: who follows `Retry-After` must not be sent away again."""
    gateway = await start_gateway(attempts=1, timers={"heartbeat": 3600.0})
    async with FakeProvider(gateway.link_url, behave=blaming(OURS, Fault.PROVIDER)) as provider:
        gateway.directory.records[provider.provider_id].candidate.cooldown = 0.5
        for _ in range(3):
            await refusal(http, gateway, chat())
        provider.behave = answering("Hello")
        await eventually(lambda: bool(gateway.broker.dispatch.ready(MODEL)))
        assert (await stream(http, gateway)).text == "Hello"


@pytest.mark.asyncio
async def test_no_provider_makes_a_buyer_wait_for_ever(
    start_gateway: StartGateway, http: aiohttp.ClientSession
) -> None:
    gateway = await start_gateway(attempts=1)
    behave = rejecting(ErrorCode.PROVIDER_OVERLOADED, retry_after_ms=10**15)
    async with FakeProvider(gateway.link_url, behave=behave):
        assert (await refusal(http, gateway, chat())).headers["Retry-After"] == "301"


# --- whose fault ---------------------------------------------------------------------------------


def blaming(code: ErrorCode, fault: Fault, *, after: int = 0) -> Behaviour:
    """`after`: 0 rejects, 1 fails once accepted, 2 after the first content."""

    async def behave(job: FakeJob) -> None:
        error = ApiError(code, "it was you", fault=fault, inference_ran=after == 2)
        if after == 0:
            await job.reject(error)
            return
        await job.accept()
        if after == 2:
            await job.begin()
            await job.text("Hello")
        await job.fail(code, fault=fault)

    return behave


OURS = ErrorCode.PROVIDER_ERROR
BLAME: dict[str, tuple[Behaviour, str]] = {
    "a 502": (blaming(OURS, Fault.BUYER), "provider_error"),
    "the gateway": (blaming(OURS, Fault.GATEWAY), "provider_error"),
    "a 502 after content": (blaming(OURS, Fault.BUYER, after=2), "provider_error"),
    "a timeout": (blaming(ErrorCode.PROVIDER_TIMEOUT, Fault.BUYER, after=1), "provider_timeout"),
    "an unread call": (blaming(ErrorCode.MALFORMED_TOOL_CALL_FINAL_JSON, Fault.BUYER, after=1), FINAL_JSON),
    "a call before there is a token": (
        blaming(ErrorCode.MALFORMED_TOOL_CALL_FINAL_JSON, Fault.BUYER),
        FINAL_JSON,
    ),
    "a request that was found good": (
        blaming(ErrorCode.INVALID_REQUEST, Fault.BUYER, after=1),
        "provider_error",
    ),
    "a model that it registered": (blaming(ErrorCode.MODEL_NOT_FOUND, Fault.BUYER), "provider_error"),
    "a body that it never sees": (blaming(ErrorCode.INVALID_JSON, Fault.BUYER), "provider_error"),
}


@pytest.mark.asyncio
@pytest.mark.parametrize(("behave", "code"), BLAME.values(), ids=BLAME.keys())
async def test_what_cannot_be_the_buyers_fault_counts(
    start_gateway: StartGateway, http: aiohttp.ClientSession, behave: Behaviour, code: str
) -> None:
    gateway = await start_gateway(attempts=1, timers={"heartbeat": 3600.0})
    async with FakeProvider(gateway.link_url, behave=behave) as provider:
        for _ in range(3):
            got = await refusal(http, gateway, chat())
            assert got.error["code"] == code
        await provider.heartbeat()
        await rests(provider)


HONEST: dict[str, tuple[Behaviour, dict[str, Any], str]] = {
    "a request": (blaming(ErrorCode.INVALID_REQUEST, Fault.BUYER), {}, "invalid_request"),
    "a field": (blaming(ErrorCode.UNSUPPORTED_FIELD, Fault.BUYER), {}, "unsupported_field"),
    "a prompt": (blaming(ErrorCode.CONTEXT_LENGTH_EXCEEDED, Fault.BUYER), {}, "context_length_exceeded"),
    "a call": (
        blaming(ErrorCode.MALFORMED_TOOL_CALL_FINAL_JSON, Fault.BUYER, after=2),
        {"tools": TOOLS},
        FINAL_JSON,
    ),
    "no room": (blaming(ErrorCode.PROVIDER_OVERLOADED, Fault.PROVIDER), {}, "provider_overloaded"),
}


@pytest.mark.asyncio
@pytest.mark.parametrize(("behave", "fields", "code"), HONEST.values(), ids=HONEST.keys())
async def test_what_can_be_the_buyers_fault_does_not(
    start_gateway: StartGateway,
    http: aiohttp.ClientSession,
    behave: Behaviour,
    fields: dict[str, Any],
    code: str,
) -> None:
    gateway = await start_gateway(attempts=1)
    async with FakeProvider(gateway.link_url, behave=behave) as provider:
        for count in range(5):
            assert (await refusal(http, gateway, chat(**fields))).error["code"] == code
            assert len(provider.jobs) == count + 1
        provider.behave = answering("Hello")
        async with openai_client(gateway) as client:
            await client.chat.completions.create(model=provider.models[0].id, messages=chat()["messages"])
