"""Wait for a fact that nothing announces, within a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from websockets.asyncio.connection import Connection


async def eventually(fact: Callable[[], object], *, seconds: float = 60.0) -> None:
    """Return once `fact()` is true. Raises `TimeoutError` if it doesn't come true in time."""
    async with asyncio.timeout(seconds):
        while not fact():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def send_often(socket: Connection, frame: str, *, times: int = 200_000) -> None:
    """Far more than buffers hold, to a peer that may end the link."""
    for _ in range(times):
        await socket.send(frame)
