"""When a dead engine child is started again. Pure: time comes in as a number.

delay 0.1 s ─died─▶ 0.3 s ─▶ 0.9 s ─▶ … ─▶ 60 s        back to 0.1 s once it served for a while
five deaths in a minute ─▶ a crash loop: one try a minute, and the reason shows in `status`
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

FIRST_DELAY = 0.1
LAST_DELAY = 60.0
# A child that served for this many times the last delay was worth starting quickly.
WORTH_IT = 20.0
LOOP_DEATHS = 5
LOOP_WINDOW = 60.0


@dataclass(slots=True)
class RestartPolicy:
    """Tell it when a child began to serve, if it got that far, and each death (one monotonic clock)."""

    _born: float | None = None
    _last_delay: float = 0.0
    _deaths: deque[float] = field(default_factory=lambda: deque(maxlen=LOOP_DEATHS))

    def born(self, now: float) -> None:
        self._born = now

    def died(self, now: float) -> float:
        """Seconds to wait before the next start."""
        served = 0.0 if self._born is None else now - self._born
        self._born = None
        self._deaths.append(now)
        if self.crash_loop(now):
            self._last_delay = LAST_DELAY
        elif served >= WORTH_IT * max(self._last_delay, FIRST_DELAY):
            self._last_delay = FIRST_DELAY
        else:
            self._last_delay = min(max(self._last_delay * 3, FIRST_DELAY), LAST_DELAY)
        return self._last_delay

    def crash_loop(self, now: float) -> bool:
        return len(self._deaths) == LOOP_DEATHS and now - self._deaths[0] <= LOOP_WINDOW
