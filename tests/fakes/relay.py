"""A TCP relay between a provider and its gateway that misbehaves on command: delay, drop, half-close, cut.

async with Relay(target_port) as relay:   # dial relay.port instead of the target
    relay.cut()                           # every connection, now, in the middle of whatever frame
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field


@dataclass(eq=False)
class _Pair:
    """One relayed connection. `up`: towards the target, bytes so far."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    up: int = 0
    down: int = 0
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def abort(self) -> None:
        for writer in (self.client, self.server):
            writer.transport.abort()


class Relay:
    """`connections`: how many were accepted. `delay`: seconds each piece waits, both ways."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self._handlers: set[asyncio.Task[None]] = set()
        self._cut_up_at: int | None = None
        self._cut_down_at: int | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.delay = 0.0
        self.refusing = False
        self.connections = 0
        self.cuts = 0
        self.port = 0

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        self._flowing.set()
        self.cut()
        for handler in [*self._handlers]:
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)
        await self._server.wait_closed()

    # --- misbehaviour --------------------------------------------------------------------------

    def cut(self) -> None:
        """Reset every connection at once."""
        self.cuts += bool(self._pairs)
        for pair in [*self._pairs]:
            pair.abort()

    def cut_after(self, *, up: int | None = None, down: int | None = None) -> None:
        """Reset the next time so many more bytes have gone one way: inside a frame, most likely."""
        moved_up = sum(pair.up for pair in self._pairs)
        moved_down = sum(pair.down for pair in self._pairs)
        self._cut_up_at = None if up is None else moved_up + up
        self._cut_down_at = None if down is None else moved_down + down

    def freeze(self) -> None:
        """A half-open link: both ends stay connected, nothing gets through any more."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Let new connections through; those that were frozen are reset."""
        self.cut()
        self._flowing.set()

    def half_close(self) -> None:
        """End one direction only: the target hears nothing more, but may go on talking."""
        for pair in self._pairs:
            with contextlib.suppress(OSError):
                pair.server.write_eof()

    # --- relaying ------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        try:
            if self.refusing:
                writer.transport.abort()
                return
            await self._relay(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._handlers.discard(task)
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        pair = _Pair(writer, target_writer)
        self._pairs.add(pair)
        try:
            await asyncio.gather(
                self._pump(pair, reader, target_writer, up=True),
                self._pump(pair, target_reader, writer, up=False),
            )
        finally:
            self._pairs.discard(pair)
            pair.abort()

    async def _pump(
        self, pair: _Pair, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, up: bool
    ) -> None:
        while data := await source.read(65_536):
            await self._flowing.wait()
            if self.delay:
                await asyncio.sleep(self.delay)
            data = self._until_cut(pair, data, up=up)
            sink.write(data)
            await sink.drain()
            if up:
                pair.up += len(data)
            else:
                pair.down += len(data)
            if self._cut_now(pair):
                raise ConnectionResetError
        with contextlib.suppress(OSError):
            sink.write_eof()

    def _until_cut(self, pair: _Pair, data: bytes, *, up: bool) -> bytes:
        limit = self._cut_up_at if up else self._cut_down_at
        moved = pair.up if up else pair.down
        return data if limit is None else data[: max(0, limit - moved)]

    def _cut_now(self, pair: _Pair) -> bool:
        cut = (self._cut_up_at is not None and pair.up >= self._cut_up_at) or (
            self._cut_down_at is not None and pair.down >= self._cut_down_at
        )
        if cut:
            self._cut_up_at = self._cut_down_at = None
            self.cuts += 1
        return cut
