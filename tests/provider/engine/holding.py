"""Walk a text through a grammar as the engine would: mask by mask, token by token, phases included."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway_protocol.families import Family
from gateway_protocol.openai_types import ToolChoice
from provider.engine.base import Constraint, Rejected, ThinkMarkers
from provider.engine.bitmasks import mask_words
from provider.engine.grammars import Grammars, Held
from provider.engine.masks import GrammarRow
from tests.provider.engine.vocabularies import Vocabulary

THINK = ThinkMarkers("<think>", "</think>")
HERMES_TEMPLATE = '{"name": <name>, "arguments": <object>}'
XML_TEMPLATE = "<function=example>"
TEMPLATES = {"hermes": HERMES_TEMPLATE, "xml": XML_TEMPLATE, "llama": "", "harmony": ""}
FAMILIES = {"hermes": Family.QWEN, "xml": Family.QWEN, "llama": Family.LLAMA, "harmony": Family.GPT_OSS}


def tool(name: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name}
    if parameters is not None:
        function["parameters"] = dict(parameters)
    return {"type": "function", "function": function}


def chosen(choice: str) -> ToolChoice:
    """A mode, or the function of that name."""
    if choice in ("auto", "none", "required"):
        return ToolChoice(choice)  # type: ignore[arg-type]
    return ToolChoice("named", choice)


@functools.cache
def grammars(vocabulary: Vocabulary, markup: str, *, think: bool = False) -> Grammars:
    return Grammars(
        vocabulary.tokenizer,
        vocabulary.ids,
        family=FAMILIES[markup],
        chat_template=TEMPLATES[markup],
        think=THINK if think else None,
    )


def constraint(
    markup: str,
    tools: Sequence[Mapping[str, Any]],
    choice: str = "auto",
    *,
    parallel: bool = True,
    answer: Mapping[str, Any] | None = None,
    strict: bool = False,
) -> Constraint:
    return Constraint(
        FAMILIES[markup], tools, chosen(choice), parallel, response_schema=answer, refuse_uncompilable=strict
    )


def held(prepared: Held | Rejected | None) -> Held:
    assert isinstance(prepared, Held), prepared
    return prepared


@dataclass
class Walk:
    """One answer under a grammar."""

    row: GrammarRow
    vocabulary: Vocabulary

    def allowed(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """One flag a token; all true where the row masks nothing."""
        width = self.vocabulary.tokenizer.vocab_size
        words = np.full(mask_words(width), 0xFFFFFFFF, dtype=np.uint32)
        if self.row.restricts:
            self.row.mask(words)
        assert self.row.failure is None, self.row.failure
        return np.unpackbits(words.view(np.uint8), bitorder="little")[:width].astype(np.bool_)

    def take(self, tokens: Sequence[int]) -> int:
        """How many of the tokens the masks let through."""
        for place, token in enumerate(tokens):
            if not self.allowed()[token]:
                return place
            self.row.advance(token)
            assert self.row.failure is None, self.row.failure
        return len(tokens)

    def may_end(self) -> bool:
        return any(self.allowed()[token] for token in self.vocabulary.tokenizer.eos_tokens)

    def must_end(self) -> bool:
        allowed = self.allowed()
        return bool(allowed.sum() == allowed[self.vocabulary.tokenizer.eos_tokens].sum())


def walk(prepared: Held | Rejected | None, vocabulary: Vocabulary) -> Walk:
    return Walk(held(prepared).row(), vocabulary)


def verdict(prepared: Held | Rejected | None, vocabulary: Vocabulary, text: str) -> str:
    """`whole`: the text is an answer; `begun`: it may go on; else the first characters that were refused."""
    steps = walk(prepared, vocabulary)
    tokens = vocabulary.tokens(text)
    taken = steps.take(tokens)
    if taken < len(tokens):
        return f"refused at {vocabulary.tokenizer.decode_str(tokens[:taken])!r}"
    return "whole" if steps.may_end() else "begun"
