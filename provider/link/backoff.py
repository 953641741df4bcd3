"""When to dial again: the waiting times, and what each way of ending a link asks for.

Pure: time comes in as a number of milliseconds, chance as a function. docs/protocol.md, "Reconnect".

    verdict_for_close(4003) ─▶ STOP      Backoff.next_delay_ms() ─▶ 1–2 s, 2–4 s … 30–60 s, 30–60 s …
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType

from gateway_protocol.limits import BACKOFF_MAX_MS, BACKOFF_MIN_MS, BACKOFF_RESET_AFTER_MS
from gateway_protocol.messages import CloseCode, Refused, RefusedCode


class Verdict(StrEnum):
    """`RETRY`: after the backoff's delay; `WAIT`: after at least a minute; `STOP`: not by ourselves."""

    RETRY = "retry"
    WAIT = "wait"
    STOP = "stop"


LONG_WAIT_MS = 60_000

_CLOSE_VERDICTS: Mapping[int, Verdict] = MappingProxyType(
    {
        CloseCode.NORMAL: Verdict.RETRY,
        CloseCode.GOING_AWAY: Verdict.RETRY,
        1006: Verdict.RETRY,
        CloseCode.INTERNAL: Verdict.RETRY,
        CloseCode.RESTART: Verdict.RETRY,
        CloseCode.POLICY: Verdict.WAIT,
        CloseCode.TOO_BIG: Verdict.WAIT,
        CloseCode.TOO_MANY: Verdict.WAIT,
        CloseCode.MALFORMED: Verdict.STOP,
        CloseCode.REFUSED: Verdict.STOP,
        CloseCode.VERSION: Verdict.STOP,
        CloseCode.REPLACED: Verdict.STOP,
    }
)

_REFUSAL_VERDICTS: Mapping[RefusedCode, Verdict] = MappingProxyType(
    {
        # A nonce is fresh in each challenge, and "too many" is about now: both heal by themselves.
        RefusedCode.NONCE_REUSED: Verdict.RETRY,
        RefusedCode.TOO_MANY: Verdict.WAIT,
    }
)

# An upgrade answered by HTTP: the token is wrong (the owner must act), or whatever stands in the way
# (a captive portal's redirect, a proxy, an overloaded front) may be gone in a minute.
_HTTP_STOP = frozenset({401, 403})


def verdict_for_close(code: int) -> Verdict:
    """What a websocket close code asks for; a code we don't know is an accident, so retry."""
    return _CLOSE_VERDICTS.get(code, Verdict.RETRY)


def verdict_for_http(status: int) -> Verdict:
    """What a refused upgrade asks for, by its HTTP status."""
    if status in _HTTP_STOP:
        return Verdict.STOP
    return Verdict.RETRY if status >= 500 else Verdict.WAIT


def verdict_for_refusal(refused: Refused) -> Verdict:
    """What `refused` asks for: its `retry_after_ms` null means "don't retry by yourself"."""
    if refused.retry_after_ms is None:
        return _REFUSAL_VERDICTS.get(refused.code, Verdict.STOP)
    return Verdict.RETRY


class Backoff:
    """Delays that grow from 1 s to 60 s and start anew only after a link has lived for a while.

    Tell `ended` how each link or attempt ended, then ask `next_delay_ms` once. A gateway that accepts and
    closes at once thus sees the same growing gaps as one that doesn't answer. `chance` gives numbers in
    [0, 1), as `random.random`.
    """

    def __init__(
        self,
        chance: Callable[[], float],
        *,
        min_ms: int = BACKOFF_MIN_MS,
        max_ms: int = BACKOFF_MAX_MS,
        reset_after_ms: int = BACKOFF_RESET_AFTER_MS,
    ) -> None:
        self._chance = chance
        self._min_ms = min_ms
        self._max_ms = max_ms
        self._reset_after_ms = reset_after_ms
        self._low_ms = min_ms

    def ended(self, lived_ms: float | None) -> None:
        """`lived_ms`: time from `registered` to the end of the link, `None` for one that never got there."""
        if lived_ms is not None and lived_ms >= self._reset_after_ms:
            self._low_ms = self._min_ms

    def reset(self) -> None:
        """The owner changed something: what failed before says nothing about the next try."""
        self._low_ms = self._min_ms

    def next_delay_ms(self, *, at_least_ms: int = 0) -> int:
        """A random point in the current window (which ends at twice its start), and widen the window.

        With `at_least_ms` the jitter is added to it, so that providers told the same time don't come back
        in the same instant.
        """
        low_ms = self._low_ms
        jitter_ms = self._chance() * (min(low_ms * 2, self._max_ms) - low_ms)
        self._low_ms = min(low_ms * 2, self._max_ms // 2)
        return int(max(low_ms, at_least_ms) + jitter_ms)
