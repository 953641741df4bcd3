from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gateway_protocol.errors import ErrorCode
from gateway_protocol.messages import FinishReason, JobCancel
from gateway_protocol.session import events
from provider.jobs.ends import EndKind, Histogram, JobEnds, Tally
from tests.fakes.core import Core, offer, write_script
from tests.fakes.fake_gateway import FakeGateway
from tests.fakes.job_ends import END, REJECTED
from tests.fakes.waiting import eventually


@pytest.mark.asyncio
async def test_each_end_is_told_once() -> None:
    ends = JobEnds()
    assert ends.take() == []
    reader = asyncio.create_task(ends.next())
    await asyncio.sleep(0)
    assert not reader.done()
    ends.add(END)
    ends.add(REJECTED)
    assert await reader == [END, REJECTED]
    assert ends.take() == []
    ends.add(END)
    assert await ends.next() == [END]


def test_what_nobody_reads_does_not_fill_memory() -> None:
    ends = JobEnds()
    for number in range(10_001):
        ends.add(replace(END, attempt=number))
    kept = ends.take()
    assert (len(kept), kept[0].attempt) == (10_000, 1)


def test_counters() -> None:
    tally = Tally()
    for end in (END, END, REJECTED, replace(END, kind=EndKind.FAILED), replace(END, kind=EndKind.CANCELLED)):
        tally.add(end)
    assert (tally.completed, tally.failed, tally.cancelled, tally.rejected) == (2, 1, 1, 1)
    counters = tally.counters()
    assert (counters.jobs_completed, counters.prompt_tokens, counters.completion_tokens) == (2, 40, 20)


def test_a_value_at_a_bound_is_within_it() -> None:
    histogram = Histogram((0.1, 1.0))
    histogram.add(0.1)
    histogram.add(0.3, parts=3)
    histogram.add(0.5)
    histogram.add(2.0)
    assert histogram.counts == [4, 1, 1]
    assert histogram.total == pytest.approx(2.9)


@pytest.mark.asyncio
async def test_jobs_tell_how_they_ended(tmp_path: Path) -> None:
    script = write_script(
        tmp_path / "script.jsonl",
        {"match": "long", "text": "0123456789" * 1_000, "chars_per_token": 1, "ms_per_token": 3},
        {
            "match": "crash",
            "text": "some text",
            "chars_per_token": 4,
            "fault": "exit",
            "fault_after_tokens": 1,
        },
        {"text": "Hello, world", "chars_per_token": 4},
    )
    async with FakeGateway() as gateway, Core(script, gateway.url) as core:
        link = await gateway.link()
        await link.send(offer("job_1"))
        await link.until(events.JobEnded)
        await link.send(offer("job_2", "long"))
        await link.until(events.ChunkReceived)
        await link.send(JobCancel(job_id="job_2", attempt=1, reason="the buyer left"))
        await link.until(events.JobEnded)
        await link.send(offer("job_3", "crash"))
        await link.until(events.JobEnded)
        await link.send(offer("job_4", model="no-such-model"))
        await link.until(events.JobEnded)
        await eventually(lambda: sum(core.jobs.token_gaps.counts) > 0)
        ends = {end.job_id: end for end in core.jobs.ends.take()}
    assert [(end.job_id, end.kind.value) for end in ends.values()] == [
        ("job_1", "completed"),
        ("job_2", "cancelled"),
        ("job_3", "failed"),
        ("job_4", "rejected"),
    ]
    whole, cancelled, failed, rejected = ends.values()
    assert (whole.finish_reason, whole.code, whole.completion_tokens) == (FinishReason.STOP, None, 3)
    assert whole.ttft_s is not None
    assert 0 < whole.ttft_s <= whole.duration_s
    assert whole.admitted
    assert (cancelled.code, cancelled.finish_reason) == (None, None)
    assert cancelled.completion_tokens > 0
    assert failed.code is ErrorCode.PROVIDER_ERROR
    assert (rejected.model, rejected.code) == (None, ErrorCode.MODEL_NOT_FOUND)
    assert (rejected.admitted, rejected.prompt_tokens, rejected.ttft_s) == (False, 0, None)
