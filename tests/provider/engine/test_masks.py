"""A row's phases, and what becomes of a grammar that fails."""

from __future__ import annotations

import json

import numpy as np
import pytest
from llguidance import LLMatcher, LLParserLimits

from provider.engine import masks as masks_module
from provider.engine.bitmasks import mask_words
from provider.engine.masks import GrammarRow, Phase, RowVocabulary
from tests.provider.engine.holding import Walk, constraint, grammars, held, tool
from tests.provider.engine.vocabularies import Vocabulary, small_qwen

TOOL = tool("go", {"type": "object", "properties": {}})
CALL = '<tool_call>\n{"name": "go", "arguments": {}}\n</tool_call>'


@pytest.fixture
def words() -> Vocabulary:
    return small_qwen()


def row_of(words: Vocabulary, choice: str, *, reasoning_open: bool = False) -> GrammarRow:
    prepared = grammars(words, "hermes", think=True).prepare(
        constraint("hermes", [TOOL], choice), reasoning_open=reasoning_open
    )
    return held(prepared).row()


def test_it_thinks_first_if_it_likes(words: Vocabulary) -> None:
    row = row_of(words, "required")
    assert row.phase is Phase.HEAD
    first = set(np.flatnonzero(Walk(row, words).allowed()))
    assert {words.ids["<think>"], words.ids["<tool_call>"]} <= first
    row.advance(words.ids["<think>"])
    assert row.phase is Phase.THINKING
    allowed = Walk(row, words).allowed()
    assert not allowed[words.tokenizer.eos_tokens].any()
    assert allowed.sum() == words.tokenizer.vocab_size - len(words.tokenizer.eos_tokens)
    row.advance(words.ids["<tool_call>"])
    assert row.phase is Phase.THINKING
    row.advance(words.ids["</think>"])
    assert row.phase is Phase.ARMED
    assert Walk(row, words).take(words.tokens("\n\n" + CALL)) == len(words.tokens("\n\n" + CALL))


def test_thinking_that_owes_nothing_needs_no_mask(words: Vocabulary) -> None:
    row = row_of(words, "auto", reasoning_open=True)
    assert row.phase is Phase.THINKING
    assert not row.restricts
    row.advance(words.tokenizer.eos_tokens[0])
    assert row.failure is None


def test_the_first_token_it_is_fed_is_the_prompts(words: Vocabulary) -> None:
    row = row_of(words, "required")
    row.begin(words.ids["</tool_call>"])  # whatever the prompt ends with
    assert row.phase is Phase.HEAD
    row.begin(words.ids["<tool_call>"])
    assert row.phase is Phase.ARMED
    row.begin(words.ids["</tool_call>"])  # which the mask would not have let through
    assert row.phase is Phase.FAILED
    assert row.failure is not None


def test_after_the_end_only_the_end_comes(words: Vocabulary) -> None:
    prepared = grammars(words, "hermes").prepare(
        constraint("hermes", [TOOL], "required", parallel=False), reasoning_open=False
    )
    steps = Walk(held(prepared).row(), words)
    assert steps.take(words.tokens(CALL)) == len(words.tokens(CALL))
    for _ in range(3):
        assert steps.must_end()
        steps.row.advance(words.tokenizer.eos_tokens[0])
    assert steps.row.failure is None


def failing_row(words: Vocabulary, limits: LLParserLimits, pattern: str) -> GrammarRow:
    lark = "start: v\nv: %json " + json.dumps({"type": "string", "pattern": pattern})
    grammar = LLMatcher.grammar_from_lark(lark)
    matcher = LLMatcher(words.tokenizer, grammar, log_level=0, limits=limits)
    assert not matcher.is_error()
    vocabulary = RowVocabulary(words.tokenizer.vocab_size, frozenset(words.tokenizer.eos_tokens))
    return GrammarRow(matcher, vocabulary, owes=True, reasoning_open=False)


def test_a_grammar_that_runs_into_a_limit_fails_and_does_not_end(words: Vocabulary) -> None:
    """llguidance's mask for a matcher in error is the end token alone: a cut call that ended well."""
    row = failing_row(
        words, LLParserLimits(max_lexer_states=600, verbose_errors=False), "^(.*a.{18}b|.*b.{17}a)$"
    )
    mask = np.zeros(mask_words(words.tokenizer.vocab_size), dtype=np.uint32)
    for token in words.tokens('"abababababababababababab')[:40]:
        row.mask(mask)
        if row.failure is not None:
            break
        row.advance(token)
    assert row.phase is Phase.FAILED
    assert row.failure is not None
    assert "a.{18}" not in row.failure
    assert (mask == 0xFFFFFFFF).all()
    assert not row.restricts


def test_masks_that_cost_too_much_end_their_row(words: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks_module, "SLOW_MASK_NS", -1)
    row = row_of(words, "required")
    mask = np.zeros(mask_words(words.tokenizer.vocab_size), dtype=np.uint32)
    for _ in range(masks_module.SLOW_MASKS - 1):
        row.mask(mask)
        assert row.failure is None
    row.mask(mask)
    assert row.phase is Phase.FAILED


def test_the_end_tokens_bits_are_the_only_ones_missing() -> None:
    vocabulary = RowVocabulary(70, frozenset({0, 31, 32, 69}))
    bits = np.unpackbits(vocabulary.not_ending.view(np.uint8), bitorder="little")
    assert np.flatnonzero(bits == 0).tolist() == [0, 31, 32, 69]
