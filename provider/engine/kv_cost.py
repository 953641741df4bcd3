"""What keys and values cost in memory, and whether a job fits. Pure; `memory` reads the figures off a model.

mlx-lm's batch gives every row the length of its longest: `rows × longest`. So that is what is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway_protocol.errors import ErrorCode
from provider.engine.base import Rejected
from provider.engine.token_budget import answer_tokens, no_room_message, room_needed

# mlx-lm grows a cache by so many tokens at a time: all but one of them may lie beyond a row's end.
ALLOCATION_STEP: Final = 256


@dataclass(frozen=True, slots=True)
class LayerCost:
    """`bytes_per_token` up to `window` tokens (`None`: for every token of the context)."""

    bytes_per_token: float
    window: int | None = None


@dataclass(frozen=True, slots=True)
class KvCost:
    """One row's cost. `fixed_bytes`: recurrent state, whatever the length."""

    layers: tuple[LayerCost, ...]
    fixed_bytes: int = 0

    def row_bytes(self, tokens: int) -> int:
        allocated = tokens + ALLOCATION_STEP - 1
        growing = sum(
            layer.bytes_per_token * (allocated if layer.window is None else min(allocated, layer.window))
            for layer in self.layers
        )
        return self.fixed_bytes + int(growing)

    def batch_bytes(self, lengths: Sequence[int]) -> int:
        """`lengths`: what each row may come to, prompt and answer."""
        return len(lengths) * self.row_bytes(max(lengths)) if lengths else 0

    def longest_beside(self, lengths: Sequence[int], budget: int, at_most: int) -> int:
        """The longest row, up to `at_most` tokens, that fits beside `lengths` in `budget` bytes; 0: none."""
        low, high = 0, at_most
        while low < high:
            middle = (low + high + 1) // 2
            if self.batch_bytes([*lengths, middle]) <= budget:
                low = middle
            else:
                high = middle - 1
        return low


@dataclass(frozen=True, slots=True)
class Wish:
    """A job that wants in: its prompt, what its buyer asked for, what the model allows. All in tokens."""

    prompt_tokens: int
    asked: int | None
    context_length: int
    max_output_tokens: int


def admit(
    wish: Wish, cost: KvCost, *, lengths: Sequence[int], budget: int, budget_alone: int
) -> int | Rejected | None:
    """The job's `max_tokens`; `None`: not now, but it will fit; `Rejected`: it never fits on this machine.

    `lengths`: of the rows that run already. `budget`: bytes for the whole batch with what else is held now,
    `budget_alone`: with nothing else held. What memory alone allows bounds the context as the model does: a
    number the buyer gave is lowered to it, not refused.
    """
    holds = cost.longest_beside([], budget_alone, wish.context_length)
    most = answer_tokens(
        asked=wish.asked,
        prompt_tokens=wish.prompt_tokens,
        context_length=holds,
        max_output_tokens=wish.max_output_tokens,
    )
    if most <= 0:
        message = no_room_message(wish.prompt_tokens, wish.context_length)
        if holds < wish.context_length:
            message = (
                f"The messages are {wish.prompt_tokens} tokens; memory on this machine holds {holds} tokens"
                " of this model's context."
            )
        return Rejected(ErrorCode.CONTEXT_LENGTH_EXCEEDED, message, "messages")
    fits = cost.longest_beside(lengths, budget, wish.prompt_tokens + most) - wish.prompt_tokens
    return fits if fits >= room_needed(asked=wish.asked, left=most) else None
