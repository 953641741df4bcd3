"""What the stack carries by itself: the scripted engine, 64 streams, and the CPU time of a token.

Gateway and daemon are one process, so its CPU time tells what one core would carry, whatever else runs on
this machine; the child that plays the script is counted apart. Twice: as fast as it goes, where the daemon
joins tokens that wait into one chunk; and at a pace where each token is an event of its own.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.answers import whole_tokens_per_s
from bench.chats import run
from bench.figures import rounded, spread
from bench.prompts import Chat
from bench.systems import Product

STREAMS = 64
MODEL = "mlx-community/Qwen3-8B-4bit"
PACE_MS = 20
TEXT = "The sea is salty, because rivers carry salt to it and only water leaves it. "


async def stack(*, tokens: int, paced_tokens: int, rounds: int) -> dict[str, Any]:
    """`tokens`, `paced_tokens`: of each stream. Several rounds each; the least CPU time counts."""
    with tempfile.TemporaryDirectory(prefix="malibu-bench-") as folder:
        script = Path(folder) / "script.jsonl"
        lines: list[Mapping[str, Any]] = [
            {"match": "paced", "text": TEXT * 1000, "ms_per_token": PACE_MS},
            {"text": TEXT * 1000},
        ]
        script.write_text("".join(json.dumps(line) + "\n" for line in lines))
        product = await Product.start(MODEL, None, _chat("Hello", 1), slots=STREAMS, script=script)
        try:
            fast = [await _one(product, _chat("full speed", tokens)) for _ in range(rounds)]
            paced = [await _one(product, _chat("paced", paced_tokens)) for _ in range(rounds)]
        finally:
            await product.stop()
    return {
        "streams": STREAMS,
        "full_speed": _document(fast),
        f"paced_{1000 // PACE_MS}_per_stream": _document(paced),
    }


def _chat(text: str, tokens: int) -> Chat:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": tokens}


async def _one(product: Product, chat: Chat) -> dict[str, float]:
    ran = await run(product, [chat] * STREAMS)
    tokens = sum(answer.tokens for answer in ran.answers)
    return {
        "tokens_per_s": whole_tokens_per_s(ran.answers),
        "cpu_us_per_token": ran.rest_cpu_s / tokens * 1e6,
        "engine_cpu_us_per_token": ran.engine_cpu_s / tokens * 1e6,
        "tokens_per_event": tokens / sum(len(answer.times) for answer in ran.answers),
    }


def _document(rounds: list[dict[str, float]]) -> dict[str, Any]:
    document: dict[str, Any] = {name: spread([one[name] for one in rounds]) for name in rounds[0]}
    document["tokens_per_s_of_one_core"] = rounded(1e6 / min(one["cpu_us_per_token"] for one in rounds))
    return document
