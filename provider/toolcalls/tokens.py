"""Special tokens spelled in a text: where they stand for tokens, cut them out with their IDs."""

from __future__ import annotations

import re
from typing import Final

from gateway_protocol.families import Family
from provider.toolcalls.families import HARMONY_TOKENS

_HARMONY_IDS: Final = {text: token_id for token_id, (text, _kind) in HARMONY_TOKENS.items()}
_HARMONY: Final = re.compile("|".join(map(re.escape, _HARMONY_IDS)))


def split_special(family: Family, text: str) -> list[tuple[str, int | None]]:
    """`text` in stretches: a special token's text with its ID, any other stretch with `None`.

    Only Harmony is told apart by token IDs; in the other families markup is what it reads as, so their text
    is one stretch. No stretch is empty.
    """
    if family is not Family.GPT_OSS:
        return [(text, None)] if text else []
    out: list[tuple[str, int | None]] = []
    position = 0
    for match in _HARMONY.finditer(text):
        if match.start() > position:
            out.append((text[position : match.start()], None))
        out.append((match.group(), _HARMONY_IDS[match.group()]))
        position = match.end()
    if position < len(text):
        out.append((text[position:], None))
    return out
