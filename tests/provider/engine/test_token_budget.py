"""The effective max_tokens, row by row as docs/contract.md states it."""

from __future__ import annotations

import pytest

from provider.engine.token_budget import answer_tokens, no_room_message, room_needed


@pytest.mark.parametrize(
    ("asked", "prompt", "context", "cap", "memory", "expected"),
    [
        # Given: lowered to the cap, to what the context leaves, never refused for its size.
        (100, 50, 1000, 1000, None, 100),
        (32_768, 50, 1000, 400, None, 400),
        (32_768, 50, 1000, 1000, None, 950),
        (10, 1000, 1000, 1000, None, 0),
        (10, 1200, 1000, 1000, None, -200),
        # Absent: all there is, or what memory admits.
        (None, 50, 1000, 1000, None, 950),
        (None, 50, 1000, 300, None, 300),
        (None, 50, 100_000, 100_000, 5000, 5000),
        (None, 50, 1000, 1000, 5000, 950),
        (None, 1000, 1000, 1000, None, 0),
    ],
)
def test_answer_tokens(
    asked: int | None, prompt: int, context: int, cap: int, memory: int | None, expected: int
) -> None:
    got = answer_tokens(
        asked=asked,
        prompt_tokens=prompt,
        context_length=context,
        max_output_tokens=cap,
        memory_tokens=memory,
    )
    assert got == expected


def test_room_needed() -> None:
    # A stated length is held whole; an unstated one is room from 4,096 tokens, or what is left if less.
    assert room_needed(asked=10_000, left=9_000) == 9_000
    assert room_needed(asked=None, left=100_000) == 4096
    assert room_needed(asked=None, left=950) == 950


def test_the_refusal_says_both_numbers() -> None:
    assert "1000 tokens" in no_room_message(1200, 1000)
    assert "1200 tokens" in no_room_message(1200, 1000)
