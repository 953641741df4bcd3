"""Prompts to tokens; of a prompt that begins like an earlier one of its tenant, only what is new is read.

An agent sends its whole history with each call, and tokenizing it takes longer than computing a short tool
result. Special tokens cut a text before anything else happens to it, so what stands before one is tokenized
the same whatever follows. Where the cuts can't be told for sure, the whole text is read.
"""

from __future__ import annotations

import bisect
import re
from array import array
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

# What is kept of all tenants together.
MOST_PROMPTS: Final = 16
MOST_CHARS: Final = 2 << 20
# A shorter one is read as quickly as it is looked up.
LEAST_CHARS: Final = 1024


@dataclass(frozen=True, slots=True)
class _Known:
    """`places` and `indexes`: of each special token, its place in `text` and in `tokens`."""

    tenant: str
    text: str
    tokens: array[int]
    places: list[int]
    indexes: list[int]


class PromptTokens:
    """For one thread. `backend`: a `tokenizers.Tokenizer` that neither pads nor truncates.

    `added`: its added tokens by ID, as `added_tokens_decoder` has them.
    """

    def __init__(self, backend: Any, added: Mapping[int, Any]) -> None:
        self._backend = backend
        self._ids = {token.content: token_id for token_id, token in added.items() if token.content}
        # One that takes white space with it, or is sought in normalized text, makes cuts of another kind.
        simple = not any(
            token.normalized or token.lstrip or token.rstrip or token.single_word for token in added.values()
        )
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._special = (
            re.compile("|".join(map(re.escape, longest_first))) if longest_first and simple else None
        )
        self._longest = len(longest_first[0]) if longest_first else 0
        self._added = frozenset(self._ids.values())
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._serial = 0

    def encode(self, text: str, tenant: str | None = None) -> list[int]:
        """The tokens of `text`, none added. `None`: nobody's, nothing is kept of it."""
        if tenant is None or self._special is None or len(text) < LEAST_CHARS:
            return self._read(text)
        known, cut = self._best(text, tenant)
        places: list[int] = []
        indexes: list[int] = []
        tokens: list[int] = []
        begin = 0
        if known is not None:
            begin, kept = known.places[cut], known.indexes[cut]
            tokens, places, indexes = known.tokens[:kept].tolist(), known.places[:cut], known.indexes[:cut]
        new = self._read(text[begin:])
        found = list(self._special.finditer(text, begin))
        new_indexes = [index for index, token in enumerate(new) if token in self._added]
        if found and [self._ids[match[0]] for match in found] == [new[index] for index in new_indexes]:
            places += [match.start() for match in found]
            indexes += [len(tokens) + index for index in new_indexes]
            self._keep(_Known(tenant, text, array("I", tokens + new), places, indexes))
        return tokens + new

    def _read(self, text: str) -> list[int]:
        # Without each token's place in the text, which costs a third of the time and which nobody needs.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
        return list(encoding.ids)

    def _best(self, text: str, tenant: str) -> tuple[_Known | None, int]:
        """The prompt that begins most like this one, and the number of its special token to go on from."""
        best, most = None, 0
        for serial, known in self._known.items():
            if known.tenant == tenant and (common := _common(known.text, text)) > most:
                best, most = serial, common
        if best is None:
            return None, 0
        known = self._known[best]
        # A special token nearer to the difference might be the beginning of a longer one.
        cut = bisect.bisect_right(known.places, most - self._longest) - 1
        if cut < 0 or known.places[cut] < LEAST_CHARS:
            return None, 0
        self._known.move_to_end(best)
        return known, cut

    def _keep(self, known: _Known) -> None:
        for serial, other in list(self._known.items()):
            # The next turn of the same conversation takes the place of the one before.
            if other.tenant == known.tenant and known.text.startswith(other.text[: other.places[-1]]):
                del self._known[serial]
        self._serial += 1
        self._known[self._serial] = known
        while (
            len(self._known) > MOST_PROMPTS or sum(len(one.text) for one in self._known.values()) > MOST_CHARS
        ):
            self._known.popitem(last=False)


def _common(one: str, other: str) -> int:
    """How many characters both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
