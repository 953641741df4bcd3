"""Wait for a fact that nothing announces, within a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def eventually(fact: Callable[[], object], *, seconds: float = 60.0) -> None:
    """Return once `fact()` is true. Raises `TimeoutError` if it doesn't come true in time."""
    async with asyncio.timeout(seconds):
        while not fact():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
