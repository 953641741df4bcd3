"""What a job has for its buyer and the buyer has not taken yet: one producer (the link), one consumer (HTTP).

    push(delta)* ─▶ wait() ─▶ take() ─▶ …            end(outcome) ─▶ `outcome`, once everything was taken

Each delta stays an event of its own, so that a replay after a cut looks like no cut. Only where a buyer reads
so slowly that a lot is waiting are neighbours joined. Where it is more than `UNREAD_JOB_BYTES` it is `full`:
the provider gets no acknowledgements then, so that no more comes than it keeps in its outbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from gateway_protocol.errors import ApiError
from gateway_protocol.limits import DELTA_TEXT_BYTES, KIB, UNREAD_JOB_BYTES
from gateway_protocol.messages import Delta, FinishReason, Usage

JOIN_AT_ITEMS: Final = 4096
# What is taken at once becomes one write: what the socket doesn't take of it is in memory once more.
TAKE_BYTES: Final = 256 * KIB
_ITEM_BYTES: Final = 256
_LOGPROB_BYTES: Final = 160


class Item(NamedTuple):
    """One delta with its logprobs."""

    delta: Delta
    logprobs: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended for its buyer: a finish reason or an error; `receipt` where inference ran."""

    finish_reason: FinishReason | None
    usage: Usage | None
    receipt: str | None
    error: ApiError | None = None


class Delivery:
    """The buffer between a job and its buyer."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: list[Item] = []
        self._bytes = 0
        self._join_at = JOIN_AT_ITEMS
        self._waiter: asyncio.Future[bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle_at = 0.0
        self.accepted = False
        self.outcome: Outcome | None = None

    def push(self, item: Item) -> None:
        self._items.append(item)
        self._bytes += size_of(item)
        if len(self._items) >= self._join_at:
            self._items = join(self._items)
            self._bytes = sum(map(size_of, self._items))
            self._join_at = max(JOIN_AT_ITEMS, 2 * len(self._items))
        self._wake()

    def accept(self) -> None:
        """The provider has accepted: headers may go out."""
        self.accepted = True
        self._wake()

    def end(self, outcome: Outcome) -> None:
        if self.outcome is None:
            self.outcome = outcome
            self._wake()

    @property
    def full(self) -> bool:
        """Whether so much waits for the buyer that the provider should make no more."""
        return self._bytes > UNREAD_JOB_BYTES

    def take(self) -> list[Item]:
        """What has come, in order; of a lot only the beginning."""
        self._join_at = JOIN_AT_ITEMS
        if self._bytes <= TAKE_BYTES:
            items, self._items, self._bytes = self._items, [], 0
            return items
        taken = count = 0
        for item in self._items:
            taken += size_of(item)
            count += 1
            if taken >= TAKE_BYTES:
                break
        items, self._items = self._items[:count], self._items[count:]
        self._bytes -= taken
        return items

    async def wait_accepted(self) -> None:
        """Return once accepted; raise the `ApiError` of a job that ended before."""
        while not self.accepted and self.outcome is None:
            await self._wait(None)
        if not self.accepted and self.outcome is not None and self.outcome.error is not None:
            raise self.outcome.error

    @property
    def waiting(self) -> bool:
        """Whether there is something to take."""
        return bool(self._items)

    async def wait(self, idle: float | None) -> bool:
        """True once there is something to take or the job is over; False after `idle` seconds of nothing."""
        if self._items or self.outcome is not None:
            return True
        return await self._wait(idle)

    async def _wait(self, idle: float | None) -> bool:
        self._waiter = self._loop.create_future()
        if idle is not None:
            # One timer serves many waits: it is looked at when it fires, not moved for each token.
            self._idle_at = self._loop.time() + idle
            if self._timer is None:
                self._timer = self._loop.call_at(self._idle_at, self._idle)
        try:
            return await self._waiter
        finally:
            self._waiter = None

    def _idle(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self._loop.time() < self._idle_at:
            self._timer = self._loop.call_at(self._idle_at, self._idle)
        else:
            self._waiter.set_result(False)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)

    def close(self) -> None:
        """Nobody will take anything any more."""
        self._items.clear()
        self._bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def size_of(item: Item) -> int:
    """Bytes that an item takes in memory, estimated: exact only where its text is most of it."""
    delta, size = item.delta, _ITEM_BYTES
    for text in (delta.content, delta.reasoning_content):
        if text is not None:
            size += len(text) if text.isascii() else 4 * len(text)
    for call in delta.tool_calls or ():
        if call.function is not None and call.function.arguments is not None:
            size += len(call.function.arguments)
    if item.logprobs is not None:
        for entry in item.logprobs.get("content") or ():
            size += _LOGPROB_BYTES * (1 + len(entry.get("top_logprobs") or ()))
    return size


def join(items: Iterable[Item]) -> list[Item]:
    """Neighbouring texts of one kind as one, up to 64 KiB each; everything else as it is."""
    joined: list[Item] = []
    kind: str | None = None
    texts: list[str] = []
    size = 0

    def flush() -> None:
        nonlocal size
        if texts and kind is not None:
            joined.append(Item(Delta.model_validate({kind: "".join(texts)}), None))
        texts.clear()
        size = 0

    for item in items:
        this = _text_kind(item)
        text = getattr(item.delta, this) if this else ""
        if this != kind or size + 4 * len(text) > DELTA_TEXT_BYTES:
            flush()
            kind = this
        if this is None:
            joined.append(item)
        else:
            texts.append(text)
            size += 4 * len(text)
    flush()
    return joined


def _text_kind(item: Item) -> str | None:
    delta = item.delta
    if item.logprobs is not None or delta.role is not None or delta.tool_calls is not None:
        return None
    if delta.content is not None:
        return "content" if delta.reasoning_content is None else None
    return "reasoning_content" if delta.reasoning_content is not None else None
