"""Measuring: exact figures on a virtual clock, and the way over a real engine process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway_protocol.errors import ErrorCode
from gateway_protocol.families import Family
from gateway_protocol.messages import Measured
from provider.engine.base import (
    Admitted,
    EngineEvent,
    Failed,
    Finished,
    GenerationRequest,
    ModelInfo,
    Rejected,
    StopCause,
    Token,
    Tokens,
)
from provider.engine.process import EngineProcess
from provider.engine.spec import EngineSettings, ModelSpec
from provider.status.measure import FILE_NAME, MeasuredFile, MeasureError, measure
from tests.fakes.core import QWEN, write_script
from tests.fakes.virtual_clock import on_virtual_clock
from tests.provider.engine.driving import FIXTURE


class Steady:
    """An engine of known speed on the loop's clock: what `measure` must find again."""

    def __init__(self, *, decode: float, prefill: float, answer: int = 10_000, context: int = 40_000) -> None:
        self.decode = decode
        self.prefill = prefill
        self.answer = answer
        self.context = context
        self.requests: list[GenerationRequest] = []
        self.cancelled = 0
        self.error: EngineEvent | None = None

    def models(self) -> Mapping[str, ModelInfo]:
        return {"m": ModelInfo("m", Family.NONE, self.context, 1024, None, False)}

    def submit(self, request: GenerationRequest) -> Any:
        self.requests.append(request)
        return _Running(self, request)


class _Running:
    def __init__(self, engine: Steady, request: GenerationRequest) -> None:
        self.engine = engine
        self.prompt = 8 + len(request.messages[0]["content"].split())
        self.left = min(request.max_tokens or 0, engine.answer)
        self.started = self.begun = self.stopped = False

    async def events(self) -> list[EngineEvent]:
        if self.engine.error is not None:
            return [self.engine.error]
        if not self.started:
            self.started = True
            return [Admitted(self.prompt, 0, 1024)]
        if not self.begun:
            self.begun = True
            await asyncio.sleep(self.prompt / self.engine.prefill)
        if self.stopped or not self.left:
            return [Finished(StopCause.CANCELLED if self.stopped else StopCause.STOP, 0)]
        await asyncio.sleep(1 / self.engine.decode)
        self.left -= 1
        return [Tokens((Token("x", 1),))]

    def cancel(self) -> None:
        self.engine.cancelled += not self.stopped
        self.stopped = True


async def figures(engine: Steady) -> Measured:
    loop = asyncio.get_running_loop()
    return await measure(engine, "m", clock=loop.time, at_ms=lambda: 1000)  # type: ignore[arg-type]


@on_virtual_clock
async def test_the_speeds_of_a_steady_engine_are_found_again() -> None:
    for decode, prefill in ((40.0, 800.0), (3.0, 60.0), (400.0, 20_000.0)):
        loop = asyncio.get_running_loop()
        began = loop.time()
        found = await figures(Steady(decode=decode, prefill=prefill))
        assert found.model == "m"
        assert found.at_ms == 1000
        assert found.decode_tokens_per_s == pytest.approx(decode, rel=0.01)
        assert found.prefill_tokens_per_s == pytest.approx(prefill, rel=0.05)
        assert loop.time() - began < 60


@on_virtual_clock
async def test_no_tenants_cache_is_touched_and_no_prompt_is_asked_twice() -> None:
    engine = Steady(decode=40, prefill=800)
    await figures(engine)
    assert {request.tenant for request in engine.requests} == {None}
    prompts = [request.messages[0]["content"] for request in engine.requests]
    assert len(set(prompts)) == len(prompts) == 3


@on_virtual_clock
async def test_a_small_context_is_not_overfilled() -> None:
    engine = Steady(decode=40, prefill=100_000, context=300)
    await figures(engine)
    assert all(len(request.messages[0]["content"].split()) < 100 for request in engine.requests)


@on_virtual_clock
async def test_a_model_that_answers_briefly_is_asked_again() -> None:
    engine = Steady(decode=40, prefill=800, answer=4)
    found = await figures(engine)
    assert found.decode_tokens_per_s == pytest.approx(40)
    assert len(engine.requests) == 5


@on_virtual_clock
async def test_what_cannot_be_measured_says_why() -> None:
    with pytest.raises(MeasureError, match="answers too briefly"):
        await figures(Steady(decode=40, prefill=800, answer=1))
    with pytest.raises(MeasureError, match="gave no token"):
        await figures(Steady(decode=40, prefill=800, answer=0))
    with pytest.raises(MeasureError, match="too slow"):
        await figures(Steady(decode=40, prefill=0.1))
    engine = Steady(decode=40, prefill=800)
    for engine.error in (
        Rejected(ErrorCode.PROVIDER_OVERLOADED, "the engine is restarting"),
        Failed("child_exited", "the engine is restarting"),
    ):
        with pytest.raises(MeasureError, match="the engine is restarting"):
            await figures(engine)


@on_virtual_clock
async def test_who_cancels_it_gets_the_engine_back() -> None:
    engine = Steady(decode=1, prefill=800)
    task = asyncio.create_task(figures(engine))
    await asyncio.sleep(5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert engine.cancelled == 1


@pytest.mark.asyncio
async def test_a_real_engine_process_is_measured(tmp_path: Path) -> None:
    script = write_script(
        tmp_path / "script.jsonl", {"text": "once upon a time " * 40, "chars_per_token": 4, "ms_per_token": 5}
    )
    engine = EngineProcess(EngineSettings(backend="scripted", models=(QWEN,), slots=1, script=script))
    await engine.start()
    await engine.wait_ready()
    try:
        found = await measure(engine, QWEN.id, clock=time.monotonic, at_ms=lambda: 1)
    finally:
        await engine.aclose()
    assert 0 < found.decode_tokens_per_s <= 1100
    assert found.prefill_tokens_per_s > 0


@pytest.mark.slow
@pytest.mark.asyncio
async def test_real_mlx_is_measured(tmp_path: Path) -> None:
    tiny = ModelSpec("tiny", Family.QWEN, context_length=4096, max_output_tokens=1024, path=FIXTURE)
    engine = EngineProcess(EngineSettings(backend="mlx", models=(tiny,), slots=1))
    await engine.start()
    await engine.wait_ready()
    try:
        found = await measure(engine, "tiny", clock=time.monotonic, at_ms=lambda: 1)
    finally:
        await engine.aclose()
    assert found.decode_tokens_per_s > 1
    # Reading a prompt is never slower than writing one token after the other.
    assert found.prefill_tokens_per_s > found.decode_tokens_per_s


# --- kept ----------------------------------------------------------------------------------------

FIGURES = Measured(model="m", decode_tokens_per_s=40.5, prefill_tokens_per_s=800, at_ms=1000)


def test_figures_are_kept_for_the_setup_they_were_taken_with(tmp_path: Path) -> None:
    kept = MeasuredFile(tmp_path)
    assert kept.read("m", "a") is None
    kept.write(FIGURES, "a")
    kept.write(FIGURES.model_copy(update={"model": "other"}), "b")
    assert MeasuredFile(tmp_path).read("m", "a") == FIGURES
    assert kept.read("m", "b") is None
    assert kept.read("other", "b") is not None


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"m": 1}', '{"m": {"setup": "a", "measured": {"model": 1}}}']
)
def test_a_damaged_file_is_no_figures_and_is_written_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    kept = MeasuredFile(tmp_path)
    assert kept.read("m", "a") is None
    kept.write(FIGURES, "a")
    assert kept.read("m", "a") == FIGURES
