"""Stretches of the raw output, kept by their offsets."""

from __future__ import annotations


class RawText:
    """Text added in the order of its offsets. What begins before its end replaces it from there."""

    def __init__(self) -> None:
        self._pieces: list[tuple[str, int]] = []

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, text: str, start: int) -> None:
        while self._pieces and self._pieces[-1][1] >= start:
            self._pieces.pop()
        if self._pieces:
            last, begin = self._pieces[-1]
            if begin + len(last) > start:
                self._pieces[-1] = (last[: start - begin], begin)
        self._pieces.append((text, start))

    def clear(self) -> None:
        self._pieces.clear()

    def take(self) -> list[tuple[str, int]]:
        """All of it, as few stretches as there are gaps in the output, and nothing is kept."""
        stretches: list[tuple[list[str], int, int]] = []
        for text, start in self._pieces:
            if stretches and stretches[-1][2] == start:
                parts, begin, _ = stretches[-1]
                parts.append(text)
                stretches[-1] = (parts, begin, start + len(text))
            else:
                stretches.append(([text], start, start + len(text)))
        self._pieces.clear()
        return [("".join(parts), begin) for parts, begin, _ in stretches]
