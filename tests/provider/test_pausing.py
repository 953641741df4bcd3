"""What a pause does to jobs under way and to the engine, over a real link and a real engine process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gateway_protocol.errors import ErrorCode
from gateway_protocol.messages import JobCancel, JobCompleted, JobFailed, JobRejected
from gateway_protocol.session import events
from provider.pausing import Pausing
from provider.policy.loop import PolicyLoop
from provider.policy.pause import PauseFile
from provider.policy.rules import Facts, Policy
from provider.policy.schedule import parse_window
from provider.system.caffeinate import Caffeinate
from tests.fakes.core import Core, offer, write_script
from tests.fakes.fake_gateway import FakeGateway, FakeLink
from tests.fakes.waiting import eventually

FAKES = Path(__file__).parents[1] / "fakes" / "macos"
LINES = (
    {"match": "for ever", "text": "0123456789" * 500, "chars_per_token": 1, "ms_per_token": 5},
    {"match": "slowly", "text": "0123456789", "chars_per_token": 1, "ms_per_token": 20},
    {"text": "Hello, world"},
)


class Paused:
    """A daemon's core with the machine's rules over it; `clock` and `facts` are the test's."""

    def __init__(self, core: Core, loop: PolicyLoop, pausing: Pausing, link: FakeLink) -> None:
        self.core = core
        self.loop = loop
        self.pausing = pausing
        self.link = link


@asynccontextmanager
async def paused(
    folder: Path, policy: Policy, *, drain_seconds: float = 30, keep_awake: bool = False
) -> AsyncIterator[tuple[Paused, list[Facts]]]:
    facts = [Facts(now=time.time())]

    async def read() -> Facts:
        return facts[-1]

    async with (
        FakeGateway() as gateway,
        Core(write_script(folder / "script.jsonl", *LINES), gateway.url) as core,
    ):
        loop = PolicyLoop(
            policy=policy, read=read, pause_file=PauseFile(folder), clock=lambda: facts[-1].now, interval=0.05
        )
        pausing = Pausing(
            policy=loop,
            engine=core.engine,
            jobs=core.jobs,
            caffeinate=Caffeinate("darwin"),
            drain_seconds=drain_seconds,
            keep_awake=keep_awake,
        )
        await pausing.begin()
        tasks = [asyncio.create_task(loop.run()), asyncio.create_task(pausing.run())]
        yield Paused(core, loop, pausing, await gateway.link()), facts
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def end_of(link: FakeLink) -> object:
    found = await link.until(events.JobEnded)
    return found.terminal


@pytest.mark.asyncio
async def test_an_owners_pause_lets_answers_end_refuses_offers_and_frees_memory(tmp_path: Path) -> None:
    async with paused(tmp_path, Policy()) as (daemon, _):
        await daemon.link.send(offer("job_1", "slowly"))
        await daemon.link.until(events.JobWasAccepted)
        daemon.loop.pause(None)
        await eventually(lambda: daemon.core.jobs.presence().state == "paused")
        await daemon.link.send(offer("job_2"))
        ends = [await end_of(daemon.link), await end_of(daemon.link)]
        rejected, completed = sorted(ends, key=lambda end: isinstance(end, JobCompleted))
        assert isinstance(rejected, JobRejected)
        assert rejected.error.code is ErrorCode.PROVIDER_OVERLOADED
        assert isinstance(completed, JobCompleted)
        await eventually(lambda: daemon.core.engine.status().parked)
        daemon.loop.resume()
        await eventually(lambda: daemon.core.engine.status().ready)
        await daemon.link.send(offer("job_3"))
        assert isinstance(await end_of(daemon.link), JobCompleted)


