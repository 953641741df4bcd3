"""What is compared, each as processes: the bare loop, mlx_lm.server, this product.

All three get the same model, the same environment (OpenBLAS preloaded on Linux, the same number of its
threads) and the same chats, one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import psutil

from bench.answers import Answer
from bench.buyers import ask, ask_together
from provider.engine.launch import child_environment

COMMAND = str(Path(sys.executable).with_name("malibu-provider"))
START_SECONDS = 300.0
END_SECONDS = 20.0
LOOK_AGAIN_SECONDS = 0.02

Chat = Mapping[str, Any]
"""What a buyer sends: `messages`, and whatever else, but for `model`."""


def environment() -> dict[str, str]:
    """The same for all: one BLAS thread fewer than cores, unless the caller's environment says otherwise.

    A model on the CPU would else take the cores from whatever hands its tokens on, and what is measured
    would be how well they fight; on a GPU the cores are free.
    """
    cores = max(1, (os.cpu_count() or 2) - 1)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MALIBU_PROVIDER_")}
    kept.setdefault("OPENBLAS_NUM_THREADS", str(cores))
    return child_environment(kept)


class System(Protocol):
    """`start_s`: from the spawn to the first token of a first answer."""

    name: str
    start_s: float

    async def chats(self, chats: Sequence[Chat]) -> list[Answer]:
        """Ask all at once; their answers in order."""
        ...

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds so far: `engine` for what computes, `rest` for what is around it."""
        ...

    def memory(self) -> dict[str, int]:
        """Resident bytes, split in the same way."""
        ...

    async def stop(self) -> None: ...


def cpu_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


class Spawned:
    """A process with its output in a file; killed at the end, at the latest."""

    def __init__(self, arguments: Sequence[str], more: Mapping[str, str] | None = None, **pipes: Any) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `end`
        self.begun = time.monotonic()
        self._process = psutil.Popen(
            arguments,
            env=environment() | dict(more or {}),
            stderr=self.log,
            **({"stdin": -3, "stdout": -3} | pipes),
        )

    @property
    def process(self) -> Any:
        return self._process

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def said(self) -> str:
        """The end of what it said on stderr."""
        self.log.seek(0)
        return self.log.read()[-2000:]

    async def end(self) -> None:
        if self.alive:
            self._process.terminate()
            with contextlib.suppress(psutil.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, END_SECONDS)
        if self.alive:
            self._process.kill()
            await asyncio.to_thread(self._process.wait, END_SECONDS)
        self.log.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def first_answer(spawned: Spawned, port: int, body: Chat) -> float:
    """Ask until there is an answer; seconds from the spawn to its first token."""
    while time.monotonic() - spawned.begun < START_SECONDS:
        if not spawned.alive:
            raise RuntimeError(f"the process ended: {spawned.said()}")
        with contextlib.suppress(OSError):
            answer = await ask(port, {**body, "max_tokens": 1})
            if answer.error is None:
                return answer.times[0] - spawned.begun
        await asyncio.sleep(LOOK_AGAIN_SECONDS)
    raise RuntimeError(f"no answer after {START_SECONDS:.0f} s: {spawned.said()}")


class Bare:
    """The bare loop."""

    name = "bare"

    def __init__(self, spawned: Spawned) -> None:
        self._spawned = spawned
        self.start_s = 0.0

    @classmethod
    async def start(cls, model: str, path: Path, first: Chat) -> Bare:
        spawned = Spawned(
            [sys.executable, "-m", "bench.bare_loop", str(path)], stdin=-1, stdout=-1, text=True
        )
        bare = cls(spawned)
        await bare._line()
        (answer,) = await bare.chats([{**first, "max_tokens": 1}])
        bare.start_s = answer.times[0] - spawned.begun
        return bare

    async def _line(self) -> dict[str, Any]:
        line = await asyncio.to_thread(self._spawned.process.stdout.readline)
        if not line:
            raise RuntimeError(f"the bare loop ended: {self._spawned.said()}")
        document: dict[str, Any] = json.loads(line)
        return document

    async def order(self, **order: Any) -> dict[str, Any]:
        self._spawned.process.stdin.write(json.dumps(order) + "\n")
        self._spawned.process.stdin.flush()
        return await self._line()

    async def chats(self, chats: Sequence[Chat]) -> list[Answer]:
        ran = await self.order(
            do="run",
            chats=[{"messages": chat["messages"], "tools": chat.get("tools")} for chat in chats],
            max_tokens=chats[0]["max_tokens"],
            temperature=chats[0].get("temperature", 0),
        )
        return [
            Answer(ran["sent"], tuple(one["times"]), one["tokens"], one["prompt_tokens"], text=text)
            for one, text in zip(ran["answers"], ran["texts"], strict=True)
        ]

    def cpu_s(self) -> dict[str, float]:
        return {"engine": cpu_of(self._spawned.process), "rest": 0.0}

    def memory(self) -> dict[str, int]:
        return {"engine": self._spawned.process.memory_info().rss, "rest": 0}

    async def stop(self) -> None:
        await self._spawned.end()
        self._spawned.process.stdin.close()
        self._spawned.process.stdout.close()


