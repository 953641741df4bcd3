from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from provider.system.caffeinate import Caffeinate, wake_command
from tests.fakes.waiting import eventually

FAKES = Path(__file__).parents[2] / "fakes" / "macos"


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(FAKES), prepend=":")
    monkeypatch.setenv("FAKE_CAFFEINATE", str(tmp_path / "notes"))
    (tmp_path / "notes").touch()
    return tmp_path / "notes"


def lines(notes: Path) -> list[str]:
    return notes.read_text().splitlines()


@pytest.mark.asyncio
async def test_it_is_held_while_wanted_and_no_longer(notes: Path) -> None:
    caffeinate = Caffeinate("darwin")
    await caffeinate.hold(False)
    await caffeinate.hold(True)
    await caffeinate.hold(True)
    assert caffeinate.held
    await eventually(lambda: lines(notes))
    assert lines(notes) == [f"start -i -w {os.getpid()}"]
    await caffeinate.hold(False)
    assert not caffeinate.held
    assert lines(notes)[1:] == ["end"]
    await caffeinate.hold(True)
    await eventually(lambda: len(lines(notes)) == 3)
    await caffeinate.hold(False)


@pytest.mark.asyncio
async def test_one_that_ended_by_itself_is_started_again(notes: Path) -> None:
    caffeinate = Caffeinate("darwin")
    await caffeinate.hold(True)
    assert caffeinate._process is not None
    os.kill(caffeinate._process.pid, signal.SIGKILL)
    await eventually(lambda: not caffeinate.held)
    await caffeinate.hold(True)
    assert caffeinate.held
    await caffeinate.hold(False)


@pytest.mark.asyncio
async def test_a_refusal_is_taken_and_asked_again_only_after_a_pause(
    notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CAFFEINATE_FAILS", "1")
    caffeinate = Caffeinate("darwin")
    await caffeinate.hold(True)
    await eventually(lambda: not caffeinate.held)
    await caffeinate.hold(True)
    assert len(lines(notes)) == 1
    await caffeinate.hold(False)
    await caffeinate.hold(True)
    await eventually(lambda: len(lines(notes)) == 2)
    await caffeinate.hold(False)


@pytest.mark.asyncio
async def test_a_killed_daemon_leaves_no_machine_awake(notes: Path) -> None:
    code = (
        "import asyncio, os, signal\n"
        "from provider.system.caffeinate import Caffeinate\n"
        "async def main():\n"
        "    await Caffeinate('darwin').hold(True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    daemon = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    assert await daemon.wait() == -signal.SIGKILL
    await eventually(lambda: "gone" in lines(notes))


def test_on_linux_systemd_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("systemd-inhibit", "tail"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    command = wake_command(123, "linux")
    assert command is not None
    assert command[:2] == ["systemd-inhibit", "--what=idle:sleep"]
    assert command[-4:] == ["tail", "--pid=123", "-f", "/dev/null"]


@pytest.mark.asyncio
async def test_without_any_such_command_the_machine_sleeps_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert wake_command(1, "darwin") is None
    assert wake_command(1, "linux") is None
    caffeinate = Caffeinate("linux")
    await caffeinate.hold(True)
    assert not caffeinate.held
