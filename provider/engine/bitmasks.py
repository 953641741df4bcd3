"""Packed token masks: one bit a token, 32 to a word, as llguidance writes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from llguidance import LLMatcher

Words = np.ndarray[Any, np.dtype[np.uint32]]


def mask_words(width: int) -> int:
    """32-bit words that hold one bit for each of `width` tokens."""
    return (width + 31) // 32


def first_mask(matcher: LLMatcher, width: int) -> Words:
    """The matcher's next mask in an array of its own; the matcher keeps what it computed."""
    mask = np.zeros(mask_words(width), dtype=np.uint32)
    matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    return mask


def all_tokens(width: int) -> Words:
    return np.full(mask_words(width), 0xFFFFFFFF, dtype=np.uint32)


def allow(mask: Words, tokens: Iterable[int]) -> None:
    for token in tokens:
        mask[token // 32] |= np.uint32(1 << token % 32)


def forbid(mask: Words, tokens: Iterable[int]) -> None:
    for token in tokens:
        mask[token // 32] &= np.uint32(0xFFFFFFFF ^ (1 << token % 32))


def tokens_in(mask: Words, width: int) -> list[int]:
    """The allowed tokens' IDs, ascending."""
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:width]
    return [int(token) for token in np.flatnonzero(bits)]
