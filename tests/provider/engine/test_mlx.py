"""The MLX engine on the fixture model: real weights, real tokenizer, real decoding, in a real child."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from gateway_protocol.errors import ErrorCode
from gateway_protocol.families import Family
from gateway_protocol.messages import ModelState
from provider.engine.base import Finished, GenerationRequest, SamplingParams, StopCause, ThinkMarkers
from provider.engine.process import EngineProcess
from provider.engine.spec import EngineSettings, ModelSpec
from tests.provider.engine.driving import (
    DIALOGUES,
    FIXTURE,
    GREEDY,
    Outcome,
    ask,
    known,
    of_kind,
    run,
    to_end,
    until_admitted,
    until_tokens,
)

SPEC = ModelSpec(
    "tiny-qwen3", Family.QWEN, context_length=16384, path=FIXTURE, think=ThinkMarkers("<think>", "</think>")
)
SLOTS = 16

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[EngineProcess]:
    """One engine for the module: each test leaves it idle."""
    engine = EngineProcess(EngineSettings(backend="mlx", slots=SLOTS, models=(SPEC,)))
    await engine.start()
    await engine.wait_ready()
    yield engine
    await engine.aclose()


def say(text: str, **fields: Any) -> GenerationRequest:
    return ask(text, model="tiny-qwen3", **fields)


LONG = max(DIALOGUES, key=lambda dialogue: len(dialogue["raw"]))


async def test_answers_what_it_was_trained_on(engine: EngineProcess) -> None:
    for dialogue in DIALOGUES[::7]:
        outcome = await run(engine, known(dialogue))
        assert outcome.text == dialogue["raw"]
        assert outcome.finished.cause is StopCause.STOP
        # The end token is counted, not reported.
        assert outcome.finished.generated == len(outcome.tokens) + 1


async def test_distinct_prompts_together_equal_each_alone_in_one_batch(engine: EngineProcess) -> None:
    chosen = random.Random(7).sample(DIALOGUES, SLOTS)
    alone = [await run(engine, known(dialogue)) for dialogue in chosen]
    before = engine.status()
    together = await asyncio.gather(*(run(engine, known(dialogue)) for dialogue in chosen))
    after = engine.status()
    assert [outcome.ids for outcome in together] == [outcome.ids for outcome in alone]
    longest = max(outcome.finished.generated for outcome in alone)
    total = sum(outcome.finished.generated for outcome in alone)
    steps = after.steps - before.steps
    assert after.generated_tokens - before.generated_tokens == total
    # One batch: as many steps as the longest answer takes and a few to get in, not as many as all in turn.
    assert longest <= steps <= longest + 2 * SLOTS < total


async def test_rows_that_join_and_leave_at_random_don_t_change_each_other(engine: EngineProcess) -> None:
    rng = random.Random(11)
    chosen = [rng.choice(DIALOGUES) for _ in range(40)]

    async def one(dialogue: dict[str, Any], join_after: float, leave_at: int | None) -> Outcome:
        await asyncio.sleep(join_after)
        generation = engine.submit(known(dialogue))
        if leave_at is None:
            return await to_end(generation)
        outcome = await until_tokens(generation, leave_at)
        generation.cancel()
        return await to_end(generation, outcome)

    plans = [(rng.random(), rng.choice([None, None, 3])) for _ in chosen]
    outcomes = await asyncio.gather(
        *(one(dialogue, *plan) for dialogue, plan in zip(chosen, plans, strict=True))
    )
    for dialogue, (_, leave_at), outcome in zip(chosen, plans, outcomes, strict=True):
        if leave_at is None:
            assert outcome.text == dialogue["raw"]
        else:
            assert dialogue["raw"].startswith(outcome.text)


async def test_seeds_reproduce_alone_and_in_company(engine: EngineProcess) -> None:
    wild = SamplingParams(temperature=1.5, top_p=1.0, top_k=0, seed=-3)
    request = say("Tell me anything", sampling=wild, max_tokens=40)
    alone = await run(engine, request)
    again = await run(engine, request)
    crowd = [
        run(engine, say(f"Tell me {n}", sampling=SamplingParams(temperature=1.2, seed=n), max_tokens=20 + n))
        for n in range(9)
    ]
    in_company, *_ = await asyncio.gather(run(engine, request), *crowd)
    other = await run(
        engine, say("Tell me anything", sampling=SamplingParams(1.5, 1.0, 0, seed=4), max_tokens=40)
    )
    unseeded = [
        (await run(engine, say("Tell me anything", sampling=SamplingParams(1.5, 1.0, 0), max_tokens=40))).ids
        for _ in range(2)
    ]
    assert alone.ids == again.ids == in_company.ids
    assert len({tuple(ids) for ids in (alone.ids, other.ids, *unseeded)}) == 4


async def test_seeded_rows_share_one_batch(engine: EngineProcess) -> None:
    before = engine.status().steps
    requests = [
        say(
            "Go on",
            sampling=SamplingParams(temperature=1.3, seed=n, logit_bias={902: -100, 900: -100}),
            max_tokens=200,
        )
        for n in range(8)
    ]
    await asyncio.gather(*(run(engine, request) for request in requests))
    assert engine.status().steps - before < 2 * 200


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0.8, top_p=0.9, seed=1),
        SamplingParams(temperature=0.8, top_p=1.0, top_k=5, seed=1),
        SamplingParams(temperature=0.8, top_p=1.0, top_k=0, min_p=0.2, seed=1),
        SamplingParams(temperature=2.0, top_p=0.5, top_k=50, min_p=0.1, seed=1),
        SamplingParams(temperature=0.01, top_p=1e-9, seed=1),
        SamplingParams(temperature=1.0, top_k=10**6, seed=1),
    ],
)
async def test_every_way_to_sample_stays_with_what_is_likely(
    engine: EngineProcess, sampling: SamplingParams
) -> None:
    # The model knows its answers by heart, so any cut leaves nearly one choice.
    cold = SamplingParams(
        temperature=0.05, top_p=sampling.top_p, top_k=sampling.top_k, min_p=sampling.min_p, seed=sampling.seed
    )
    dialogue = of_kind("plain")[0]
    assert (await run(engine, known(dialogue, sampling=cold))).text == dialogue["raw"]
    assert (await run(engine, known(dialogue, sampling=sampling))).finished.generated > 0


async def test_max_tokens_ends_in_length_exactly(engine: EngineProcess) -> None:
    full = await run(engine, known(LONG))
    for limit in (1, 2, 9, len(full.tokens)):
        outcome = await run(engine, known(LONG, max_tokens=limit))
        assert outcome.ids == full.ids[:limit]
        assert outcome.finished == Finished(StopCause.LENGTH, limit)
    whole = await run(engine, known(LONG, max_tokens=len(full.tokens) + 1))
    assert whole.finished.cause is StopCause.STOP
    assert full.admitted is not None
    assert full.admitted.max_tokens == 16384 - full.admitted.prompt_tokens


async def test_emoji_and_cjk_arrive_whole(engine: EngineProcess) -> None:
    for dialogue in of_kind("unicode"):
        outcome = await run(engine, known(dialogue))
        assert outcome.text == dialogue["raw"]
        assert all("\ufffd" not in token.text for token in outcome.tokens)
        # Some code point really was split over tokens: one of them adds no text.
        assert any(token.text == "" for token in outcome.tokens)
        break
    else:
        pytest.fail("the fixture model has no such dialogue")


async def test_special_tokens_are_spelled_out(engine: EngineProcess) -> None:
    for kind, opener in (("hermes", "<tool_call>"), ("thinking", "<think>")):
        dialogue = next(d for d in DIALOGUES if opener in d["raw"])
        outcome = await run(engine, known(dialogue))
        assert opener in [token.text for token in outcome.tokens], kind


async def test_reasoning_that_the_prompt_opens_is_reported(engine: EngineProcess) -> None:
    opened = await run(engine, say("Is it so? /think", max_tokens=1))
    closed = await run(engine, say("Is it so?", max_tokens=1))
    off = await run(engine, say("Is it? /think", max_tokens=1, template_kwargs={"enable_thinking": False}))
    assert [o.admitted.reasoning_open for o in (opened, closed, off) if o.admitted] == [True, False, False]


async def test_logprobs_are_those_of_the_distribution(engine: EngineProcess) -> None:
    sampling = SamplingParams(temperature=0.0, top_logprobs=5)
    dialogue = of_kind("plain")[0]
    outcome = await run(engine, known(dialogue, sampling=sampling))
    for token in outcome.tokens:
        assert token.logprob is not None
        assert len(token.top_logprobs) == 5
        assert token.top_logprobs[0] == token.logprob
        values = [entry.logprob for entry in token.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert all(value <= 0 for value in values)
    assert b"".join(t.logprob.token_bytes for t in outcome.tokens if t.logprob) == dialogue["raw"].encode()
    bare = await run(engine, known(dialogue, sampling=SamplingParams(temperature=0.0, top_logprobs=0)))
    assert bare.tokens[0].logprob is not None
    assert bare.tokens[0].top_logprobs == ()
    company = await asyncio.gather(
        run(engine, known(dialogue, sampling=sampling)), *(run(engine, known(d)) for d in DIALOGUES[:6])
    )
    for mine, theirs in zip(outcome.tokens, company[0].tokens, strict=True):
        assert mine.logprob is not None
        assert theirs.logprob is not None
        assert theirs.logprob.logprob == pytest.approx(mine.logprob.logprob, abs=1e-3)


async def test_logit_bias_forbids_and_forces(engine: EngineProcess) -> None:
    dialogue = of_kind("plain")[0]
    first = (await run(engine, known(dialogue, max_tokens=1))).ids[0]
    banned = SamplingParams(temperature=0.0, logit_bias={first: -100.0})
    assert first not in (await run(engine, known(dialogue, sampling=banned, max_tokens=8))).ids
    forced = SamplingParams(temperature=0.0, logit_bias={first: 100.0})
    assert (await run(engine, known(dialogue, sampling=forced, max_tokens=5))).ids == [first] * 5
    unknown = SamplingParams(temperature=0.0, logit_bias={999_999: 1.0})
    refused = (await run(engine, known(dialogue, sampling=unknown))).rejected
    assert (refused.code, refused.param) == (ErrorCode.INVALID_REQUEST, "logit_bias")


async def test_penalties_count_what_was_generated(engine: EngineProcess) -> None:
    favourite = {300: 30.0, 902: -100.0, 900: -100.0}

    async def ids(**penalty: float) -> list[int]:
        sampling = SamplingParams(temperature=0.0, logit_bias=favourite, **penalty)
        return (await run(engine, say("Go", sampling=sampling, max_tokens=8))).ids

    assert await ids() == [300] * 8
    assert (await ids(presence_penalty=100.0)).count(300) == 1
    # A frequency penalty adds up: the bias carries a few repetitions and no more.
    assert 1 < (await ids(frequency_penalty=12.0)).count(300) < 8
    dialogue = of_kind("plain")[0]
    sampling = SamplingParams(temperature=0.0, repetition_penalty=1e6)
    varied = (await run(engine, known(dialogue, sampling=sampling, max_tokens=12))).ids
    assert len(set(varied)) == len(varied)


async def test_a_template_s_refusal_is_the_buyer_s_error(engine: EngineProcess) -> None:
    request = ask("", model="tiny-qwen3", messages=[{"role": "system", "content": "Be brief."}])
    refused = (await run(engine, request)).rejected
    assert (refused.code, refused.param) == (ErrorCode.INVALID_REQUEST, "messages")
    assert "The conversation has no user message." in refused.message
    broken = ask("", model="tiny-qwen3", messages=[{"role": "user", "content": None}])
    assert (await run(engine, broken)).rejected.code is ErrorCode.INVALID_REQUEST


async def test_null_and_ref_in_a_tool_schema_are_no_trouble(engine: EngineProcess) -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": None,
            "b": {"$ref": "https://example.com/s.json"},
            "c": {"$ref": "#/$defs/x", "default": None},
        },
        "$defs": {"x": {"type": ["string", "null"]}},
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    outcome = await run(engine, say("Hello", tools=tools, max_tokens=2, sampling=GREEDY))
    assert outcome.finished.generated == 2


async def test_a_prompt_over_the_context_is_refused_before_prefill(engine: EngineProcess) -> None:
    before = engine.status().steps
    refused = (await run(engine, say("long " * 20_000))).rejected
    assert (refused.code, refused.param) == (ErrorCode.CONTEXT_LENGTH_EXCEEDED, "messages")
    assert engine.status().steps == before


async def test_cancel_in_decode_makes_at_most_one_more_step(engine: EngineProcess) -> None:
    generation = engine.submit(known(LONG))
    outcome = await until_tokens(generation, 4)
    generation.cancel()
    outcome = await to_end(generation, outcome)
    assert outcome.finished.cause is StopCause.CANCELLED
    assert outcome.finished.steps_after_cancel <= 1
    assert outcome.finished.generated == len(outcome.tokens)
    assert engine.status().slots_free == SLOTS


async def test_cancel_in_prefill_makes_at_most_one_more_step(engine: EngineProcess) -> None:
    generation = engine.submit(say("word " * 3_000, sampling=GREEDY))
    outcome = await until_admitted(generation)
    generation.cancel()
    outcome = await to_end(generation, outcome)
    assert outcome.finished.cause is StopCause.CANCELLED
    assert outcome.finished.generated == 0
    assert outcome.finished.steps_after_cancel <= 1


async def test_cancel_in_the_queue_makes_none(engine: EngineProcess) -> None:
    hold = SamplingParams(temperature=0.0, logit_bias={902: -100, 900: -100})
    running = [engine.submit(say("Go", sampling=hold)) for _ in range(SLOTS)]
    for generation in running:
        await until_admitted(generation)
    queued = engine.submit(say("Go", sampling=hold))
    # By now the child has rendered it and made several steps without it.
    await until_tokens(running[0], 20)
    assert engine.status().queued == 1
    queued.cancel()
    assert (await to_end(queued)).finished == Finished(StopCause.CANCELLED, 0)
    for generation in running:
        generation.cancel()
        outcome = Outcome()
        while outcome.end is None:
            outcome.tokens.clear()
            outcome.take(await generation.events())
        assert outcome.finished.steps_after_cancel <= 1


async def test_a_paused_row_goes_on_exactly_where_it_was(engine: EngineProcess) -> None:
    logged = known(LONG, sampling=SamplingParams(temperature=0.0, top_logprobs=2))
    whole = await run(engine, logged)
    wild = SamplingParams(temperature=1.4, top_k=0, top_p=1.0, seed=5, frequency_penalty=0.5)
    free = await run(engine, say("Any", sampling=wild, max_tokens=60))
    for request, expected in ((logged, whole), (say("Any", sampling=wild, max_tokens=60), free)):
        others, counted = 0, engine.status().generated_tokens
        generation = engine.submit(request)
        outcome = await until_tokens(generation, 3)
        for _ in range(3):
            generation.pause(True)
            # Another job runs meanwhile: the batch changes its shape under the one held back.
            others += (await run(engine, known(DIALOGUES[0]))).finished.generated + 5
            before = engine.status().generated_tokens
            await run(engine, known(DIALOGUES[0], max_tokens=5))
            assert engine.status().generated_tokens == before + 5
            generation.pause(False)
            if outcome.end is None:
                outcome.take(await generation.events())
        outcome = await to_end(generation, outcome)
        assert outcome.ids == expected.ids
        assert outcome.finished == expected.finished
        assert engine.status().generated_tokens == counted + others + outcome.finished.generated
        for got, wanted in zip(outcome.tokens, expected.tokens, strict=True):
            assert (got.logprob is None) == (wanted.logprob is None)
            if got.logprob is not None and wanted.logprob is not None:
                assert got.logprob.logprob == pytest.approx(wanted.logprob.logprob, abs=1e-3)


async def test_a_long_prompt_doesn_t_stall_a_running_stream(engine: EngineProcess) -> None:
    hold = SamplingParams(temperature=0.0, logit_bias={902: -100, 900: -100})
    stream = engine.submit(say("Go", sampling=hold))
    outcome = await until_tokens(stream, 3)
    long = engine.submit(say("word " * 1_500, sampling=GREEDY, max_tokens=1))
    seen = len(outcome.tokens)
    waiting = asyncio.ensure_future(to_end(long))
    while not waiting.done():
        outcome.take(await stream.events())
    prompt = waiting.result().admitted
    assert prompt is not None
    # A token of the stream for each piece of the prompt, at least.
    assert len(outcome.tokens) - seen >= prompt.prompt_tokens // 512
    stream.cancel()
    await to_end(stream, outcome)


async def test_a_killed_child_is_replaced_with_its_model_loaded(engine: EngineProcess) -> None:
    generations = [engine.submit(known(LONG)) for _ in range(3)]
    seen = [await until_tokens(generation, 2) for generation in generations]
    pid = engine.status().child_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    for generation, outcome in zip(generations, seen, strict=True):
        assert (await to_end(generation, outcome)).failed.cause == "child_exited"
    assert not engine.status().ready
    await engine.wait_ready()
    assert engine.status().models == {"tiny-qwen3": ModelState.READY}
    assert (await run(engine, known(DIALOGUES[0]))).text == DIALOGUES[0]["raw"]
