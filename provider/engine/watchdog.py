"""When an engine child counts as wedged. Pure: time comes in as a number at each tick.

    spawned ─hello─▶ idle or busy ◀─loaded─ loading        each state has its own deadline (`Deadlines`)

Apart from the link's heartbeat: a wedged child must not look like a dead network, nor the reverse. Its clock
advances by two ticks at most between two ticks: a daemon that was itself stopped (a Mac that slept)
doesn't blame the child for that time.
"""

from __future__ import annotations

from provider.engine.spec import Deadlines

GIB = float(1 << 30)


class Watchdog:
    """Feed what the child reports, then ask `overdue`."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        shortest = min(deadlines.start, deadlines.load, deadlines.step, deadlines.first_token)
        self.tick_seconds = min(1.0, shortest / 4)
        self._clock = 0.0
        self._last_tick: float | None = None
        self._spawned_at: float | None = None
        self._beat_at = 0.0
        self._loading: dict[str, float] = {}
        self._first_token_by: dict[int, tuple[float, int]] = {}

    def tick(self, now: float) -> None:
        if self._last_tick is not None:
            self._clock += min(max(0.0, now - self._last_tick), 2 * self.tick_seconds)
        self._last_tick = now

    def spawned(self) -> None:
        self._spawned_at = self._clock
        self._loading.clear()
        self._first_token_by.clear()

    def hello(self) -> None:
        self._spawned_at = None
        self._beat_at = self._clock

    def beat(self) -> None:
        self._beat_at = self._clock

    def loading(self, model: str, weight_bytes: int) -> None:
        allowed = self._deadlines.load + self._deadlines.load_per_gib * weight_bytes / GIB
        self._loading[model] = self._clock + allowed

    def loaded(self, model: str) -> None:
        self._loading.pop(model, None)
        self._beat_at = self._clock

    def admitted(self, serial: int, uncached_tokens: int) -> None:
        waiting = uncached_tokens + sum(tokens for _, tokens in self._first_token_by.values())
        allowed = self._deadlines.first_token + self._deadlines.first_token_per_prompt_token * waiting
        self._first_token_by[serial] = (self._clock + allowed, uncached_tokens)

    def first_token_done(self, serial: int) -> None:
        """Its first token came, it ended, or it is held back on purpose."""
        self._first_token_by.pop(serial, None)

    def overdue(self) -> str | None:
        """The deadline that has passed, as a `Failed.cause`; `None`: all is well."""
        if self._spawned_at is not None:
            return "start_timeout" if self._clock - self._spawned_at > self._deadlines.start else None
        if self._loading:
            return "load_timeout" if self._clock > max(self._loading.values()) else None
        if self._clock - self._beat_at > self._deadlines.step:
            return "step_timeout"
        if any(self._clock > by for by, _ in self._first_token_by.values()):
            return "first_token_timeout"
        return None
