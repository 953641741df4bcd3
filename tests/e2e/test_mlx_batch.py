"""Many buyers of one MLX engine: one batch, no words mixed up, no step for who has left, no end missed."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from collections.abc import AsyncIterator, Coroutine, Iterable
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio

from provider.engine.base import EngineEvent, Finished, GenerationRequest, StopCause
from provider.engine.generation import OpenGeneration
from tests.e2e.strict_reader import events
from tests.e2e.tiny_model import DIALOGUES, TINY, buffered, calls_of, request, streamed, tiny_stack
from tests.fakes import waiting
from tests.fakes.stack import Stack, WatchedEngine

pytestmark = pytest.mark.asyncio(loop_scope="module")

eventually = functools.partial(waiting.eventually, seconds=60.0)
# <|im_end|> and <|endoftext|>: an answer that can't end by itself.
ENDLESS = {"902": -100, "900": -100}
TOGETHER = [
    "lighthouse",
    "tides",
    "count",
    "write-long",
    "greetings",
    "two-xml",
    "weather-think",
    "result-two",
]


class CountedGeneration(OpenGeneration):
    """Keeps its last event."""

    def feed_event(self, event: EngineEvent) -> None:
        super().feed_event(event)
        self.last = event


class CountedEngine(WatchedEngine):
    """Keeps the generations it was asked for."""

    generations: list[CountedGeneration]

    def submit(self, request: GenerationRequest) -> OpenGeneration:
        generation = super().submit(request)
        assert isinstance(generation, OpenGeneration)
        generation.__class__ = CountedGeneration
        self.generations.append(generation)  # type: ignore[arg-type]
        return generation


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def it(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with tiny_stack(tmp_path_factory.mktemp("tiny")) as stack:
        stack.engine.__class__ = CountedEngine
        yield stack


@pytest.fixture(autouse=True)
def _afresh(it: Stack) -> None:
    counted(it).generations = []


def counted(it: Stack) -> CountedEngine:
    assert isinstance(it.engine, CountedEngine)
    return it.engine


async def finished(it: Stack, place: int) -> Finished:
    """How the engine ended this generation."""
    generation = counted(it).generations[place]
    await eventually(lambda: isinstance(getattr(generation, "last", None), Finished))
    assert isinstance(generation.last, Finished)
    return generation.last


async def idle(it: Stack) -> None:
    await eventually(lambda: it.engine.status().running == 0)


async def at_once(it: Stack, asking: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """What each gives; the engine stands still until all of them have come to it."""
    pid = it.engine.status().child_pid
    assert pid is not None
    there = len(counted(it).generations)
    os.kill(pid, signal.SIGSTOP)
    try:
        tasks = [asyncio.create_task(each) for each in asking]
        await eventually(lambda: len(counted(it).generations) == there + len(tasks))
    finally:
        os.kill(pid, signal.SIGCONT)
    return await asyncio.gather(*tasks)


def endless(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Go on"}]
    return {"model": TINY.id, "messages": messages, "logit_bias": ENDLESS, "temperature": 0, **fields}


# --- one batch ----------------------------------------------------------------------------------


async def test_eight_at_once_give_what_each_gives_alone(it: Stack) -> None:
    """Distinct prompts, lengths and seeds, greedy; half of them streamed; with tools and without."""

    async def ask(place: int, name: str) -> tuple[Any, ...]:
        asked = request(name, seed=place, parallel_tool_calls=True)
        if place % 2:
            stream = await streamed(it.openai, asked)
            return stream.content, stream.named, stream.finish_reason
        [choice] = (await buffered(it.openai, asked)).choices
        return choice.message.content or "", calls_of(choice.message), choice.finish_reason

    alone = [await ask(place, name) for place, name in enumerate(TOGETHER)]
    await idle(it)
    sizes = [(await finished(it, place)).generated for place in range(len(TOGETHER))]
    before = it.engine.status()
    together = await at_once(it, (ask(place, name) for place, name in enumerate(TOGETHER)))
    await idle(it)
    after = it.engine.status()
    assert together == alone
    assert [content for content, *_ in alone[:3]] == [DIALOGUES[name]["raw"] for name in TOGETHER[:3]]
    # One batch, not one after another: far fewer steps than tokens.
    steps = after.steps - before.steps
    assert max(sizes) <= steps < sum(sizes) // 2


async def test_eight_seeded_rows_give_what_each_gives_alone(it: Stack) -> None:
    async def ask(seed: int) -> str:
        asked = {"temperature": 1.4, "seed": seed, "max_tokens": 30 + seed, "logit_bias": ENDLESS}
        messages = [{"role": "user", "content": f"Tell me about number {seed}"}]
        answer = await buffered(it.openai, {"model": TINY.id, "messages": messages, **asked})
        return answer.choices[0].message.content or ""

    alone = [await ask(seed) for seed in range(8)]
    await idle(it)
    before = it.engine.status()
    assert await at_once(it, map(ask, range(8))) == alone
    await idle(it)
    after = it.engine.status()
    assert len(set(alone)) == 8
    assert after.generated_tokens - before.generated_tokens >= sum(30 + seed for seed in range(8))
    assert after.steps - before.steps < 8 * 30


async def test_more_than_there_are_slots_wait_their_turn(it: Stack) -> None:
    names = [name for name in DIALOGUES if DIALOGUES[name]["kind"] == "plain"][:20]
    answers = await asyncio.gather(*(buffered(it.openai, request(name)) for name in names))
    assert [a.choices[0].message.content for a in answers] == [DIALOGUES[name]["raw"] for name in names]


# --- who leaves ---------------------------------------------------------------------------------


async def begin(it: Stack, body: dict[str, Any], pieces: int) -> aiohttp.ClientResponse:
    """A raw stream, read until it has shown so many data lines."""
    url = f"{it.gateway.url}/v1/chat/completions"
    response = await it.http.post(url, json=body | {"stream": True})
    assert response.status == 200
    seen = b""
    while seen.count(b"\ndata: ") < pieces:
        seen += await response.content.readany()
    return response


async def cancelled(it: Stack, place: int) -> Finished:
    """How the engine ended this generation, which its buyer has left."""
    last = await finished(it, place)
    assert last.cause is StopCause.CANCELLED
    return last


async def test_the_buyer_leaves_in_decode(it: Stack) -> None:
    response = await begin(it, endless(), 6)
    response.close()
    assert (await cancelled(it, 0)).steps_after_cancel <= 1
    before = it.engine.status().generated_tokens
    await buffered(it.openai, request("sum"))
    # The batch holds this one alone: whatever the engine counts is its own.
    assert it.engine.status().generated_tokens - before == (await finished(it, 1)).generated


async def test_the_buyer_of_a_buffered_answer_leaves(it: Stack) -> None:
    asking = asyncio.create_task(it.post(endless()))
    await eventually(lambda: it.engine.status().running == 1)
    asking.cancel()
    assert (await cancelled(it, 0)).steps_after_cancel <= 1


async def test_the_buyer_leaves_in_prefill(it: Stack) -> None:
    before = it.engine.status().generated_tokens
    response = await begin(it, endless(messages=[{"role": "user", "content": "word " * 5_000}]), 0)
    assert it.engine.status().running == 1
    response.close()
    end = await cancelled(it, 0)
    assert (end.generated, end.steps_after_cancel <= 1) == (0, True)
    assert it.engine.status().generated_tokens == before


async def test_the_buyer_leaves_in_the_queue(tmp_path: Path, it: Stack) -> None:
    held = [await begin(it, endless(), 1) for _ in range(8)]
    submitted = it.engine.status().submitted
    waiting = asyncio.create_task(it.post(endless()))
    await eventually(lambda: it.gateway.broker.queued == 1)
    waiting.cancel()
    await eventually(lambda: it.gateway.broker.queued == 0)
    for response in held:
        response.close()
    for place in range(8):
        assert (await cancelled(it, place)).steps_after_cancel <= 1
    assert (await buffered(it.openai, request("sum"))).choices[0].finish_reason == "stop"
    # The one that waited never reached the engine.
    assert it.engine.status().submitted == submitted + 1


async def test_generation_stops_after_the_first_call(it: Stack) -> None:
    """A second call is never begun where one was asked for."""
    answer = await buffered(it.openai, request("two-cities"))
    assert len(answer.choices[0].message.tool_calls or ()) == 1
    last = await finished(it, 0)
    assert answer.usage is not None
    # What one step had under way, and no more; the grammar allows nothing but the end there.
    assert last.generated - answer.usage.completion_tokens <= 2


# --- big prompts --------------------------------------------------------------------------------


async def test_a_prompt_over_one_mebibyte_is_refused_by_its_code(it: Stack) -> None:
    asked = {
        "model": TINY.id,
        "messages": [{"role": "user", "content": "Paris is the capital of France. é " * 35_000}],
    }
    steps = it.engine.status().steps
    status, answer = await it.post(asked | {"stream": True})
    error = answer["error"]
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    assert it.engine.status().steps == steps


# --- the engine dies: last, since its restart takes time ----------------------------------------


async def test_the_child_is_killed_in_the_middle(it: Stack) -> None:
    """One retryable error event and [DONE] for a stream, 502 for a buffered answer; the next job works."""
    asking = asyncio.create_task(it.post(endless()))
    await eventually(lambda: bool(counted(it).generations) and counted(it).generations[0].first_token_seen)
    stream, other = await begin(it, endless(), 5), await begin(it, endless(), 1)
    sdk = await it.openai.chat.completions.create(**endless(), stream=True)
    chunks = aiter(sdk)
    await anext(chunks)
    await eventually(lambda: it.engine.status().running == 4)
    pid = it.engine.status().child_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)

    rest = (await stream.content.read()).decode()
    *_, last = events("data: {}\n\n" + rest[rest.index("data: ") :])
    assert (last["error"]["code"], last["error"]["retryable"]) == ("provider_error", True)
    assert rest.count('"error"') == 1
    assert '"finish_reason":"' not in rest
    assert [event["error"]["code"] for event in events((await other.content.read()).decode())[-1:]] == [
        "provider_error"
    ]
    status, answer = await asking
    assert (status, answer["error"]["code"]) == (502, "provider_error")
    assert answer["error"]["inference_ran"] is True
    with pytest.raises(openai.APIError) as raised:
        async for _ in chunks:
            pass
    assert raised.value.code == "provider_error"

    # While it restarts there is no provider: 503 and Retry-After, which the SDK follows. That several jobs
    # failed at once doesn't keep the provider from getting new ones.
    patient = it.openai.with_options(max_retries=15)
    again = await buffered(patient, request("weather-paris"))
    assert calls_of(again.choices[0].message) == [("get_weather", {"city": "Paris"})]
    assert it.engine.status().restarts == 1
