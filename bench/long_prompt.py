"""A long prompt arrives among running streams: the longest they stand still, in prefill chunks."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from statistics import median
from typing import Any, Protocol

from bench.answers import worst_gap
from bench.buyers import open_stream, whole
from bench.figures import ratio, rounded, spread
from bench.prompts import Chat, Count, Prompts, conversation
from bench.systems import Bare
from provider.engine.spec import PREFILL_ALONE

RUNNING = 7
# Each stream has been heard this often before the long prompt is sent.
WARM_EVENTS = 8
MLX_LM_CHUNK = 2048


class Server(Protocol):
    """A system that is spoken to by HTTP."""

    name: str
    port: int

    def body(self, chat: Chat) -> dict[str, Any]: ...


async def long_prompt(
    servers: Sequence[Server],
    bare: Bare,
    prompts: Prompts,
    count: Count,
    *,
    tokens: int,
    stream_tokens: int,
    rounds: int,
) -> dict[str, Any]:
    """The worst gap of seven streams while a prompt of `tokens` is computed, against a chunk computed alone.

    A chunk: what the product computes of a prompt in one go while nothing else runs. The bare loop computes
    the same prompt in such chunks; the slowest counts, which is the last whole one.
    """
    gaps: dict[str, list[float]] = {server.name: [] for server in servers}
    steps: dict[str, list[float]] = {server.name: [] for server in servers}
    chunk = PREFILL_ALONE["gpu" if platform.system() == "Darwin" else "cpu"]
    chunks: dict[int, list[float]] = {chunk: [], MLX_LM_CHUNK: []}
    for number in range(1, rounds + 1):
        messages = await conversation(tokens, 2000 + number, count)
        for size, seconds in chunks.items():
            timed = (await bare.order(do="prefill", messages=messages, chunk=size))["seconds"]
            seconds.append(max(timed))
        for server in servers:
            gap, step = await _one(server, prompts.plain(RUNNING, stream_tokens, number), messages)
            gaps[server.name].append(gap)
            steps[server.name].append(step)
    document: dict[str, Any] = {"prompt_tokens": tokens, "streams": RUNNING, "chunk_tokens": chunk}
    document["chunk_s"] = spread(chunks[chunk])
    document["mlx_lm_chunk_s"] = spread(chunks[MLX_LM_CHUNK])
    for name, seconds in gaps.items():
        document[name] = {
            "worst_gap_s": spread(seconds),
            "step_s": spread(steps[name]),
            "worst_gap/chunk": ratio(seconds, chunks[chunk], more_is_better=False),
            "worst_gap/mlx_lm_chunk": ratio(seconds, chunks[MLX_LM_CHUNK], more_is_better=False),
        }
    return document


async def _one(server: Server, chats: Sequence[Chat], messages: list[dict[str, Any]]) -> tuple[float, float]:
    """The worst gap while the long prompt was computed, and the usual time between two tokens before."""
    opened = [await open_stream(server.port, server.body(chat)) for chat in chats]
    for buyer, _ in opened:
        await buyer.heard(WARM_EVENTS)
    all_run = time.monotonic()
    long_one, sent = await open_stream(
        server.port, server.body({"messages": messages, "max_tokens": 2, "temperature": 0})
    )
    answer = await whole(long_one, sent)
    if answer.error is not None:
        raise RuntimeError(f"{server.name}: {answer.error}")
    for buyer, _ in opened:
        buyer.leave()
    answers = [await whole(buyer, at) for buyer, at in opened]
    usual = [
        later - earlier
        for one in answers
        for earlier, later in zip(one.times, one.times[1:], strict=False)
        if later < all_run
    ]
    return worst_gap(answers, sent, answer.times[0]), rounded(median(usual))
