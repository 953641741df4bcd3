"""Free text of an answer that may come to a call: followed without the grammar until an opener begins.

Nearly all of an `auto` answer is text, and a grammar of "any text without an opener" walks through the whole
vocabulary at each line break of code. But in text the mask is constant, except behind the beginning of an
opener (`<tool`), where the grammar is asked, once for each beginning. And lines are followed as the parser
follows them, so that markup quoted in a fenced block stays text.

    TEXT ──token opener, not fenced──▶ a matcher that has read it
     │▲
     ▼│ broken off
    BEHIND a beginning ──opener complete──▶ a matcher that has read it
"""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLMatcher, LLTokenizer

from provider.engine.bitmasks import Words, allow, first_mask, tokens_in
from provider.engine.lark import ANYTHING, escaped, holds, regex, without
from provider.toolcalls.lines import LineTracker


class TextMasks:
    """What may come next in free text of one vocabulary. `opener`: the token that opens a call, if there is
    one and calls are allowed. `markers`: tokens that are text inside a fenced block."""

    def __init__(
        self, tokenizer: LLTokenizer, openers: Sequence[str], opener: int | None, markers: Sequence[int]
    ) -> None:
        self.tokenizer = tokenizer
        self.openers = tuple(opener.encode() for opener in openers)
        self.opener = opener
        ends = tokenizer.eos_tokens
        anything = self._mask(regex(ANYTHING))
        # llguidance lets text begin with whole characters only; a model's tokens also go on with half ones.
        left_out = tokens_in(~anything, tokenizer.vocab_size)
        halves = [token for token in left_out if _continues_a_character(tokenizer, token)]
        self.outside = self._mask(without(ANYTHING, (holds(map(escaped, openers)),)))
        self.fenced = anything
        for mask in (self.outside, self.fenced):
            allow(mask, (*ends, *halves))
        allow(self.fenced, markers)
        if opener is not None:
            allow(self.outside, (opener,))

    def _mask(self, terminal: str) -> Words:
        grammar = LLMatcher.grammar_from_lark(f"start: TEXT\nTEXT: {terminal}\n")
        matcher = LLMatcher(self.tokenizer, grammar, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        return first_mask(matcher, self.tokenizer.vocab_size)


def _continues_a_character(tokenizer: LLTokenizer, token: int) -> bool:
    if tokenizer.is_special_token(token):
        return False
    data = tokenizer.decode_bytes([token])
    return bool(data) and 0x80 <= data[0] < 0xC0


class TextGrammar:
    """A compiled grammar as free text sees it: matchers that have read the beginning of an opener.

    Shared by the rows of one grammar; for the thread that steps them. `fences`: fenced blocks are text
    whatever they hold (not where no call may come at all).
    """

    def __init__(self, masks: TextMasks, prototype: LLMatcher, *, fences: bool) -> None:
        self.masks = masks
        self.fences = fences
        self._prototype = prototype
        self._behind: dict[bytes, tuple[LLMatcher, Words]] = {}

    def behind(self, beginning: bytes) -> tuple[LLMatcher, Words]:
        """A matcher that has read `beginning` and its mask. Copy it to go on."""
        if beginning not in self._behind:
            tokenizer = self.masks.tokenizer
            matcher = self._prototype.deep_copy()
            matcher.consume_tokens(tokenizer.tokenize_bytes(beginning))
            self._behind[beginning] = (matcher, first_mask(matcher, tokenizer.vocab_size))
        return self._behind[beginning]

    def opened(self) -> LLMatcher:
        """A matcher that has read the opener's token."""
        assert self.masks.opener is not None
        matcher = self._prototype.deep_copy()
        matcher.consume_token(self.masks.opener)
        return matcher


class FreeText:
    """One row's text. `take` each token, then ask for `mask`; a matcher that `take` gives back takes over."""

    def __init__(self, grammar: TextGrammar) -> None:
        self._grammar = grammar
        self._lines = LineTracker()
        self._beginning = b""

    @property
    def _fenced(self) -> bool:
        return self._grammar.fences and self._lines.fenced

    def take(self, token: int) -> LLMatcher | None:
        """Read a token; the matcher that holds the call, once one has been opened."""
        masks = self._grammar.masks
        if token == masks.opener and not self._fenced:
            return self._grammar.opened()
        if masks.tokenizer.is_special_token(token):
            self._lines.feed("<>")  # a marker in a fenced block, or an end token
            self._beginning = b""
            return None
        data = masks.tokenizer.decode_bytes([token])
        before = self._beginning
        self._lines.feed(data.decode("latin-1"))
        text = before + data
        self._beginning = b"" if self._fenced else self._begun(text)
        if before and not self._fenced and any(opener in text for opener in masks.openers):
            matcher = self._grammar.behind(before)[0].deep_copy()
            matcher.consume_token(token)
            return matcher
        return None

    def mask(self) -> Words:
        """Not to be written to."""
        if self._fenced:
            return self._grammar.masks.fenced
        if self._beginning:
            return self._grammar.behind(self._beginning)[1]
        return self._grammar.masks.outside

    def _begun(self, text: bytes) -> bytes:
        """The end of `text` that an opener begins with. (Each begins with `<` and holds no other.)"""
        at = text.rfind(b"<")
        if at < 0:
            return b""
        end = text[at:]
        return end if any(o.startswith(end) and o != end for o in self._grammar.masks.openers) else b""