class MlxServer:
    """mlx_lm.server, as it comes."""

    name = "mlx_lm.server"

    def __init__(self, spawned: Spawned, port: int, path: Path) -> None:
        self._spawned = spawned
        self.port = port
        self._path = path
        self.start_s = 0.0

    @classmethod
    async def start(cls, model: str, path: Path, first: Chat) -> MlxServer:
        port = free_port()
        arguments = ["--model", str(path), "--port", str(port), "--log-level", "ERROR"]
        spawned = Spawned([sys.executable, "-m", "mlx_lm", "server", *arguments])
        server = cls(spawned, port, path)
        server.start_s = await first_answer(spawned, port, server.body(first))
        return server

    def body(self, chat: Chat) -> dict[str, Any]:
        return {"model": str(self._path), **chat}

    async def chats(self, chats: Sequence[Chat]) -> list[Answer]:
        return await ask_together(self.port, [self.body(chat) for chat in chats])

    def cpu_s(self) -> dict[str, float]:
        return {"engine": cpu_of(self._spawned.process), "rest": 0.0}

    def memory(self) -> dict[str, int]:
        return {"engine": self._spawned.process.memory_info().rss, "rest": 0}

    async def stop(self) -> None:
        await self._spawned.end()


class Product:
    """`malibu-provider start --local`: gateway and daemon in one process, the engine in its child."""

    name = "product"

    def __init__(
        self, spawned: Spawned, port: int, model: str, home: tempfile.TemporaryDirectory[str]
    ) -> None:
        self._spawned = spawned
        self._home = home
        self.port = port
        self._model = model
        self.start_s = 0.0

    @classmethod
    async def start(
        cls, model: str, path: Path | None, first: Chat, *, slots: int = 16, script: Path | None = None
    ) -> Product:
        """`script`: the scripted engine plays this file, and `path` isn't needed."""
        home = tempfile.TemporaryDirectory(prefix="malibu-bench-")
        port = free_port()
        arguments = [COMMAND, "start", "--local", "--port", str(port)]
        arguments += ["--model", model if path is None else f"{model}={path}"]
        if script is not None:
            arguments += ["--engine", "scripted", "--script", str(script)]
        settings = {
            "MALIBU_PROVIDER_HOME": home.name,
            "MALIBU_PROVIDER_ENGINE__SLOTS": str(slots),
            # It measures itself when idle after the start: not while it is being measured.
            "MALIBU_PROVIDER_ENGINE__MEASURE_AT_START": "false",
            # A machine that is busy is what a benchmark makes of it, on battery too.
            "MALIBU_PROVIDER_POLICY__ON_BATTERY": "true",
            "MALIBU_PROVIDER_POLICY__THERMAL": "off",
            "MALIBU_PROVIDER_POLICY__MEMORY": "off",
        }
        spawned = Spawned(arguments, settings)
        product = cls(spawned, port, model, home)
        product.start_s = await first_answer(spawned, port, product.body(first))
        return product

    def body(self, chat: Chat) -> dict[str, Any]:
        return {"model": self._model, **chat}

    async def chats(self, chats: Sequence[Chat]) -> list[Answer]:
        return await ask_together(self.port, [self.body(chat) for chat in chats])

    def _engine(self) -> psutil.Process:
        child: psutil.Process
        (child,) = self._spawned.process.children()
        return child

    def cpu_s(self) -> dict[str, float]:
        return {"engine": cpu_of(self._engine()), "rest": cpu_of(self._spawned.process)}

    def memory(self) -> dict[str, int]:
        return {
            "engine": self._engine().memory_info().rss,
            "rest": self._spawned.process.memory_info().rss,
        }

    async def stop(self) -> None:
        await self._spawned.end()
        self._home.cleanup()
