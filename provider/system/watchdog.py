"""Ends a process whose event loop no longer turns: a daemon that can't make progress must not look alive."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import sys
import threading
from collections.abc import Callable

STUCK_EXIT_CODE = 1
_LOOKS = 12


class LoopWatchdog:
    """A thread that asks the loop for a sign of life every `seconds`.

    After twelve looks without one it writes all stacks to stderr and ends the process. Looks are counted, not
    time: a machine that slept finds its thread asleep as well, and has lost nothing.
    """

    def __init__(self, *, seconds: float = 10.0, end: Callable[[], None] | None = None) -> None:
        self._seconds = seconds
        self._end = end or _end_process
        self._stopped = threading.Event()
        self._silent = 0

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._watch, args=(loop,), name="loop-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _alive(self) -> None:
        self._silent = 0

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stopped.wait(self._seconds):
            self._silent += 1
            if self._silent > _LOOKS:
                self._end()
                return
            try:
                loop.call_soon_threadsafe(self._alive)
            except RuntimeError:
                return


def _end_process() -> None:
    print("malibu-provider: no progress for too long; ending (stacks follow)", file=sys.stderr, flush=True)
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    os._exit(STUCK_EXIT_CODE)
