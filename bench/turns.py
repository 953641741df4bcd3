"""An agent's turns: how long until the first token of a long conversation, cold, and once it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from bench.answers import Answer
from bench.figures import compared, rounded
from bench.prompts import Chat, Count, Message, conversation
from bench.systems import System

ANSWER_TOKENS = 8
TURNS = ("cold", "second", "third")


async def turns(systems: Sequence[System], count: Count, *, tokens: int, rounds: int) -> dict[str, Any]:
    """Three turns of a new conversation in each round; seconds to the first token of each.

    Each turn sends everything so far, as agents do: history, the answer it got, and a new question.
    """
    taken = []
    for number in range(rounds):
        messages = await conversation(tokens, 1000 + number, count)
        taken.append({system.name: await _three(system, messages) for system in systems})
    less = frozenset(f"{turn}_ttft_s" for turn in TURNS)
    document = compared(taken, less_is_better=less)
    document["history_tokens"] = tokens
    for system in systems:
        for turn in TURNS[1:]:
            shares = [one[system.name][f"{turn}_ttft_s"] / one[system.name]["cold_ttft_s"] for one in taken]
            document[system.name][f"{turn}_to_cold"] = {
                "median": rounded(median(shares)),
                "best": rounded(min(shares)),
            }
    return document


async def _three(system: System, history: Sequence[Message]) -> dict[str, float]:
    messages = list(history)
    figures: dict[str, float] = {}
    for turn in TURNS:
        chat: Chat = {"messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 0}
        (answer,) = await system.chats([chat])
        _check(system, answer)
        figures[f"{turn}_ttft_s"] = answer.first_s
        figures[f"{turn}_cached_tokens"] = answer.cached_tokens
        figures[f"{turn}_prompt_tokens"] = answer.prompt_tokens
        messages = [
            *messages,
            {"role": "assistant", "content": answer.text},
            {"role": "user", "content": "Go on, please."},
        ]
    return figures


def _check(system: System, answer: Answer) -> None:
    if answer.error is not None:
        raise RuntimeError(f"{system.name}: {answer.error}")
