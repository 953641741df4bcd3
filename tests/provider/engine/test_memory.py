"""Memory on the real engine: estimates against growth, admission, several models."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from gateway_protocol.errors import ErrorCode
from gateway_protocol.families import Family
from gateway_protocol.messages import ModelState
from provider.engine.base import GenerationRequest, SamplingParams
from provider.engine.errors import EngineStartError
from provider.engine.kv_cost import KvCost
from provider.engine.memory import cost_of
from provider.engine.process import EngineProcess
from provider.engine.spec import EngineSettings, ModelSpec
from tests.provider.engine.conftest import StartEngine
from tests.provider.engine.driving import (
    DIALOGUES,
    FIXTURE,
    ask,
    known,
    run,
    to_end,
    until_admitted,
    until_tokens,
)
from tests.provider.engine.random_models import make_random_model

# The fixture model: 2.25 MB of weights; 3 layers × 2 heads × 32 × 2 × 4 bytes for each token.
WEIGHTS = 2_251_520
TOKEN = 1536
ENDLESS = SamplingParams(temperature=0.0, logit_bias={902: -100.0, 900: -100.0})


def spec(model: str = "tiny-qwen3", path: Path = FIXTURE) -> ModelSpec:
    return ModelSpec(model, Family.QWEN, context_length=16384, path=path)


def say(tokens: int, model: str = "tiny-qwen3", **fields: Any) -> GenerationRequest:
    """A prompt of about that many tokens (" seven" is three)."""
    return ask("seven " * (tokens // 3), model=model, **({"sampling": ENDLESS} | fields))


def measured_cost(folder: Path) -> KvCost:
    model, _ = load_model(folder)
    cache = make_prompt_cache(model)
    mx.eval(model(mx.array([[0]]), cache=cache))
    return cost_of(cache)


def test_the_cost_of_a_token_is_read_off_the_model() -> None:
    cost = measured_cost(FIXTURE)
    assert sum(layer.bytes_per_token for layer in cost.layers) == TOKEN
    assert cost.fixed_bytes == 0


@pytest.mark.parametrize("kind", ["sliding-window", "hybrid"])
def test_windows_and_recurrent_layers_cost_what_they_keep(tmp_path: Path, kind: str) -> None:
    cost = measured_cost(make_random_model(tmp_path / kind, kind))
    per_layer = 2 * 2 * 16 * 4
    if kind == "sliding-window":
        assert [layer.window for layer in cost.layers] == [32, None, 32, None]
        assert cost.row_bytes(4096) == 2 * per_layer * (32 + 4096 + 255)
    else:
        assert [layer.bytes_per_token for layer in cost.layers] == [per_layer]
        assert cost.fixed_bytes > 0


@pytest.mark.slow
@pytest.mark.asyncio
async def test_the_estimate_is_within_a_tenth_of_the_growth(start_engine: StartEngine) -> None:
    engine = await start_engine(EngineSettings(models=(spec(),), slots=8))
    cost = measured_cost(FIXTURE)
    await run(engine, say(3, max_tokens=2))
    idle, before = engine.status().active_bytes, engine.status().generated_tokens
    # Long enough that an allocation step, 256 tokens, is less than a tenth.
    rows = [engine.submit(say(3000, max_tokens=8000)) for _ in range(3)]
    seen = [await until_tokens(generation, 20) for generation in rows]
    # What has grown so far, however far that is by now.
    grown = engine.status().active_bytes - idle
    generated = (engine.status().generated_tokens - before) // 3
    lengths = [o.admitted.prompt_tokens + generated for o in seen if o.admitted]
    assert cost.batch_bytes(lengths) == pytest.approx(grown, rel=0.1)
    for generation, outcome in zip(rows, seen, strict=True):
        generation.cancel()
        await to_end(generation, outcome)
    # What a job took is given back.
    await run(engine, say(3, max_tokens=2))
    assert engine.status().active_bytes - idle < grown / 20


@pytest.mark.asyncio
async def test_what_never_fits_is_refused_before_prefill_and_what_fits_is_not(
    start_engine: StartEngine,
) -> None:
    limit = WEIGHTS + 2048 * TOKEN
    engine = await start_engine(EngineSettings(models=(spec(),), slots=4, memory_limit_bytes=limit))
    steps = engine.status().steps
    refused = (await run(engine, say(3000, max_tokens=5))).rejected
    assert (refused.code, refused.param) == (ErrorCode.CONTEXT_LENGTH_EXCEEDED, "messages")
    assert "memory" in refused.message
    assert engine.status().steps == steps
    generation = engine.submit(say(1700, max_tokens=32_768))
    fits = await until_admitted(generation)
    generation.cancel()
    assert fits.admitted is not None
    assert 1700 < fits.admitted.prompt_tokens + fits.admitted.max_tokens <= 2048
    assert engine.status().limit_bytes == limit


@pytest.mark.asyncio
async def test_a_job_waits_for_memory_and_kept_prompts_make_way(start_engine: StartEngine) -> None:
    limit = WEIGHTS + 3000 * TOKEN
    engine = await start_engine(
        EngineSettings(models=(spec(),), slots=4, memory_limit_bytes=limit, queue_seconds=60)
    )
    for seed in range(6):
        await run(engine, say(200 + seed, max_tokens=2, tenant=f"t{seed}"))
    first = engine.submit(say(900, max_tokens=1500))
    seen = await until_admitted(first)
    assert seen.admitted is not None
    second = engine.submit(say(1200, max_tokens=10))
    seen = await until_tokens(first, 20)
    assert engine.status().queued == 1
    first.cancel()
    await to_end(first, seen)
    assert (await to_end(second)).finished.generated == 10


@pytest.mark.asyncio
async def test_waiting_too_long_for_memory_is_an_overload(start_engine: StartEngine) -> None:
    limit = WEIGHTS + 3000 * TOKEN
    engine = await start_engine(
        EngineSettings(models=(spec(),), slots=4, memory_limit_bytes=limit, queue_seconds=0.2)
    )
    first = engine.submit(say(900, max_tokens=1500))
    await until_admitted(first)
    refused = (await run(engine, say(1200, max_tokens=100))).rejected
    assert refused.code is ErrorCode.PROVIDER_OVERLOADED
    assert refused.retry_after_ms
    first.cancel()


@pytest.mark.asyncio
@pytest.mark.parametrize(("tokens", "slots"), [((8192 + 255) * 3 + 500, 3), (100, 1)])
async def test_slots_are_what_memory_holds(start_engine: StartEngine, tokens: int, slots: int) -> None:
    limit = WEIGHTS + tokens * TOKEN
    engine = await start_engine(EngineSettings(models=(spec(),), memory_limit_bytes=limit))
    assert engine.status().slots_total == slots


@pytest.mark.asyncio
async def test_models_too_big_for_the_machine_say_so(start_engine: StartEngine) -> None:
    engine = EngineProcess(EngineSettings(models=(spec(),), memory_limit_bytes=1_000_000))
    await engine.start()
    try:
        with pytest.raises(EngineStartError, match="more than the 0 MiB that the engine may use"):
            await engine.wait_ready()
    finally:
        await engine.aclose()


@pytest.mark.asyncio
async def test_models_are_loaded_on_demand_and_the_oldest_idle_one_makes_way(
    start_engine: StartEngine,
) -> None:
    models = tuple(spec(name) for name in ("one", "two", "three"))
    limit = 2 * WEIGHTS + 1500 * TOKEN
    engine = await start_engine(EngineSettings(models=models, slots=4, memory_limit_bytes=limit))

    def states() -> list[ModelState]:
        return [engine.status().models[name] for name in ("one", "two", "three")]

    ready, unloaded = ModelState.READY, ModelState.UNLOADED
    assert states() == [ready, unloaded, unloaded]
    assert (await run(engine, say(3, "two", max_tokens=3))).finished.generated == 3
    assert states() == [ready, ready, unloaded]
    await run(engine, say(3, "one", max_tokens=3))
    assert (await run(engine, say(3, "three", max_tokens=3))).finished.generated == 3
    assert states() == [ready, unloaded, ready]
    assert engine.status().ready


@pytest.mark.asyncio
async def test_a_running_model_is_never_unloaded_for_another(start_engine: StartEngine) -> None:
    models = (spec("one"), spec("two"))
    limit = WEIGHTS + 14_000 * TOKEN
    engine = await start_engine(
        EngineSettings(models=models, slots=4, memory_limit_bytes=limit, queue_seconds=2.0)
    )
    running = engine.submit(say(3, "one", max_tokens=13_000))
    seen = await until_tokens(running, 1)
    refused = (await run(engine, say(3, "two", max_tokens=3))).rejected
    assert refused.code is ErrorCode.PROVIDER_OVERLOADED
    running.cancel()
    await to_end(running, seen)
    following = engine.submit(say(3, "two", max_tokens=13_000))
    seen = await until_admitted(following)
    following.cancel()
    await to_end(following, seen)
    assert engine.status().models == {"one": ModelState.UNLOADED, "two": ModelState.READY}


@pytest.mark.asyncio
async def test_both_models_of_two_run_at_once(start_engine: StartEngine) -> None:
    engine = await start_engine(EngineSettings(models=(spec(), spec("twin")), slots=8))
    dialogues = DIALOGUES[:6]
    both = await asyncio.gather(
        *(run(engine, known(d)) for d in dialogues),
        *(
            run(
                engine,
                ask("", "twin", messages=d["messages"], tools=d["tools"], sampling=ENDLESS, max_tokens=9),
            )
            for d in dialogues
        ),
    )
    assert [outcome.text for outcome in both[:6]] == [d["raw"] for d in dialogues]
    assert all(outcome.finished.generated == 9 for outcome in both[6:])


@pytest.mark.asyncio
async def test_idle_models_are_unloaded_and_come_back(start_engine: StartEngine) -> None:
    engine = await start_engine(EngineSettings(models=(spec(),), slots=2, idle_unload_seconds=0.3))
    async with asyncio.timeout(60):
        while engine.status().models["tiny-qwen3"] is not ModelState.UNLOADED:
            await engine.wait_change()
    assert engine.status().ready
    assert (await run(engine, known(DIALOGUES[0]))).text == DIALOGUES[0]["raw"]
    assert engine.status().models["tiny-qwen3"] is ModelState.READY
