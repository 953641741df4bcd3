"""Engines for tests: always a real child process, driven through the public interface."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from provider.engine.process import EngineProcess
from provider.engine.spec import EngineSettings

StartEngine = Callable[[EngineSettings], Awaitable[EngineProcess]]


def write_script(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded machine needs longer for a grammar than decoding may wait for one."""
    monkeypatch.setattr("provider.engine.grammars.COMPILE_SECONDS", 60.0)


@pytest_asyncio.fixture
async def start_engine() -> AsyncIterator[StartEngine]:
    """Start engines that are closed when the test ends."""
    engines: list[EngineProcess] = []

    async def start(settings: EngineSettings) -> EngineProcess:
        engine = EngineProcess(settings)
        engines.append(engine)
        await engine.start()
        await engine.wait_ready()
        return engine

    yield start
    for engine in engines:
        await engine.aclose()
