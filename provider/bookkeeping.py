"""Writes down what jobs came to: history on disk, sums for metrics, today's counts, the rate of tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import structlog

from provider.engine.base import Engine
from provider.jobs.ends import JobEnd, JobEnds
from provider.status.history import HistoryFile, day_of, read_history
from provider.status.tally import JobTally, Throughput, Today, record_of

log = structlog.get_logger("bookkeeping")

_SAMPLE_S = 5.0


class Bookkeeping:
    """`begin`, `run`, and `close` after the last job has ended. `wall_clock`: epoch seconds, `clock` any."""

    def __init__(
        self,
        *,
        ends: JobEnds,
        engine: Engine,
        state: Path,
        zone: tzinfo,
        wall_clock: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._ends = ends
        self._engine = engine
        self._state = state
        self._zone = zone
        self._wall_clock = wall_clock
        self._clock = clock
        self._file = HistoryFile(state)
        self._throughput = Throughput()
        self._disk_full = False
        self.tally = JobTally(list(engine.models()))
        self.today = Today(self._day())

    async def begin(self) -> None:
        """Take up the day where the last process left it."""
        day = self._day()
        midnight = datetime.fromtimestamp(self._wall_clock(), self._zone).replace(
            hour=0, minute=0, second=0, microsecond=0
        )
        since_ms = int(midnight.timestamp() * 1000)
        earlier = await asyncio.to_thread(lambda: list(read_history(self._state, since_ms=since_ms)))
        self.today = Today(day, earlier)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_history(), name="history")
            tasks.create_task(self._sample(), name="throughput")

    async def _keep_history(self) -> None:
        while True:
            self._write(await self._ends.next())

    async def _sample(self) -> None:
        while True:
            self._rate()
            await asyncio.sleep(_SAMPLE_S)

    def close(self) -> None:
        """Write what ended last."""
        self._write(self._ends.take())
        self._file.close()

    def _write(self, ends: list[JobEnd]) -> None:
        for end in ends:
            self.tally.add(end)
            at_ms = int(self._wall_clock() * 1000)
            record = record_of(end, at_ms)
            self.today.add(day_of(at_ms, self._zone), record)
            try:
                self._file.append(record)
                self._disk_full = False
            except OSError as error:
                # Once is enough: a full disk is told by the policy and by doctor, jobs go on.
                if not self._disk_full:
                    log.warning("history_not_written", reason=error.strerror or str(error))
                self._disk_full = True

    def _day(self) -> str:
        return day_of(int(self._wall_clock() * 1000), self._zone)

    def _rate(self) -> float:
        return self._throughput.look(self._clock(), self._engine.status().generated_tokens)

    def document(self) -> dict[str, Any]:
        """The members `today` and `throughput` of the status document."""
        self.today.turn(self._day())
        return {
            "today": {"day": self.today.day, **self.today.sum.document()},
            "throughput": {"tokens_per_s": round(self._rate(), 2)},
        }
