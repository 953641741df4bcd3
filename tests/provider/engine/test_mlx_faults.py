"""What can go wrong in the MLX child, done to a real one: each job ends once, service and memory are back."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any, cast

import pytest

from gateway_protocol.families import Family
from provider.engine.base import GenerationRequest, SamplingParams
from provider.engine.errors import EngineStartError
from provider.engine.process import EngineProcess
from provider.engine.spec import Deadlines, EngineSettings, ModelSpec
from tests.provider.engine.conftest import StartEngine
from tests.provider.engine.driving import DIALOGUES, FIXTURE, ask, known, run, to_end, until_tokens

SPEC = ModelSpec("tiny-qwen3", Family.QWEN, context_length=16384, path=FIXTURE)
KNOWN = DIALOGUES[0]


def poison() -> GenerationRequest:
    """A request that no validation would let through: its sampler raises inside the batch's step."""
    return ask("Hello", "tiny-qwen3", sampling=SamplingParams(temperature=cast(Any, "hot")))


class Hanging:
    """A temperature that drawing never gets past: the comparison doesn't return."""

    def __lt__(self, other: object) -> bool:
        time.sleep(3600)
        return False


def hanging() -> GenerationRequest:
    return ask("Hello", "tiny-qwen3", sampling=SamplingParams(temperature=cast(Any, Hanging())))


def endless() -> GenerationRequest:
    sampling = SamplingParams(temperature=0.0, logit_bias={902: -100.0, 900: -100.0})
    return ask("Go", "tiny-qwen3", sampling=sampling)


@pytest.mark.asyncio
async def test_an_exception_in_the_step_ends_the_batch_s_jobs_and_nothing_else(
    start_engine: StartEngine,
) -> None:
    engine = await start_engine(EngineSettings(models=(SPEC,), slots=8))
    await run(engine, known(KNOWN))
    idle = engine.status().active_bytes
    bystanders = [engine.submit(endless()) for _ in range(3)]
    seen = [await until_tokens(generation, 2) for generation in bystanders]
    assert (await run(engine, poison())).failed.cause == "step_error"
    for generation, outcome in zip(bystanders, seen, strict=True):
        assert (await to_end(generation, outcome)).failed.cause == "step_error"
    assert (await run(engine, known(KNOWN))).text == KNOWN["raw"]
    status = engine.status()
    assert (status.restarts, status.running, status.slots_free) == (0, 0, 8)
    assert status.active_bytes < idle + 500_000


@pytest.mark.asyncio
async def test_steps_that_fail_again_and_again_cost_the_child_its_life(start_engine: StartEngine) -> None:
    engine = await start_engine(EngineSettings(models=(SPEC,), slots=8))
    causes = [(await run(engine, poison())).failed.cause for _ in range(3)]
    assert causes == ["step_error", "step_error", "child_exited"]
    await engine.wait_ready()
    assert (await run(engine, known(KNOWN))).text == KNOWN["raw"]
    assert engine.status().restarts == 1


@pytest.mark.asyncio
async def test_a_stopped_child_is_killed_and_replaced(start_engine: StartEngine) -> None:
    engine = await start_engine(EngineSettings(models=(SPEC,), slots=8, deadlines=Deadlines(step=4.0)))
    generations = [engine.submit(endless()) for _ in range(4)]
    seen = [await until_tokens(generation, 2) for generation in generations]
    pid = engine.status().child_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    ends = await asyncio.gather(
        *(to_end(generation, outcome) for generation, outcome in zip(generations, seen, strict=True))
    )
    assert {outcome.failed.cause for outcome in ends} == {"step_timeout"}
    await engine.wait_ready()
    assert (await run(engine, known(KNOWN))).text == KNOWN["raw"]


@pytest.mark.asyncio
async def test_a_step_that_never_returns_is_ended_and_the_engine_replaced(start_engine: StartEngine) -> None:
    engine = await start_engine(EngineSettings(models=(SPEC,), slots=8, deadlines=Deadlines(step=4.0)))
    await run(engine, known(KNOWN))
    idle = engine.status().active_bytes
    bystander = engine.submit(endless())
    seen = await until_tokens(bystander, 2)
    stuck = engine.submit(hanging())
    ends = await asyncio.gather(to_end(stuck), to_end(bystander, seen))
    assert [outcome.failed.cause for outcome in ends] == ["step_timeout", "step_timeout"]
    await engine.wait_ready()
    assert (await run(engine, known(KNOWN))).text == KNOWN["raw"]
    status = engine.status()
    assert (status.restarts, status.running) == (1, 0)
    assert status.active_bytes < idle + 500_000


@pytest.mark.asyncio
async def test_a_child_that_dies_while_loading_is_replaced() -> None:
    engine = EngineProcess(EngineSettings(models=(SPEC,), slots=8))
    await engine.start()
    try:
        waiting = engine.submit(known(KNOWN))
        pid = engine.status().child_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert (await to_end(waiting)).failed.cause == "child_exited"
        await engine.wait_ready()
        assert (await run(engine, known(KNOWN))).text == KNOWN["raw"]
    finally:
        await engine.aclose()


@pytest.mark.asyncio
async def test_a_child_that_doesn_t_report_in_time_is_an_error_of_the_start() -> None:
    engine = EngineProcess(EngineSettings(models=(SPEC,), deadlines=Deadlines(start=0.05)))
    with pytest.raises(EngineStartError, match="did not start in time"):
        await engine.start()
    assert engine.status().child_pid is None
