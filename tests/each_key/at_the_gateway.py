"""What the local gateway lets buyers and providers see."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from gateway_protocol.messages import NotRoutableReason
from provider.errors import ProviderError
from provider.local_gateway.server import LocalGateway
from tests.each_key.installation import PATIENCE, Installation
from tests.fakes.fake_provider import MODEL, FakeJob, FakeProvider, offered_model

CALL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


async def address(it: Installation) -> str:
    """Where it listens, or why it doesn't."""
    try:
        async with it.gateway() as gateway:
            parts = urlsplit(gateway.url)
            return f"{parts.scheme} {parts.hostname}"
    except ProviderError as error:
        return str(error).partition(";")[0].partition(":")[0]


async def port_is_the_configured_one(it: Installation, port: int) -> bool:
    async with it.gateway() as gateway:
        return urlsplit(gateway.url).port == port


async def provider(it: Installation) -> dict[str, Any]:
    """What a provider meets that dials in, and what its first offer says."""
    async with it.gateway() as gateway, FakeProvider(gateway.link_url) as provider:
        return await _met(gateway, provider)


async def _met(gateway: LocalGateway, provider: FakeProvider) -> dict[str, Any]:
    if provider.refused is not None:
        return {"refused": provider.refused.code}
    registered = provider.registered
    assert registered is not None
    async with asyncio.timeout(PATIENCE):
        ack = await provider.acks.get()
    # Nobody has asked for anything yet.
    reasons = [reason for reason in ack.reasons if reason is not NotRoutableReason.MODEL_NOT_IN_DEMAND]
    met: dict[str, Any] = {
        "refused": None,
        "reasons": reasons,
        "resume": registered.resume_window_ms,
        "told version": registered.recommended_version,
    }
    if not reasons:
        assert await _status(gateway) == 200
        offer = provider.jobs[0].offer
        met |= {"deadline": offer.deadline_ms, "first content": offer.first_content_budget_ms}
    return met


async def buyer(it: Installation) -> dict[str, Any]:
    """Which requests are taken, by status."""
    contract, models = it.settings.contract, [offered_model(forced=True)]
    async with it.gateway() as gateway, FakeProvider(gateway.link_url, contract=contract, models=models):
        two = [{"role": "user", "content": "Hi"}] * 2
        return {
            "plain": await _status(gateway),
            "again": await _status(gateway),
            "two messages": await _status(gateway, messages=two),
            "forced": await _status(gateway, tools=[CALL], tool_choice="required"),
            "other name": await _status(gateway, headers={"Host": "mac.local"}),
            "other page": await _status(gateway, headers={"Origin": "https://chat.example.org"}),
        }


async def second_answer(it: Installation) -> str:
    """What becomes of a request while another one's answer goes on: the line, or a refusal."""
    free = asyncio.Event()

    async def busy(job: FakeJob) -> None:
        await job.accept()
        await free.wait()
        await job.begin()
        await job.complete()

    async with it.gateway() as gateway, FakeProvider(gateway.link_url, behave=busy, slots=1) as provider:
        first = asyncio.create_task(_status(gateway))
        await provider.offered(1)
        second = asyncio.create_task(_status(gateway))
        async with asyncio.timeout(PATIENCE):
            while not (second.done() or gateway.broker.queued):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        free.set()
        status = await second
        await first
    return "in line" if status == 200 else f"refused with {status}"


async def _status(gateway: LocalGateway, *, headers: dict[str, str] | None = None, **fields: Any) -> int:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **fields}
    url = f"{gateway.url}/v1/chat/completions"
    async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers) as answer:
        return answer.status
