r"""Cut JSON text into pieces that can be sent: none above a size, none ending in half an escape."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gateway_protocol.limits import ARGUMENTS_PIECE_BYTES

_LONGEST_ESCAPE = 12  # a surrogate pair, "\ud83d\ude80"
_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")


def cut(text: str, limit: int = ARGUMENTS_PIECE_BYTES) -> Iterator[str]:
    """The pieces of `text`, in order, of at most `limit` UTF-8 bytes; it begins with no half escape."""
    start = 0
    while start < len(text):
        end = start + len(text[start : start + limit])
        if not text[start:end].isascii():
            # Four bytes are the most that a character takes.
            end = min(end, start + limit // 4)
        if end < len(text):
            end = _whole_escapes(text, start, end)
        yield text[start:end]
        start = end


def _whole_escapes(text: str, start: int, end: int) -> int:
    """The last place up to `end` that no escape spans. Looks back over one run of backslashes at most."""
    for back in range(1, _LONGEST_ESCAPE):
        at = end - back
        if at < start or text[at] != "\\":
            continue
        run = at
        while run > start and text[run - 1] == "\\":
            run -= 1
        begins = at if (at - run) % 2 == 0 else at - 1
        pair = _PAIR.match(text, begins)
        length = pair.end() - begins if pair else (6 if text[begins + 1 : begins + 2] == "u" else 2)
        if begins + length > end and begins > start:
            return _whole_escapes(text, start, begins)
    return end
