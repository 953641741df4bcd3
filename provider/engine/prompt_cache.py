"""Prompts already computed, kept for the next turn: by tenant and model, on exact token prefixes only.

mlx-lm has such a cache (`LRUPromptCache`), but keys it by a trie of Python dicts that weighs some 300 bytes
a token outside its own byte budget. Here a key is a flat array and the budget counts everything.

A cache that can be trimmed serves every prefix of its tokens. One that can't (recurrent layers, a sliding
window that has slid) serves only prompts that begin with all of them, so `resident` stores it at message
boundaries too. At least the prompt's last token is always computed again: the first answer token comes from
its logits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import can_trim_prompt_cache, trim_prompt_cache

# Below this a hit saves less than it costs to keep.
LEAST_TOKENS: Final = 16

Key = tuple[str, str]
Tokens = np.ndarray[Any, np.dtype[np.uint32]]


@dataclass(slots=True)
class _Entry:
    tokens: Tokens
    cache: list[Any]
    nbytes: int
    trimmable: bool
    used: int


class PromptCache:
    """Keys are (model, tenant). Only the step thread comes here.

    `room` tells how many bytes may be held at the moment it is asked.
    """

    def __init__(self) -> None:
        self.room: Callable[[], int] = lambda: 0
        self.nbytes = 0
        self._entries: dict[Key, list[_Entry]] = {}
        self._clock = 0

    def find(self, key: Key, prompt: Sequence[int]) -> tuple[list[Any] | None, int]:
        """The cache that saves most of this prompt, and how many tokens it holds: `(None, 0)` if none does.

        The cache is the caller's to use up: it shares its arrays with the entry, which are never written to.
        """
        best, length = self._best(key, prompt)
        if best is None:
            return None, 0
        self._touch(best)
        cache = [_shared(part) for part in best.cache]
        if length < len(best.tokens):
            trim_prompt_cache(cache, len(best.tokens) - length)
        return cache, length

    def saves(self, key: Key, prompt: Sequence[int]) -> int:
        """How many tokens `find` would hold for this prompt."""
        return self._best(key, prompt)[1]

    def _best(self, key: Key, prompt: Sequence[int]) -> tuple[_Entry | None, int]:
        wanted = np.asarray(prompt, dtype=np.uint32)[:-1]
        usable = [(_usable(entry, wanted), entry) for entry in self._entries.get(key, ())]
        length, best = max(usable, key=lambda pair: pair[0], default=(0, None))
        return (best, length) if length >= LEAST_TOKENS else (None, 0)

    def store(self, key: Key, tokens: Sequence[int], cache: list[Any]) -> None:
        """Keep `cache`, which holds exactly `tokens`; the caller gives it away."""
        if len(tokens) < LEAST_TOKENS:
            return
        kept = np.asarray(tokens, dtype=np.uint32)
        entries = self._entries.setdefault(key, [])
        for entry in entries:
            if _usable(entry, kept) == len(kept):
                self._touch(entry)
                return
        nbytes = sum(part.nbytes for part in cache) + kept.nbytes
        room = self.room()
        if nbytes > room:
            return
        # Computed now: as a lazy graph it would keep the whole batch's arrays alive.
        mx.async_eval([part.state for part in cache])  # type: ignore[no-untyped-call]
        new = _Entry(kept, cache, nbytes, can_trim_prompt_cache(cache), 0)
        self._touch(new)
        for covered in [
            entry for entry in entries if new.trimmable and _usable(new, entry.tokens) == len(entry.tokens)
        ]:
            self._drop(key, covered)
        self._entries.setdefault(key, []).append(new)
        self.nbytes += nbytes
        self.shrink(room)

    def settle(self) -> None:
        """Make way, after a job came."""
        self.shrink(self.room())

    def shrink(self, max_bytes: int) -> None:
        """Forget the least recently used until no more than `max_bytes` are held."""
        while self.nbytes > max_bytes:
            key, oldest = min(
                ((key, entry) for key, entries in self._entries.items() for entry in entries),
                key=lambda pair: pair[1].used,
            )
            self._drop(key, oldest)

    def forget_model(self, model: str) -> None:
        for key in [key for key in self._entries if key[0] == model]:
            for entry in list(self._entries[key]):
                self._drop(key, entry)

    def _touch(self, entry: _Entry) -> None:
        self._clock += 1
        entry.used = self._clock

    def _drop(self, key: Key, entry: _Entry) -> None:
        self.nbytes -= entry.nbytes
        entries = self._entries[key]
        # By identity: comparing entries would compare their arrays.
        self._entries[key] = [other for other in entries if other is not entry]
        if not self._entries[key]:
            del self._entries[key]


def _usable(entry: _Entry, wanted: Tokens) -> int:
    """How many tokens at the start of `wanted` this entry can stand for."""
    length = min(len(entry.tokens), len(wanted))
    differs = np.flatnonzero(entry.tokens[:length] != wanted[:length])
    common = int(differs[0]) if differs.size else length
    if entry.trimmable:
        return common
    return common if common == len(entry.tokens) else 0


def _shared(part: Any) -> Any:
    """A layer's cache with the same arrays in an object of its own: trimming it leaves the entry alone."""
    twin = copy.copy(part)
    if hasattr(part, "caches"):
        twin.caches = tuple(_shared(inner) for inner in part.caches)
    elif isinstance(getattr(part, "cache", None), list):
        twin.cache = list(part.cache)
    return twin
