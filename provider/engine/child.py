"""The engine's child process: `python -m provider.engine.child FD`.

Its main thread reads the daemon's messages from the inherited socket; the backend's threads do the work.
When the socket ends, the daemon is gone or has had enough: the process goes at once, whatever its threads
do (they may sit in native code for seconds).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Protocol

from provider.engine.base import GenerationRequest
from provider.engine.ipc import Cancel, ChildChannel, FromChild, FromDaemon, Pause, Setup, Submit


class ChildBackend(Protocol):
    """What the main thread calls; nothing here may block."""

    def start(self) -> None: ...

    def submit(self, serial: int, request: GenerationRequest) -> None: ...

    def cancel(self, serial: int) -> None: ...

    def pause(self, serial: int, paused: bool) -> None: ...


def make_backend(setup: Setup, channel: ChildChannel) -> ChildBackend:
    # Imported here: the scripted child must not pay for MLX, nor need it.
    if setup.settings.backend == "scripted":
        from provider.engine.scripted import ScriptedBackend

        return ScriptedBackend(setup, channel)
    from provider.engine.worker import MlxBackend

    return MlxBackend(setup, channel)


def dispatch(backend: ChildBackend, message: FromDaemon | FromChild) -> None:
    match message:
        case Submit(serial, request):
            backend.submit(serial, request)
        case Cancel(serial):
            backend.cancel(serial)
        case Pause(serial, paused):
            backend.pause(serial, paused)


def main() -> None:
    # Ctrl-C in the daemon's terminal is the daemon's to handle: it drains, then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = ChildChannel(socket.socket(fileno=int(sys.argv[1])))
    backend: ChildBackend | None = None
    while messages := channel.receive():
        for message in messages:
            if isinstance(message, Setup):
                backend = make_backend(message, channel)
                backend.start()
            elif backend is not None:
                dispatch(backend, message)
    os._exit(0)


if __name__ == "__main__":
    main()
