"""Buyers of every kind: patient ones, those who leave, slow readers, and senders of nonsense."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from soak.ends import Ending, read_end

ANSWER_SECONDS = 120.0
READ_BYTES = 65_536
# A slow reader's share: so little at a time that its connection backs up.
SIP_BYTES = 512
SIP_SECONDS = 0.01

TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
BAD: tuple[tuple[str, bytes], ...] = (
    ("not JSON", b'{"model": '),
    ("no messages", b'{"model": "MODEL"}'),
    ("unknown model", b'{"model": "nobody/has-this", "messages": [{"role": "user", "content": "x"}]}'),
    ("two answers", b'{"model": "MODEL", "n": 2, "messages": [{"role": "user", "content": "x"}]}'),
    ("a wrong type", b'{"model": "MODEL", "messages": [{"role": "user", "content": 7}]}'),
    ("a nameless tool", b'{"model": "MODEL", "tools": [{"type": "function"}], "messages": []}'),
    ("not UTF-8", b'{"model": "MODEL", "messages": [{"role": "user", "content": "\xff"}]}'),
    ("deep nesting", b'{"model": "MODEL", "messages": ' + b"[" * 5000 + b"]" * 5000 + b"}"),
)


@dataclass(slots=True)
class Tally:
    """What came of it all. `faults`: each a broken promise."""

    kinds: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def add(self, kind: str, ending: Ending) -> None:
        self.kinds[kind] += 1
        self.ends[str(ending.end)] += 1
        if ending.fault is not None and len(self.faults) < 100:
            self.faults.append(f"{kind}: {ending.fault}")


class Crowd:
    """`run` is one buyer who comes again and again until `closing` is set; start as many as you like."""

    def __init__(self, port: int, models: Mapping[str, tuple[str, ...]], chance: random.Random) -> None:
        self._port = port
        self._models = models
        self._chance = chance
        self.tally = Tally()
        self.open = 0
        self.closing = asyncio.Event()
        self.admitting = asyncio.Event()
        self.admitting.set()

    async def run(self) -> None:
        kinds: list[tuple[str, int, Callable[[], Any]]] = [
            ("stream", 5, self._stream),
            ("buffered", 2, self._buffered),
            ("tools", 2, self._tools),
            ("leaves", 4, self._leaves),
            ("slow", 1, self._slow),
            ("bad input", 3, self._bad),
        ]
        names = [(name, call) for name, _, call in kinds]
        while not self.closing.is_set():
            await self.admitting.wait()
            name, call = self._chance.choices(names, [weight for _, weight, _ in kinds])[0]
            self.open += 1
            try:
                self.tally.add(name, await call())
            except TimeoutError:
                self.tally.add(name, Ending(None, f"no end after {ANSWER_SECONDS:.0f} s"))
            except OSError as error:
                self.tally.add(name, Ending(None, f"the connection failed ({type(error).__name__})"))
            finally:
                self.open -= 1

    # --- kinds ---------------------------------------------------------------------------------

    def _chat(self, **fields: Any) -> bytes:
        model = self._chance.choice([*self._models])
        content = self._chance.choice(self._models[model])
        chat = {"model": model, "messages": [{"role": "user", "content": content}], **fields}
        if self._chance.random() < 0.3:
            chat["seed"] = self._chance.randrange(1 << 32)
        if self._chance.random() < 0.5:
            chat["max_tokens"] = self._chance.randint(1, 200)
        return json.dumps(chat).encode()

    async def _stream(self) -> Ending:
        return read_end(await self._send(self._chat(stream=True)), left=False)

    async def _buffered(self) -> Ending:
        return read_end(await self._send(self._chat()), left=False)

    async def _tools(self) -> Ending:
        choice = self._chance.choice(["auto", "required"])
        return read_end(
            await self._send(self._chat(stream=True, tools=[TOOL], tool_choice=choice, max_tokens=80)),
            left=False,
        )

    async def _leaves(self) -> Ending:
        parts = self._chance.randint(0, 20)
        return read_end(await self._send(self._chat(stream=True), parts=parts), left=True)

    async def _slow(self) -> Ending:
        return read_end(await self._send(self._chat(stream=True), sip=True), left=False)

    async def _bad(self) -> Ending:
        _, body = self._chance.choice(BAD)
        body = body.replace(b"MODEL", self._chance.choice([*self._models]).encode())
        return read_end(await self._send(body), left=False, may_succeed=False)

    # --- the wire ------------------------------------------------------------------------------

    async def _send(self, body: bytes, *, parts: int | None = None, sip: bool = False) -> bytes:
        """The response's bytes; `parts`: leave after so many reads; `sip`: read slowly."""
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=SIP_BYTES * 2)
            try:
                head = (
                    f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
                    f"Content-Type: application/json\r\nConnection: close\r\n"
                    f"Content-Length: {len(body)}\r\n\r\n"
                )
                writer.write(head.encode() + body)
                return await self._read(reader, parts=parts, sip=sip)
            finally:
                # A reset, as when a program ends; what was read is all that counts.
                writer.transport.abort()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    async def _read(self, reader: asyncio.StreamReader, *, parts: int | None, sip: bool) -> bytes:
        raw = bytearray()
        reads = 0
        while parts is None or reads < parts:
            data = await reader.read(SIP_BYTES if sip else READ_BYTES)
            if not data:
                break
            raw += data
            reads += 1
            if sip and reads < 400:
                await asyncio.sleep(SIP_SECONDS)
        return bytes(raw)
