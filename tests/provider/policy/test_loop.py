"""The loop on a virtual clock: what the facts say, when it is noticed, what is told to the owner."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from provider.policy.loop import PolicyLoop
from provider.policy.pause import OwnerPause, PauseFile
from provider.policy.rules import Facts, Level, PauseReason, Policy
from provider.policy.schedule import parse_window
from tests.fakes.virtual_clock import on_virtual_clock

# A Monday, 12:00 UTC.
NOON = 1780315200.0


class Desk:
    """A machine whose facts the test sets, and the loop that looks at it."""

    def __init__(self, state: Path, policy: Policy, start: float = NOON) -> None:
        self.start = start
        self.facts = Facts(now=0)
        self.broken = False
        self.looks = 0
        self.loop = PolicyLoop(
            policy=policy, read=self._read, pause_file=PauseFile(state), clock=self.clock, interval=5
        )

    def clock(self) -> float:
        return self.start + asyncio.get_running_loop().time()

    async def _read(self) -> Facts:
        self.looks += 1
        if self.broken:
            raise OSError("no such command")
        return self.facts

    @property
    def reasons(self) -> list[str]:
        return [str(reason) for reason in self.loop.decision.reasons]

    async def until_changed(self) -> float:
        """Seconds from the start at which the decision changed."""
        await self.loop.news.wait()
        return self.clock() - self.start


async def desk_at_work(desk: Desk) -> asyncio.Task[None]:
    await desk.loop.look()
    return asyncio.create_task(desk.loop.run())


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@on_virtual_clock
async def test_a_window_opens_and_closes_to_the_second(tmp_path: Path) -> None:
    policy = Policy(windows=(parse_window("Daily 12:00-12:01"),))
    desk = Desk(tmp_path, policy, NOON - 7.5)
    task = await desk_at_work(desk)
    assert desk.reasons == ["outside_schedule"]
    assert [pause.words for pause in desk.loop.pauses] == [
        "outside the windows of policy.windows; it opens Mon 12:00"
    ]
    assert desk.loop.pauses[0].until == NOON
    assert await desk.until_changed() == pytest.approx(7.5, abs=0.01)
    assert desk.reasons == []
    assert await desk.until_changed() == pytest.approx(67.5, abs=0.01)
    assert desk.reasons == ["outside_schedule"]
    assert desk.loop.decision.drain
    assert desk.loop.decision.unload
    await stop(task)


@on_virtual_clock
async def test_a_pause_is_noticed_within_an_interval_and_ends_when_it_was_good_for_a_while(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path, Policy())
    task = await desk_at_work(desk)
    desk.facts = replace(desk.facts, on_battery=True, battery_percent=81)
    assert await desk.until_changed() <= 5.01
    assert desk.reasons == ["on_battery"]
    assert not desk.loop.decision.unload
    words = [pause.words for pause in desk.loop.pauses]
    assert words == ["running on battery (81%); plug it in, or set policy.on_battery = true"]
    desk.facts = replace(desk.facts, on_battery=False)
    await asyncio.sleep(6)
    assert desk.loop.pauses[0].words.startswith("on battery until a moment ago; ")
    assert 30 <= await desk.until_changed() - 5 <= 40.01
    assert desk.reasons == []
    await stop(task)


@on_virtual_clock
async def test_the_owners_word_holds_at_once_and_over_a_restart(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Policy())
    task = await desk_at_work(desk)
    desk.loop.pause(None)
    assert desk.reasons == ["paused_by_owner"]
    assert desk.loop.pauses[0].words == "paused by its owner until `malibu-provider resume`"
    await stop(task)
    again = Desk(tmp_path, Policy())
    await again.loop.look()
    assert again.reasons == ["paused_by_owner"]
    again.loop.resume()
    assert again.reasons == []
    assert PauseFile(tmp_path).read() is None


@on_virtual_clock
async def test_a_pause_with_an_end_ends_then(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Policy())
    task = await desk_at_work(desk)
    desk.loop.pause(NOON + 3607)
    assert desk.loop.pauses[0].words == "paused by its owner until Mon 13:00"
    assert await desk.until_changed() == pytest.approx(3607, abs=0.01)
    assert desk.reasons == []
    await stop(task)


@on_virtual_clock
async def test_a_pause_that_is_written_beside_the_daemon_counts(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Policy())
    task = await desk_at_work(desk)
    PauseFile(tmp_path).write(OwnerPause(NOON, None))
    assert await desk.until_changed() <= 5.01
    assert desk.reasons == ["paused_by_owner"]
    await stop(task)


@on_virtual_clock
async def test_facts_that_cannot_be_read_pause_nothing_and_stop_nothing(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Policy())
    desk.broken = True
    task = await desk_at_work(desk)
    await asyncio.sleep(11)
    assert desk.looks == 3
    assert desk.reasons == []
    desk.broken = False
    desk.facts = replace(desk.facts, thermal=Level.CRITICAL)
    assert await desk.until_changed() <= 15.01
    assert desk.reasons == ["thermal_pressure"]
    await stop(task)


@on_virtual_clock
@pytest.mark.parametrize(
    ("facts", "reason", "words"),
    [
        ({"low_power": True}, PauseReason.LOW_POWER, "in low power mode; "),
        ({"thermal": Level.SERIOUS}, PauseReason.HOT, "too hot (thermal pressure: serious); "),
        ({"memory_pressure": Level.CRITICAL}, PauseReason.MEMORY, "short of memory (memory pressure: critic"),
        ({"user_idle_seconds": 10.0}, PauseReason.USER_ACTIVE, "in use by its owner; it goes on after 300 s"),
        ({"free_disk_bytes": 500_000_000}, PauseReason.DISK, "the disk is nearly full (0.5 GB left); "),
    ],
)
async def test_each_reason_has_its_words(
    tmp_path: Path, facts: dict[str, object], reason: PauseReason, words: str
) -> None:
    desk = Desk(tmp_path, Policy(user_idle_seconds=300))
    desk.facts = replace(desk.facts, **facts)
    await desk.loop.look()
    (pause,) = desk.loop.pauses
    assert (pause.reason, pause.until) == (reason, None)
    assert pause.words.startswith(words)
