"""Which tokens a row may take next: its phases, its matcher, and the mask it writes.

    HEAD ──first token opens reasoning──▶ THINKING ──reasoning closes──┐
      └──────────────────────any other token───────────────────────────┴─▶ TEXT ──an opener──▶ ARMED
                                                        (nothing is free: ARMED at once)
    ARMED ──matcher error, or masks that cost too much──▶ FAILED

Reasoning between markers that are tokens is free: the grammar starts behind it. While a row thinks that owes
a call, only its end tokens are masked; any other thinking row needs no mask at all. A failed row must be
ended by whoever runs the batch: a matcher in error asks for the end token, which looks like a normal stop.

One thread uses a row (llguidance raises "Already borrowed" otherwise).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from llguidance import LLMatcher

from provider.engine.bitmasks import Words, all_tokens, allow, forbid
from provider.engine.free_text import FreeText, TextGrammar

# A mask takes microseconds, a walk through the whole vocabulary 1.4 ms. CPU time, so that a busy machine
# fails nobody.
SLOW_MASK_NS: Final = 20_000_000
SLOW_MASKS: Final = 3


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
        words = all_tokens(self.width)
        forbid(words, self.end_tokens)
        object.__setattr__(self, "not_ending", words)


class Phase(Enum):
    HEAD = auto()
    THINKING = auto()
    TEXT = auto()
    ARMED = auto()
    FAILED = auto()


class GrammarRow:
    """`advance` with each token the row has taken, then `mask` for the next.

    `owes`: the answer can't end before the grammar has been served. `text`: the grammar as free text sees it,
    where the answer begins with such.
    """

    def __init__(
        self,
        prototype: LLMatcher,
        vocabulary: RowVocabulary,
        *,
        owes: bool,
        reasoning_open: bool,
        text: TextGrammar | None = None,
    ) -> None:
        self._vocabulary = vocabulary
        self._owes = owes
        self._text = None if text is None else FreeText(text)
        self._matcher = prototype.deep_copy() if text is None else None
        self._slow_masks = 0
        self._started = False
        self.failure: str | None = None
        if reasoning_open and vocabulary.think_close is not None:
            self.phase = Phase.THINKING
        else:
            self.phase = Phase.HEAD if vocabulary.think_open is not None else self._first

    @property
    def _first(self) -> Phase:
        """Where the answer proper begins."""
        return Phase.ARMED if self._text is None else Phase.TEXT

    @property
    def restricts(self) -> bool:
        """Whether the next token is restricted in any way."""
        if self.phase is Phase.THINKING:
            return self._owes
        return self.phase is not Phase.FAILED

    def begin(self, token: int) -> None:
        """The batch feeds a row's last token before it asks for the next: first the prompt's, which is not
        the grammar's business, from then on the row's own (also when it comes back after a pause)."""
        if self._started:
            self.advance(token)
        self._started = True

    def advance(self, token: int) -> None:
        if self.phase is Phase.THINKING:
            if token == self._vocabulary.think_close:
                self.phase = self._first
            return
        if self.phase is Phase.HEAD:
            self.phase = Phase.THINKING if token == self._vocabulary.think_open else self._first
        if self.phase is Phase.TEXT:
            self._read_text(token)
        elif self.phase is Phase.ARMED:
            self._read_call(token)

    def _read_text(self, token: int) -> None:
        assert self._text is not None
        self._matcher = self._text.take(token)
        if self._matcher is not None:
            self.phase = Phase.ARMED
            self._check(self._matcher)

    def _read_call(self, token: int) -> None:
        matcher = self._matcher
        assert matcher is not None
        if not matcher.is_stopped():  # behind the end the batch runs one step on
            matcher.consume_token(token)
        self._check(matcher)

    def mask(self, out: Words) -> None:
        """Write the bits of what may come next; `out` holds `mask_words(width)` words."""
        if self.phase is Phase.THINKING:
            out[:] = self._vocabulary.not_ending
        elif self._text is not None and self.phase in (Phase.HEAD, Phase.TEXT):
            out[:] = self._text.mask()
        elif self._matcher is not None and self.phase is not Phase.FAILED:
            self._ask(self._matcher, out)
        if self.phase is Phase.FAILED:
            out[:] = 0xFFFFFFFF
        if self.phase is Phase.HEAD and self._vocabulary.think_open is not None:
            allow(out, (self._vocabulary.think_open,))

    def _ask(self, matcher: LLMatcher, out: Words) -> None:
        started = time.thread_time_ns()
        matcher.unsafe_compute_mask_ptr(out.ctypes.data, out.nbytes)
        if time.thread_time_ns() - started > SLOW_MASK_NS:
            self._slow_masks += 1
            if self._slow_masks >= SLOW_MASKS:
                self._fail("the grammar costs too much for each token")
        self._check(matcher)

    def _check(self, matcher: LLMatcher) -> None:
        if matcher.is_error():
            self._fail("the grammar ran into a limit, or a token came that it doesn't allow")

    def _fail(self, why: str) -> None:
        self.phase = Phase.FAILED
        self.failure = self.failure or why
