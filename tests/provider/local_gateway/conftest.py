"""A gateway on a free port, and clients for it."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import openai
import pytest_asyncio

from provider.local_gateway.server import LocalGateway, create_gateway
from provider.local_gateway.settings import GatewaySettings, Timers
from tests.fakes.fake_provider import MODEL, PATIENCE

# Nothing in these tests waits for a timer unless it sets one shorter; a provider that says nothing by itself,
# as the fake does, stays.
TIMERS = Timers(ack=0.02, heartbeat=3600.0, link_dead=3600.0)

StartGateway = Callable[..., Awaitable[LocalGateway]]

HI: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]


def chat(**fields: Any) -> dict[str, Any]:
    """A request body."""
    return {"model": MODEL, "messages": HI, **fields}


def functions(*names: str) -> list[dict[str, Any]]:
    """Tools of a request."""
    return [{"type": "function", "function": {"name": name}} for name in names]


@pytest_asyncio.fixture
async def start_gateway() -> AsyncIterator[StartGateway]:
    """Start gateways: `timers` overrides single times, all else is a setting."""
    started: list[LocalGateway] = []

    async def start(timers: dict[str, float] | None = None, **settings: Any) -> LocalGateway:
        settings.setdefault("port", 0)
        times = dataclasses.replace(TIMERS, **(timers or {}))
        gateway = create_gateway(GatewaySettings(timers=times, **settings))
        await gateway.start()
        started.append(gateway)
        return gateway

    yield start
    for gateway in started:
        await gateway.aclose()


@pytest_asyncio.fixture
async def gateway(start_gateway: StartGateway) -> LocalGateway:
    return await start_gateway()


@pytest_asyncio.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def openai_client(gateway: LocalGateway, **options: Any) -> openai.AsyncOpenAI:
    options.setdefault("api_key", "any")
    options.setdefault("max_retries", 0)
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", **options)


async def eventually(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait for something inside the gateway that no frame tells of."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class Stream:
    """What a stream was made of: its events' data, parsed; `done`: it ended in `[DONE]`."""

    def __init__(self, raw: bytes) -> None:
        self.events: list[dict[str, Any]] = []
        self.comments = 0
        self.done = False
        assert raw.endswith(b"\n\n"), "an event is cut"
        for block in raw.decode().removesuffix("\n\n").split("\n\n"):
            assert not self.done, "something follows [DONE]"
            if block.startswith(":"):
                self.comments += 1
            elif block == "data: [DONE]":
                self.done = True
            else:
                self.events.append(json.loads(block.removeprefix("data: ")))

    @property
    def text(self) -> str:
        return "".join(delta.get("content") or "" for delta in self.deltas)

    @property
    def deltas(self) -> list[dict[str, Any]]:
        return [event["choices"][0]["delta"] for event in self.events if event.get("choices")]

    @property
    def error(self) -> dict[str, Any] | None:
        error: dict[str, Any] | None = self.events[-1].get("error") if self.events else None
        return error

    @property
    def finish_reasons(self) -> list[str]:
        choices = [event["choices"][0] for event in self.events if event.get("choices")]
        return [choice["finish_reason"] for choice in choices if choice["finish_reason"]]


async def stream(http: aiohttp.ClientSession, gateway: LocalGateway, **fields: Any) -> Stream:
    """Ask for a stream and read it to its end."""
    url = f"{gateway.url}/v1/chat/completions"
    body = io.BytesIO(json.dumps(chat(stream=True, **fields)).encode())
    async with http.post(url, data=body) as response:
        assert response.status == 200, await response.text()
        return Stream(await response.read())


@dataclasses.dataclass
class Refusal:
    status: int
    error: dict[str, Any]
    headers: Any


async def refusal(
    http: aiohttp.ClientSession, gateway: LocalGateway, body: Any = None, **headers: str
) -> Refusal:
    """Post a request that is refused; its whole envelope is checked for shape."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    url = f"{gateway.url}/v1/chat/completions"
    async with http.post(url, data=io.BytesIO(data), headers=headers) as response:
        return await refused(response)


async def refused(response: aiohttp.ClientResponse) -> Refusal:
    assert response.content_type == "application/json", await response.text()
    document = await response.json()
    error = document["error"]
    assert set(error) == {
        "message",
        "type",
        "param",
        "code",
        "retryable",
        "request_id",
        "inference_ran",
    }
    assert error["message"]
    assert error["request_id"] == response.headers["x-request-id"]
    return Refusal(response.status, error, response.headers)
