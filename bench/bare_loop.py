"""The bare loop as a process: mlx-lm's `BatchGenerator`, nothing around it. `python -m bench.bare_loop MODEL`

One JSON line in, one out:

    {"do": "count", "messages": [...]}                          → {"tokens": N}
    {"do": "run", "chats": [{"messages", "tools"}, …], "max_tokens": N, "temperature": 0}
        → {"sent": s, "answers": [{"times": [s, …], "tokens": N, "prompt_tokens": N}, …], "texts": […]}
    {"do": "prefill", "messages": [...], "chunk": 512}          → {"seconds": [of each chunk, in order]}

Prompts are rendered and answers decoded off the clock: what is timed is the loop alone.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx_lm import load
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_sampler


class BareLoop:
    def __init__(self, path: str) -> None:
        loaded = load(path)
        self._model, self._tokenizer = loaded[0], loaded[1]

    def do(self, order: Mapping[str, Any]) -> dict[str, Any]:
        if order["do"] == "count":
            return {"tokens": len(self._prompt(order))}
        if order["do"] == "prefill":
            return {"seconds": self._prefill(self._prompt(order), order["chunk"])}
        return self._run(order)

    def _prompt(self, chat: Mapping[str, Any]) -> list[int]:
        tokens: list[int] = self._tokenizer.apply_chat_template(
            chat["messages"], tools=chat.get("tools"), add_generation_prompt=True
        )
        return tokens

    def _run(self, order: Mapping[str, Any]) -> dict[str, Any]:
        prompts = [self._prompt(chat) for chat in order["chats"]]
        temperature = order.get("temperature", 0)
        samplers = [make_sampler(temp=temperature) for _ in prompts] if temperature else None
        generator = BatchGenerator(
            self._model,
            stop_tokens=[[token] for token in self._tokenizer.eos_token_ids],
            completion_batch_size=max(len(prompts), 8),
        )
        sent = time.monotonic()
        uids = generator.insert(prompts, [order["max_tokens"]] * len(prompts), samplers=samplers)
        tokens: dict[int, list[int]] = {uid: [] for uid in uids}
        times: dict[int, list[float]] = {uid: [] for uid in uids}
        while responses := generator.next_generated():
            now = time.monotonic()
            for response in responses:
                tokens[response.uid].append(response.token)
                times[response.uid].append(now)
        generator.close()
        answers = [
            {"times": times[uid], "tokens": len(tokens[uid]), "prompt_tokens": len(prompt)}
            for uid, prompt in zip(uids, prompts, strict=True)
        ]
        return {
            "sent": sent,
            "answers": answers,
            "texts": [self._tokenizer.decode(tokens[uid]) for uid in uids],
        }

    def _prefill(self, prompt: list[int], chunk: int) -> list[float]:
        cache = make_prompt_cache(self._model)
        seconds = []
        for start in range(0, len(prompt), chunk):
            began = time.monotonic()
            self._model(mx.array([prompt[start : start + chunk]]), cache=cache)
            mx.eval([part.state for part in cache])
            seconds.append(time.monotonic() - began)
        return seconds


def main() -> None:
    loop = BareLoop(sys.argv[1])
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(loop.do(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
