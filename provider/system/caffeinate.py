"""Keeps the machine from falling asleep while it serves, and only then: a child process that holds the wake.

macOS: `caffeinate -i`; Linux: `systemd-inhibit`. Both watch this process, so that a daemon that is killed
leaves no machine awake. Where neither is there, or it is refused, the machine sleeps as it always did.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys

import structlog

log = structlog.get_logger("caffeinate")

_NAME = "malibu-provider"


def wake_command(pid: int, platform: str = sys.platform) -> list[str] | None:
    """The command that holds the machine awake as long as process `pid` lives; `None`: there is none."""
    if platform == "darwin":
        # -i: no idle sleep (the display may sleep); -w: until that process ends (caffeinate(8)).
        return ["caffeinate", "-i", "-w", str(pid)] if shutil.which("caffeinate") else None
    if shutil.which("systemd-inhibit") and shutil.which("tail"):
        inhibit = ["systemd-inhibit", "--what=idle:sleep", f"--who={_NAME}", "--why=serving requests"]
        return [*inhibit, "--mode=block", "tail", f"--pid={pid}", "-f", "/dev/null"]
    return None


class Caffeinate:
    """`hold(True)` as often as wanted while serving is allowed; `hold(False)` lets the machine sleep."""

    def __init__(self, platform: str = sys.platform) -> None:
        self._platform = platform
        self._process: asyncio.subprocess.Process | None = None
        self._refused = False

    @property
    def held(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def hold(self, wanted: bool) -> None:
        """Bring the child about or end it; one that ended by itself is started again, but not for ever."""
        if not wanted:
            await self._let_go()
            self._refused = False
        elif not self.held and not self._was_refused():
            await self._start()

    def _was_refused(self) -> bool:
        """A command that gave up by itself (no rights under systemd) would only do so again."""
        if self._process is not None and (self._process.returncode or 0) > 0:
            self._refuse(f"the command for it ended with {self._process.returncode}")
        return self._refused

    def _refuse(self, reason: str | None) -> None:
        if not self._refused:
            log.info("sleep_not_prevented", reason=reason)
        self._refused = True

    async def _start(self) -> None:
        command = wake_command(os.getpid(), self._platform)
        if command is None:
            self._refuse("there is no command for it here")
            return
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                # A Ctrl-C at the terminal is for the daemon, which ends this child by itself.
                start_new_session=True,
            )
        except OSError as error:
            self._refuse(error.strerror)

    async def _let_go(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
