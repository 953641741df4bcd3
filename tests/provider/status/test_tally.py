from __future__ import annotations

from dataclasses import replace

import pytest

from provider.jobs.ends import EndKind
from provider.status.history import JobRecord
from provider.status.tally import JobTally, Throughput, Today, record_of
from tests.fakes.job_ends import END, REJECTED

RECORD = JobRecord(1000, "job_1", 2, "m", "completed", "tool_calls", None, 10, 4, 5, 1, 1500, 250)


def test_an_end_becomes_a_line_of_history() -> None:
    assert record_of(END, 1000) == RECORD
    rejected = record_of(REJECTED, 1000)
    assert (rejected.model, rejected.end, rejected.error) == (None, "rejected", "model_not_found")
    assert rejected.ttft_ms is None


def test_sums_by_model_end_and_code() -> None:
    tally = JobTally(["m"])
    for end in (END, END, REJECTED, replace(END, model="a stranger's text", cached_tokens=0)):
        tally.add(end)
    assert tally.jobs == {
        ("m", EndKind.COMPLETED): 2,
        ("other", EndKind.REJECTED): 1,
        ("other", EndKind.COMPLETED): 1,
    }
    assert tally.codes == {"model_not_found": 1}
    assert tally.tokens["m", "prompt"] == 20
    assert (tally.admitted, tally.cache_hits) == (3, 2)
    assert sum(tally.ttft.counts) == 3
    assert sum(tally.duration.counts) == 3


def test_a_new_day_begins_at_nothing() -> None:
    today = Today("2026-06-01", [RECORD])
    today.add("2026-06-01", RECORD)
    assert (today.sum.jobs, today.sum.completion_tokens) == (2, 10)
    today.add("2026-06-02", RECORD)
    assert (today.day, today.sum.jobs) == ("2026-06-02", 1)
    today.turn("2026-06-03")
    assert today.sum.jobs == 0


def test_throughput_is_that_of_the_last_half_minute() -> None:
    rate = Throughput(window_s=30)
    assert rate.look(0, 0) == 0
    assert rate.look(10, 1000) == 100
    assert rate.look(30, 1000) == pytest.approx(1000 / 30)
    assert rate.look(45, 1000) == pytest.approx(0)
    assert rate.look(60, 1600) == pytest.approx(20)


def test_a_counter_that_begins_again_is_not_negative() -> None:
    rate = Throughput()
    rate.look(0, 500)
    assert rate.look(1, 10) == 0
    assert rate.look(2, 20) == 10
