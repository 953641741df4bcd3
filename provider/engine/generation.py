"""The daemon's end of one job in the engine: a bounded queue of its events."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Protocol

from provider.engine.base import (
    Admitted,
    EngineEvent,
    Failed,
    Finished,
    GenerationRequest,
    Rejected,
    Token,
    Tokens,
)
from provider.engine.ipc import TokenRow

# Tokens that may wait here unread before the job is held back; it goes on once they are fetched.
HIGH_WATER = 1024


class Controls(Protocol):
    """How a generation reaches the child."""

    def send_cancel(self, serial: int) -> None: ...

    def send_pause(self, serial: int, paused: bool) -> None: ...


class OpenGeneration:
    """Implements `base.Generation`. `feed_*` are called by the process edge, the rest by the job's owner."""

    def __init__(self, serial: int, request: GenerationRequest, controls: Controls) -> None:
        self.serial = serial
        self.request = request
        self.admitted = False
        self.ended = False
        self.first_token_seen = False
        self._controls = controls
        self._events: list[EngineEvent] = []
        self._tokens: list[Token] = []
        self._unread_together = 0
        self._waiter: asyncio.Future[None] | None = None
        self._cancelled = False
        self._fetched_end = False
        self._held_by_owner = False
        self._held_by_queue = False

    async def events(self) -> list[EngineEvent]:
        """See `base.Generation`. Raises `RuntimeError` once the last event has been returned."""
        if self._fetched_end:
            raise RuntimeError("the last event of this generation was already returned")
        if not self._events and not self._tokens:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._flush_tokens()
        events, self._events = self._events, []
        self._unread_together = 0
        self._fetched_end = self.ended
        if self._held_by_queue and not self.ended:
            self._held_by_queue = False
            self._tell_pause()
        return events

    def cancel(self) -> None:
        # Also sent when its end is already here unread: the child counts the cancels it saw.
        if not self._cancelled and not self._fetched_end:
            self._cancelled = True
            self._controls.send_cancel(self.serial)

    def pause(self, paused: bool) -> None:
        if paused != self._held_by_owner and not self.ended:
            self._held_by_owner = paused
            self._tell_pause()

    @property
    def held(self) -> bool:
        return self._held_by_owner or self._held_by_queue

    def feed_row(self, row: TokenRow) -> None:
        if self.ended:
            return
        self.first_token_seen = True
        if row.together and len(row.ids) > 1:
            self._flush_tokens()
            self._events.append(Tokens(tuple(_tokens_of(row)), together=True))
            self._unread_together += len(row.ids)
        else:
            self._tokens.extend(_tokens_of(row))
        if len(self._tokens) + self._unread_together > HIGH_WATER and not self._held_by_queue:
            self._held_by_queue = True
            self._tell_pause()
        self._wake()

    def feed_event(self, event: EngineEvent) -> None:
        if self.ended:
            return
        self._flush_tokens()
        self._events.append(event)
        if isinstance(event, Admitted):
            self.admitted = True
        elif isinstance(event, Rejected | Finished | Failed):
            self.ended = True
        self._wake()

    def _flush_tokens(self) -> None:
        if self._tokens:
            self._events.append(Tokens(tuple(self._tokens)))
            self._tokens.clear()

    def _tell_pause(self) -> None:
        self._controls.send_pause(self.serial, self.held)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _tokens_of(row: TokenRow) -> Iterator[Token]:
    if row.logprobs is None:
        return map(Token, row.texts, row.ids)
    return (
        Token(text, token_id, chosen, top)
        for text, token_id, (chosen, top) in zip(row.texts, row.ids, row.logprobs, strict=True)
    )
