"""Which tokens a row may take next: the row's matcher, its phases, and the mask it writes.

    HEAD ──first token opens reasoning──▶ THINKING ──reasoning closes──▶ ARMED
      └──────────────────────any other token────────────────────────────▶ ARMED
    ARMED ──matcher error, or masks that cost too much──▶ FAILED

Reasoning between markers that are tokens is free: the matcher starts behind it. While a forced row thinks,
only its end tokens are masked; any other thinking row needs no mask at all. A failed row must be ended by
whoever runs the batch: a matcher in error asks for the end token, which would look like a normal stop.

One thread uses a row (llguidance raises "Already borrowed" otherwise).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

import numpy as np
from llguidance import LLMatcher

Words = np.ndarray[Any, np.dtype[np.uint32]]

# A mask takes microseconds, a walk through the whole vocabulary 1.4 ms. CPU time, so that a busy machine
# fails nobody.
SLOW_MASK_NS: Final = 20_000_000
SLOW_MASKS: Final = 3


def mask_words(width: int) -> int:
    """32-bit words that hold one bit for each of `width` tokens."""
    return (width + 31) // 32


def first_mask(matcher: LLMatcher, width: int) -> Words:
    """The matcher's next mask in an array of its own; the matcher keeps what it computed."""
    mask = np.zeros(mask_words(width), dtype=np.uint32)
    matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    return mask


@dataclass(frozen=True)
class RowVocabulary:
    """What rows need to know of their model's tokens. `width`: of its logits. `think_open`, `think_close`:
    the tokens around its reasoning, if it has such."""

    width: int
    end_tokens: frozenset[int]
    think_open: int | None = None
    think_close: int | None = None
    not_ending: Words = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        words = np.full(mask_words(self.width), 0xFFFFFFFF, dtype=np.uint32)
        for token in self.end_tokens:
            words[token // 32] &= np.uint32(0xFFFFFFFF ^ (1 << token % 32))
        object.__setattr__(self, "not_ending", words)


class Phase(Enum):
    HEAD = auto()
    THINKING = auto()
    ARMED = auto()
    FAILED = auto()


class GrammarRow:
    """`advance` with each token the row has taken, then `mask` for the next. `forced`: the answer can't end
    before the grammar has been served."""

    def __init__(
        self, matcher: LLMatcher, vocabulary: RowVocabulary, *, forced: bool, reasoning_open: bool
    ) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._forced = forced
        self._slow_masks = 0
        self._started = False
        self.failure: str | None = None
        if reasoning_open and vocabulary.think_close is not None:
            self.phase = Phase.THINKING
        else:
            self.phase = Phase.HEAD if vocabulary.think_open is not None else Phase.ARMED

    @property
    def restricts(self) -> bool:
        """Whether the next token is restricted in any way."""
        return self.phase is Phase.HEAD or self.phase is Phase.ARMED or self._thinks_forced

    @property
    def _thinks_forced(self) -> bool:
        return self.phase is Phase.THINKING and self._forced

    def begin(self, token: int) -> None:
        """The batch feeds a row's last token before it asks for the next: first the prompt's, which is not
        the grammar's business, from then on the row's own (also when it comes back after a pause)."""
        if self._started:
            self.advance(token)
        self._started = True

    def advance(self, token: int) -> None:
        if self.phase is Phase.HEAD:
            self.phase = Phase.ARMED
            if token == self._vocabulary.think_open:
                self.phase = Phase.THINKING
                return
        elif self.phase is Phase.THINKING:
            if token == self._vocabulary.think_close:
                self.phase = Phase.ARMED
            return
        if self.phase is not Phase.ARMED or self._matcher.is_stopped():
            self._check()
            return
        if not self._matcher.consume_token(token) or self._matcher.is_error():
            self._fail("a token came that the grammar doesn't allow")

    def mask(self, out: Words) -> None:
        """Write the bits of what may come next; `out` holds `mask_words(width)` words."""
        if self.phase is Phase.THINKING:
            out[:] = self._vocabulary.not_ending
            return
        if self.phase is Phase.FAILED:
            out[:] = 0xFFFFFFFF
            return
        started = time.thread_time_ns()
        self._matcher.unsafe_compute_mask_ptr(out.ctypes.data, out.nbytes)
        if self._matcher.is_error():
            self._fail("the grammar ran into a limit")
            out[:] = 0xFFFFFFFF
            return
        if time.thread_time_ns() - started > SLOW_MASK_NS:
            self._slow_masks += 1
            if self._slow_masks >= SLOW_MASKS:
                self._fail("the grammar costs too much for each token")
        if self.phase is Phase.HEAD and self._vocabulary.think_open is not None:
            word, bit = divmod(self._vocabulary.think_open, 32)
            out[word] |= np.uint32(1 << bit)

    def _check(self) -> None:
        if self.phase is Phase.ARMED and self._matcher.is_error():
            self._fail("the grammar is in error")

    def _fail(self, why: str) -> None:
        self.phase = Phase.FAILED
        self.failure = why
