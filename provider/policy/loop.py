"""The one loop that looks at the machine and says whether it may serve now.

read facts ─▶ rules ─▶ decision ─▶ wait: the interval, the schedule's next change, or a word of the owner ─┐
    ▲──────────────────────────────────────────────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from provider.policy.pause import OwnerPause, PauseFile
from provider.policy.rules import Decision, Facts, Policy, SteadyDecision
from provider.policy.words import Pause, pauses

log = structlog.get_logger("policy")

INTERVAL_SECONDS = 10.0


class PolicyLoop:
    """`look` once before anything is served, then `run`. `news` is set at each new decision, then replaced.

    `read`: the machine's facts, off the event loop. `clock`: epoch seconds.
    """

    def __init__(
        self,
        *,
        policy: Policy,
        read: Callable[[], Awaitable[Facts]],
        pause_file: PauseFile,
        clock: Callable[[], float],
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        self._policy = policy
        self._read = read
        self._pause_file = pause_file
        self._clock = clock
        self._interval = interval
        self._steady = SteadyDecision()
        self._woken = asyncio.Event()
        self.news = asyncio.Event()
        self.facts = Facts(now=clock())
        self.decision = Decision((), None)

    @property
    def pauses(self) -> tuple[Pause, ...]:
        """Why nothing is served now, in words; empty when the machine may serve."""
        return tuple(pauses(self.decision, self._policy, self.facts))

    async def run(self) -> None:
        while True:
            await self._wait()
            await self.look()

    async def look(self) -> None:
        """Read the facts and decide. A fact that can't be read is unknown and pauses nothing."""
        try:
            facts = await self._read()
        except Exception:
            log.exception("facts_unreadable")
            facts = Facts(now=self._clock())
        self._decide(facts)

    def pause(self, until: float | None) -> None:
        """The owner's word, at once and kept over restarts. Raises `OSError` where it can't be kept."""
        self._pause_file.write(OwnerPause(self._clock(), until))
        self._decide(self.facts)

    def resume(self) -> None:
        """Take the owner's pause back; other reasons stay."""
        self._pause_file.remove()
        self._decide(self.facts)

    def _decide(self, facts: Facts) -> None:
        now = self._clock()
        owner = self._pause_file.read()
        paused = owner is not None and owner.holds(now)
        self.facts = replace(
            facts,
            now=now,
            paused_by_owner=paused,
            owner_pause_until=owner.until if owner is not None and paused else None,
        )
        before = self.decision
        self.decision = self._steady.update(self._policy, self.facts)
        self._woken.set()
        if self.decision.reasons != before.reasons:
            log.info("policy", paused=self.decision.paused, reasons=[str(r) for r in self.decision.reasons])
            self.news.set()
            self.news = asyncio.Event()

    async def _wait(self) -> None:
        self._woken.clear()
        try:
            async with asyncio.timeout(self._seconds_to_wait()):
                await self._woken.wait()
        except TimeoutError:
            pass

    def _seconds_to_wait(self) -> float:
        """At most the interval, less where the clock itself will change the decision."""
        edges = (self.decision.changes_at, self.facts.owner_pause_until)
        now = self._clock()
        ahead = [edge - now for edge in edges if edge is not None and edge > now]
        return min([self._interval, *ahead])
