"""How jobs ended, for whoever counts them: history, metrics, status. Fetched, never called back.

    JobRunner ─ add(JobEnd) ─▶ JobEnds ─ await next() ─▶ [JobEnd, …]

`Histogram` also counts the gaps between tokens on the way: cheap enough for every token of every job.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from gateway_protocol.errors import ErrorCode
from gateway_protocol.messages import Counters, FinishReason

# Nobody reads: then the oldest are dropped, not memory filled.
_KEPT = 10_000


class EndKind(StrEnum):
    """`CANCELLED`: by the gateway, or because nobody asks for it any more."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class JobEnd:
    """One job that is over. Times in seconds from its offer; `ttft_s` to its first token, if there was one.

    `model`: `None` for a model that isn't served here. Token counts are 0 before the prompt was counted;
    `admitted` tells whether it was.
    """

    job_id: str
    attempt: int
    model: str | None
    kind: EndKind
    finish_reason: FinishReason | None
    code: ErrorCode | None
    admitted: bool
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    duration_s: float
    ttft_s: float | None


@dataclass(slots=True)
class Tally:
    """What this daemon has done since it started."""

    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    rejected: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, end: JobEnd) -> None:
        match end.kind:
            case EndKind.COMPLETED:
                self.completed += 1
            case EndKind.FAILED:
                self.failed += 1
            case EndKind.CANCELLED:
                self.cancelled += 1
            case EndKind.REJECTED:
                self.rejected += 1
        self.prompt_tokens += end.prompt_tokens
        self.completion_tokens += end.completion_tokens

    def counters(self) -> Counters:
        return Counters(
            jobs_completed=self.completed,
            jobs_failed=self.failed,
            jobs_cancelled=self.cancelled,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
        )


class JobEnds:
    """A mailbox with one reader."""

    def __init__(self) -> None:
        self._ends: deque[JobEnd] = deque(maxlen=_KEPT)
        self._filled = asyncio.Event()

    def add(self, end: JobEnd) -> None:
        self._ends.append(end)
        self._filled.set()

    def take(self) -> list[JobEnd]:
        """What is there now, oldest first; it is not given again."""
        ends = list(self._ends)
        self._ends.clear()
        self._filled.clear()
        return ends

    async def next(self) -> list[JobEnd]:
        """Wait until there is one, then `take`."""
        await self._filled.wait()
        return self.take()


class Histogram:
    """`counts[i]`: values up to `bounds[i]`, the last: greater ones. `total`: their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, parts: int = 1) -> None:
        """Count `parts` equal values that make `value` together."""
        self.counts[bisect_left(self.bounds, value / parts)] += parts
        self.total += value


# Seconds between tokens: from the 1,000 tokens/s of a small model to a stall that a buyer sees.
TOKEN_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
