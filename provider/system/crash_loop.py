"""The crash-loop guard: a daemon that keeps crashing under the service rests for a while.

The file holds when each run began that has not ended cleanly (epoch seconds). A clean end empties it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CRASHES = 5
WITHIN_SECONDS = 600.0
REST_SECONDS = 600.0


def rest_until(starts: Sequence[float], now: float) -> float | None:
    """When a daemon that starts at `now` may serve; `None`: at once. `starts`: of the runs that crashed."""
    # A start "in the future" is a clock that was set back; it says nothing of the last minutes.
    recent = [start for start in starts if now - WITHIN_SECONDS < start <= now]
    return now + REST_SECONDS if len(recent) >= CRASHES else None


@dataclass(frozen=True, slots=True)
class CrashLoopGuard:
    """`begin` at each start under the service, `end` after a clean stop."""

    file: Path

    def begin(self, now: float) -> float | None:
        """Note this start. Returns when to serve again if too many before it crashed, else `None`."""
        starts = self._read()
        until = rest_until(starts, now)
        # After the rest the count begins anew: a machine that was mended isn't held to its past.
        kept = [] if until is not None else [start for start in starts if now - WITHIN_SECONDS < start <= now]
        self._write([*kept, now])
        return until

    def end(self) -> None:
        self.file.unlink(missing_ok=True)

    def _read(self) -> list[float]:
        try:
            document = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return []
        starts = document if isinstance(document, list) else []
        return [float(start) for start in starts if isinstance(start, int | float)]

    def _write(self, starts: Sequence[float]) -> None:
        partial = self.file.with_name(f".{self.file.name}.partial")
        # A full disk pauses serving, with that reason; a daemon that won't start for it would tell nobody.
        with contextlib.suppress(OSError):
            partial.write_text(json.dumps(list(starts)), encoding="utf-8")
            os.replace(partial, self.file)
