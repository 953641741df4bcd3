"""From a fact of the machine to the state and reason in the heartbeat, on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gateway_protocol.messages import Heartbeat, Machine, ProviderState, Software
from gateway_protocol.signing import ProviderKey, mint_provider_id
from provider.engine.process import EngineProcess
from provider.engine.spec import EngineSettings
from provider.jobs.dispatcher import JobDispatcher
from provider.jobs.plan import AnswerRules
from provider.jobs.proof import Signer
from provider.link.presence import Identity, Presence, Profile
from provider.pausing import Pausing
from provider.policy.loop import PolicyLoop
from provider.policy.pause import PauseFile
from provider.policy.rules import Facts, Level, PauseReason, Policy
from provider.policy.schedule import parse_window
from provider.system.caffeinate import Caffeinate
from tests.fakes.core import QWEN
from tests.fakes.virtual_clock import on_virtual_clock

BERLIN = ZoneInfo("Europe/Berlin")


def berlin(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


class Childless(EngineProcess):
    """An engine whose child, which lives by the real clock, never comes."""

    async def park(self) -> None:
        self._view.on_park()

    def unpark(self) -> None:
        self._view.on_unpark()


class Machinery:
    """Rules, pausing, jobs and heartbeat as the daemon has them; the facts are set."""

    def __init__(self, state: Path, policy: Policy, start: float, interval: float = 5) -> None:
        self.start = start
        self.facts = Facts(now=start)
        self.loop = PolicyLoop(
            policy=policy, read=self._read, pause_file=PauseFile(state), clock=self.clock, interval=interval
        )
        key, provider_id = ProviderKey.generate(), mint_provider_id()
        engine = Childless(EngineSettings(backend="scripted", models=(QWEN,), slots=2))
        jobs = JobDispatcher(
            engine=engine, rules=AnswerRules(), signer=Signer(key, provider_id, "malibu", lambda: 0)
        )
        profile = Profile(Software(name="t", version="0"), Machine(), "malibu", True)
        self._presence = Presence(
            identity=Identity(provider_id, key), profile=profile, engine=engine, jobs=jobs
        )
        self._pausing = Pausing(
            policy=self.loop,
            engine=engine,
            jobs=jobs,
            caffeinate=Caffeinate(),
            drain_seconds=30,
            keep_awake=False,
        )

    async def _read(self) -> Facts:
        return self.facts

    def clock(self) -> float:
        return self.start + asyncio.get_running_loop().time()

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        await self._pausing.begin()
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self.loop.run()), tasks.create_task(self._pausing.run())]
            yield
            for task in running:
                task.cancel()

    def heartbeat(self) -> Heartbeat:
        return self._presence.heartbeat()

    @property
    def reason(self) -> str | None:
        """The heartbeat's, of a paused provider; `None` for one that isn't."""
        heartbeat = self.heartbeat()
        return heartbeat.reason if heartbeat.state is ProviderState.PAUSED else None


NOON = berlin("2026-06-01T12:00")


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"on_battery": True}, PauseReason.ON_BATTERY),
        ({"low_power": True}, PauseReason.LOW_POWER),
        ({"thermal": Level.SERIOUS}, PauseReason.HOT),
        ({"memory_pressure": Level.CRITICAL}, PauseReason.MEMORY),
        ({"user_idle_seconds": 3.0}, PauseReason.USER_ACTIVE),
        ({"free_disk_bytes": 10}, PauseReason.DISK),
    ],
)
@on_virtual_clock
async def test_a_fact_pauses_and_its_end_resumes(
    tmp_path: Path, facts: dict[str, Any], reason: PauseReason
) -> None:
    machine = Machinery(tmp_path, Policy(user_idle_seconds=300, zone=BERLIN), NOON)
    async with machine.at_work():
        await asyncio.sleep(60)
        assert machine.reason is None
        machine.facts = replace(machine.facts, **facts)
        await asyncio.sleep(5.1)
        assert machine.reason == reason.value
        machine.facts = Facts(now=NOON)
        await asyncio.sleep(20)
        assert machine.reason == reason.value
        await asyncio.sleep(20)
        assert machine.reason is None


@on_virtual_clock
async def test_the_owners_pause(tmp_path: Path) -> None:
    machine = Machinery(tmp_path, Policy(zone=BERLIN), NOON, interval=600)
    async with machine.at_work():
        machine.loop.pause(NOON + 3600)
        await asyncio.sleep(0.1)
        assert machine.reason == "paused_by_owner"
        await asyncio.sleep(3599)
        assert machine.reason == "paused_by_owner"
        await asyncio.sleep(1)
        assert machine.reason is None
        machine.loop.pause(None)
        await asyncio.sleep(86_400)
        assert machine.reason == "paused_by_owner"
        machine.loop.resume()
        await asyncio.sleep(0.1)
        assert machine.reason is None


@pytest.mark.parametrize(
    ("start", "closes_after_hours"),
    [
        ("2026-06-05T21:59:30", 9),
        # The clock goes from 02:00 to 03:00: the night is an hour shorter.
        ("2026-03-28T21:59:30", 8),
        # The clock goes from 03:00 back to 02:00: the night is an hour longer.
        ("2026-10-24T21:59:30", 10),
    ],
)
@on_virtual_clock
async def test_an_overnight_window_opens_and_closes_by_the_clock_on_the_wall(
    tmp_path: Path, start: str, closes_after_hours: int
) -> None:
    policy = Policy(windows=(parse_window("Daily 22:00-07:00"),), zone=BERLIN)
    machine = Machinery(tmp_path, policy, berlin(start), interval=600)
    async with machine.at_work():
        await asyncio.sleep(29.9)
        assert machine.reason == "outside_schedule"
        await asyncio.sleep(0.2)
        assert machine.reason is None
        await asyncio.sleep(closes_after_hours * 3600 - 0.2)
        assert machine.reason is None
        await asyncio.sleep(0.2)
        assert machine.reason == "outside_schedule"


@on_virtual_clock
async def test_the_most_deliberate_reason_is_told_and_the_rest_stays(tmp_path: Path) -> None:
    machine = Machinery(tmp_path, Policy(zone=BERLIN), NOON)
    async with machine.at_work():
        machine.facts = replace(machine.facts, on_battery=True)
        await asyncio.sleep(6)
        machine.loop.pause(None)
        await asyncio.sleep(0.1)
        assert machine.reason == "paused_by_owner"
        machine.loop.resume()
        await asyncio.sleep(0.1)
        assert machine.reason == "on_battery"
