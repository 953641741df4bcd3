"""A gateway and daemons as real processes, a relay between them, and buyers that read the raw stream."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from tests.cli.processes import Running
from tests.fakes.relay import Relay

MODEL = "mlx-community/Qwen3-8B-4bit"


def write_script(folder: Path, *lines: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "script.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


class Gateway(Running):
    """`malibu-provider gateway` on a port of the system's choice; `ready` waits until it is open."""

    def __init__(self, home: Path, *flags: str) -> None:
        super().__init__(home, "gateway", "--port", "0", *flags)
        self.url = ""
        self.port = 0

    def ready(self) -> Gateway:
        self.url = self.wait_for("ready: ").removeprefix("ready: ").removesuffix("/v1")
        self.port = urlsplit(self.url).port or 0
        return self


class Daemon(Running):
    """`malibu-provider start --gateway`, scripted. `ready` waits until jobs are sent to it."""

    def __init__(
        self, home: Path, script: Path, gateway_port: int, *, config: str = "", service: bool = False
    ) -> None:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        (home / "config.toml").write_text(config)
        arguments = ["start", "--gateway", f"ws://127.0.0.1:{gateway_port}", "--engine", "scripted"]
        arguments += ["--script", str(script), "--model", MODEL, *(["--service"] if service else [])]
        super().__init__(home, *arguments)

    def ready(self) -> Daemon:
        self.wait_for("ready: ")
        return self

    async def control(self, command: str, method: str = "POST") -> dict[str, Any]:
        """One request on the control socket."""
        connector = aiohttp.UnixConnector(str(self.home / "control.sock"))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.request(method, f"http://daemon/{command}") as response,
        ):
            document: dict[str, Any] = await response.json()
            return document

    async def facts(self) -> dict[str, Any]:
        """The status document, at once."""
        return await self.control("status", "GET")

    async def until(
        self, fact: Callable[[dict[str, Any]], object], *, seconds: float = 60.0
    ) -> dict[str, Any]:
        """The first status document of which `fact` is true."""
        async with asyncio.timeout(seconds):
            while not fact(facts := await self.facts()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            return facts

    async def linked(self, links: int, *, seconds: float = 60.0) -> None:
        """Wait for the `links`-th registration, dialling without waiting for the backoff."""
        async with asyncio.timeout(seconds):
            while (await self.facts())["link"]["links"] < links:
                await self.control("reconnect")
                await asyncio.sleep(0.05)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


class Two:
    """One gateway, a relay and one daemon behind it, as `async with`."""

    def __init__(
        self, folder: Path, *lines: dict[str, Any], config: str = "", gateway_config: str = ""
    ) -> None:
        self._folder = folder
        self._script = write_script(folder, *lines)
        self._config = config
        self._gateway_config = gateway_config
        self.gateway: Gateway
        self.daemon: Daemon
        self.relay: Relay

    async def __aenter__(self) -> Two:
        async with AsyncExitStack() as stack:
            home = self._folder / "gateway"
            home.mkdir()
            (home / "config.toml").write_text(self._gateway_config)
            self.gateway = stack.enter_context(Gateway(home))
            await asyncio.to_thread(self.gateway.ready)
            self.relay = await stack.enter_async_context(Relay(self.gateway.port))
            daemon_home = self._folder / "daemon"
            self.daemon = stack.enter_context(
                Daemon(daemon_home, self._script, self.relay.port, config=self._config)
            )
            await asyncio.to_thread(self.daemon.ready)
            self._ends = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._ends.aclose()


class Buyer:
    """Reads one streamed answer as bytes; `text` grows as they come."""

    def __init__(self, url: str, content: str, **fields: Any) -> None:
        self._url = url
        messages = [{"role": "user", "content": content}]
        self._body = {"model": MODEL, "stream": True, "messages": messages} | fields
        self.text = ""
        self.status = 0
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        timeout = aiohttp.ClientTimeout(total=300)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(f"{self._url}/v1/chat/completions", json=self._body) as response,
        ):
            self.status = response.status
            async for data in response.content.iter_any():
                self.text += data.decode()
                self._news.set()

    @property
    def events(self) -> list[dict[str, Any]]:
        """The JSON of each `data:` line but the last."""
        return [json.loads(line) for line in re.findall(r"^data: (\{.*)$", self.text, re.MULTILINE)]

    async def seen(self, count: int, *, seconds: float = 60.0) -> None:
        """Wait until so many data lines have come."""
        async with asyncio.timeout(seconds):
            while self.text.count("\ndata: ") < count:
                self._news.clear()
                await self._news.wait()

    async def done(self, *, seconds: float = 60.0) -> str:
        """The whole body."""
        async with asyncio.timeout(seconds):
            await self._task
        return self.text

    async def refusal(self, *, seconds: float = 60.0) -> dict[str, Any]:
        """The error of an answer that is one JSON document."""
        error: dict[str, Any] = json.loads(await self.done(seconds=seconds))["error"]
        return error

    def leave(self) -> None:
        self._task.cancel()


def masked(text: str) -> str:
    """The stream without what differs between two runs: ids, times, call IDs, receipts, comment lines."""
    text = re.sub(r"^:.*\n\n", "", text, flags=re.MULTILINE)
    text = re.sub(r'"id":"(chatcmpl|call)[^"]*"', '"id":"-"', text)
    text = re.sub(r'"created":\d+', '"created":0', text)
    return re.sub(r'"receipt":"[^"]*"', '"receipt":"-"', text)
