"""When a dead engine child is started again. Pure: time comes in as a number.

Quickly at first, then slower; a child that has lived for a while is forgiven. Several deaths in a short
time are a crash loop: one try a minute, and the reason shows in `status`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

FIRST_DELAY = 0.1
LAST_DELAY = 60.0
FORGIVEN_AFTER = 60.0
LOOP_DEATHS = 5
LOOP_WINDOW = 300.0


@dataclass(slots=True)
class RestartPolicy:
    """Tell it when a child began to serve, if it got that far, and each death (one monotonic clock)."""

    _born: float | None = None
    _delay: float = FIRST_DELAY
    _deaths: deque[float] = field(default_factory=lambda: deque(maxlen=LOOP_DEATHS))

    def born(self, now: float) -> None:
        self._born = now

    def died(self, now: float) -> float:
        """Seconds to wait before the next start."""
        if self._born is not None and now - self._born >= FORGIVEN_AFTER:
            self._delay = FIRST_DELAY
            self._deaths.clear()
        self._born = None
        self._deaths.append(now)
        if self.crash_loop(now):
            return LAST_DELAY
        delay, self._delay = self._delay, min(self._delay * 3, LAST_DELAY)
        return delay

    def crash_loop(self, now: float) -> bool:
        return len(self._deaths) == LOOP_DEATHS and now - self._deaths[0] <= LOOP_WINDOW
