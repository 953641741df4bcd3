"""When this machine is measured: by itself when it is idle, at once when asked, never in the way of a job."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway_protocol.messages import JobCompleted
from gateway_protocol.session import events
from provider.measuring import Measuring
from provider.status.measure import MeasureError
from tests.fakes.core import Core, offer, write_script
from tests.fakes.fake_gateway import FakeGateway
from tests.fakes.waiting import eventually

QUICK = {"match": "story", "text": "once upon a time " * 40, "chars_per_token": 4, "ms_per_token": 1}
SLOW = {"match": "story", "text": "once upon a time " * 40, "chars_per_token": 4, "ms_per_token": 100}
REST = {"text": "Hello, world", "ms_per_token": 1}


def measuring(core: Core, state: Path, setup: str = "a") -> Measuring:
    return Measuring(engine=core.engine, jobs=core.jobs, state=state, setup=setup, quiet_s=0.01)


@pytest.mark.asyncio
async def test_an_idle_machine_is_measured_once_for_each_setup(tmp_path: Path) -> None:
    script = write_script(tmp_path / "script.jsonl", QUICK, REST)
    async with FakeGateway() as gateway, Core(script, gateway.url) as core:
        first = measuring(core, tmp_path)
        assert first.known() is None
        await first.when_idle()
        assert first.known() is not None
        submitted = core.engine.status().submitted
        second = measuring(core, tmp_path)
        assert second.known() == first.known()
        await second.when_idle()
        assert core.engine.status().submitted == submitted
        assert measuring(core, tmp_path, "b").known() is None


@pytest.mark.asyncio
async def test_it_gives_way_to_a_job(tmp_path: Path) -> None:
    script = write_script(tmp_path / "script.jsonl", SLOW, REST)
    async with FakeGateway() as gateway, Core(script, gateway.url) as core:
        link = await gateway.link()
        speed = measuring(core, tmp_path)
        task = asyncio.create_task(speed.when_idle())
        await eventually(lambda: core.engine.status().running == 1)
        await link.send(offer("job_1", "go on " * 3))
        assert isinstance((await link.until(events.JobEnded)).terminal, JobCompleted)
        await eventually(lambda: core.engine.status().cancels >= 1)
        assert speed.known() is None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await eventually(lambda: core.engine.status().running == 0)


@pytest.mark.asyncio
async def test_the_owners_wish_comes_before_the_idle_one(tmp_path: Path) -> None:
    script = write_script(tmp_path / "script.jsonl", QUICK, REST)
    async with FakeGateway() as gateway, Core(script, gateway.url) as core:
        speed = measuring(core, tmp_path)
        idle = asyncio.create_task(speed.when_idle())
        found = await speed.now()
        assert speed.known() == found
        await idle


@pytest.mark.asyncio
async def test_an_engine_that_is_not_free_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provider.measuring._BUSY_S", 0.4)
    script = write_script(tmp_path / "script.jsonl", SLOW, REST)
    async with FakeGateway() as gateway, Core(script, gateway.url) as core:
        work = asyncio.create_task(measuring(core, tmp_path).when_idle())
        await eventually(lambda: core.engine.status().running == 1)
        with pytest.raises(MeasureError, match="isn't free: it is loading or at work"):
            await measuring(core, tmp_path).now()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


@pytest.mark.asyncio
async def test_a_paused_machine_says_so_at_once(tmp_path: Path) -> None:
    script = write_script(tmp_path / "script.jsonl", QUICK, REST)
    async with FakeGateway() as gateway, Core(script, gateway.url) as core:
        await core.engine.park()
        with pytest.raises(MeasureError, match="the models are out of memory"):
            await measuring(core, tmp_path).now()
