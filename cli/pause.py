"""`pause` and `resume`: the owner's word, kept over restarts."""

from __future__ import annotations

import re
import time

from cli.control import ask
from cli.setup import paths
from provider.errors import ProviderError, UsageError
from provider.policy.pause import OwnerPause, PauseFile
from provider.system.lock import is_held

_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0}


def duration(text: str) -> float:
    """Seconds of "90m", "2h" or "1d". Raises `UsageError`."""
    match = re.fullmatch(r"(\d{1,4})([mhd])", text)
    if match is None or int(match[1]) == 0:
        raise UsageError(f"--for: {text!r} is no time; write 90m, 2h or 1d")
    return int(match[1]) * _UNITS[match[2]]


def pause(length: str | None) -> None:
    """Serve nothing until `resume`, or for so long. Running jobs finish."""
    now = time.time()
    until = None if length is None else now + duration(length)
    running, _ = is_held(paths().lock_file)
    if running:
        ask("POST", "pause", {"until": until})
    else:
        paths().create()
        try:
            PauseFile(paths().state).write(OwnerPause(now, until))
        except OSError as error:
            raise ProviderError(f"can't keep the pause: {error.strerror}") from None
    ends = "`malibu-provider resume`" if until is None else time.strftime("%a %H:%M", time.localtime(until))
    print(f"paused until {ends}" + ("" if running else "; no daemon runs now"))


def resume() -> None:
    """Serve again."""
    running, _ = is_held(paths().lock_file)
    if running:
        # Other reasons may hold it still, and the owner would wonder.
        print(f"resumed; {ask('POST', 'resume')['summary']}")
    else:
        PauseFile(paths().state).remove()
        print("resumed; no daemon runs now")
