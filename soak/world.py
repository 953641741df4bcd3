"""The processes under load: one gateway, and behind relays two daemons, one scripted, one on MLX."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from soak.growth import Rest
from tests.fakes.relay import Relay

COMMAND = str(Path(sys.executable).with_name("malibu-provider"))
FIXTURE = Path(__file__).parents[1] / "tests" / "fixtures" / "models" / "tiny-qwen3"
SCRIPTED_MODEL = "mlx-community/Qwen3-8B-4bit"
READY_SECONDS = 120.0
LOOK_AGAIN_SECONDS = 0.1
SLOTS = 4

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
SCRIPT: tuple[Mapping[str, Any], ...] = (
    {"match": "quick", "text": "It is salty. " * 200, "ms_per_token": 0},
    {"match": "steady", "text": "The sea is salty, because rivers carry salt. " * 40, "ms_per_token": 5},
    {"match": "call", "text": CALL, "ms_per_token": 2},
    {"match": "fails", "text": "Half an answer, then nothing.", "fault": "raise", "fault_after_tokens": 3},
    {"text": "Grüße, 世界! 🎉 " * 20, "ms_per_token": 1},
)
QUESTIONS: Mapping[str, tuple[str, ...]] = {
    SCRIPTED_MODEL: ("quick", "steady", "call", "fails", "hello"),
    FIXTURE.name: (
        "Tell me about the lighthouse.",
        "What is the capital of France?",
        "Count from one to sixty.",
        "Send me some emoji.",
    ),
}


class Process:
    """One `malibu-provider` with a state folder of its own; its stderr goes to a file there."""

    def __init__(self, name: str, home: Path, *arguments: str) -> None:
        self.name = name
        self.home = home
        home.mkdir(parents=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MALIBU_PROVIDER_")}
        settings = {
            "MALIBU_PROVIDER_HOME": str(home),
            "MALIBU_PROVIDER_ENGINE__SLOTS": str(SLOTS),
            "MALIBU_PROVIDER_ENGINE__MEASURE_AT_START": "false",
            "MALIBU_PROVIDER_STATUS__ENABLED": "false",
            "MALIBU_PROVIDER_POLICY__ON_BATTERY": "true",
            "MALIBU_PROVIDER_POLICY__MEMORY": "off",
        }
        self.log = home / "stderr.log"
        with self.log.open("wb") as log:
            self._process = psutil.Popen(
                [COMMAND, *arguments], env=kept | settings, stdin=-3, stdout=-3, stderr=log
            )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    async def said(self, pattern: str) -> re.Match[str]:
        """The first that it said which matches."""
        end_at = time.monotonic() + READY_SECONDS
        while time.monotonic() < end_at:
            text = self.log.read_text("utf-8", "replace")
            if found := re.search(pattern, text):
                return found
            if not self.alive:
                raise RuntimeError(f"{self.name} ended: {text[-1500:]}")
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
        raise RuntimeError(f"{self.name} isn't ready after {READY_SECONDS:.0f} s")

    def rest(self, tasks: int | None = None) -> Rest:
        process = self._process
        with process.oneshot():
            return Rest(
                process.pid,
                round(process.memory_info().rss / 2**20, 1),
                process.num_fds(),
                process.num_threads(),
                tasks,
            )

    async def end(self) -> None:
        if self.alive:
            self._process.terminate()
            with contextlib.suppress(psutil.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, 20)
        if self.alive:
            self._process.kill()
            await asyncio.to_thread(self._process.wait, 20)


class Daemon(Process):
    """`start --gateway`, with its control socket."""

    async def status(self) -> dict[str, Any]:
        return await self.command("status", "GET")

    async def command(self, name: str, method: str = "POST") -> dict[str, Any]:
        connector = aiohttp.UnixConnector(str(self.home / "control.sock"))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.request(method, f"http://daemon/{name}") as response,
        ):
            document: dict[str, Any] = await response.json()
            return document

    async def kill_child(self) -> bool:
        pid = (await self.status())["engine"]["child_pid"]
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return True

    def child_rest(self, pid: int) -> Rest | None:
        with contextlib.suppress(psutil.NoSuchProcess):
            child = psutil.Process(pid)
            rss = round(child.memory_info().rss / 2**20, 1)
            return Rest(pid, rss, child.num_fds(), child.num_threads())
        return None


def idle(status: Mapping[str, Any]) -> bool:
    """Whether nothing of any job is left: no job, no slot, no frame that waits."""
    engine, jobs = status["engine"], status["jobs"]
    return (
        status["link"]["routable"]
        and engine["ready"]
        and engine["slots_free"] == engine["slots_total"]
        and not any(engine[name] for name in ("queued", "running"))
        and not any(jobs.values())
    )


class World:
    """All of it, as `async with`; in a folder that goes with it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._stack = AsyncExitStack()
        self.gateway: Process
        self.daemons: list[Daemon] = []
        self.relays: list[Relay] = []
        self.port = 0

    async def __aenter__(self) -> World:
        async with self._stack as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="malibu-soak-")))
            script = folder / "script.jsonl"
            script.write_text("".join(json.dumps(line) + "\n" for line in SCRIPT), "utf-8")
            self.gateway = Process("gateway", folder / "gateway", "gateway", "--port", "0")
            stack.push_async_callback(self.gateway.end)
            self.port = int((await self.gateway.said(r"ready: http://[^:\s]+:(\d+)"))[1])
            engines = {
                "scripted": ("--engine", "scripted", "--script", str(script), "--model", SCRIPTED_MODEL),
                "mlx": ("--model", f"{FIXTURE.name}={FIXTURE}"),
            }
            for name, arguments in engines.items():
                relay = await stack.enter_async_context(Relay(self.port))
                link = f"ws://127.0.0.1:{relay.port}"
                daemon = Daemon(name, folder / name, "start", "--gateway", link, *arguments)
                stack.push_async_callback(daemon.end)
                self.relays.append(relay)
                self.daemons.append(daemon)
            for daemon in self.daemons:
                await daemon.said("ready: ")
                self._say(f"{daemon.name} is ready")
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    @property
    def processes(self) -> list[Process]:
        return [self.gateway, *self.daemons]
