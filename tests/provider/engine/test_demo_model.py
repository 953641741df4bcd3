"""The same promises on a real model, 135M parameters (`check --full`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import zip_longest

import mlx.core as mx
import pytest
import pytest_asyncio
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from gateway_protocol.families import Family
from provider.engine.base import GenerationRequest, SamplingParams, Token
from provider.engine.memory import cost_of
from provider.engine.process import EngineProcess
from provider.engine.spec import EngineSettings, ModelSpec
from tests.provider.engine.driving import Outcome, ask, run, to_end, until_tokens
from tests.provider.engine.vocabularies import demo_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

JOBS = 16
# Where the two best logits are closer than this, a batch's other order of additions may prefer the other.
NEAR_TIE = 1e-3


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[EngineProcess]:
    spec = ModelSpec("demo", Family.NONE, context_length=8192, path=demo_folder())
    engine = EngineProcess(EngineSettings(models=(spec,), slots=JOBS))
    await engine.start()
    await engine.wait_ready()
    yield engine
    await engine.aclose()


def story(number: int, tenant: str | None = None) -> GenerationRequest:
    prompt = f"Write about the number {number}. " + "It is a fine number. " * (number * 2)
    return ask(
        prompt,
        "demo",
        tenant=tenant,
        sampling=SamplingParams(temperature=0.0, top_logprobs=2),
        max_tokens=16 + 2 * number,
    )


def first_difference(alone: Outcome, together: Outcome) -> Token | None:
    for one, other in zip_longest(alone.tokens, together.tokens):
        if one is None or other is None or one.token_id != other.token_id:
            assert one is not None
            return one
    return None


async def test_sixteen_distinct_prompts_equal_each_alone(engine: EngineProcess) -> None:
    alone = [await run(engine, story(number)) for number in range(JOBS)]
    ties = 0
    for tenant in (None, "t", "t"):
        outcomes = await asyncio.gather(*(run(engine, story(number, tenant)) for number in range(JOBS)))
        for expected, got in zip(alone, outcomes, strict=True):
            different = first_difference(expected, got)
            if different is not None:
                best, second = different.top_logprobs
                assert best.logprob - second.logprob < NEAR_TIE
                ties += 1
    assert sum(outcome.admitted.cached_tokens for outcome in outcomes if outcome.admitted) > JOBS * 30
    print(f"answers that differed, all at near ties: {ties} of {3 * JOBS}")


async def test_the_estimate_is_within_a_tenth_of_the_growth(engine: EngineProcess) -> None:
    folder = demo_folder()
    model, _ = load_model(folder, lazy=True)
    cache = make_prompt_cache(model)
    mx.eval(model(mx.array([[0]]), cache=cache))
    cost = cost_of(cache)
    await run(engine, ask("Hello", "demo", max_tokens=2))
    idle = engine.status().active_bytes
    endless = SamplingParams(temperature=0.0, logit_bias={0: -100.0, 2: -100.0})
    # Long enough that an allocation step, 256 tokens, is less than a tenth.
    request = ask("word " * 2800, "demo", max_tokens=200, sampling=endless)
    rows = [engine.submit(request) for _ in range(2)]
    seen = [await until_tokens(generation, 5) for generation in rows]
    grown = engine.status().active_bytes - idle
    for generation, outcome in zip(rows, seen, strict=True):
        generation.cancel()
        await to_end(generation, outcome)
    lengths = [o.admitted.prompt_tokens + o.finished.generated for o in seen if o.admitted]
    assert cost.batch_bytes(lengths) == pytest.approx(grown, rel=0.1)
