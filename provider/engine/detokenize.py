"""Token IDs to text, one token at a time, in linear time, never half a code point.

Byte-level and SentencePiece vocabularies are decoded from a table of each token's bytes; for any other
tokenizer its own `decode` is asked over a short window. Special tokens are spelled out. Bytes that never
become a whole code point before the output ends are not delivered.
"""

from __future__ import annotations

import codecs
import functools
import json
from collections.abc import Sequence
from typing import Any, Protocol

_SPACE_MARK = "▁"


class Detokenizer(Protocol):
    def feed(self, token_id: int) -> str:
        """What this token adds; `""` while a code point is incomplete."""
        ...


class Vocabulary(Protocol):
    """One for each loaded tokenizer, shared by its jobs."""

    def detokenizer(self) -> Detokenizer: ...

    def token_bytes(self, token_id: int) -> bytes:
        """This token's own bytes, which need not be whole code points."""
        ...


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """`tokenizer`: a Hugging Face tokenizer."""
    added = {int(i): token.content for i, token in tokenizer.added_tokens_decoder.items()}
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    steps = _decoder_steps(tokenizer)
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return _ByteVocabulary(pieces, added, byte_level=True, strip_first_space=False)
    if "ByteFallback" in kinds and "Replace" in kinds:
        strip = any(step.get("type") == "Strip" and step.get("start") for step in steps)
        return _ByteVocabulary(pieces, added, byte_level=False, strip_first_space=strip)
    return _WindowVocabulary(tokenizer)


def _decoder_steps(tokenizer: Any) -> list[dict[str, Any]]:
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is None:
        return []
    # The only way the library gives a decoder's settings away: its pickled state is JSON.
    state = json.loads(decoder.__getstate__())
    return list(state["decoders"]) if state.get("type") == "Sequence" else [state]


@functools.cache
def _byte_of_char() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte, the other way round.

    Printable bytes stand for themselves; the rest, in order, are the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + order): byte for order, byte in enumerate(others)})
    return table


class _ByteVocabulary:
    def __init__(
        self,
        pieces: Sequence[str | None],
        added: dict[int, str],
        *,
        byte_level: bool,
        strip_first_space: bool,
    ) -> None:
        self._pieces = pieces
        self._bytes = {token_id: content.encode() for token_id, content in added.items()}
        self._byte_level = byte_level
        self._strip_first_space = strip_first_space

    def detokenizer(self) -> Detokenizer:
        return _ByteDetokenizer(self, strip_first_space=self._strip_first_space)

    def token_bytes(self, token_id: int) -> bytes:
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spell(token_id)
        return known

    def _spell(self, token_id: int) -> bytes:
        # A model's padded vocabulary may be wider than its tokenizer's.
        piece = self._pieces[token_id] if token_id < len(self._pieces) else None
        if piece is None:
            return b""
        if self._byte_level:
            table = _byte_of_char()
            if all(char in table for char in piece):
                return bytes(table[char] for char in piece)
            return piece.encode()
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:5], 16)])
        return piece.replace(_SPACE_MARK, " ").encode()


class _ByteDetokenizer:
    def __init__(self, vocabulary: _ByteVocabulary, *, strip_first_space: bool) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = strip_first_space

    def feed(self, token_id: int) -> str:
        text = self._decoder.decode(self._vocabulary.token_bytes(token_id))
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


class _WindowVocabulary:
    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def detokenizer(self) -> Detokenizer:
        return _WindowDetokenizer(self._tokenizer)

    def token_bytes(self, token_id: int) -> bytes:
        return str(self._tokenizer.decode([token_id])).encode()


class _WindowDetokenizer:
    """Decodes the tokens since the last but one emission: context enough for joined spaces."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._pending: list[int] = []

    def feed(self, token_id: int) -> str:
        self._pending.append(token_id)
        before = self._decode(self._context) if self._context else ""
        text = self._decode(self._context + self._pending)
        if text.endswith("\ufffd") or len(text) <= len(before):
            return ""
        self._context, self._pending = self._pending, []
        return text[len(before) :]

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, clean_up_tokenization_spaces=False))
