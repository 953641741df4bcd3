"""When a step loop hands on what it has generated. Pure: time comes in as a number.

A hand-over costs child, daemon, gateway and buyer the same whether it carries one token or ten. A model that
steps slower than `PACE_SECONDS` hands each token on at once; a faster one hands on several together, none of
them later than that.
"""

from __future__ import annotations

import math
from typing import Final

# Twenty-five times a second looks like a flow; a model of up to 50 tokens a second isn't touched.
PACE_SECONDS: Final = 0.04


class Pace:
    """Ask `due` after each step; tell it of each hand-over. Times are of one monotonic clock."""

    def __init__(self) -> None:
        self._handed_on = -math.inf

    def due(self, began: float, now: float) -> bool:
        """A step ran from `began` to `now`; another one like it would come too late."""
        return now + (now - began) >= self._handed_on + PACE_SECONDS

    def handed_on(self, now: float) -> None:
        self._handed_on = now
