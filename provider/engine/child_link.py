"""The daemon's end of the engine child's socket, and the child's last words."""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Callable

import structlog

from provider.engine.ipc import FrameReader, FromChild, FromDaemon, encode

log = structlog.get_logger(__name__)

_KEPT_LINES = 20
_LINE_CHARS = 300


class ChildLink(asyncio.Protocol):
    """Hands each message of the child to `receive`, in order. `lost` is set once all of them are read."""

    def __init__(self, receive: Callable[[FromDaemon | FromChild], None]) -> None:
        self._receive = receive
        self._reader = FrameReader()
        self._transport: asyncio.WriteTransport | None = None
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for message in self._reader.feed(data):
            self._receive(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    def send(self, message: FromDaemon) -> None:
        """Buffered, never blocks. What is sent to a dead child is lost, and its jobs end with the child."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(message))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class LastWords:
    """Follows a child's stderr: each line to the log, the last ones kept to explain its death."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)

    async def follow(self) -> None:
        rest = b""
        while data := await self._stream.read(1 << 16):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._keep(line)
            rest = rest[-_LINE_CHARS:]
        self._keep(rest)

    def _keep(self, raw: bytes) -> None:
        line = raw.decode("utf-8", "replace").strip()[:_LINE_CHARS]
        if line:
            self._lines.append(line)
            log.warning("engine_child_stderr", line=line)

    @property
    def last(self) -> str | None:
        return self._lines[-1] if self._lines else None


def describe_exit(returncode: int | None, last_words: str | None) -> str:
    """How a child ended, for the owner: its signal or code, and the last line it wrote."""
    if returncode is None:
        how = "is gone"
    elif returncode < 0:
        try:
            how = f"was ended by {signal.Signals(-returncode).name}"
        except ValueError:
            how = f"was ended by signal {-returncode}"
    else:
        how = f"exited with code {returncode}"
    return f"the engine's process {how}" + (f": {last_words}" if last_words else "")
