"""The loop's watchdog: silent while the loop turns, final when it doesn't."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from provider.system.watchdog import LoopWatchdog


@pytest.mark.asyncio
async def test_a_loop_that_turns_is_left_alone() -> None:
    ended = threading.Event()
    # Twelve looks take 2.4 s: a loaded machine may hold the loop up for a while without being stuck.
    watchdog = LoopWatchdog(seconds=0.2, end=ended.set)
    watchdog.start()
    await asyncio.sleep(2.8)
    watchdog.stop()
    assert not ended.is_set()


@pytest.mark.asyncio
async def test_a_loop_that_stands_still_is_noticed() -> None:
    ended = threading.Event()
    watchdog = LoopWatchdog(seconds=0.005, end=ended.set)
    watchdog.start()
    until = time.monotonic() + 10
    while not ended.is_set() and time.monotonic() < until:
        # Standing still is the point.
        time.sleep(0.01)  # noqa: ASYNC251
    assert ended.is_set()


def test_the_process_ends_with_its_stacks() -> None:
    code = (
        "import asyncio, time\n"
        "from provider.system.watchdog import LoopWatchdog\n"
        "async def main():\n"
        "    LoopWatchdog(seconds=0.01).start()\n"
        "    time.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 1
    assert "no progress" in done.stderr
    assert "line 5 in main" in done.stderr
