"""A parked engine has no child; unparked, it serves as before."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from gateway_protocol.messages import ModelState
from provider.engine.base import Rejected
from provider.engine.process import EngineProcess
from provider.engine.spec import EngineSettings
from tests.fakes.core import QWEN, write_script
from tests.provider.engine.driving import ask, run


def engine_of(folder: Path) -> EngineProcess:
    script = write_script(folder / "script.jsonl", {"text": "Hello, world", "chars_per_token": 4})
    return EngineProcess(EngineSettings(backend="scripted", models=(QWEN,), slots=2, script=script))


@pytest.mark.asyncio
async def test_parked_and_back(tmp_path: Path) -> None:
    engine = engine_of(tmp_path)
    await engine.start()
    await engine.wait_ready()
    try:
        assert (await run(engine, ask("hi"))).text == "Hello, world"
        pid = engine.status().child_pid
        assert pid is not None
        generated = engine.status().generated_tokens
        await engine.park()
        await engine.park()
        status = engine.status()
        assert not psutil.pid_exists(pid)
        assert (status.parked, status.ready, status.child_pid, status.restarts) == (True, False, None, 0)
        assert (status.detail, status.models[QWEN.id]) == ("unloaded while paused", ModelState.UNLOADED)
        assert status.generated_tokens >= generated
        refused = (await run(engine, ask("hi"))).end
        assert isinstance(refused, Rejected)
        engine.unpark()
        engine.unpark()
        await engine.wait_ready()
        assert not engine.status().parked
        assert (await run(engine, ask("hi"))).text == "Hello, world"
    finally:
        await engine.aclose()


@pytest.mark.asyncio
async def test_it_may_begin_parked(tmp_path: Path) -> None:
    engine = engine_of(tmp_path)
    await engine.start(parked=True)
    try:
        assert (engine.status().parked, engine.status().child_pid) == (True, None)
        engine.unpark()
        await engine.wait_ready()
        assert (await run(engine, ask("hi"))).text == "Hello, world"
    finally:
        await engine.aclose()


@pytest.mark.asyncio
async def test_parked_it_can_be_closed(tmp_path: Path) -> None:
    engine = engine_of(tmp_path)
    await engine.start(parked=True)
    await engine.aclose()
    assert engine.status().child_pid is None
