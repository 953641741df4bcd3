"""A frame that names a job and can't be read ends that job's attempt at once: whatever it was meant to say of
the job will not be said again, and the buyer must not wait for a timer."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from gateway_protocol.messages import Nack, NackCode
from provider.local_gateway.server import LocalGateway
from tests.fakes.fake_provider import Behaviour, FakeJob, FakeProvider, answering
from tests.provider.local_gateway.conftest import StartGateway, eventually, stream


def frame(job: FakeJob, kind: str | None, **members: Any) -> str:
    named = {"type": kind, "job_id": job.offer.job_id, "attempt": job.offer.attempt}
    return json.dumps({key: value for key, value in (named | members).items() if value is not ...})


BEFORE: dict[str, Any] = {
    "a rejection without an error": lambda job: frame(job, "job_rejected"),
    "a rejection of an unknown code": lambda job: frame(job, "job_rejected", error={"code": "no_such_code"}),
    "an acceptance of less than nothing": lambda job: frame(job, "job_accepted", prompt_tokens=-1),
    "a failure without a number": lambda job: frame(job, "job_failed", seq="x"),
    "no type": lambda job: frame(job, ...),  # type: ignore[arg-type]
    "a type that is no name": lambda job: frame(job, "Job Rejected"),
    "no attempt": lambda job: frame(job, "job_rejected", attempt=...),
    "an attempt that is no number": lambda job: frame(job, "job_rejected", attempt="1"),
    "cut": lambda job: frame(job, "job_rejected", error={"code": "x"})[:-9],
    "no JSON": lambda job: frame(job, "job_rejected", error=float("nan")),
    "binary": lambda job: frame(job, "job_rejected", error={}).encode(),
}
AFTER: dict[str, Any] = {
    "a chunk without its link": lambda job: frame(job, "job_chunk", seq=2, delta={"content": "x"}),
    "a chunk of half a call": lambda job: frame(
        job, "job_chunk", seq=2, chain="", delta={"tool_calls": [{"index": "0"}]}
    ),
    "less than no tokens": lambda job: frame(
        job,
        "job_completed",
        seq=2,
        finish_reason="stop",
        receipt="",
        usage={"prompt_tokens": 7, "completion_tokens": -5},
    ),
    "an unknown finish": lambda job: frame(job, "job_completed", seq=2, finish_reason="done", receipt=""),
    "a failure without an error": lambda job: frame(job, "job_failed", seq=2),
    "cut": lambda job: frame(job, "job_failed", seq=2, error={"code": "x"})[:-9],
}


def saying(text: Any, *, begin: bool) -> Behaviour:
    async def behave(job: FakeJob) -> None:
        if begin:
            await job.accept()
            await job.begin()
            await job.text("Hello")
        await job.provider.send_raw(text(job))
        await job.cancelled.wait()

    return behave


@pytest.mark.asyncio
@pytest.mark.parametrize("text", BEFORE.values(), ids=BEFORE.keys())
async def test_before_the_first_content_another_provider_answers(
    gateway: LocalGateway, http: aiohttp.ClientSession, text: Any
) -> None:
    async with (
        FakeProvider(gateway.link_url, behave=saying(text, begin=False), speed=100.0) as bad,
        FakeProvider(gateway.link_url, speed=1.0) as good,
    ):
        got = await stream(http, gateway)
        assert (got.text, got.error, got.finish_reasons, got.done) == ("Hello there!", None, ["stop"], True)
        assert (len(bad.jobs), len(good.jobs)) == (1, 1)
        await bad.until(bad.jobs[0].cancelled.is_set)
        job = bad.jobs[0].offer
        assert [(nack.job_id, nack.attempt) for nack in bad.nacks] == [(job.job_id, job.attempt)]
        # Its slot is free: the next job can be done there, too.
        assert all(record.candidate.in_flight == 0 for record in gateway.directory.records.values())


@pytest.mark.asyncio
@pytest.mark.parametrize("text", AFTER.values(), ids=AFTER.keys())
async def test_after_it_the_stream_ends_in_one_error(
    gateway: LocalGateway, http: aiohttp.ClientSession, text: Any
) -> None:
    async with (
        FakeProvider(gateway.link_url, behave=saying(text, begin=True), speed=100.0) as bad,
        FakeProvider(gateway.link_url, speed=1.0) as good,
    ):
        got = await stream(http, gateway)
        assert got.error is not None
        assert (got.text, got.error["code"], got.finish_reasons) == ("Hello", "provider_error", [])
        assert sum("error" in event for event in got.events) == 1
        assert got.done
        assert (len(bad.jobs), len(good.jobs)) == (1, 0)
        assert not gateway.ledger.recent(10)


@pytest.mark.asyncio
async def test_a_frame_about_another_attempt_ends_nothing(
    gateway: LocalGateway, http: aiohttp.ClientSession
) -> None:
    async def behave(job: FakeJob) -> None:
        provider = job.provider
        await provider.send_raw(frame(job, "job_rejected", attempt=job.offer.attempt + 1))
        await provider.send_raw(frame(job, "job_rejected", job_id="job_of_another"))
        await provider.send_raw(frame(job, "heartbeat"))
        await provider.until(lambda: len(provider.nacks) == 3)
        await answering("Hello")(job)

    async with FakeProvider(gateway.link_url, behave=behave):
        got = await stream(http, gateway)
        assert (got.text, got.error) == ("Hello", None)


@pytest.mark.asyncio
async def test_an_offer_that_is_nacked_goes_elsewhere(
    gateway: LocalGateway, http: aiohttp.ClientSession
) -> None:
    async def behave(job: FakeJob) -> None:
        nack = Nack(
            in_reply_to="job_offer",
            job_id=job.offer.job_id,
            attempt=job.offer.attempt,
            code=NackCode.MALFORMED,
            message="request: dict_type",
        )
        await job.provider.send_raw(nack.model_dump_json())

    async with (
        FakeProvider(gateway.link_url, behave=behave, speed=100.0) as bad,
        FakeProvider(gateway.link_url, speed=1.0) as good,
    ):
        got = await stream(http, gateway)
        assert (got.text, got.error) == ("Hello there!", None)
        assert (len(bad.jobs), len(good.jobs)) == (1, 1)


@pytest.mark.asyncio
async def test_a_cancel_that_is_nacked_frees_the_slot(
    start_gateway: StartGateway, http: aiohttp.ClientSession
) -> None:
    gateway = await start_gateway(timers={"first_content": 0.05}, attempts=1)

    async def behave(job: FakeJob) -> None:
        await job.accept()
        await job.cancelled.wait()
        nack = Nack(
            in_reply_to="job_cancel",
            job_id=job.offer.job_id,
            attempt=job.offer.attempt,
            code=NackCode.UNKNOWN_JOB,
            message="no such job here",
        )
        await job.provider.send_raw(nack.model_dump_json())

    async with FakeProvider(gateway.link_url, behave=behave, slots=1) as provider:
        got = await stream(http, gateway)
        assert got.error is not None
        record = gateway.directory.records[provider.provider_id]
        await eventually(lambda: not record.attempts)
