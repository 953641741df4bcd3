"""A gateway on a free port, and clients for it."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio

from provider.local_gateway.server import LocalGateway, create_gateway
from provider.local_gateway.settings import GatewaySettings, Timers

# Nothing in these tests waits for a timer unless it sets one shorter.
TIMERS = Timers(ack=0.02)

StartGateway = Callable[..., Awaitable[LocalGateway]]


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


@pytest.fixture
def messages() -> list[dict[str, Any]]:
    return [{"role": "user", "content": "Hi"}]


def openai_client(gateway: LocalGateway, **options: Any) -> openai.AsyncOpenAI:
    options.setdefault("api_key", "any")
    options.setdefault("max_retries", 0)
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", **options)
