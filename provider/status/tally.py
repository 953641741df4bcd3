"""What ended jobs add up to since the daemon started, and today. Pure: ends and times go in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from provider.jobs.ends import EndKind, Histogram, JobEnd
from provider.status.history import JobRecord, Sum

# Seconds to the first token: from a warm cache to a long prompt on a small Mac.
TTFT_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0)
DURATION_BOUNDS = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0)
# A model that isn't served here: a stranger's text must not become a label.
OTHER_MODEL = "other"


class JobTally:
    """Sums for metrics. Their keys are bounded: the models served, and closed sets."""

    def __init__(self, models: Collection[str]) -> None:
        self._models = frozenset(models)
        self.jobs: Counter[tuple[str, EndKind]] = Counter()
        self.codes: Counter[str] = Counter()
        self.tokens: Counter[tuple[str, str]] = Counter()
        self.admitted = 0
        self.cache_hits = 0
        self.ttft = Histogram(TTFT_BOUNDS)
        self.duration = Histogram(DURATION_BOUNDS)

    def add(self, end: JobEnd) -> None:
        model = end.model if end.model in self._models else OTHER_MODEL
        assert model is not None
        self.jobs[model, end.kind] += 1
        if end.code is not None:
            self.codes[end.code.value] += 1
        self.tokens[model, "prompt"] += end.prompt_tokens
        self.tokens[model, "cached"] += end.cached_tokens
        self.tokens[model, "completion"] += end.completion_tokens
        self.tokens[model, "reasoning"] += end.reasoning_tokens
        self.admitted += end.admitted
        self.cache_hits += end.cached_tokens > 0
        if end.ttft_s is not None:
            self.ttft.add(end.ttft_s)
        if end.kind is EndKind.COMPLETED:
            self.duration.add(end.duration_s)


class Today:
    """The sum of one day, begun anew when the day changes. `day`: as "2026-06-01"."""

    def __init__(self, day: str, earlier: Iterable[JobRecord] = ()) -> None:
        self.day = day
        self.sum = Sum()
        for record in earlier:
            self.sum.add(record)

    def turn(self, day: str) -> None:
        if day != self.day:
            self.day, self.sum = day, Sum()

    def add(self, day: str, record: JobRecord) -> None:
        self.turn(day)
        self.sum.add(record)


def record_of(end: JobEnd, at_ms: int) -> JobRecord:
    """The line of history that an end becomes. `at_ms`: now, since the epoch."""
    return JobRecord(
        at_ms=at_ms,
        job_id=end.job_id,
        attempt=end.attempt,
        model=end.model,
        end=end.kind.value,
        finish_reason=None if end.finish_reason is None else end.finish_reason.value,
        error=None if end.code is None else end.code.value,
        prompt_tokens=end.prompt_tokens,
        cached_tokens=end.cached_tokens,
        completion_tokens=end.completion_tokens,
        reasoning_tokens=end.reasoning_tokens,
        duration_ms=round(end.duration_s * 1000),
        ttft_ms=None if end.ttft_s is None else round(end.ttft_s * 1000),
    )


class Throughput:
    """Tokens per second over the last `window_s`, from a counter that is looked at now and then."""

    def __init__(self, window_s: float = 30.0) -> None:
        self._window_s = window_s
        self._samples: list[tuple[float, int]] = []

    def look(self, now: float, tokens: int) -> float:
        """Note the counter at `now` (seconds, monotonic); the rate over the window. A reset counts as 0."""
        if self._samples and tokens < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((now, tokens))
        # One sample at or before the window's start is kept: the rate is over the whole window.
        while len(self._samples) > 2 and self._samples[1][0] <= now - self._window_s:
            del self._samples[0]
        then, before = self._samples[0]
        return (tokens - before) / (now - then) if now > then else 0.0
