"""Jobs from offer to terminal frame, over a real link, with a scripted engine in its child process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway_protocol.answer import AnswerCollector
from gateway_protocol.limits import OUTBOX_JOB_BYTES
from gateway_protocol.messages import JobCancel, JobCompleted, JobFailed, JobRejected, ModelState
from gateway_protocol.receipts import Terminal, request_sha256, response_sha256, verify_receipt
from gateway_protocol.session import events
from gateway_protocol.signing import jwks
from provider.engine.ipc import ModelReport
from provider.jobs.pieces import OVERHEAD_BYTES
from provider.jobs.plan import AnswerRules
from tests.fakes.core import QWEN, Core, offer, write_script
from tests.fakes.fake_gateway import FakeGateway, FakeLink
from tests.fakes.waiting import eventually

LINES: list[dict[str, Any]] = [
    {"match": "slow", "text": "0123456789" * 70, "chars_per_token": 1, "ms_per_token": 3},
    {"match": "forever", "text": "0123456789" * 1_000, "chars_per_token": 1, "ms_per_token": 3},
    {"match": "prefill", "text": "late", "prefill_ms": 60_000},
    {
        "match": "crash",
        "text": "some text before",
        "chars_per_token": 4,
        "fault": "exit",
        "fault_after_tokens": 2,
    },
    {
        "match": "raise",
        "text": "some text before",
        "chars_per_token": 4,
        "fault": "raise",
        "fault_after_tokens": 2,
    },
    {"match": "hang", "text": "some text", "chars_per_token": 4, "fault": "hang", "fault_after_tokens": 0},
    {"match": "cut", "text": "cut here", "finish_reason": "length"},
    {"match": "think", "text": "<think>hmm, well</think>yes", "chars_per_token": 4},
    {"text": "Hello, world", "chars_per_token": 4},
]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return write_script(tmp_path / "script.jsonl", *LINES)


@pytest_asyncio.fixture
async def gateway() -> AsyncIterator[FakeGateway]:
    async with FakeGateway() as fake:
        yield fake


async def run_job(link: FakeLink, *args: Any, **kwargs: Any) -> tuple[AnswerCollector, Any]:
    """Offer one job; the folded answer and the end."""
    await link.send(offer(*args, **kwargs))
    found = await link.collect(events.ChunkReceived, events.JobEnded)
    answer = AnswerCollector()
    for event in found[:-1]:
        answer.add(event.chunk.delta, event.chunk.logprobs)
    return answer, found[-1]


@pytest.mark.asyncio
async def test_an_answer_and_its_receipt(script: Path, gateway: FakeGateway) -> None:
    async with Core(script, gateway.url) as core:
        link = await gateway.link()
        job = offer("job_1")
        await link.send(job)
        accepted = await link.until(events.JobWasAccepted)
        assert accepted.accepted.prompt_tokens > 0
        found = await link.collect(events.ChunkReceived, events.JobEnded)
        chunks = [event.chunk for event in found[:-1]]
        assert chunks[0].delta.model_dump(exclude_none=True) == {"role": "assistant", "content": ""}
        assert [chunk.seq for chunk in chunks] == list(range(len(chunks)))
        answer = AnswerCollector()
        for chunk in chunks:
            answer.add(chunk.delta)
        assert answer.message()["content"] == "Hello, world"
        ended = found[-1]
        terminal = ended.terminal
        assert isinstance(terminal, JobCompleted)
        assert terminal.finish_reason == "stop"
        assert terminal.usage.completion_tokens == 3
        receipt = verify_receipt(terminal.receipt, jwks([core.key.public_key]))
        assert receipt.terminal is Terminal.COMPLETED
        assert receipt.chain == ended.chain
        assert receipt.chunks == ended.chunks == len(chunks)
        assert receipt.request_sha256 == request_sha256(job.request)
        assert receipt.response_sha256 == response_sha256(answer.answer("stop"))
        assert (receipt.provider_id, receipt.contract) == (core.provider_id, "malibu")
        assert receipt.usage.completion_tokens == 3
        await eventually(lambda: core.jobs.states()["settling"] == 0)
        assert core.jobs.outbox_bytes == 0


@pytest.mark.asyncio
async def test_length_and_reasoning(script: Path, gateway: FakeGateway) -> None:
    async with Core(script, gateway.url):
        link = await gateway.link()
        _, ended = await run_job(link, "a", "cut")
        assert ended.terminal.finish_reason == "length"
        hidden, ended = await run_job(link, "b", "think")
        assert hidden.message()["content"] == "yes"
        assert "reasoning_content" not in hidden.message()
        assert ended.terminal.usage.reasoning_tokens > 0
        assert ended.terminal.usage.completion_tokens > ended.terminal.usage.reasoning_tokens
        shown, ended_shown = await run_job(link, "c", "think", include_reasoning=True)
        assert shown.message()["reasoning_content"] == "hmm, well"
        assert ended_shown.terminal.usage == ended.terminal.usage


@pytest.mark.asyncio
async def test_stop_strings_end_the_generation(script: Path, gateway: FakeGateway) -> None:
    async with Core(script, gateway.url) as core:
        link = await gateway.link()
        answer, ended = await run_job(link, "a", "forever", stop=["5678", "never"])
        assert answer.message()["content"] == "01234"
        assert ended.terminal.finish_reason == "stop"
        assert ended.terminal.usage.completion_tokens == 9
        await eventually(lambda: core.engine.status().running == 0)
        assert core.engine.status().cancels == 1
        assert core.engine.status().generated_tokens < 10_000


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("changes", "code", "status", "param"),
    [
        ({"n": 2}, "unsupported_field", 400, "n"),
        ({"messages": []}, "invalid_request", 400, "messages"),
        ({"model": "unknown"}, "model_not_found", 404, "model"),
        ({"tool_choice": "required"}, "invalid_request", 400, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "unsupported_field", 400, "response_format"),
    ],
)
async def test_the_provider_checks_again(
    script: Path, gateway: FakeGateway, changes: dict[str, Any], code: str, status: int, param: str
) -> None:
    async with Core(script, gateway.url) as core:
        link = await gateway.link()
        _, ended = await run_job(link, "a", **changes)
        assert isinstance(ended.terminal, JobRejected)
        error = ended.terminal.error
        assert (error.code, error.http_status, error.param) == (code, status, param)
        assert (error.fault, error.retryable, error.inference_ran) == ("buyer", False, False)
        assert core.engine.status().submitted == 0
        await eventually(lambda: sum(core.jobs.states().values()) == 0)


@pytest.mark.asyncio
async def test_a_prompt_that_does_not_fit(script: Path, gateway: FakeGateway) -> None:
    async with Core(script, gateway.url):
        link = await gateway.link()
        _, ended = await run_job(link, "a", "x" * 170_000)
        assert isinstance(ended.terminal, JobRejected)
        assert (ended.terminal.error.code, ended.terminal.error.param) == (
            "context_length_exceeded",
            "messages",
        )


@pytest.mark.asyncio
async def test_cancel_in_decode(script: Path, gateway: FakeGateway) -> None:
    async with Core(script, gateway.url) as core:
        link = await gateway.link()
        await link.send(offer("a", "forever"))
        await link.until(events.ChunkReceived)
        await link.until(events.ChunkReceived)
        await link.send(JobCancel(job_id="a", attempt=1, reason="the buyer has left"))
        ended = await link.until(events.JobEnded)
        terminal = ended.terminal
        assert isinstance(terminal, JobFailed)
        assert terminal.error.fault == "buyer"
        assert terminal.usage is not None
        assert 0 < terminal.usage.completion_tokens < 10_000
        assert terminal.receipt is not None
        receipt = verify_receipt(terminal.receipt, jwks([core.key.public_key]))
        assert receipt.terminal is Terminal.CANCELLED
        assert (receipt.finish_reason, receipt.chunks, receipt.chain) == (None, ended.chunks, ended.chain)
        await eventually(lambda: core.engine.status().running == 0)
        assert core.jobs.counters.jobs_cancelled == 1


@pytest.mark.asyncio
async def test_cancel_in_prefill_and_in_the_queue(script: Path, gateway: FakeGateway) -> None:
    async with Core(script, gateway.url, slots=1) as core:
        link = await gateway.link()
        await link.send(offer("a", "prefill"))
        await link.until(events.JobWasAccepted)
        await link.send(offer("b", "hi"))
        await eventually(lambda: core.jobs.states()["queued"] == 1)
        await link.send(JobCancel(job_id="b", attempt=1, reason="left"))
        queued = (await link.until(events.JobEnded)).terminal
        assert isinstance(queued, JobFailed)
        assert (queued.job_id, queued.usage, queued.receipt) == ("b", None, None)
        await link.send(JobCancel(job_id="a", attempt=1, reason="left"))
        prefilling = (await link.until(events.JobEnded)).terminal
        assert isinstance(prefilling, JobFailed)
        assert prefilling.usage is not None
        assert prefilling.usage.completion_tokens == 0
        assert prefilling.receipt is None
        _, ended = await run_job(link, "c", "hi")
        assert isinstance(ended.terminal, JobCompleted)


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", ["crash", "raise"])
async def test_an_engine_that_fails_fails_the_job_once(
    script: Path, gateway: FakeGateway, fault: str
) -> None:
    async with Core(script, gateway.url) as core:
        link = await gateway.link()
        _, ended = await run_job(link, "a", fault)
        terminal = ended.terminal
        assert isinstance(terminal, JobFailed)
        assert (terminal.error.code, terminal.error.retryable) == ("provider_error", True)
        assert terminal.error.inference_ran is True
        receipt = verify_receipt(terminal.receipt or "", jwks([core.key.public_key]))
        assert receipt.terminal is Terminal.FAILED
        await eventually(lambda: core.engine.status().ready)
        _, ended = await run_job(link, "b", "hi")
        assert isinstance(ended.terminal, JobCompleted)


@pytest.mark.asyncio
async def test_first_content_budget_and_deadline(script: Path, gateway: FakeGateway) -> None:
    async with Core(script, gateway.url) as core:
        link = await gateway.link()
        _, ended = await run_job(link, "a", "prefill", first_content_budget_ms=150)
        assert isinstance(ended.terminal, JobFailed)
        assert (ended.terminal.error.code, ended.terminal.error.inference_ran) == ("provider_timeout", False)
        _, ended = await run_job(link, "b", "forever", deadline_ms=1_500)
        assert isinstance(ended.terminal, JobFailed)
        assert (ended.terminal.error.code, ended.terminal.error.inference_ran) == ("provider_timeout", True)
        # The budget is about the first token: a job that speaks in time may take as long as it needs.
        answer, ended = await run_job(link, "c", "slow", first_content_budget_ms=1_500)
        assert isinstance(ended.terminal, JobCompleted)
        assert len(answer.message()["content"]) == 700
        await eventually(lambda: core.engine.status().running == 0)


@pytest.mark.asyncio
async def test_slots_then_queue_then_overloaded(script: Path, gateway: FakeGateway) -> None:
    async with Core(script, gateway.url, slots=1, queue_length=1) as core:
        link = await gateway.link()
        for job_id in "abc":
            await link.send(offer(job_id, "slow"))
        rejected = (await link.until(events.JobEnded)).terminal
        assert isinstance(rejected, JobRejected)
        assert rejected.job_id == "c"
        assert (rejected.error.code, rejected.error.http_status) == ("provider_overloaded", 503)
        assert rejected.retry_after_ms
        assert core.jobs.presence().slots_free == 0
        ended = [(await link.until(events.JobEnded)).terminal for _ in "ab"]
        assert [(end.job_id, end.type) for end in ended] == [("a", "job_completed"), ("b", "job_completed")]


@pytest.mark.asyncio
async def test_a_model_that_is_being_loaded_is_offered_and_takes_jobs(
    script: Path, gateway: FakeGateway
) -> None:
    """A gateway sends no job for a model that is `loading`, and hears of its end a moment late: told so, it
    would turn buyers away from one that takes their jobs all the while."""
    async with Core(script, gateway.url) as core:
        link = await gateway.link()
        core.engine._receive(ModelReport(QWEN.id, ModelState.LOADING, None))
        assert core.engine.status().models[QWEN.id] == "loading"
        await link.send(offer("a", "slow"))
        told = None
        while told is None or told.slots_free == told.slots_total:
            told = (await link.until(events.HeartbeatReceived)).heartbeat
        assert {model.id: model.state for model in told.models}[QWEN.id] == "unloaded"
        assert (await link.until(events.JobEnded)).terminal.type == "job_completed"


@pytest.mark.asyncio
async def test_a_paused_provider_refuses_offers_and_finishes_its_jobs(
    script: Path, gateway: FakeGateway
) -> None:
    async with Core(script, gateway.url) as core:
        link = await gateway.link()
        await link.send(offer("a", "slow"))
        await link.until(events.JobWasAccepted)
        core.jobs.pause("on battery")
        _, ended = await run_job(link, "b", "hi")
        assert isinstance(ended.terminal, JobRejected)
        assert (await link.until(events.JobEnded)).terminal.type == "job_completed"
        core.jobs.resume()
        _, ended = await run_job(link, "c", "hi")
        assert isinstance(ended.terminal, JobCompleted)


@pytest.mark.asyncio
async def test_drain_finishes_what_is_under_way(script: Path, gateway: FakeGateway) -> None:
    async with Core(script, gateway.url, slots=2) as core:
        link = await gateway.link()
        for job_id in "ab":
            await link.send(offer(job_id, "slow"))
            await link.until(events.JobWasAccepted)
        drain = asyncio.create_task(core.jobs.drain(30, asyncio.Event()))
        assert (await link.until(events.DrainingReceived)).draining.in_flight == 2
        ended = [(await link.until(events.JobEnded)).terminal.type for _ in "ab"]
        assert ended == ["job_completed", "job_completed"]
        await asyncio.wait_for(drain, 60)
        assert sum(core.jobs.states().values()) == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("hurried", [False, True])
async def test_a_drain_too_short_fails_each_job_once(
    script: Path, gateway: FakeGateway, hurried: bool
) -> None:
    async with Core(script, gateway.url, slots=1) as core:
        link = await gateway.link()
        await link.send(offer("a", "forever"))
        await link.until(events.ChunkReceived)
        await link.send(offer("b", "forever"))
        await eventually(lambda: core.jobs.states()["queued"] == 1)
        hurry = asyncio.Event()
        if hurried:
            hurry.set()
        drain = asyncio.create_task(core.jobs.drain(60 if hurried else 0.05, hurry))
        ends = {end.job_id: end for end in [(await link.until(events.JobEnded)).terminal for _ in "ab"]}
        await asyncio.wait_for(drain, 60)
        assert isinstance(ends["a"], JobFailed)
        assert (ends["a"].error.code, ends["a"].error.retryable) == ("provider_error", True)
        assert ends["a"].receipt is not None
        assert isinstance(ends["b"], JobRejected)


@pytest.mark.asyncio
async def test_a_cut_link_loses_and_doubles_nothing(script: Path, gateway: FakeGateway) -> None:
    async with Core(script, gateway.url, chance=lambda: 0.0) as core:
        link = await gateway.link()
        await link.send(offer("a", "slow"))
        texts: list[str] = []
        for cut in range(3):
            for _ in range(20):
                texts.append((await link.until(events.ChunkReceived)).chunk.delta.content or "")
            link.cut()
            core.supervisor.poke()
            link = await gateway.link()
            assert link.register is not None
            assert [job.job_id for job in link.register.active_jobs] == ["a"]
            assert cut < core.board.links
        found = await link.collect(events.ChunkReceived, events.JobEnded)
        texts += [event.chunk.delta.content or "" for event in found[:-1]]
        assert "".join(texts) == "0123456789" * 70
        # One token a chunk, whatever happened to the link: nothing was joined.
        assert len(texts) == 701
        terminal = found[-1].terminal
        assert verify_receipt(terminal.receipt, jwks([core.key.public_key])).chain == found[-1].chain


@pytest.mark.asyncio
async def test_a_result_made_while_the_link_was_down_is_delivered(script: Path, gateway: FakeGateway) -> None:
    async with Core(script, gateway.url, chance=lambda: 0.0) as core:
        link = await gateway.link()
        await link.send(offer("a", "slow"))
        await link.until(events.ChunkReceived)
        link.cut()
        await eventually(lambda: core.jobs.states()["settling"] == 1)
        link = await gateway.link()
        found = await link.collect(events.ChunkReceived, events.JobEnded)
        assert isinstance(found[-1].terminal, JobCompleted)
        await eventually(lambda: sum(core.jobs.states().values()) == 0)


@pytest.mark.asyncio
async def test_a_job_that_nobody_resumes_is_stopped(script: Path, gateway: FakeGateway) -> None:
    async with Core(script, gateway.url, chance=lambda: 0.0) as core:
        link = await gateway.link()
        await link.send(offer("a", "forever"))
        await link.until(events.ChunkReceived)
        gateway.jobs.close("a", 1)
        link.cut()
        await gateway.link()
        await eventually(lambda: core.engine.status().running == 0)
        await eventually(lambda: sum(core.jobs.states().values()) == 0)
        assert core.engine.status().generated_tokens < 10_000


@pytest.mark.asyncio
async def test_without_a_gateway_jobs_end_with_the_resume_window(script: Path) -> None:
    async with FakeGateway() as gateway, Core(script, gateway.url) as core:
        link = await gateway.link(resume_window_ms=200)
        await link.send(offer("a", "forever"))
        await link.until(events.ChunkReceived)
        link.cut()
        await eventually(lambda: core.engine.status().running == 0)
        await eventually(lambda: sum(core.jobs.states().values()) == 0)
        assert core.jobs.outbox_bytes == 0


@pytest.mark.asyncio
async def test_a_newer_attempt_replaces_the_older(script: Path, gateway: FakeGateway) -> None:
    async with Core(script, gateway.url) as core:
        link = await gateway.link()
        await link.send(offer("a", "forever"))
        await link.until(events.ChunkReceived)
        gateway.jobs.close("a", 1)
        answer, ended = await run_job(link, "a", "hi", attempt=2)
        assert ended.terminal.attempt == 2
        assert answer.message()["content"] == "Hello, world"
        await link.socket.send(offer("a", "hi", attempt=1).model_dump_json())
        nack = await link.until(events.NackReceived)
        assert nack.nack.code.value == "stale_attempt"
        await eventually(lambda: core.engine.status().running == 0)


@pytest.mark.asyncio
async def test_a_full_outbox_makes_decoding_wait(tmp_path: Path, gateway: FakeGateway) -> None:
    text = "abcdefgh" * 1_500_000
    script = write_script(tmp_path / "s.jsonl", {"text": text, "chars_per_token": 8_000})
    async with Core(script, gateway.url) as core:
        link = await gateway.link()
        link.acknowledging = False
        await link.send(offer("a"))
        await link.until(events.ChunkReceived)
        await eventually(lambda: core.jobs.outbox_bytes > 8 * 1024 * 1024)
        steps = core.engine.status().generated_tokens
        # Twelve megabytes wait in the engine; what comes after the pause is what was under way.
        assert core.jobs.outbox_bytes < 11 * 1024 * 1024
        link.acknowledging = True
        found = await link.collect(events.ChunkReceived, events.JobEnded)
        assert steps < 1_500
        assert isinstance(found[-1].terminal, JobCompleted)
        assert found[-1].terminal.usage.completion_tokens == 1_500


@pytest.mark.asyncio
async def test_decoding_that_waits_goes_on_when_a_new_link_says_what_arrived(
    tmp_path: Path, gateway: FakeGateway
) -> None:
    long = {"match": "long", "text": "abcdefgh" * 1_500_000, "chars_per_token": 8_000, "ms_per_token": 1}
    script = write_script(tmp_path / "s.jsonl", long, {"text": "short"})
    async with Core(script, gateway.url, chance=lambda: 0.0) as core:
        link = await gateway.link()
        link.acknowledging = False
        await link.send(offer("a", "long"))
        await eventually(lambda: core.jobs.outbox_bytes > OUTBOX_JOB_BYTES)
        # The engine reads in order: once it has answered this one, the other is held back.
        await link.send(offer("b"))
        await eventually(lambda: core.jobs.states()["settling"] == 1)
        # All that was made arrives and none of it is acknowledged: the link is cut before.
        arrived = 0
        while arrived < core.jobs.outbox_bytes:
            await link.until(events.ChunkReceived)
            chunks = [frame for frame in link.received if '"job_chunk"' in frame]
            arrived = sum(len(frame) + OVERHEAD_BYTES for frame in chunks)
        link.cut()
        link = await gateway.link()
        ended = (await link.until(events.JobEnded)).terminal
        if ended.job_id == "b":
            ended = (await link.until(events.JobEnded)).terminal
        assert isinstance(ended, JobCompleted)
        assert ended.usage.completion_tokens == 1_500
        await eventually(lambda: core.jobs.outbox_bytes == 0)


@pytest.mark.asyncio
async def test_many_jobs_at_once_keep_their_answers_apart(tmp_path: Path, gateway: FakeGateway) -> None:
    lines = [{"match": f"<{n}>", "text": f"answer {n} " * 40, "chars_per_token": 3} for n in range(40)]
    script = write_script(tmp_path / "s.jsonl", *lines)
    async with Core(script, gateway.url, slots=16) as core:
        link = await gateway.link()
        for n in range(40):
            await link.send(offer(f"job_{n}", f"<{n}>"))
        answers = {f"job_{n}": AnswerCollector() for n in range(40)}
        ends: dict[str, int] = {}
        while len(ends) < 40:
            event = await link.next()
            if isinstance(event, events.ChunkReceived):
                answers[event.chunk.job_id].add(event.chunk.delta)
            elif isinstance(event, events.JobEnded):
                assert event.terminal.type == "job_completed"
                ends[event.terminal.job_id] = ends.get(event.terminal.job_id, 0) + 1
        assert set(ends.values()) == {1}
        for n in range(40):
            assert answers[f"job_{n}"].message()["content"] == f"answer {n} " * 40
        await eventually(lambda: core.jobs.outbox_bytes == 0)


@pytest.mark.asyncio
async def test_the_engine_sees_tools_as_the_contract_says(script: Path, gateway: FakeGateway) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    async with Core(script, gateway.url, rules=AnswerRules(contract="strict")):
        link = await gateway.link()
        _, ended = await run_job(link, "a", tools=tools, tool_choice="required")
        assert isinstance(ended.terminal, JobRejected)
        assert (ended.terminal.error.code, ended.terminal.error.param) == ("unsupported_field", "tool_choice")
        assert "this device" in ended.terminal.error.message
        _, ended = await run_job(link, "b", tools=tools, tool_choice="none")
        assert isinstance(ended.terminal, JobCompleted)


def test_offers_are_what_a_gateway_sends() -> None:
    assert json.loads(offer("a").model_dump_json())["request"]["stream"] is True
