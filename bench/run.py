"""One run: model after model, part after part, into one document."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from bench import starts
from bench.chats import in_turn
from bench.long_prompt import long_prompt
from bench.machine import machine
from bench.plan import Amount, StackAmount, Subject
from bench.prompts import Message, Prompts
from bench.stack import stack
from bench.systems import Bare, MlxServer, Product, System
from bench.targets import targets
from bench.turns import turns

SEEDED_STREAMS = 8
TOOLS_STREAMS = 8
FIRST = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def measure(
    subjects: Sequence[Subject], stack_amount: StackAmount, parts: Collection[str], *, quick: bool
) -> dict[str, Any]:
    """The whole document (docs/performance.md says what is in it)."""
    began = time.monotonic()
    document: dict[str, Any] = {"machine": machine(), "quick": quick, "models": {}}
    for subject in subjects:
        document["models"][subject.id] = await ModelRun(subject, parts).measure()
    if "stack" in parts:
        say("stack: the scripted engine at 64 streams")
        document["stack"] = await stack(
            tokens=stack_amount.tokens, paced_tokens=stack_amount.paced_tokens, rounds=stack_amount.rounds
        )
    document["targets"] = targets(document)
    document["seconds"] = round(time.monotonic() - began, 1)
    return document


class ModelRun:
    """All parts for one model, against the same three processes."""

    def __init__(self, subject: Subject, parts: Collection[str]) -> None:
        self._subject = subject
        self._amount: Amount = subject.amount
        self._parts = parts
        self._prompts = Prompts.of(subject.path)

    async def measure(self) -> dict[str, Any]:
        document: dict[str, Any] = {}
        seen: list[dict[str, dict[str, float]]] = []
        rounds = max(1, self._amount.start_rounds) if "start" in self._parts else 1
        for number in range(rounds):
            self._say("start")
            systems = await starts.started(self._subject.id, self._subject.path, FIRST)
            try:
                seen.append({system.name: starts.figures(system) for system in systems})
                if number == rounds - 1:
                    await self._all_parts(systems, document)
            finally:
                for system in systems:
                    await system.stop()
        document["start"] = starts.document(seen)
        return document

    def _say(self, part: str) -> None:
        say(f"{self._subject.id}: {part}")

    async def _all_parts(self, systems: tuple[Bare, MlxServer, Product], document: dict[str, Any]) -> None:
        amount, prompts = self._amount, self._prompts
        bare, server, product = systems

        async def count(messages: Sequence[Message]) -> int:
            counted: int = (await bare.order(do="count", messages=list(messages)))["tokens"]
            return counted

        async def chat() -> dict[str, Any]:
            return {str(streams): await chat_at(streams) for streams in amount.streams}

        async def chat_at(streams: int) -> dict[str, Any]:
            tokens = amount.chat_tokens
            return await in_turn(
                systems, lambda n: prompts.plain(streams, tokens, n), rounds=amount.chat_rounds
            )

        async def seeded() -> dict[str, Any]:
            tokens = amount.seeded_tokens
            return await in_turn(
                systems, lambda n: prompts.seeded(SEEDED_STREAMS, tokens, n), rounds=amount.seeded_rounds
            )

        async def tools() -> dict[str, Any]:
            tokens = amount.tools_tokens
            return await in_turn(
                systems, lambda n: prompts.with_tools(TOOLS_STREAMS, tokens, n), rounds=amount.tools_rounds
            )

        async def agent() -> dict[str, Any]:
            return await turns(systems, count, tokens=amount.history_tokens, rounds=amount.turn_rounds)

        async def long() -> dict[str, Any]:
            return await long_prompt(
                (server, product),
                bare,
                prompts,
                count,
                tokens=amount.long_tokens,
                stream_tokens=384,
                rounds=amount.long_rounds,
            )

        parts: list[tuple[str, int, Callable[[], Awaitable[dict[str, Any]]]]] = [
            ("chat", amount.chat_rounds, chat),
            ("seeded", amount.seeded_rounds, seeded),
            ("tools", amount.tools_rounds, tools),
            ("turns", amount.turn_rounds, agent),
            ("long_prompt", amount.long_rounds, long),
        ]
        await self._warm(systems)
        for name, rounds, part in parts:
            if rounds and name in self._parts:
                self._say(name)
                document[name] = await part()

    async def _warm(self, systems: Sequence[System]) -> None:
        """What is only slow the first time is not what is measured."""
        for system in systems:
            await system.chats(self._prompts.plain(max(self._amount.streams), 4, 0))
            if "tools" in self._parts and self._amount.tools_rounds:
                await system.chats(self._prompts.with_tools(1, 4, 0))
