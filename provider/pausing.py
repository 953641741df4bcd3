"""Does what the machine's rules decide: stops and resumes taking jobs, lets memory and the wake go.

may serve ──▶ engine up, jobs taken, machine held awake
paused ─────▶ no offers ─▶ running jobs end (at a window's close within the drain time) ─▶ engine unloaded
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Literal

from provider.engine.process import EngineProcess
from provider.jobs.dispatcher import JobDispatcher
from provider.policy.loop import PolicyLoop
from provider.policy.rules import Decision
from provider.system.caffeinate import Caffeinate

# A wake that ended by itself is taken again within this time.
_AWAKE_LOOK_S = 30.0


class Pausing:
    """`begin` before anything is served, then `run`."""

    def __init__(
        self,
        *,
        policy: PolicyLoop,
        engine: EngineProcess,
        jobs: JobDispatcher,
        caffeinate: Caffeinate,
        drain_seconds: float,
        keep_awake: bool,
    ) -> None:
        self._policy = policy
        self._engine = engine
        self._jobs = jobs
        self._drain_seconds = drain_seconds
        self._keep_awake = keep_awake
        self._parking: asyncio.Task[None] | None = None
        self.caffeinate = caffeinate

    async def begin(self) -> bool:
        """Look for the first time; whether the engine is to be started without its child."""
        await self._policy.look()
        decision = self._policy.decision
        self._tell(decision)
        return decision.unload

    async def run(self) -> None:
        try:
            while True:
                # Taken before the decision is read, so that no change falls between the two.
                news = asyncio.ensure_future(self._policy.news.wait())
                await self._until(news, self._apply(self._policy.decision))
        finally:
            await self.caffeinate.hold(False)
            await self._parked()

    async def _until(self, news: asyncio.Future[Literal[True]], work: Awaitable[None]) -> None:
        """Do `work`, hold the machine awake if it serves; another decision ends both."""
        task = asyncio.ensure_future(work)
        try:
            waits: set[asyncio.Future[Any]] = {news, task}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
            while not news.done():
                await self.caffeinate.hold(self._keep_awake and not self._policy.decision.paused)
                await asyncio.wait({news}, timeout=_AWAKE_LOOK_S)
        finally:
            news.cancel()
            task.cancel()
            await asyncio.gather(news, task, return_exceptions=True)

    async def _apply(self, decision: Decision) -> None:
        self._tell(decision)
        await self._parked()
        if not decision.paused:
            self._engine.unpark()
            return
        await self.caffeinate.hold(False)
        if decision.drain or decision.unload:
            await self._jobs.settle(self._drain_seconds if decision.drain else None)
        if decision.unload:
            self._parking = asyncio.create_task(self._engine.park(), name="engine-park")
            await self._parked()

    async def _parked(self) -> None:
        """Wait for an unloading that has begun: another decision doesn't cut it off half way."""
        if self._parking is not None:
            await asyncio.shield(self._parking)
            self._parking = None

    def _tell(self, decision: Decision) -> None:
        """To the gateway and the owner: the most deliberate reason."""
        if decision.paused:
            self._jobs.pause(decision.reasons[0].value)
        else:
            self._jobs.resume()
