"""Cut a model's output into text and markers, and hold back what may still become a marker.

A marker is a fixed string (`</parameter>`) or a prefix, a name and `>` (`<parameter=path>`). Text comes out
as soon as it can't begin a marker; nothing is lost, nothing is looked at more than a bounded number of times
(a name has a length limit and ends at `<`, `>` or a line's end), so the cost is linear in the output.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple


class Kind(Enum):
    """What a piece of output is. The last seven are Harmony's, known by token ID alone."""

    TEXT = auto()
    CALL_OPEN = auto()
    CALL_CLOSE = auto()
    FUNCTION_OPEN = auto()
    FUNCTION_CLOSE = auto()
    PARAMETER_OPEN = auto()
    PARAMETER_CLOSE = auto()
    THINK_OPEN = auto()
    THINK_CLOSE = auto()
    END_OF_TURN = auto()
    RETURN = auto()
    CONSTRAIN = auto()
    CHANNEL = auto()
    START = auto()
    END = auto()
    MESSAGE = auto()
    CALL = auto()


class Lexeme(NamedTuple):
    """`text`: as the model wrote it, at offset `start` of the raw output. `name`: of a named marker."""

    kind: Kind
    text: str
    start: int
    name: str = ""

    def is_blank(self) -> bool:
        """White space only: it separates markup and is part of a value."""
        return self.kind is Kind.TEXT and (not self.text or self.text.isspace())

    def rest(self, taken: int) -> Lexeme:
        """What is left of it, as text, once `taken` characters have been read."""
        return Lexeme(Kind.TEXT, self.text[taken:], self.start + taken)


class Lexer:
    """`feed` pieces of any size; `finish` gives back what was held, as text."""

    def __init__(self, fixed: Mapping[str, Kind], named: Mapping[str, Kind], name_limit: int) -> None:
        self._fixed = fixed
        self._named = named
        spelled = [*fixed, *named]
        firsts = "".join({marker[0] for marker in spelled})
        self._starts = re.compile(f"[{re.escape(firsts)}]" if firsts else r"(?!)")
        alternatives = [re.escape(marker) for marker in sorted(fixed, key=len, reverse=True)]
        alternatives += [re.escape(prefix) + rf"([^<>\n]{{0,{name_limit}}})>" for prefix in named]
        self._marker = re.compile("|".join(alternatives))
        self._longest = max(map(len, spelled), default=0) + (name_limit if named else 0)
        self._held = ""
        self._offset = 0

    @property
    def holding(self) -> str:
        """The beginning of a marker that is not complete yet."""
        return self._held

    @property
    def offset(self) -> int:
        """Where in the raw output the next fed character stands."""
        return self._offset + len(self._held)

    def skip(self, length: int) -> None:
        """Text of this length went by that holds no beginning of a marker; nothing may be held."""
        self._offset += length

    def feed(self, text: str) -> list[Lexeme]:
        buffer = self._held + text
        begun, scan, out = 0, 0, list[Lexeme]()
        while found := self._starts.search(buffer, scan):
            at = found.start()
            if marker := self._marker.match(buffer, at):
                self._text(out, buffer, begun, at)
                out.append(self._lexeme(marker))
                begun = scan = marker.end()
            elif len(buffer) - at <= self._longest and self._may_become_marker(buffer[at:]):
                self._text(out, buffer, begun, at)
                return self._consumed(out, at, buffer[at:])
            else:
                scan = at + 1
        self._text(out, buffer, begun, len(buffer))
        return self._consumed(out, len(buffer), "")

    def finish(self) -> list[Lexeme]:
        """The output is over: what was held is text."""
        held, start = self._held, self._offset
        self._consumed([], len(held), "")
        return [Lexeme(Kind.TEXT, held, start)] if held else []

    def _consumed(self, out: list[Lexeme], length: int, held: str) -> list[Lexeme]:
        self._offset += length
        self._held = held
        return out

    def _text(self, out: list[Lexeme], buffer: str, start: int, end: int) -> None:
        if end > start:
            out.append(Lexeme(Kind.TEXT, buffer[start:end], self._offset + start))

    def _lexeme(self, marker: re.Match[str]) -> Lexeme:
        text, start = marker.group(), self._offset + marker.start()
        kind = self._fixed.get(text)
        if kind is not None:
            return Lexeme(kind, text, start)
        prefix = next(prefix for prefix in self._named if text.startswith(prefix))
        return Lexeme(self._named[prefix], text, start, text[len(prefix) : -1])

    def _may_become_marker(self, rest: str) -> bool:
        if any(marker.startswith(rest) for marker in (*self._fixed, *self._named)):
            return True
        for prefix in self._named:
            if rest.startswith(prefix):
                return not any(char in rest[len(prefix) :] for char in "<>\n")
        return False
