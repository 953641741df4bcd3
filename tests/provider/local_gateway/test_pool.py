"""Several Macs behind one gateway: daemons as processes that are killed, drained and joined under load."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Self

import aiohttp
import pytest

from provider.local_gateway.ledger_file import usage_of
from provider.local_gateway.server import LocalGateway
from tests.provider.local_gateway.conftest import StartGateway, Stream, chat, eventually

ONE, TWO = "mlx-community/Qwen3-8B-4bit", "mlx-community/gpt-oss-20b-MXFP4-Q8"
ANSWER = " ".join(f"word{number}" for number in range(20))


class Daemon:
    """`malibu-provider start --gateway …` with a state folder of its own."""

    def __init__(self, folder: Path, gateway: LocalGateway, *models: str, slots: int) -> None:
        folder.mkdir()
        script = folder / "script.jsonl"
        script.write_text(json.dumps({"text": ANSWER, "ms_per_token": 10, "chars_per_token": 4}))
        self._log = folder / "log"
        self._arguments = ["--gateway", gateway.link_url, "--engine", "scripted", "--script", str(script)]
        self._environment = {
            **os.environ,
            "MALIBU_PROVIDER_HOME": str(folder / "home"),
            "MALIBU_PROVIDER_ENGINE__MODELS": ",".join(models),
            "MALIBU_PROVIDER_ENGINE__SLOTS": str(slots),
        }
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "cli.main", "start", *self._arguments),
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def end(self, how: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(how)
        return await self._process.wait()


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.timeout(300)
async def test_a_pool_under_load(
    start_gateway: StartGateway, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    state = tmp_path / "gateway.db"
    gateway = await start_gateway(
        timers={"resume_window": 3.0, "redispatch": 0.5},
        queue_length=200,
        queue_seconds=120.0,
        state_file=state,
    )
    finished: list[Stream] = []

    async def buy(model: str) -> None:
        body = chat(model=model, stream=True, stream_options={"include_usage": True})
        async with http.post(f"{gateway.url}/v1/chat/completions", json=body) as response:
            assert response.status == 200, await response.text()
            finished.append(Stream(await response.read()))

    async with (
        Daemon(tmp_path / "killed", gateway, ONE, slots=8) as killed,
        Daemon(tmp_path / "steady", gateway, ONE, TWO, slots=8),
        Daemon(tmp_path / "drained", gateway, TWO, slots=8) as drained,
        Daemon(tmp_path / "joined", gateway, ONE, TWO, slots=8) as joined,
    ):
        await joined.end(signal.SIGKILL)  # it comes later
        await eventually(lambda: len(gateway.broker.dispatch.ready(ONE)) == 2, seconds=60)
        await eventually(lambda: len(gateway.broker.dispatch.ready(TWO)) == 2, seconds=60)
        buying = [asyncio.create_task(buy(model)) for model in [ONE, TWO] * 100]
        await eventually(lambda: len(finished) >= 20, seconds=90)
        spread = Counter(
            record.provider_id for record in gateway.directory.records.values() for _ in record.attempts
        )
        assert len(spread) == 3  # each has some of the work
        await killed.end(signal.SIGKILL)
        async with joined:
            await eventually(lambda: len(finished) >= 60, seconds=90)
            assert await drained.end(signal.SIGTERM) == 0
            await asyncio.gather(*buying)
    assert len(finished) == 200
    broken = [got for got in finished if got.error is not None]
    for got in finished:
        assert got.done
        if got.error is None:
            assert got.text == ANSWER
            assert got.finish_reasons == ["stop"]
        else:
            assert got.text  # only what died after its first content
            assert (got.error["code"], got.error["retryable"]) == ("provider_disconnected", True)
    assert len(broken) <= 8
    bought = sum_usage([got for got in finished if got.error is None])
    sums = usage_of(state)
    recorded = {
        "prompt_tokens": sum(row.prompt_tokens for row in sums),
        "completion_tokens": sum(row.completion_tokens for row in sums),
    }
    assert recorded == bought
    assert sum(row.jobs for row in sums) == 200 - len(broken)


def sum_usage(streams: list[Stream]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for got in streams:
        usage: dict[str, Any] = got.events[-1]["usage"]
        total.update({name: usage[name] for name in ("prompt_tokens", "completion_tokens")})
    return dict(total)
