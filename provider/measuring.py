"""When this machine is measured: once for each set-up, when it has nothing else to do, or when asked."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import structlog

from gateway_protocol.messages import Measured
from provider.engine.base import Engine
from provider.jobs.dispatcher import JobDispatcher
from provider.status.measure import MeasuredFile, MeasureError, measure

log = structlog.get_logger("measuring")

_QUIET_S = 5.0
_LOOK_S = 0.2
_BUSY_S = 60.0


class Measuring:
    """The figures of the first model. `setup`: what they depend on besides it. `quiet_s`: between tries."""

    def __init__(
        self, *, engine: Engine, jobs: JobDispatcher, state: Path, setup: str, quiet_s: float = _QUIET_S
    ) -> None:
        self._engine = engine
        self._jobs = jobs
        self._file = MeasuredFile(state)
        self._setup = setup
        self._quiet_s = quiet_s
        self._model = next(iter(engine.models()), None)
        self._known = None if self._model is None else self._file.read(self._model, setup)
        self._asked = False

    def known(self) -> Measured | None:
        return self._known

    async def when_idle(self) -> None:
        """Measure where nothing is known yet, giving way to any job; tried again until it could be done."""
        while self._known is None:
            await asyncio.sleep(self._quiet_s)
            if self._asked or not self._free():
                continue
            try:
                await self._giving_way()
            except MeasureError as error:
                log.info("not_measured", reason=str(error))
                await asyncio.sleep(_BUSY_S)

    async def now(self) -> Measured:
        """Measure because the owner asks: jobs that run are waited for. Raises `MeasureError`."""
        self._asked = True
        try:
            for _ in range(int(_BUSY_S / _LOOK_S)):
                if self._free():
                    return await self._measure()
                if self._engine.status().parked:
                    raise MeasureError("the models are out of memory; `malibu-provider status` says why")
                await asyncio.sleep(_LOOK_S)
            raise MeasureError("the engine isn't free: it is loading or at work; try later")
        finally:
            self._asked = False

    def _free(self) -> bool:
        status = self._engine.status()
        return status.ready and status.running == 0 and status.queued == 0 and not self._at_work()

    def _at_work(self) -> bool:
        states = self._jobs.states()
        return any(states[state] for state in ("offered", "queued", "running"))

    async def _giving_way(self) -> None:
        before = self._jobs.counters
        task = asyncio.create_task(self._measure())
        try:
            # A job that came and went between two looks has spoiled the figures, and is seen in the counters.
            while not task.done() and not (self._asked or self._at_work() or self._jobs.counters != before):
                await asyncio.wait({task}, timeout=_LOOK_S)
            if task.done():
                await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _measure(self) -> Measured:
        if self._model is None:
            raise MeasureError("no model is configured")
        found = await measure(
            self._engine, self._model, clock=time.monotonic, at_ms=lambda: int(time.time() * 1000)
        )
        self._known = found
        log.info(
            "measured",
            model=found.model,
            decode_per_s=found.decode_tokens_per_s,
            prefill_per_s=found.prefill_tokens_per_s,
        )
        try:
            self._file.write(found, self._setup)
        except OSError as error:
            log.warning("figures_not_kept", reason=error.strerror)
        return found
