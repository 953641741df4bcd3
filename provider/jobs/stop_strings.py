"""Stop strings over visible text, fed piece by piece. Pure and linear, whatever the strings.

One Knuth–Morris–Pratt state for each string: the first string to be complete wins, as if the text came one
character at a time, so the answer doesn't depend on how it was cut (docs/contract.md, "Requests": `stop`).
"""

from __future__ import annotations

from collections.abc import Sequence


class _Needle:
    """One stop string. `matched`: how many of its characters the text fed so far ends with."""

    def __init__(self, string: str) -> None:
        self.string = string
        self.matched = 0
        self._fallback = _fallbacks(string)

    def feed(self, text: str) -> int | None:
        """Offset in `text` just past the end of the first match, if it is in here."""
        string, fallback, matched = self.string, self._fallback, self.matched
        position = 0
        while position < len(text):
            if matched == 0:
                position = text.find(string[0], position)
                if position < 0:
                    break
            char = text[position]
            while matched and string[matched] != char:
                matched = fallback[matched - 1]
            if string[matched] == char:
                matched += 1
            position += 1
            if matched == len(string):
                return position
        self.matched = matched
        return None


def _fallbacks(string: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    lengths = [0] * len(string)
    length = 0
    for position in range(1, len(string)):
        while length and string[position] != string[length]:
            length = lengths[length - 1]
        if string[position] == string[length]:
            length += 1
        lengths[position] = length
    return lengths


class StopStrings:
    """Holds back what may become a stop string; after `stopped` feed nothing more."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._needles = [_Needle(string) for string in strings]
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """What may go out now. The stop string itself and all after it never do."""
        ends = [
            (end, -len(needle.string)) for needle in self._needles if (end := needle.feed(text)) is not None
        ]
        known = self._held + text
        if ends:
            end, negative_length = min(ends)
            self.stopped = True
            self._held = ""
            return known[: max(0, len(known) - len(text) + end + negative_length)]
        held = max((needle.matched for needle in self._needles), default=0)
        out = known[: len(known) - held]
        self._held = known[len(known) - held :]
        return out

    def flush(self) -> str:
        """The answer is over: what was held back is text after all."""
        held, self._held = self._held, ""
        return held
