"""The scripted engine through the daemon's end: real children, real kills."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from gateway_protocol.errors import ErrorCode
from gateway_protocol.families import Family
from gateway_protocol.messages import ModelState
from provider.engine.base import Finished, SamplingParams, StopCause
from provider.engine.errors import EngineStartError, ScriptError
from provider.engine.process import EngineProcess
from provider.engine.spec import Deadlines, EngineSettings, ModelSpec
from tests.provider.engine.conftest import StartEngine, write_script
from tests.provider.engine.driving import ask, run, to_end, until_admitted, until_tokens

MODEL = ModelSpec("qwen3-test", Family.QWEN, context_length=1000, max_output_tokens=400)


def scripted(tmp_path: Path, *lines: dict[str, Any], **settings: Any) -> EngineSettings:
    path = write_script(tmp_path / "script.jsonl", *lines)
    return EngineSettings(**({"backend": "scripted", "models": (MODEL,), "script": path} | settings))


@pytest.mark.asyncio
async def test_replays_text_counts_tokens_and_finishes(tmp_path: Path, start_engine: StartEngine) -> None:
    engine = await start_engine(scripted(tmp_path, {"text": "Grüße 👋 an alle"}))
    outcome = await run(engine, ask("x" * 41))
    assert outcome.text == "Grüße 👋 an alle"
    assert outcome.admitted is not None
    assert outcome.admitted.prompt_tokens == 11
    assert outcome.admitted.max_tokens == 400
    assert outcome.finished == Finished(StopCause.STOP, generated=4)
    info = engine.models()["qwen3-test"]
    assert (info.can_force, info.context_length, info.max_output_tokens) == (False, 1000, 400)


@pytest.mark.asyncio
async def test_finish_reason_and_max_tokens(tmp_path: Path, start_engine: StartEngine) -> None:
    engine = await start_engine(
        scripted(
            tmp_path,
            {"match": "cut", "text": "abcdefgh", "finish_reason": "length"},
            {"text": "0123456789abcdef"},
        )
    )
    assert (await run(engine, ask("cut"))).finished.cause is StopCause.LENGTH
    limited = await run(engine, ask("else", max_tokens=3))
    assert limited.text == "0123456789ab"
    assert limited.finished == Finished(StopCause.LENGTH, 3)
    assert (await run(engine, ask("else", max_tokens=4))).finished.cause is StopCause.STOP


@pytest.mark.asyncio
async def test_the_last_message_chooses_the_answer(tmp_path: Path, start_engine: StartEngine) -> None:
    engine = await start_engine(scripted(tmp_path, {"match": "second", "text": "two"}))
    messages = [{"role": "user", "content": "second"}, {"role": "tool", "content": "first"}]
    refused = (await run(engine, ask("", messages=messages))).rejected
    assert "no line of the script" in refused.message
    assert (await run(engine, ask("", messages=messages[::-1]))).text == "two"


@pytest.mark.asyncio
async def test_tools_count_as_prompt(tmp_path: Path, start_engine: StartEngine) -> None:
    engine = await start_engine(scripted(tmp_path, {"text": "ok"}))
    without = await run(engine, ask("hello"))
    tools = [{"type": "function", "function": {"name": "look_up"}}]
    given = await run(engine, ask("hello", tools=tools))
    assert without.admitted is not None
    assert given.admitted is not None
    assert without.admitted.prompt_tokens == 2 < given.admitted.prompt_tokens


@pytest.mark.asyncio
async def test_a_prompt_over_the_context_is_refused(tmp_path: Path, start_engine: StartEngine) -> None:
    engine = await start_engine(scripted(tmp_path, {"text": "ok"}))
    refused = (await run(engine, ask("x" * 4000))).rejected
    assert (refused.code, refused.param) == (ErrorCode.CONTEXT_LENGTH_EXCEEDED, "messages")
    assert (await run(engine, ask("x" * 3996, max_tokens=50))).finished.cause is StopCause.STOP


@pytest.mark.asyncio
async def test_an_unknown_model_is_refused_without_the_child(
    tmp_path: Path, start_engine: StartEngine
) -> None:
    engine = await start_engine(scripted(tmp_path, {"text": "ok"}, preload=False, device="gpu"))
    refused = (await run(engine, ask("hi", model="other"))).rejected
    assert (refused.code, refused.param) == (ErrorCode.MODEL_NOT_FOUND, "model")
    status = engine.status()
    assert (status.device, status.submitted) == ("gpu", 0)
    assert status.models == {"qwen3-test": ModelState.UNLOADED}
    await run(engine, ask("hi"))
    assert engine.status().models == {"qwen3-test": ModelState.READY}


@pytest.mark.asyncio
async def test_logprobs_are_given_when_asked_for(tmp_path: Path, start_engine: StartEngine) -> None:
    engine = await start_engine(scripted(tmp_path, {"text": "Grüße"}))
    outcome = await run(engine, ask("hi", sampling=SamplingParams(top_logprobs=1)))
    first = outcome.tokens[0].logprob
    assert first is not None
    assert (first.token, first.token_bytes, first.logprob) == ("Grüß", "Grüß".encode(), 0.0)
    assert outcome.tokens[0].top_logprobs == (first,)
    assert (await run(engine, ask("hi"))).tokens[0].logprob is None


@pytest.mark.asyncio
async def test_timing_is_kept(tmp_path: Path, start_engine: StartEngine) -> None:
    engine = await start_engine(
        scripted(tmp_path, {"text": "abcdefghij", "chars_per_token": 1, "ms_per_token": 10, "prefill_ms": 50})
    )
    started = time.monotonic()
    outcomes = await asyncio.gather(*(run(engine, ask("hi")) for _ in range(8)))
    # Eight jobs side by side take as long as one: 50 + 9 × 10 ms at least.
    assert time.monotonic() - started >= 0.14
    assert {outcome.text for outcome in outcomes} == {"abcdefghij"}


@pytest.mark.asyncio
async def test_cancel_while_decoding_and_in_prefill(tmp_path: Path, start_engine: StartEngine) -> None:
    engine = await start_engine(
        scripted(
            tmp_path,
            {"match": "slow", "text": "x", "prefill_ms": 60_000},
            {"text": "abcd" * 10_000, "ms_per_token": 5},
        )
    )
    generation = engine.submit(ask("go"))
    outcome = await until_tokens(generation, 3)
    generation.cancel()
    generation.cancel()
    outcome = await to_end(generation, outcome)
    assert outcome.finished.cause is StopCause.CANCELLED
    assert outcome.finished.generated == len(outcome.tokens) < 5_000
    waiting = engine.submit(ask("slow"))
    outcome = await until_admitted(waiting)
    waiting.cancel()
    assert (await to_end(waiting, outcome)).finished == Finished(StopCause.CANCELLED, 0)
    assert engine.status().cancels == 2
    assert engine.status().slots_free == engine.status().slots_total


@pytest.mark.asyncio
async def test_an_engine_that_ignores_the_stop_goes_on(tmp_path: Path, start_engine: StartEngine) -> None:
    engine = await start_engine(
        scripted(tmp_path, {"text": "abcd" * 390, "ms_per_token": 6, "ignore_stop": True})
    )
    generation = engine.submit(ask("go"))
    outcome = await until_tokens(generation, 1)
    generation.cancel()
    outcome = await to_end(generation, outcome)
    assert outcome.text == "abcd" * 390
    assert outcome.finished.cause is StopCause.STOP
    assert outcome.finished.steps_after_cancel > 1
    assert engine.status().cancels == 1


@pytest.mark.asyncio
async def test_slots_queue_deadline_and_cancel_in_the_queue(
    tmp_path: Path, start_engine: StartEngine
) -> None:
    engine = await start_engine(
        scripted(tmp_path, {"text": "abcd" * 5_000, "ms_per_token": 50}, slots=1, queue_seconds=3.0)
    )
    running = engine.submit(ask("go"))
    await until_admitted(running)
    queued, late = engine.submit(ask("go")), engine.submit(ask("go"))
    queued.cancel()
    assert (await to_end(queued)).finished == Finished(StopCause.CANCELLED, 0)
    status = engine.status()
    assert (status.running, status.queued, status.slots_free) == (1, 1, 0)
    refused = (await to_end(late)).rejected
    assert refused.code is ErrorCode.PROVIDER_OVERLOADED
    assert refused.retry_after_ms
    following = engine.submit(ask("go"))
    running.cancel()
    assert (await until_admitted(following)).admitted is not None


@pytest.mark.asyncio
async def test_pause_holds_one_job_back(tmp_path: Path, start_engine: StartEngine) -> None:
    engine = await start_engine(scripted(tmp_path, {"text": "abcd" * 200, "ms_per_token": 1}))
    held, free = engine.submit(ask("go")), engine.submit(ask("go"))
    held.pause(True)
    assert (await to_end(free)).finished.cause is StopCause.STOP
    outcome = await until_admitted(held)
    before = engine.status().generated_tokens
    assert (await run(engine, ask("go"))).finished.cause is StopCause.STOP
    assert engine.status().generated_tokens == before + 200
    held.pause(False)
    outcome = await to_end(held, outcome)
    assert outcome.text == "abcd" * 200


@pytest.mark.asyncio
async def test_an_unread_job_is_bounded_and_loses_nothing(tmp_path: Path, start_engine: StartEngine) -> None:
    big = ModelSpec("qwen3-test", Family.QWEN, context_length=1_000_000)
    line = {"text": "abcd" * 100_000, "ms_per_token": 0.05}
    engine = await start_engine(scripted(tmp_path, line, models=(big,)))
    unread = engine.submit(ask("go"))
    other = await run(engine, ask("go", max_tokens=20_000))
    assert len(other.tokens) == 20_000
    # They went on in turn; the one nobody reads is held back far from its end, as soon as the child hears so.
    others = 20_000
    before = engine.status().generated_tokens
    while True:
        assert before - others < 100_000
        await run(engine, ask("go", max_tokens=1_000))
        others += 1_000
        before, last = engine.status().generated_tokens, before
        if before == last + 1_000:
            break
    assert (await to_end(unread)).text == "abcd" * 100_000


@pytest.mark.asyncio
async def test_fault_raise_ends_that_job_alone(tmp_path: Path, start_engine: StartEngine) -> None:
    engine = await start_engine(
        scripted(
            tmp_path,
            {"match": "bad", "text": "abcd" * 9, "fault": "raise", "fault_after_tokens": 2},
            {"text": "abcd" * 20, "ms_per_token": 2},
        )
    )
    good = engine.submit(ask("good"))
    outcome = await run(engine, ask("bad"))
    assert outcome.text == "abcd" * 2
    assert outcome.failed.cause == "step_error"
    assert (await to_end(good)).text == "abcd" * 20
    assert engine.status().restarts == 0


@pytest.mark.asyncio
async def test_fault_exit_ends_every_job_once_and_the_child_comes_back(
    tmp_path: Path, start_engine: StartEngine
) -> None:
    engine = await start_engine(
        scripted(
            tmp_path,
            {"match": "bad", "text": "abcd" * 9, "fault": "exit", "fault_after_tokens": 2},
            {"match": "long", "text": "abcd" * 2000, "ms_per_token": 10},
            {"text": "fine"},
        )
    )
    bystander = engine.submit(ask("long"))
    seen = await until_tokens(bystander, 1)
    outcome = await run(engine, ask("bad"))
    assert outcome.text == "abcd" * 2
    assert outcome.failed.cause == "child_exited"
    assert outcome.failed.code is ErrorCode.PROVIDER_ERROR
    assert (await to_end(bystander, seen)).failed.cause == "child_exited"
    refused = (await run(engine, ask("fine"))).rejected
    assert refused.code is ErrorCode.PROVIDER_OVERLOADED
    assert "code 3" in (engine.status().detail or "")
    await engine.wait_ready()
    assert (await run(engine, ask("fine"))).text == "fine"
    assert engine.status().restarts == 1


@pytest.mark.asyncio
async def test_a_killed_child_is_replaced(tmp_path: Path, start_engine: StartEngine) -> None:
    engine = await start_engine(scripted(tmp_path, {"text": "abcd" * 2000, "ms_per_token": 5}))
    generation = engine.submit(ask("go"))
    outcome = await until_tokens(generation, 2)
    first = engine.status().child_pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert (await to_end(generation, outcome)).failed.cause == "child_exited"
    assert "SIGKILL" in (engine.status().detail or "")
    await engine.wait_ready()
    assert engine.status().child_pid not in (None, first)
    assert (await run(engine, ask("go", max_tokens=2))).text == "abcdabcd"


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["hang", "SIGSTOP"])
async def test_a_wedged_child_is_killed(tmp_path: Path, start_engine: StartEngine, how: str) -> None:
    engine = await start_engine(
        scripted(
            tmp_path,
            {"match": "bad", "text": "abcd" * 9, "fault": "hang", "fault_after_tokens": 1},
            {"match": "slow", "text": "abcd" * 900, "ms_per_token": 20},
            {"text": "fine"},
            deadlines=Deadlines(step=4.0),
        )
    )
    generation = engine.submit(ask("bad" if how == "hang" else "slow"))
    outcome = await until_tokens(generation, 1)
    pid = engine.status().child_pid
    assert pid is not None
    if how == "SIGSTOP":
        os.kill(pid, signal.SIGSTOP)
    failed = (await to_end(generation, outcome)).failed
    assert (failed.cause, failed.code) == ("step_timeout", ErrorCode.PROVIDER_TIMEOUT)
    await engine.wait_ready()
    assert (await run(engine, ask("fine"))).text == "fine"


@pytest.mark.asyncio
async def test_the_first_token_has_a_deadline(tmp_path: Path, start_engine: StartEngine) -> None:
    engine = await start_engine(
        scripted(
            tmp_path,
            {"text": "x", "prefill_ms": 60_000},
            deadlines=Deadlines(first_token=0.5, first_token_per_prompt_token=0.01),
        )
    )
    assert (await run(engine, ask("hi"))).failed.cause == "first_token_timeout"


@pytest.mark.asyncio
async def test_closing_ends_open_jobs_and_the_child(tmp_path: Path) -> None:
    engine = EngineProcess(scripted(tmp_path, {"text": "x", "prefill_ms": 60_000}))
    await engine.start()
    await engine.wait_ready()
    pid = engine.status().child_pid
    assert pid is not None
    generation = engine.submit(ask("hi"))
    await engine.aclose()
    assert (await to_end(generation)).failed.cause == "engine_closed"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(RuntimeError, match="already returned"):
        await generation.events()


@pytest.mark.asyncio
async def test_an_engine_that_is_about_to_be_parked_is_not_ready(
    tmp_path: Path, start_engine: StartEngine
) -> None:
    engine = await start_engine(scripted(tmp_path, {"text": "fine"}))
    parking = asyncio.create_task(engine.park())
    await engine.wait_change()
    # Its child is still there, but whoever came now would be turned away.
    assert not parking.done()
    assert not engine.status().ready
    assert engine.status().slots_free == 0
    await parking
    assert engine.status().parked
    engine.unpark()
    await engine.wait_ready()
    assert (await run(engine, ask("go"))).text == "fine"


@pytest.mark.asyncio
async def test_a_bad_script_or_none_stops_the_start(tmp_path: Path) -> None:
    settings = scripted(tmp_path, {"text": "x", "oops": 1})
    with pytest.raises(ScriptError, match="oops"):
        await EngineProcess(settings).start()
    with pytest.raises(EngineStartError, match="script"):
        await EngineProcess(EngineSettings(backend="scripted", models=(MODEL,))).start()


@pytest.mark.asyncio
async def test_many_streams_are_fast_and_whole(tmp_path: Path, start_engine: StartEngine) -> None:
    texts = {f"job-{n}.": f"{n:04d}" * 300 for n in range(64)}
    big = ModelSpec("qwen3-test", Family.QWEN, context_length=1_000_000)
    lines = [{"match": match, "text": text} for match, text in texts.items()]
    engine = await start_engine(scripted(tmp_path, *lines, models=(big,), slots=64))
    outcomes = await asyncio.gather(*(run(engine, ask(match)) for match in texts))
    assert [outcome.text for outcome in outcomes] == list(texts.values())
