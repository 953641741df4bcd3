"""What is measured and how often. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from provider.models.catalogue import DEMO_MODEL

PARTS = ("chat", "seeded", "tools", "turns", "long_prompt", "start", "stack")


@dataclass(frozen=True, slots=True)
class Amount:
    """Of one model. Rounds of 0 leave a part out. `*_tokens`: of each answer."""

    streams: tuple[int, ...] = (1, 4, 8, 16)
    chat_rounds: int = 5
    chat_tokens: int = 384
    seeded_rounds: int = 2
    seeded_tokens: int = 128
    tools_rounds: int = 3
    tools_tokens: int = 256
    turn_rounds: int = 5
    history_tokens: int = 2000
    long_rounds: int = 3
    long_tokens: int = 4000
    start_rounds: int = 3


@dataclass(frozen=True, slots=True)
class StackAmount:
    tokens: int = 1500
    paced_tokens: int = 250
    rounds: int = 3


# The demo model takes a tenth of a second for a step on a CPU, and ten for a prompt of 2,000 tokens.
WHOLE = Amount()
WHOLE_SLOW = Amount(
    chat_rounds=3,
    chat_tokens=48,
    seeded_rounds=1,
    seeded_tokens=24,
    tools_rounds=2,
    tools_tokens=32,
    turn_rounds=2,
    long_rounds=1,
    start_rounds=1,
)
QUICK = Amount(
    chat_rounds=2,
    chat_tokens=128,
    seeded_rounds=1,
    seeded_tokens=64,
    tools_rounds=1,
    tools_tokens=128,
    turn_rounds=2,
    long_rounds=1,
    start_rounds=1,
)
QUICK_SLOW = Amount(
    streams=(8,),
    chat_rounds=1,
    chat_tokens=24,
    seeded_rounds=0,
    tools_rounds=0,
    turn_rounds=0,
    long_rounds=0,
    start_rounds=1,
)
STACK = StackAmount()
STACK_QUICK = StackAmount(tokens=800, paced_tokens=100, rounds=2)


@dataclass(frozen=True, slots=True)
class Subject:
    """One model to measure with, as an mlx-lm folder."""

    id: str
    path: Path
    amount: Amount


def amount_for(model: str, weight_bytes: int, *, quick: bool, on_gpu: bool) -> Amount:
    slow = not on_gpu and (model == DEMO_MODEL or weight_bytes > 100_000_000)
    if quick:
        return QUICK_SLOW if slow else QUICK
    return WHOLE_SLOW if slow else WHOLE
