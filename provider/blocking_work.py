"""Blocking work beside the event loop that the end of the process doesn't wait for.

`asyncio.to_thread` won't do: the interpreter joins its threads, and a model may be fetched for an hour.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

Result = TypeVar("Result")


def in_daemon_thread(work: Callable[[], Result]) -> asyncio.Future[Result]:
    """Run blocking `work` in a thread of its own, which may be left behind when the process ends."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(deliver: Callable[[], None]) -> None:
        if not future.done():
            deliver()

    def body() -> None:
        try:
            deliver = partial(future.set_result, work())
        except BaseException as error:
            deliver = partial(future.set_exception, error)
        try:
            loop.call_soon_threadsafe(settle, deliver)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    threading.Thread(target=body, name="blocking-work", daemon=True).start()
    return future
