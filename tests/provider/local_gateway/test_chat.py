"""Chats through a gateway and a provider on real sockets: streams, buffered answers, refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway_protocol.errors import ApiError, ErrorCode, Fault
from gateway_protocol.messages import Delta, FinishReason
from gateway_protocol.receipts import request_sha256, verify_receipt
from provider.local_gateway.server import LocalGateway
from tests.fakes.fake_provider import MODEL, FakeJob, FakeProvider, answering, rejecting
from tests.provider.local_gateway.conftest import (
    HI,
    StartGateway,
    Stream,
    chat,
    functions,
    openai_client,
    refusal,
    refused,
    stream,
)


async def keys(http: aiohttp.ClientSession, gateway: LocalGateway) -> dict[str, Any]:
    async with http.get(f"{gateway.url}/v1/providers/keys") as response:
        document: dict[str, Any] = await response.json()
        return document


@pytest.mark.asyncio
async def test_stream_is_as_the_contract_says(gateway: LocalGateway, http: aiohttp.ClientSession) -> None:
    async with FakeProvider(gateway.link_url, behave=answering("Hel", "lö ", "🎉")):
        got = await stream(http, gateway, stream_options={"include_usage": True})
    assert got.done
    assert got.deltas[0] == {"role": "assistant", "content": ""}
    assert got.text == "Hellö 🎉"
    assert got.finish_reasons == ["stop"]
    assert len({(event["id"], event["created"], event["model"]) for event in got.events}) == 1
    assert got.events[-1]["choices"] == []
    assert got.events[-1]["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 4,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    for event in got.events:
        ChatCompletionChunk.model_validate(event, strict=True)
        assert event["object"] == "chat.completion.chunk"


@pytest.mark.asyncio
async def test_no_usage_chunk_unasked(gateway: LocalGateway, http: aiohttp.ClientSession) -> None:
    async with FakeProvider(gateway.link_url):
        got = await stream(http, gateway)
    assert all(event["choices"] for event in got.events)
    assert all("usage" not in event for event in got.events)


@pytest.mark.asyncio
async def test_stream_headers(gateway: LocalGateway, http: aiohttp.ClientSession) -> None:
    async with (
        FakeProvider(gateway.link_url),
        http.post(f"{gateway.url}/v1/chat/completions", json=chat(stream=True)) as response,
    ):
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert response.headers["Cache-Control"] == "no-cache"
        assert response.headers["x-request-id"].startswith("req_")
        await response.read()


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
async def test_buffered_answer(gateway: LocalGateway, http: aiohttp.ClientSession, path: str) -> None:
    async with (
        FakeProvider(gateway.link_url, behave=answering("Hel", "lo", finish_reason=FinishReason.LENGTH)),
        http.post(gateway.url + path, json=chat()) as response,
    ):
        assert response.status == 200
        document = await response.json()
    completion = ChatCompletion.model_validate(document)
    assert completion.choices[0].message.content == "Hello"
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage is not None
    assert completion.usage.total_tokens == 10
    assert document["malibu"]["receipt"] == response.headers["x-malibu-receipt"]


@pytest.mark.asyncio
async def test_receipts_verify_with_the_published_keys(
    gateway: LocalGateway, http: aiohttp.ClientSession
) -> None:
    body = chat(user="someone", metadata={"a": "b"}, temperature=None)
    async with FakeProvider(gateway.link_url) as provider:
        got = await stream(http, gateway, user="someone", metadata={"a": "b"}, temperature=None)
        published = await keys(http, gateway)
    receipt = verify_receipt(got.events[-1]["malibu"]["receipt"], published)
    assert receipt.request_sha256 == request_sha256(body)
    assert receipt.provider_id == provider.provider_id
    offered = provider.jobs[0].request
    assert "user" not in offered
    assert "metadata" not in offered
    assert provider.jobs[0].offer.tenant == "local"


@pytest.mark.asyncio
async def test_tool_calls_and_reasoning_streamed_equal_buffered(gateway: LocalGateway) -> None:
    async def behave(job: FakeJob) -> None:
        await job.accept()
        await job.begin()
        await job.delta(Delta(reasoning_content="hm"))
        await job.call(0, "get_weather", "{", '"city": "Rome"', "}", call_id="call_" + "a" * 32)
        await job.call(1, "get_time", "{", "}", call_id="call_" + "b" * 32)
        await job.complete(FinishReason.TOOL_CALLS)

    tools: Any = functions("get_weather", "get_time")
    async with FakeProvider(gateway.link_url, behave=behave), openai_client(gateway) as client:
        buffered = await client.chat.completions.create(model=MODEL, messages=HI, tools=tools)  # type: ignore[arg-type]
        async with client.chat.completions.stream(model=MODEL, messages=HI, tools=tools) as streaming:  # type: ignore[arg-type]
            streamed = await streaming.get_final_completion()
    for completion in (buffered, streamed):
        choice = completion.choices[0]
        assert choice.finish_reason == "tool_calls"
        assert not choice.message.content
        assert choice.message.tool_calls is not None
        assert [
            (call.id, call.function.name, call.function.arguments)  # type: ignore[union-attr]
            for call in choice.message.tool_calls
        ] == [
            ("call_" + "a" * 32, "get_weather", '{"city": "Rome"}'),
            ("call_" + "b" * 32, "get_time", "{}"),
        ]
    assert buffered.choices[0].message.content is None
    assert buffered.choices[0].message.model_extra is not None
    assert buffered.choices[0].message.model_extra["reasoning_content"] == "hm"


@pytest.mark.asyncio
async def test_logprobs_travel(gateway: LocalGateway, http: aiohttp.ClientSession) -> None:
    entry = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}

    async def behave(job: FakeJob) -> None:
        await job.accept()
        await job.begin()
        await job.delta(Delta(content="Hi"), logprobs={"content": [entry], "refusal": None})
        await job.complete()

    async with FakeProvider(gateway.link_url, behave=behave), openai_client(gateway) as client:
        buffered = await client.chat.completions.create(model=MODEL, messages=HI, logprobs=True)  # type: ignore[arg-type]
        got = await stream(http, gateway, logprobs=True)
    assert buffered.choices[0].logprobs is not None
    assert buffered.choices[0].logprobs.content is not None
    assert buffered.choices[0].logprobs.content[0].token == "Hi"
    shown = [event["choices"][0]["logprobs"] for event in got.events]
    assert shown == [None, {"content": [entry], "refusal": None}, None]


@pytest.mark.asyncio
async def test_headers_wait_for_acceptance_and_not_for_the_first_token(
    gateway: LocalGateway, http: aiohttp.ClientSession
) -> None:
    go_on = asyncio.Event()
    accept = asyncio.Event()

    async def behave(job: FakeJob) -> None:
        await accept.wait()
        await job.accept()
        await go_on.wait()
        await job.begin()
        await job.text("late")
        await job.complete()

    async with FakeProvider(gateway.link_url, behave=behave) as provider:
        request = asyncio.create_task(
            http.post(f"{gateway.url}/v1/chat/completions", json=chat(stream=True)).__aenter__()
        )
        await provider.offered()
        assert not request.done()
        accept.set()
        response = await request  # headers are here, though there is no token yet
        assert response.status == 200
        go_on.set()
        assert Stream(await response.read()).text == "late"


@pytest.mark.asyncio
async def test_comments_fill_silence(start_gateway: StartGateway, http: aiohttp.ClientSession) -> None:
    gateway = await start_gateway(timers={"comment": 0.02})

    async def behave(job: FakeJob) -> None:
        await job.accept()
        await released.wait()
        await job.begin()
        await job.text("x")
        await job.complete()

    released = asyncio.Event()
    async with (
        FakeProvider(gateway.link_url, behave=behave),
        http.post(f"{gateway.url}/v1/chat/completions", json=chat(stream=True)) as response,
    ):
        seen = b""
        while seen.count(b": keepalive\n\n") < 3:
            seen += await response.content.readany()
        released.set()
        got = Stream(seen + await response.read())
    assert got.text == "x"
    assert got.done


@pytest.mark.asyncio
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_providers_400_stays_a_400(
    gateway: LocalGateway, http: aiohttp.ClientSession, streamed: bool
) -> None:
    behave = rejecting(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "too long", param="messages")
    async with FakeProvider(gateway.link_url, behave=behave) as provider:
        for _ in range(4):
            got = await refusal(http, gateway, chat(stream=streamed))
            assert (got.status, got.error["code"], got.error["param"]) == (
                400,
                "context_length_exceeded",
                "messages",
            )
            assert got.error["type"] == "invalid_request_error"
        # Not a fault of the provider's: it is not cooled down, and was asked once for each request.
        assert len(provider.jobs) == 4


@pytest.mark.asyncio
@pytest.mark.parametrize("code", [ErrorCode.INVALID_API_KEY, ErrorCode.RATE_LIMITED])
async def test_a_provider_cannot_speak_for_the_gateway(
    gateway: LocalGateway, http: aiohttp.ClientSession, code: ErrorCode
) -> None:
    async with FakeProvider(gateway.link_url, behave=rejecting(code, "your key is no good")):
        got = await refusal(http, gateway, chat())
    assert (got.status, got.error["code"], got.error["retryable"]) == (502, "provider_error", True)
    assert "your key" not in got.error["message"]


@pytest.mark.asyncio
async def test_a_provider_that_blames_the_buyer_for_its_own_fault_is_passed_over(
    gateway: LocalGateway, http: aiohttp.ClientSession
) -> None:
    async def blaming(job: FakeJob) -> None:
        await job.reject(ApiError(ErrorCode.PROVIDER_ERROR, "you did it", fault=Fault.BUYER))

    async with (
        FakeProvider(gateway.link_url, behave=blaming) as first,
        FakeProvider(gateway.link_url, behave=blaming) as second,
    ):
        got = await refusal(http, gateway, chat())
        assert (got.status, got.error["code"]) == (502, "provider_error")
        assert (len(first.jobs), len(second.jobs)) == (1, 1)


@pytest.mark.asyncio
async def test_overloaded_says_when_to_retry(gateway: LocalGateway, http: aiohttp.ClientSession) -> None:
    behave = rejecting(ErrorCode.PROVIDER_OVERLOADED, retry_after_ms=2500)
    async with FakeProvider(gateway.link_url, behave=behave):
        got = await refusal(http, gateway, chat())
    assert (got.status, got.error["code"], got.error["retryable"]) == (503, "provider_overloaded", True)
    assert got.headers["Retry-After"] == "3"
    assert "x-should-retry" not in got.headers


@pytest.mark.asyncio
async def test_failed_closed_tells_sdks_not_to_retry(
    gateway: LocalGateway, http: aiohttp.ClientSession
) -> None:
    async def behave(job: FakeJob) -> None:
        await job.accept()
        await job.begin()
        await job.text("x")
        await job.fail(ErrorCode.UPSTREAM_ERROR, message="tool_choice none: a call came")

    async with FakeProvider(gateway.link_url, behave=behave):
        got = await refusal(http, gateway, chat())
    assert (got.status, got.error["type"], got.error["code"]) == (502, "upstream_error", "upstream_error")
    assert got.error["inference_ran"] is True
    assert got.headers["x-should-retry"] == "false"
    assert got.headers["x-malibu-receipt"]


@pytest.mark.asyncio
async def test_failure_in_mid_stream_is_one_event_and_done(
    gateway: LocalGateway, http: aiohttp.ClientSession
) -> None:
    async def behave(job: FakeJob) -> None:
        await job.accept()
        await job.begin()
        await job.call(0, "f", "{", '"a"')
        await job.fail(ErrorCode.MALFORMED_TOOL_CALL, message="the call is cut")

    async with FakeProvider(gateway.link_url, behave=behave), openai_client(gateway) as client:
        tools: Any = functions("f")
        got = await stream(http, gateway, tools=tools)
        assert got.done
        assert got.finish_reasons == []
        assert got.error is not None
        assert (got.error["code"], got.error["retryable"]) == ("malformed_tool_call", False)
        assert got.events[-1]["malibu"]["receipt"]
        with pytest.raises(openai.APIError) as raised:
            async for _ in await client.chat.completions.create(
                model=MODEL,
                messages=HI,  # type: ignore[arg-type]
                tools=tools,
                stream=True,
            ):
                pass
        assert raised.value.code == "malformed_tool_call"


@pytest.mark.asyncio
async def test_explicit_nulls_and_unknown_fields_pass(
    gateway: LocalGateway, http: aiohttp.ClientSession
) -> None:
    nulls = dict.fromkeys(
        ["temperature", "top_p", "max_tokens", "stop", "tools", "tool_choice", "stream_options", "seed"]
    )
    async with FakeProvider(gateway.link_url):
        assert (await stream(http, gateway, **nulls, store=False)).text == "Hello there!"


@pytest.mark.asyncio
async def test_requests_that_are_refused(gateway: LocalGateway, http: aiohttp.ClientSession) -> None:
    async with FakeProvider(gateway.link_url) as provider:
        for body, status, code, param in [
            (b"{", 400, "invalid_json", None),
            (b'{"model": NaN}', 400, "invalid_json", None),
            (b'["a"]', 400, "invalid_json", None),
            (chat(n=2), 400, "unsupported_field", "n"),
            (chat(model="nobody/has-it"), 404, "model_not_found", "model"),
            (chat(tool_choice="none", tools=[{"type": "function", "function": {"name": "f"}}]), 400,
             "unsupported_tool_choice", "tool_choice"),
            (chat(response_format={"type": "json_object"}), 400, "unsupported_field", "response_format"),
        ]:  # fmt: skip
            got = await refusal(http, gateway, body)
            assert (got.status, got.error["code"], got.error["param"]) == (status, code, param)
        assert not provider.jobs


@pytest.mark.asyncio
async def test_body_at_the_cap_and_over(gateway: LocalGateway, http: aiohttp.ClientSession) -> None:
    cap = 8 * 1024 * 1024
    frame = len(b'{"model": "m", "messages": [{"role": "user", "content": ""}]}')
    async with FakeProvider(gateway.link_url) as provider:
        for size, code in [(cap, "model_not_found"), (cap + 1, "request_body_too_large")]:
            text = b"x" * (size - frame)
            body = b'{"model": "m", "messages": [{"role": "user", "content": "%s"}]}' % text
            assert len(body) == size
            got = await refusal(http, gateway, body)
            assert got.error["code"] == code

        # Not announced by a Content-Length either.
        async def pieces() -> Any:
            for _ in range(9):
                yield b"x" * 1024 * 1024

        async with http.post(f"{gateway.url}/v1/chat/completions", data=pieces()) as response:
            got = await refused(response)
        assert (got.status, got.error["code"]) == (413, "request_body_too_large")
        # A prompt of over 1 MiB reaches the provider.
        long = [{"role": "user", "content": "é" * 1024 * 1024}]
        assert (await stream(http, gateway, messages=long)).text == "Hello there!"
        assert provider.jobs[-1].request["messages"] == long


@pytest.mark.asyncio
async def test_many_streams_do_not_mix(gateway: LocalGateway, http: aiohttp.ClientSession) -> None:
    async def behave(job: FakeJob) -> None:
        name = job.request["messages"][0]["content"]
        await job.accept()
        await job.begin()
        for number in range(20):
            await job.text(f"{name}:{number} ")
            await asyncio.sleep(0)
        await job.complete()

    async with FakeProvider(gateway.link_url, behave=behave, slots=100):
        names = [f"n{number}" for number in range(100)]
        streams = await asyncio.gather(
            *(stream(http, gateway, messages=[{"role": "user", "content": name}]) for name in names)
        )
    for name, got in zip(names, streams, strict=True):
        assert got.text == "".join(f"{name}:{number} " for number in range(20))
        assert got.done
