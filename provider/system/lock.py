"""One daemon for each state folder: `flock` on a file that holds the owner's PID.

The kernel drops the lock with the process, so `kill -9` leaves nothing stale behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
from pathlib import Path
from types import TracebackType

from provider.errors import AlreadyRunningError, ProviderError

# A command that looks whether a daemon runs holds the lock for microseconds; a start must not lose to it.
_TRIES = 5
_BETWEEN_TRIES_S = 0.02


class DaemonLock:
    """The held lock. `release` it, or leave it to the process's end."""

    def __init__(self, file: Path, descriptor: int) -> None:
        self.file = file
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> DaemonLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def acquire(file: Path, *, wait: bool = False) -> DaemonLock:
    """Take the lock and write our PID. Raises `AlreadyRunningError` naming the owner's PID.

    `wait`: wait for the owner's end instead; a service must not be restarted over and over meanwhile.
    """
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ProviderError(f"can't open the lock file {file}: {error.strerror}") from error
    for attempt in range(_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if attempt < _TRIES - 1:
                time.sleep(_BETWEEN_TRIES_S)
        else:
            return _taken(file, descriptor)
    pid = _read_pid(descriptor)
    if not wait:
        os.close(descriptor)
        raise AlreadyRunningError(pid, str(file))
    print(f"waiting for the daemon that runs already (PID {pid}) to end", file=sys.stderr, flush=True)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return _taken(file, descriptor)


def _taken(file: Path, descriptor: int) -> DaemonLock:
    os.ftruncate(descriptor, 0)
    # On a full disk the lock holds without a PID in it.
    with contextlib.suppress(OSError):
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return DaemonLock(file, descriptor)


def is_held(file: Path) -> tuple[bool, int | None]:
    """Whether a daemon runs, and its PID as far as it is written. Raises `ProviderError` if none can tell."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False, None
    except OSError as error:
        raise ProviderError(f"can't open the lock file {file}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True, _read_pid(descriptor)
    else:
        return False, None
    finally:
        os.close(descriptor)


def _read_pid(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else None
