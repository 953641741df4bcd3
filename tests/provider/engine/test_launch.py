"""The child's surroundings: offline, fast BLAS on Linux, gone with the daemon, deaf to Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from gateway_protocol.families import Family
from provider.engine.launch import child_environment, find_openblas
from provider.engine.spec import EngineSettings, ModelSpec
from tests.provider.engine.conftest import StartEngine, write_script
from tests.provider.engine.driving import ask, run

DAEMON = """
import asyncio, sys
from pathlib import Path
from gateway_protocol.families import Family
from provider.engine.process import EngineProcess
from provider.engine.spec import EngineSettings, ModelSpec

async def main():
    models = (ModelSpec("m", Family.NONE, 1000),)
    engine = EngineProcess(EngineSettings(backend="scripted", models=models, script=Path(sys.argv[1])))
    await engine.start()
    print(engine.status().child_pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_nothing_is_fetched_and_openblas_comes_first() -> None:
    environment = child_environment({"PATH": "/bin", "LD_PRELOAD": "/other.so"})
    assert environment["PATH"] == "/bin"
    assert environment["HF_HUB_OFFLINE"] == environment["TRANSFORMERS_OFFLINE"] == "1"
    openblas = find_openblas()
    if openblas is None:
        assert environment["LD_PRELOAD"] == "/other.so"
    else:
        assert environment["LD_PRELOAD"] == f"{openblas}:/other.so"
        assert 1 <= int(environment["OPENBLAS_NUM_THREADS"]) <= 8
        assert child_environment({"OPENBLAS_NUM_THREADS": "3"})["OPENBLAS_NUM_THREADS"] == "3"


@pytest.mark.asyncio
async def test_the_child_goes_with_a_killed_daemon(tmp_path: Path) -> None:
    script = write_script(tmp_path / "script.jsonl", {"text": "x"})
    daemon = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DAEMON, str(script), stdout=asyncio.subprocess.PIPE
    )
    assert daemon.stdout is not None
    child = psutil.Process(int(await daemon.stdout.readline()))
    daemon.kill()
    await daemon.wait()
    await asyncio.to_thread(psutil.wait_procs, [child], 60)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


@pytest.mark.asyncio
async def test_the_child_doesn_t_hear_ctrl_c(tmp_path: Path, start_engine: StartEngine) -> None:
    script = write_script(tmp_path / "script.jsonl", {"text": "still here"})
    models = (ModelSpec("m", Family.NONE, 1000),)
    engine = await start_engine(EngineSettings(backend="scripted", models=models, script=script))
    pid = engine.status().child_pid
    assert pid is not None
    # A session of its own: what a terminal sends to the daemon's group doesn't get there.
    assert os.getsid(pid) == pid != os.getsid(0)
    os.kill(pid, signal.SIGINT)
    assert (await run(engine, ask("hi", model="m"))).text == "still here"
    assert engine.status().child_pid == pid
