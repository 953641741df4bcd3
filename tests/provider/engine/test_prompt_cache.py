"""Prompt reuse: warm answers equal cold ones, tenants stay apart, the budget holds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway_protocol.families import Family
from provider.engine.base import GenerationRequest
from provider.engine.process import EngineProcess
from provider.engine.spec import EngineSettings, ModelSpec
from tests.provider.engine.driving import (
    DIALOGUES,
    FIXTURE,
    GREEDY,
    Outcome,
    ask,
    known,
    run,
    to_end,
    until_tokens,
)
from tests.provider.engine.random_models import CONFIGS, make_random_model

pytestmark = pytest.mark.asyncio(loop_scope="module")
KINDS = ["plain", *(pytest.param(kind, marks=pytest.mark.slow) for kind in CONFIGS)]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=KINDS)
async def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[EngineProcess]:
    kind = request.param
    folder = FIXTURE if kind == "plain" else make_random_model(tmp_path_factory.mktemp("m") / kind, kind)
    spec = ModelSpec("tiny-qwen3", Family.QWEN, context_length=4096, path=Path(folder))
    engine = EngineProcess(EngineSettings(models=(spec,), slots=8))
    await engine.start()
    await engine.wait_ready()
    yield engine
    await engine.aclose()


_tenants = (f"tenant-{n}" for n in range(10**6))


def turn(history: list[dict[str, Any]], tenant: str | None, **fields: Any) -> GenerationRequest:
    return ask(
        "",
        model="tiny-qwen3",
        messages=list(history),
        tenant=tenant,
        **({"sampling": GREEDY, "max_tokens": 24} | fields),
    )


def cached(outcome: Outcome) -> int:
    assert outcome.admitted is not None
    return outcome.admitted.cached_tokens


def story(words: int, seed: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(["moon", "river", "stone", "light", "seven", "cold"]) for _ in range(words))


async def test_turns_of_a_conversation_equal_cold_ones(engine: EngineProcess) -> None:
    tenant = next(_tenants)
    history: list[dict[str, Any]] = [{"role": "system", "content": story(60, 1)}]
    for number in range(4):
        history.append({"role": "user", "content": story(20 + number, number)})
        cold = await run(engine, turn(history, None))
        warm = await run(engine, turn(history, tenant))
        again = await run(engine, turn(history, tenant))
        assert cold.ids == warm.ids == again.ids
        assert cached(cold) == 0
        assert cold.admitted is not None
        if number:
            assert cached(warm) > 60
        # The very same prompt: all but what must be computed for its first token.
        assert cached(again) >= cold.admitted.prompt_tokens - 8
        assert cached(again) < cold.admitted.prompt_tokens
        history.append({"role": "assistant", "content": warm.text})


async def test_a_shared_beginning_serves_another_question(engine: EngineProcess) -> None:
    tenant = next(_tenants)
    system = {"role": "system", "content": story(80, 5)}
    await run(engine, turn([system, {"role": "user", "content": story(30, 6)}], tenant))
    other = [system, {"role": "user", "content": story(25, 7)}]
    warm = await run(engine, turn(other, tenant))
    assert cached(warm) >= 80
    assert warm.ids == (await run(engine, turn(other, None))).ids


async def test_tenants_never_share(engine: EngineProcess) -> None:
    history = [{"role": "user", "content": story(50, 8)}]
    first, second = next(_tenants), next(_tenants)
    await run(engine, turn(history, first))
    assert cached(await run(engine, turn(history, second))) == 0
    assert cached(await run(engine, turn(history, None))) == 0
    assert cached(await run(engine, turn(history, first))) > 0


async def test_many_at_once_cold_and_warm_equal_one_by_one(engine: EngineProcess) -> None:
    tenant = next(_tenants)
    system = {"role": "system", "content": story(40, 9)}
    histories = [[system, {"role": "user", "content": story(5 + 9 * n, n)}] for n in range(12)]
    alone = [
        (await run(engine, turn(history, None, max_tokens=10 + 2 * n))).ids
        for n, history in enumerate(histories)
    ]

    async def one(n: int, history: list[dict[str, Any]]) -> Outcome:
        await asyncio.sleep(n % 4 * 0.01)
        generation = engine.submit(turn(history, tenant, max_tokens=10 + 2 * n))
        if n % 5 == 4:
            outcome = await until_tokens(generation, 2)
            generation.cancel()
            return await to_end(generation, outcome)
        return await to_end(generation)

    for _ in ("cold", "warm", "warmer"):
        outcomes = await asyncio.gather(*(one(n, history) for n, history in enumerate(histories)))
        for n, outcome in enumerate(outcomes):
            assert outcome.ids == alone[n][: len(outcome.ids)]
            assert n % 5 == 4 or len(outcome.ids) == len(alone[n])
    assert sum(cached(outcome) for outcome in outcomes) > 12 * 40


async def test_a_cancelled_job_s_prompt_is_kept(engine: EngineProcess) -> None:
    tenant = next(_tenants)
    history = [{"role": "user", "content": story(60, 10)}]
    generation = engine.submit(turn(history, tenant, max_tokens=400))
    outcome = await until_tokens(generation, 2)
    generation.cancel()
    await to_end(generation, outcome)
    warm = await run(engine, turn(history, tenant))
    assert cached(warm) >= 60
    assert warm.ids == (await run(engine, turn(history, None))).ids


async def test_the_budget_holds() -> None:
    spec = ModelSpec("tiny-qwen3", Family.QWEN, context_length=4096, path=FIXTURE)
    # A token's keys and values are 3 layers × 2 heads × 32 × 2 × 4 bytes = 1,536 bytes.
    engine = EngineProcess(EngineSettings(models=(spec,), slots=2, prompt_cache_bytes=700 * 1536))
    await engine.start()
    try:
        await engine.wait_ready()
        histories = [[{"role": "user", "content": story(60, seed)}] for seed in range(20, 32)]
        idle = engine.status().active_bytes
        for history in histories:
            await run(engine, turn(history, "t"))
        hits = [cached(await run(engine, turn(history, "t"))) for history in histories[::-1]]
        # The latest are still there, the earliest are not.
        assert hits[0] > 60
        assert hits[-1] < 60
        assert engine.status().active_bytes - idle < 2 * 700 * 1536
        # One that alone is over the budget is not kept.
        big = [{"role": "user", "content": story(900, 40)}]
        await run(engine, turn(big, "t"))
        assert cached(await run(engine, turn(big, "t"))) < 60
    finally:
        await engine.aclose()


async def test_known_answers_stay_what_they_are_when_warm() -> None:
    spec = ModelSpec("tiny-qwen3", Family.QWEN, context_length=4096, path=FIXTURE)
    engine = EngineProcess(EngineSettings(models=(spec,), slots=16))
    await engine.start()
    try:
        await engine.wait_ready()
        for _ in range(2):
            outcomes = await asyncio.gather(*(run(engine, known(d, tenant="t")) for d in DIALOGUES[::3]))
            assert [outcome.text for outcome in outcomes] == [d["raw"] for d in DIALOGUES[::3]]
        assert sum(cached(outcome) for outcome in outcomes) > 0
    finally:
        await engine.aclose()
