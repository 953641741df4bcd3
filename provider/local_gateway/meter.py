"""Tokens per second over the last minutes, for the page's plot: pure, `now` in whole or broken seconds.

Chunks are counted as they pass, each as one token; when a job ends its usage tells how many there really
were, and the rest is spread over the seconds that the job took. So the sum under the curve is the sum of the
usage.
"""

from __future__ import annotations

from typing import Final

SECONDS: Final = 300


class Meter:
    """A ring of `SECONDS` counts, one for each second."""

    def __init__(self) -> None:
        self._counts = [0.0] * SECONDS
        self._second = 0

    def add(self, now: float, tokens: float = 1.0) -> None:
        second = int(now)
        if second > self._second:
            self._forward(second)
        if self._second - second < SECONDS:
            self._counts[second % SECONDS] += tokens

    def spread(self, begin: float, end: float, tokens: float) -> None:
        """Add tokens evenly over the seconds from `begin` to `end`, as far back as there are any."""
        seconds = range(int(begin), int(end) + 1)
        each = tokens / len(seconds)
        self._forward(seconds[-1])
        for second in seconds[-SECONDS:]:
            self.add(second, each)

    def values(self, now: float) -> list[float]:
        """Tokens in each of the whole seconds before the one that runs, oldest first, to a tenth."""
        self._forward(int(now))
        first = self._second - SECONDS + 1
        return [round(self._counts[second % SECONDS], 1) for second in range(first, self._second)]

    def _forward(self, second: int) -> None:
        """Empty the seconds that have begun since the last count."""
        for step in range(self._second + 1, min(second, self._second + SECONDS) + 1):
            self._counts[step % SECONDS] = 0.0
        if second > self._second + SECONDS:
            self._counts = [0.0] * SECONDS
        self._second = max(self._second, second)
