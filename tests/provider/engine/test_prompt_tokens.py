"""Prompts that begin like earlier ones: the same tokens as without any memory of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from provider.engine.prompt_tokens import LEAST_CHARS, MOST_CHARS, MOST_PROMPTS, PromptTokens
from tests.provider.engine.vocabularies import TINY

LONG = "The harbour is quiet, and the boats sleep. " * 40
BASE = Tokenizer.from_file(str(TINY / "tokenizer.json"))
FRAGMENTS = (
    *("<|im_start|>user\n", "<|im_end|>\n", "<|im_start|>assistant\n", "<|im_start|>", "<tool_call>"),
    *("hello", " ", "\n", "  two", "<|im", "_end|>", "漢字🙂", "<", "a b", "</tool_call>x", LONG),
)


class Counting:
    """A backend that counts the characters it reads."""

    def __init__(self, backend: Any = BASE) -> None:
        self._backend = backend
        self.chars = 0

    def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> Any:
        self.chars += sum(map(len, texts))
        return self._backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)


def fresh(text: str, backend: Any = BASE) -> list[int]:
    return list(backend.encode(text, add_special_tokens=False).ids)


def turns(count: int, opening: str = "") -> list[str]:
    """A conversation as it grows, rendered at each turn."""
    text, rendered = f"<|im_start|>system\n{opening}{LONG}<|im_end|>\n", []
    for turn in range(count):
        text += f"<|im_start|>user\nNote {turn}: {LONG}<|im_end|>\n<|im_start|>assistant\n"
        rendered.append(text)
        text += f"Noted, {turn}.<|im_end|>\n"
    return rendered


def test_a_conversation_is_read_once() -> None:
    backend = Counting()
    tokens = PromptTokens(backend, BASE.get_added_tokens_decoder())
    rendered = turns(6)
    for text in rendered:
        assert tokens.encode(text, "ann") == fresh(text)
    # From the last special token that both turns surely share.
    assert backend.chars < len(rendered[-1]) + 6 * 100


@given(st.lists(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join), min_size=1, max_size=6))
def test_whatever_was_read_before_the_tokens_are_the_same(texts: list[str]) -> None:
    tokens = PromptTokens(BASE, BASE.get_added_tokens_decoder())
    for text in texts:
        for padded in (LONG + text, text + LONG, LONG + texts[0] + text):
            assert tokens.encode(padded, "ann") == fresh(padded)


def test_nothing_is_taken_from_another_tenant_or_from_none() -> None:
    backend = Counting()
    tokens = PromptTokens(backend, BASE.get_added_tokens_decoder())
    (text,) = turns(1)
    for number, tenant in enumerate(["ann", "bob", None, None], 1):
        tokens.encode(text, tenant)
        assert backend.chars == number * len(text)
    tokens.encode(text, "ann")
    assert backend.chars < 4 * len(text) + 100


def test_what_is_kept_is_bounded() -> None:
    backend = Counting()
    tokens = PromptTokens(backend, BASE.get_added_tokens_decoder())
    first = turns(1, "first")[0]
    tokens.encode(first, "ann")
    for number in range(MOST_PROMPTS):
        tokens.encode(turns(1, f"{number} ")[0], "ann")
    before = backend.chars
    tokens.encode(first, "ann")
    assert backend.chars - before == len(first)
    tokens.encode("<|im_end|>" + "a" * MOST_CHARS, "bob")
    before = backend.chars
    tokens.encode(first, "ann")
    assert backend.chars - before == len(first)


def test_a_short_prompt_leaves_nothing() -> None:
    backend = Counting()
    tokens = PromptTokens(backend, BASE.get_added_tokens_decoder())
    text = "<|im_end|>" + "a" * (LEAST_CHARS - 11)
    for _ in range(2):
        tokens.encode(text, "ann")
    assert backend.chars == 2 * len(text)


@pytest.mark.parametrize(
    "odd", [{"lstrip": True}, {"rstrip": True}, {"normalized": True}, {"single_word": True}]
)
def test_added_tokens_that_reach_beyond_themselves_rule_it_out(odd: dict[str, bool]) -> None:
    backend = Tokenizer.from_str(BASE.to_str())
    backend.add_tokens([AddedToken("<odd>", **{"normalized": False, **odd})])
    counting = Counting(backend)
    tokens = PromptTokens(counting, backend.get_added_tokens_decoder())
    (text,) = turns(1, "so <odd> it is")
    for _ in range(2):
        assert tokens.encode(text, "ann") == fresh(text, backend)
    assert counting.chars == 2 * len(text)


def test_a_longer_token_that_begins_like_the_last_one_is_seen() -> None:
    backend = Tokenizer.from_str(BASE.to_str())
    backend.add_tokens([AddedToken("<|im_end|>!", normalized=False)])
    tokens = PromptTokens(backend, backend.get_added_tokens_decoder())
    for ending in ("<|im_end|>", "<|im_end|>!", "<|im_end|>?"):
        text = LONG + "<|im_start|>user\n" + LONG + ending + "so"
        assert tokens.encode(text, "ann") == fresh(text, backend)
