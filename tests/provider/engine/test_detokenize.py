"""Incremental detokenising: equal to decoding at once, linear, whole code points."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from provider.engine.detokenize import Vocabulary, vocabulary_of

FOLDER = Path(__file__).parents[2] / "fixtures" / "models" / "tiny-qwen3"
TEXTS = [
    "plain words, punctuation; and\n\n\tindents   of   all kinds ",
    "Grüße, naïve café, ½ € ™",
    "日本語のテキスト 中文 한국어",
    "👋🏽 👨‍👩‍👧‍👦 🇩🇪 e\u0301",
    "<tool_call>\n{}\n</tool_call><think>x</think>",
]


def byte_level() -> Any:
    return PreTrainedTokenizerFast(tokenizer_file=str(FOLDER / "tokenizer.json"))


def byte_fallback(strip: bool) -> Any:
    """A SentencePiece-like vocabulary: a mark for spaces, `<0xNN>` for what has no piece."""
    spelled = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdefghijklmnopqrstuvwxyz,;<>/é"]
    vocabulary = {piece: token_id for token_id, piece in enumerate(spelled)}
    core = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always" if strip else "never")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    core.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    core.add_tokens([AddedToken("<tool_call>", normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=core)


def word_piece() -> Any:
    core = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]"], show_progress=False)
    core.train_from_iterator(TEXTS[:2], trainer)
    core.decoder = decoders.WordPiece(cleanup=False)
    return PreTrainedTokenizerFast(tokenizer_object=core)


TOKENIZERS = {
    "byte-level": byte_level,
    "byte-fallback": lambda: byte_fallback(False),
    "byte-fallback, first space stripped": lambda: byte_fallback(True),
    "another kind": word_piece,
}


def pieces(vocabulary: Vocabulary, ids: list[int]) -> list[str]:
    detokenizer = vocabulary.detokenizer()
    return [detokenizer.feed(token_id) for token_id in ids]


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("text", TEXTS)
def test_equals_decoding_at_once(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]()
    vocabulary = vocabulary_of(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert "".join(pieces(vocabulary, ids)) == tokenizer.decode(ids, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("kind", ["byte-level", "byte-fallback"])
def test_never_half_a_code_point(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]()
    vocabulary = vocabulary_of(tokenizer)
    ids = tokenizer.encode("👋🏽 語", add_special_tokens=False)
    out = pieces(vocabulary, ids)
    assert "".join(out).strip() == "👋🏽 語"
    assert "" in out
    assert b"".join(vocabulary.token_bytes(token_id) for token_id in ids).decode().strip() == "👋🏽 語"


def test_broken_bytes_in_the_middle_become_a_replacement_and_a_cut_end_is_dropped() -> None:
    tokenizer = byte_fallback(False)
    vocabulary = vocabulary_of(tokenizer)
    byte = {value: tokenizer.convert_tokens_to_ids(f"<0x{value:02X}>") for value in (0xF0, 0x9F, 0x41)}
    assert pieces(vocabulary, [byte[0xF0], byte[0x9F], byte[0x41]]) == ["", "", "\ufffdA"]
    assert pieces(vocabulary, [byte[0x41], byte[0xF0]]) == ["A", ""]


def test_a_token_beyond_the_tokenizer_adds_nothing() -> None:
    vocabulary = vocabulary_of(byte_level())
    assert pieces(vocabulary, [100_000]) == [""]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_linear(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]()
    vocabulary = vocabulary_of(tokenizer)
    ids = tokenizer.encode("naïve café " * 200, add_special_tokens=False)

    def seconds(times: int) -> float:
        detokenizer = vocabulary.detokenizer()
        begun = time.process_time()
        for token_id in ids * times:
            detokenizer.feed(token_id)
        return time.process_time() - begun

    seconds(1)
    # Four times the tokens, four times the time; quadratic would be sixteen.
    assert min(seconds(8) for _ in range(3)) < 8 * min(seconds(2) for _ in range(3)) + 0.05
