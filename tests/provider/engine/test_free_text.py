"""Free text beside the parser: whatever the masks let through, it finds no call that isn't a good one."""

from __future__ import annotations

import random

import pytest

from provider.engine.bitmasks import tokens_in
from provider.engine.grammars import Held
from provider.toolcalls import CallPolicy
from provider.toolcalls.events import Failed, Finished
from tests.provider.engine.holding import FAMILIES, constraint, grammars, held, verdict, walk
from tests.provider.engine.test_grammar_lists import HERMES, TOOLS, XML, function
from tests.provider.engine.test_grammar_walks import Output, calls_of, read_with
from tests.provider.engine.vocabularies import Vocabulary, small_qwen, small_text

SCHEMAS = {tool["function"]["name"]: tool["function"].get("parameters") for tool in TOOLS}
PIECES = [
    *("```", "```", "\n```\n", "`", "``", "\n", "\n", " ", "  ", "a", "日", "🎉", "~~~"),
    *("<tool_call>", "</tool_call>", "<function=", "<function=Exit>", "</function>", "</parameter>", "<"),
    *("<tool", "_call", ">", "<func", "tion=", "{", "<think", "<|im_end"),
    *(HERMES.call, HERMES.bad[0], HERMES.other, XML.call, XML.bad[0], function("Exit"), function("Nowhere")),
]


def let_through(prepared: Held, words: Vocabulary, text: str) -> str:
    """As much of the text as the masks allow."""
    tokens = words.tokens(text)
    taken = walk(prepared, words).take(tokens)
    special = {token: one for one, token in words.ids.items() if words.tokenizer.is_special_token(token)}
    pieces: list[bytes] = []
    for token in tokens[:taken]:
        data = special[token].encode() if token in special else words.tokenizer.decode_bytes([token])
        pieces.append(data)
    return b"".join(pieces).decode("utf-8", "ignore")


@pytest.mark.parametrize("vocabulary", [small_qwen, small_text])
@pytest.mark.parametrize("markup", ["hermes", "xml"])
def test_the_parser_finds_good_calls_or_none(markup: str, vocabulary: object) -> None:
    words = small_qwen() if vocabulary is small_qwen else small_text()
    prepared = held(grammars(words, markup).prepare(constraint(markup, TOOLS), reasoning_open=False))
    found = fenced = 0
    for seed in range(300):
        chance = random.Random(seed)
        wanted = "".join(chance.choice(PIECES) for _ in range(chance.randrange(1, 14)))
        text = let_through(prepared, words, wanted)
        whole = verdict(prepared, words, text) == "whole"
        output = Output([text], [None], ended=whole, must_end_at=None)
        policy = CallPolicy(family=FAMILIES[markup], tools=SCHEMAS, parallel=True, delivery="incremental")
        events = read_with(output, policy)
        assert not any(isinstance(event, Failed) for event in events), text
        calls = calls_of(events)
        assert {name for name, _ in calls} <= set(SCHEMAS), text
        found += bool(calls)
        fenced += "```" in text and ("<tool_call>" in text or "<function=" in text) and not calls
        if not calls and whole:
            assert events[-1] == Finished("stop")
    assert found > 20
    assert fenced > 5


def test_the_mask_of_text_is_all_but_markup() -> None:
    words = small_qwen()
    prepared = grammars(words, "hermes").prepare(constraint("hermes", TOOLS), reasoning_open=False)
    steps = walk(prepared, words)
    never = (0xC0, 0xC1, *range(0xF5, 0x100))  # bytes that no UTF-8 text holds
    learned = [
        token
        for token in words.ids.values()
        if not words.tokenizer.is_special_token(token)
        and words.tokenizer.decode_bytes([token])[0] not in never
    ]
    expected = {*learned, words.ids["<tool_call>"], *words.tokenizer.eos_tokens}
    mask = prepared.row()._text.mask()  # type: ignore[union-attr]
    assert set(tokens_in(mask, words.tokenizer.vocab_size)) == expected
    assert set(steps.allowed().nonzero()[0]) == expected


def test_rows_of_one_grammar_dont_meet() -> None:
    """They share the matchers behind an opener's beginning."""
    words = small_text()
    prepared = grammars(words, "hermes").prepare(constraint("hermes", TOOLS), reasoning_open=False)
    rows = [walk(prepared, words) for _ in range(3)]
    opening, call, bad = (
        words.tokens("x <tool_"),
        words.tokens("call>" + HERMES.call[11:]),
        words.tokens("call>!"),
    )
    for steps in rows:
        assert steps.take(opening) == len(opening)
    assert rows[0].take(call) == len(call)
    assert rows[1].take(bad) < len(bad)
    assert rows[2].take(call) == len(call)
    assert rows[0].may_end()
