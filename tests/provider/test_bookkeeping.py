"""The books: every ended job once in history, sums and today's counts, over restarts and on a full disk."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import UTC
from pathlib import Path

import pytest
import structlog

from provider.bookkeeping import Bookkeeping
from provider.engine.process import EngineProcess
from provider.engine.spec import EngineSettings
from provider.jobs.ends import JobEnds
from provider.status.history import FILE_NAME, read_history
from tests.fakes.core import QWEN
from tests.fakes.waiting import eventually
from tests.provider.status.test_tally import END, REJECTED

# 1 June 2026, 23:59:59 UTC.
LATE = 1_780_358_399.0


class Day:
    def __init__(self, state: Path, now: float = LATE) -> None:
        self.now = now
        self.ends = JobEnds()
        self.books = Bookkeeping(
            ends=self.ends,
            engine=EngineProcess(EngineSettings(backend="scripted", models=(QWEN,), slots=1)),
            state=state,
            zone=UTC,
            wall_clock=lambda: self.now,
            clock=time.monotonic,
        )


@pytest.mark.asyncio
async def test_each_end_is_written_once_also_the_last(tmp_path: Path) -> None:
    day = Day(tmp_path)
    await day.books.begin()
    task = asyncio.create_task(day.books.run())
    day.ends.add(END)
    await eventually(lambda: day.books.today.sum.jobs)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    day.ends.add(REJECTED)
    day.books.close()
    assert [record.end for record in read_history(tmp_path)] == ["completed", "rejected"]
    assert day.books.document()["today"]["jobs"] == 2
    assert day.books.tally.jobs.total() == 2


@pytest.mark.asyncio
async def test_the_day_goes_on_after_a_restart_and_ends_at_midnight(tmp_path: Path) -> None:
    first = Day(tmp_path)
    first.ends.add(END)
    first.books.close()
    second = Day(tmp_path, LATE + 0.5)
    await second.books.begin()
    assert second.books.document()["today"]["completed"] == 1
    second.now = LATE + 1
    today = second.books.document()["today"]
    assert (today["day"], today["jobs"]) == ("2026-06-02", 0)
    third = Day(tmp_path, LATE + 2)
    await third.books.begin()
    assert third.books.document()["today"]["jobs"] == 0


@pytest.mark.asyncio
async def test_a_disk_that_takes_nothing_is_told_once_and_stops_no_job(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    day = Day(tmp_path)
    day.ends.add(END)
    day.ends.add(replace(END, job_id="job_2"))
    with structlog.testing.capture_logs() as logs:
        day.books.close()
    assert [entry["event"] for entry in logs] == ["history_not_written"]
    assert day.books.document()["today"]["jobs"] == 2
