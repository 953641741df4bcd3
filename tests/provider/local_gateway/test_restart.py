"""Stopping a gateway under load and starting it again."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import aiohttp
import pytest

from provider.local_gateway.ledger_file import usage_of
from tests.cli.processes import free_port
from tests.fakes.fake_provider import FakeJob, FakeProvider
from tests.fakes.gateway_process import GatewayProcess
from tests.provider.local_gateway.conftest import Stream, chat


@pytest.mark.slow
@pytest.mark.asyncio
async def test_streams_end_properly_and_nothing_is_charged_twice(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    state = tmp_path / "gateway.db"
    process = GatewayProcess(port=free_port(), state_file=str(state))
    await process.start()
    hold = asyncio.Event()

    async def behave(job: FakeJob) -> None:
        await job.accept()
        await job.begin()
        await job.text("a", "b")
        await hold.wait()
        await job.text("c")
        await job.complete()

    async def buy(streamed: bool) -> tuple[int, bytes]:
        url = f"{process.url}/v1/chat/completions"
        async with http.post(url, json=chat(stream=streamed)) as response:
            return response.status, await response.read()

    provider = FakeProvider("", behave=behave, slots=20)
    serving = asyncio.create_task(process.keep_serving(provider))
    await provider.until(lambda: provider.registered is not None)
    buying = [asyncio.create_task(buy(number % 2 == 0)) for number in range(8)]
    await provider.offered(8)
    await provider.until(lambda: len({ack.job_id for ack in provider.acknowledged}) == 8)
    await process.end(signal.SIGTERM)
    for status, raw in await asyncio.gather(*buying):
        if status == 200:
            got = Stream(raw)
            assert got.text == "ab"
            assert got.done
            assert got.error is not None
            assert got.error["retryable"]
        else:
            assert status == 503
    assert await provider_closed_with(provider) == 1012
    hold.set()  # what was under way is finished while there is no gateway
    await process.start()
    await provider.until(lambda: provider.registered is not None)
    assert provider.registered is not None
    assert provider.registered.resume == ()
    again = await asyncio.gather(*(buy(True) for _ in range(3)))
    assert [Stream(raw).text for _, raw in again] == ["abc"] * 3
    await process.end(signal.SIGTERM)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    await provider.hang_up()
    assert sum(row.jobs for row in usage_of(state) if row.completion_tokens) >= 3
    assert sum(row.completion_tokens for row in usage_of(state)) == 3 * 4


async def provider_closed_with(provider: FakeProvider) -> int | None:
    await provider.until(lambda: provider.last_close is not None)
    return provider.last_close
