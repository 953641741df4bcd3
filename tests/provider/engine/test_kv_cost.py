"""Memory admission on numbers: who fits, who waits, who never fits."""

from __future__ import annotations

import pytest

from gateway_protocol.errors import ErrorCode
from provider.engine.base import Rejected
from provider.engine.kv_cost import KvCost, LayerCost, Wish, admit

# 1,000 bytes a token.
PLAIN = KvCost((LayerCost(600.0), LayerCost(400.0)))
MIB = 1_000_000


def wish(prompt: int, asked: int | None, context: int = 100_000, cap: int = 100_000) -> Wish:
    return Wish(prompt, asked, context, cap)


def test_row_and_batch_bytes() -> None:
    assert PLAIN.row_bytes(1) == 256_000
    # mlx-lm adds 256 tokens' room wherever a row stands: all but one of them may lie unused.
    assert PLAIN.row_bytes(256) == 511_000
    assert PLAIN.row_bytes(257) == 512_000
    sliding = KvCost((LayerCost(600.0), LayerCost(400.0, window=512)), fixed_bytes=7)
    assert sliding.row_bytes(1024) == 7 + 600 * 1279 + 400 * 512
    # mlx-lm gives every row the length of the longest.
    assert PLAIN.batch_bytes([10, 1000, 10]) == 3 * 1_255_000
    assert PLAIN.batch_bytes([]) == 0


@pytest.mark.parametrize("lengths", [[], [100], [5000, 10]])
def test_longest_beside_is_the_longest(lengths: list[int]) -> None:
    budget = 20 * MIB
    longest = PLAIN.longest_beside(lengths, budget, 100_000)
    assert PLAIN.batch_bytes([*lengths, longest]) <= budget
    assert PLAIN.batch_bytes([*lengths, longest + 1]) > budget
    assert PLAIN.longest_beside(lengths, budget, 50) == 50


def test_a_stated_length_is_held_whole_or_waits() -> None:
    room = {"lengths": [1000], "budget": 4 * MIB, "budget_alone": 8 * MIB}
    assert admit(wish(500, 500), PLAIN, **room) == 500
    # Alone it fits, beside the other not yet.
    assert admit(wish(2000, 2000), PLAIN, **room) is None


def test_a_stated_length_is_lowered_to_what_the_machine_holds_at_best() -> None:
    free = {"lengths": [], "budget": 8 * MIB, "budget_alone": 8 * MIB}
    got = admit(wish(1000, 32_768), PLAIN, **free)
    assert isinstance(got, int)
    assert PLAIN.row_bytes(1000 + got) <= 8 * MIB < PLAIN.row_bytes(1000 + got + 1)


def test_a_prompt_that_never_fits_is_refused_with_the_figures() -> None:
    got = admit(wish(9000, 10), PLAIN, lengths=[], budget=8 * MIB, budget_alone=8 * MIB)
    assert isinstance(got, Rejected)
    assert (got.code, got.param) == (ErrorCode.CONTEXT_LENGTH_EXCEEDED, "messages")
    assert "9000" in got.message
    assert "memory" in got.message
    by_context = admit(
        wish(9000, 10, context=4000), PLAIN, lengths=[], budget=80 * MIB, budget_alone=80 * MIB
    )
    assert isinstance(by_context, Rejected)
    assert "context is 4000" in by_context.message


def test_an_unstated_length_takes_what_memory_admits_from_4096_on() -> None:
    alone = 50 * MIB
    got = admit(wish(1000, None), PLAIN, lengths=[], budget=alone, budget_alone=alone)
    assert isinstance(got, int)
    assert 40_000 < got < 49_000
    less = admit(wish(1000, None), PLAIN, lengths=[], budget=6 * MIB, budget_alone=alone)
    assert isinstance(less, int)
    assert 4096 <= less < 5_000
    # Under 4,096 counts as no room, so it waits …
    assert admit(wish(1000, None), PLAIN, lengths=[], budget=4 * MIB, budget_alone=alone) is None
    # … unless the context leaves less than that anyway.
    short = admit(wish(1000, None, context=3000), PLAIN, lengths=[], budget=4 * MIB, budget_alone=alone)
    assert short == 2000
