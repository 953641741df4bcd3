"""One buyer reads a byte a second from a huge answer: the others don't notice, and memory stays bounded."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from gateway_protocol.limits import MIB, OUTBOX_JOB_BYTES, UNREAD_JOB_BYTES
from tests.e2e.processes import MODEL, Buyer, Two, masked

OTHERS = 7
HUGE = "0123456789abcdef" * (8 * MIB)
LONG = "The quick brown fox jumps over the lazy dog, 漢字 and 🙂 and all. " * 8_000
LINES = (
    {"match": "huge", "text": HUGE, "chars_per_token": 16_384, "ms_per_token": 1},
    {"text": LONG, "chars_per_token": 512, "ms_per_token": 2},
)
# What waits at the gateway and what the daemon keeps until that is acknowledged: at either end once as it is
# kept and once as the text that the receipt will be about, and as much again on its way and in free lists.
BOUND = 6 * (UNREAD_JOB_BYTES + OUTBOX_JOB_BYTES)


class SlowReader:
    """A buyer on a bare socket with the smallest buffer the system gives; a byte a second until `hurry`.

    `received`: bytes so far. `run` gives the SHA-256 of the content, once the stream is at its end.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.received = 0
        self.hurry = asyncio.Event()

    async def run(self) -> str:
        content, rest = hashlib.sha256(), b""
        async for data in self._stream():
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        content.update((choice["delta"].get("content") or "").encode())
                elif line == b"data: [DONE]":
                    return content.hexdigest()
        raise AssertionError("the stream has no end")

    async def _stream(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        messages = [{"role": "user", "content": "huge"}]
        body = json.dumps({"model": MODEL, "stream": True, "messages": messages}).encode()
        # HTTP/1.0: the body comes without the marks of a chunked one.
        head = (
            f"POST /v1/chat/completions HTTP/1.0\r\nHost: 127.0.0.1:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            connection.setblocking(False)
            await loop.sock_connect(connection, ("127.0.0.1", self._port))
            await loop.sock_sendall(connection, head.encode() + body)
            while not self.hurry.is_set() and (data := await loop.sock_recv(connection, 1)):
                self.received += len(data)
                yield data
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await self.hurry.wait()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MIB)
            while data := await loop.sock_recv(connection, MIB):
                self.received += len(data)
                yield data


class Memory:
    """The most that a process held, looked at twenty times a second, above what it held at first."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._first = self._peak = self._now()

    def _now(self) -> int:
        rss: int = self._process.memory_info().rss
        return rss

    def look(self) -> None:
        self._peak = max(self._peak, self._now())

    @property
    def grown(self) -> int:
        return self._peak - self._first


@asynccontextmanager
async def watched(*memories: Memory) -> AsyncIterator[None]:
    async def look() -> None:
        while True:
            for memory in memories:
                memory.look()
            await asyncio.sleep(0.05)

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()


async def others(two: Two) -> tuple[list[str], float]:
    """What each of the other buyers got, and how many seconds it took for all of them."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    buyers = [Buyer(two.gateway.url, "hi") for _ in range(OTHERS)]
    texts = [masked(await buyer.done(seconds=300)) for buyer in buyers]
    return texts, loop.time() - began


def stands_still(facts: dict[str, Any]) -> bool:
    jobs = facts["jobs"]
    return bool(jobs["running"] == 1 and jobs["outbox_bytes"] > OUTBOX_JOB_BYTES)


@pytest.mark.asyncio
@pytest.mark.slow
async def test_a_byte_a_second(tmp_path: Path) -> None:
    async with Two(tmp_path, *LINES, config="[engine]\nslots = 8\n") as two:
        alone, seconds_alone = await others(two)
        assert len(set(alone)) == 1
        assert alone[0].endswith("data: [DONE]\n\n")

        gateway, daemon = Memory(two.gateway.process.pid), Memory(two.daemon.process.pid)
        slow = SlowReader(two.gateway.port)
        reading = asyncio.create_task(slow.run())
        async with watched(gateway, daemon):
            # Its answer stands still: the daemon keeps as much of it as it may.
            await two.daemon.until(stands_still, seconds=120)
            beside, seconds_beside = await others(two)
            facts = await two.daemon.facts()
        print(
            f"{OTHERS} streams: {seconds_alone:.1f} s alone, {seconds_beside:.1f} s beside a slow reader"
            f" (x {seconds_beside / seconds_alone:.2f}); memory grew by {gateway.grown / MIB:.0f} MiB"
            f" (gateway) and {daemon.grown / MIB:.0f} MiB (daemon) over an answer of"
            f" {len(HUGE) / MIB:.0f} MiB, of which {slow.received} bytes were read"
        )
        # The others have got all of it, and the slow one is still held.
        assert beside == alone
        assert not reading.done()
        assert slow.received < 1_000
        assert stands_still(facts)
        assert gateway.grown < BOUND < len(HUGE) / 2
        assert daemon.grown < BOUND

        slow.hurry.set()
        async with asyncio.timeout(300):
            assert await reading == hashlib.sha256(HUGE.encode()).hexdigest()
        await two.daemon.until(lambda facts: facts["jobs"]["outbox_bytes"] == 0)
