"""Chats in turn: every system gets the same ones, one system after the other, round after round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.answers import Answer, steady_tokens_per_s, whole_tokens_per_s
from bench.figures import compared
from bench.prompts import Chat
from bench.systems import System

Make = Callable[[int], list[Chat]]
"""The chats of the round with this number."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One system's answers to one round's chats, and the CPU seconds they took by part."""

    answers: list[Answer]
    engine_cpu_s: float
    rest_cpu_s: float

    def figures(self) -> dict[str, float]:
        """Tokens a second, by clock and by CPU time of what computes, and the cost of what is around it."""
        tokens = sum(answer.tokens for answer in self.answers)
        figures = {
            "tokens_per_s": steady_tokens_per_s(self.answers),
            "whole_tokens_per_s": whole_tokens_per_s(self.answers),
            "tokens_per_engine_cpu_s": tokens / max(self.engine_cpu_s, 1e-9),
            "rest_cpu_us_per_token": self.rest_cpu_s / tokens * 1e6,
            "tokens": float(tokens),
            "prompt_tokens": float(self.answers[0].prompt_tokens),
        }
        return {name: value for name, value in figures.items() if value}


async def run(system: System, chats: Sequence[Chat]) -> Ran:
    before = system.cpu_s()
    answers = await system.chats(chats)
    after = system.cpu_s()
    for answer in answers:
        if answer.error is not None:
            raise RuntimeError(f"{system.name}: {answer.error}")
    return Ran(answers, after["engine"] - before["engine"], after["rest"] - before["rest"])


async def in_turn(systems: Sequence[System], make: Make, *, rounds: int) -> dict[str, Any]:
    """`rounds` of `make`'s chats to each system."""
    taken = [
        {system.name: (await run(system, make(number))).figures() for system in systems}
        for number in range(1, rounds + 1)
    ]
    return compared(taken, less_is_better=frozenset({"rest_cpu_us_per_token"}))
