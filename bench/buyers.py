"""Buyers that cost next to nothing themselves: raw HTTP/1.1, bytes kept with their times, read at the end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bench.answers import Answer, read_answer

ANSWER_SECONDS = 600.0


class Buyer(asyncio.Protocol):
    """One streamed completion on a connection of its own."""

    def __init__(self) -> None:
        self.received: list[tuple[float, bytes]] = []
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._enough: asyncio.Future[None] | None = None
        self._parts_wanted = 0
        self._tail = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.received.append((time.monotonic(), data))
        self._tail = (self._tail + data)[-64:]
        if self._enough is not None and len(self.received) >= self._parts_wanted:
            self._done(self._enough)
        if b"data: [DONE]" in self._tail:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        self._done(self.over)
        if self._enough is not None:
            self._done(self._enough)
        if self._transport is not None:
            self._transport.abort()

    @staticmethod
    def _done(waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_result(None)

    async def heard(self, parts: int) -> None:
        """Return once so many parts of the answer have come, or it is over."""
        if len(self.received) < parts and not self.over.done():
            self._parts_wanted = parts
            self._enough = asyncio.get_running_loop().create_future()
            await self._enough

    def leave(self) -> None:
        """Go without a word, as a buyer does who closes the window."""
        self._end()


async def open_stream(port: int, body: Mapping[str, Any], key: str = "bench") -> tuple[Buyer, float]:
    """Send one request; returns the buyer that reads its answer, and when it was sent."""
    loop = asyncio.get_running_loop()
    _, buyer = await loop.create_connection(Buyer, "127.0.0.1", port)
    raw = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(raw)}\r\n\r\n"
    )
    assert buyer._transport is not None
    sent = time.monotonic()
    buyer._transport.write(head.encode() + raw)
    return buyer, sent


async def whole(buyer: Buyer, sent: float) -> Answer:
    """Wait for the end of the answer and read it."""
    async with asyncio.timeout(ANSWER_SECONDS):
        await buyer.over
    return read_answer(sent, buyer.received)


async def ask(port: int, body: Mapping[str, Any]) -> Answer:
    return await whole(*await open_stream(port, body))


async def ask_together(port: int, bodies: Sequence[Mapping[str, Any]]) -> list[Answer]:
    """All at once; reading their bytes waits until the last is done, so that it disturbs none."""
    opened = await asyncio.gather(*(open_stream(port, body) for body in bodies))
    async with asyncio.timeout(ANSWER_SECONDS):
        for buyer, _ in opened:
            await buyer.over
    return [read_answer(sent, buyer.received) for buyer, sent in opened]