@pytest.mark.asyncio
async def test_at_a_windows_close_jobs_have_the_drain_time_and_no_more(tmp_path: Path) -> None:
    policy = Policy(windows=(parse_window("Daily 12:00-13:00"),))
    async with paused(tmp_path, policy, drain_seconds=0.3) as (daemon, facts):
        # 1 June 2026, 12:59:59 UTC.
        facts.append(replace(facts[-1], now=1_780_318_799.0))
        await eventually(lambda: not daemon.loop.decision.paused)
        await eventually(lambda: daemon.core.engine.status().ready)
        await daemon.link.send(offer("job_1", "for ever"))
        await daemon.link.until(events.JobWasAccepted)
        facts.append(replace(facts[-1], now=1_780_318_800.0))
        failed = await end_of(daemon.link)
        assert isinstance(failed, JobFailed)
        assert failed.error.message == "This provider's time to serve is over."
        assert failed.error.retryable
        await eventually(lambda: daemon.core.engine.status().parked)
        assert daemon.core.jobs.presence().reason == "outside_schedule"


@pytest.mark.asyncio
async def test_on_battery_the_model_stays_and_jobs_end_in_peace(tmp_path: Path) -> None:
    async with paused(tmp_path, Policy(), drain_seconds=0.05) as (daemon, facts):
        await daemon.link.send(offer("job_1", "slowly"))
        await daemon.link.until(events.JobWasAccepted)
        facts.append(replace(facts[-1], on_battery=True))
        await eventually(lambda: daemon.core.jobs.presence().reason == "on_battery")
        assert isinstance(await end_of(daemon.link), JobCompleted)
        assert daemon.core.engine.status().ready


@pytest.mark.asyncio
async def test_a_resume_while_jobs_end_keeps_the_engine(tmp_path: Path) -> None:
    async with paused(tmp_path, Policy()) as (daemon, _):
        pid = daemon.core.engine.status().child_pid
        await daemon.link.send(offer("job_1", "for ever"))
        await daemon.link.until(events.JobWasAccepted)
        daemon.loop.pause(None)
        await eventually(lambda: daemon.core.jobs.presence().state == "paused")
        daemon.loop.resume()
        await eventually(lambda: daemon.core.jobs.presence().state == "ready")
        await daemon.link.send(JobCancel(job_id="job_1", attempt=1, reason="enough"))
        await end_of(daemon.link)
        await daemon.link.send(offer("job_2"))
        assert isinstance(await end_of(daemon.link), JobCompleted)
        assert daemon.core.engine.status().child_pid == pid


@pytest.mark.asyncio
async def test_pauses_in_quick_succession_end_as_the_last_word_says(tmp_path: Path) -> None:
    async with paused(tmp_path, Policy()) as (daemon, _):
        for _ in range(5):
            daemon.loop.pause(None)
            await eventually(lambda: daemon.core.engine.status().parked)
            daemon.loop.resume()
            await asyncio.sleep(0)
            daemon.loop.pause(None)
            daemon.loop.resume()
        await eventually(lambda: daemon.core.engine.status().ready)
        await daemon.link.send(offer("job_1"))
        assert isinstance(await end_of(daemon.link), JobCompleted)


@pytest.mark.asyncio
async def test_the_machine_is_kept_awake_only_while_it_may_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes"
    notes.touch()
    monkeypatch.setenv("PATH", str(FAKES), prepend=":")
    monkeypatch.setenv("FAKE_CAFFEINATE", str(notes))
    async with paused(tmp_path, Policy(), keep_awake=True) as (daemon, facts):
        await eventually(lambda: daemon.pausing.caffeinate.held and "start" in notes.read_text())
        facts.append(replace(facts[-1], on_battery=True))
        await eventually(lambda: "end" in notes.read_text())
        assert not daemon.pausing.caffeinate.held
        facts.append(replace(facts[-1], on_battery=False, now=facts[-1].now + 60))
        # Whoever is stopped while it starts the command kills it, and that isn't what is looked at here.
        await eventually(lambda: daemon.pausing.caffeinate.held and notes.read_text().count("start") == 2)
    assert not daemon.pausing.caffeinate.held
    assert notes.read_text().count("end") == 2
