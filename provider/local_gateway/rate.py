"""Requests per minute for each API key: a token bucket, pure; `now` is in seconds."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

_REMEMBERED: Final = 4096


class Rate:
    """Buckets by key. A key may use its whole minute at once and gets it back evenly."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str, per_minute: int, now: float) -> float:
        """Count one request: 0 if it may pass, else the seconds after which the next one may."""
        level, at = self._buckets.get(key, (float(per_minute), now))
        level = min(per_minute, level + (now - at) * per_minute / 60)
        wait = 0.0 if level >= 1 else (1 - level) * 60 / per_minute
        self._buckets[key] = (level if wait else level - 1, now)
        self._buckets.move_to_end(key)
        if len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)
        return wait
