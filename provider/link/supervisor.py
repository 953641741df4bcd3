"""The one loop that keeps a link: dial, live, wait, dial again; it ends where dialling can't help.

┌─▶ dial ─▶ connection lives … ends ─▶ verdict ──retry, wait──▶ delay ─┐
│                                        └──stop──▶ wait for a change ─┤  (or return, if not to stay)
└──────────────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from gateway_protocol.messages import CloseCode
from provider.link.backoff import LONG_WAIT_MS, Backoff, Verdict
from provider.link.board import LinkBoard

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """How an attempt or a link ended.

    `reason`: a short code; `detail`: words for the owner. `lived_ms`: since `registered`, `None` if never.
    """

    verdict: Verdict
    reason: str
    detail: str
    lived_ms: float | None = None
    at_least_ms: int = 0

    @property
    def replaced(self) -> bool:
        """Whether another session of this identity has taken over: coming back, the two would take turns."""
        return self.reason == f"close_{int(CloseCode.REPLACED)}"

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


class Supervisor:
    """`run` is the loop; `poke` ends any waiting now, `close` ends the loop once the link is closed."""

    def __init__(
        self,
        dial: Callable[[], Awaitable[LinkEnd]],
        *,
        backoff: Backoff,
        board: LinkBoard,
    ) -> None:
        self._dial = dial
        self._backoff = backoff
        self._board = board
        self._poked = asyncio.Event()
        self._closing = False

    async def run(self) -> LinkEnd | None:
        """Keep the link. Returns the end that dialling can't mend, or `None` after `close`."""
        while not self._closing:
            self._poked.clear()
            self._board.dialling()
            end = await self._dial()
            self._board.lost(str(end))
            if self._closing:
                return None
            log.info("link_ended", reason=end.reason, detail=end.detail, verdict=end.verdict.value)
            if end.verdict is Verdict.STOP:
                self._board.stopped()
                return end
            await self._wait(end)
        return None

    def poke(self) -> None:
        """Something changed here, so what failed before says nothing about the next try: make it now."""
        self._backoff.reset()
        self._poked.set()

    def close(self) -> None:
        """Dial no more. The caller closes the link that stands."""
        self._closing = True
        self._poked.set()

    async def _wait(self, end: LinkEnd) -> None:
        self._backoff.ended(end.lived_ms)
        at_least_ms = max(end.at_least_ms, LONG_WAIT_MS if end.verdict is Verdict.WAIT else 0)
        delay_s = self._backoff.next_delay_ms(at_least_ms=at_least_ms) / 1000
        self._board.waiting(delay_s)
        try:
            async with asyncio.timeout(delay_s):
                await self._poked.wait()
        except TimeoutError:
            pass
