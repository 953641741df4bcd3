"""Jobs that wait for a slot, each with a deadline: who goes next, who has waited too long. Pure.

Shortest first content first, without starvation: a job's rank is its cost minus what its waiting is worth,
so a long prompt that has waited long enough goes before any newcomer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Job = TypeVar("Job")

# One second of waiting is worth this many prompt tokens: about what a modest Mac prefills in that time.
TOKENS_PER_SECOND_WAITED = 500.0


@dataclass(slots=True)
class _Entry(Generic[Job]):
    job: Job
    cost: int
    since: float
    order: int


class WaitingLine(Generic[Job]):
    """Times are in seconds of one monotonic clock; `cost` is the prompt tokens still to be computed."""

    def __init__(self, *, seconds: float, length: int) -> None:
        self._seconds = seconds
        self._length = length
        self._entries: dict[int, _Entry[Job]] = {}
        self._order = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def full(self) -> bool:
        return len(self._entries) >= self._length

    def add(self, serial: int, job: Job, *, cost: int, since: float) -> None:
        self._order += 1
        self._entries[serial] = _Entry(job, cost, since, self._order)

    def remove(self, serial: int) -> Job | None:
        entry = self._entries.pop(serial, None)
        return entry.job if entry else None

    def pop_expired(self, now: float) -> list[Job]:
        """Those whose deadline has passed, oldest first; they are no longer in line."""
        late = [serial for serial, entry in self._entries.items() if now - entry.since >= self._seconds]
        return [self._entries.pop(serial).job for serial in late]

    def in_order(self, now: float) -> list[tuple[int, Job]]:
        """Everyone in line, the one to go next first."""
        ranked = sorted(
            self._entries.items(),
            key=lambda item: (
                item[1].cost - (now - item[1].since) * TOKENS_PER_SECOND_WAITED,
                item[1].order,
            ),
        )
        return [(serial, entry.job) for serial, entry in ranked]

    def next_deadline(self) -> float | None:
        """When the first deadline passes; `None` with no one in line."""
        if not self._entries:
            return None
        return min(entry.since for entry in self._entries.values()) + self._seconds

    def select(self, wanted: Callable[[Job], bool]) -> list[Job]:
        """Remove and return all that are `wanted`."""
        picked = [serial for serial, entry in self._entries.items() if wanted(entry.job)]
        return [self._entries.pop(serial).job for serial in picked]
