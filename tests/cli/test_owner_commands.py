"""`logs`, `pause`, `resume`, `history` where no daemon runs."""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path

import pytest

from cli.logs import added, last_lines
from cli.main import run
from cli.pause import duration
from provider.errors import UsageError
from provider.logs import RotatingFile
from provider.policy.pause import PauseFile
from provider.status.history import HistoryFile, JobRecord
from provider.system.lock import acquire

Out = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    (home / "logs").mkdir(parents=True)
    home.chmod(0o700)
    monkeypatch.setenv("MALIBU_PROVIDER_HOME", str(home))
    return home


def test_the_last_lines_come_from_all_files(home: Path, capsys: Out) -> None:
    log = RotatingFile(home / "logs" / "daemon.log", limit=100)
    for number in range(25):
        log.write(f"line {number:04}\n")
    log.close()
    assert run(["logs", "-n", "12"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"line {number:04}" for number in range(13, 25)]


def test_no_log_is_said(capsys: Out) -> None:
    assert run(["logs"]) == 1
    assert "a daemon in the foreground logs to its terminal" in capsys.readouterr().err


def test_following_goes_on_over_a_rotation(home: Path) -> None:
    file = home / "logs" / "daemon.log"
    log = RotatingFile(file, limit=40)
    log.write("before\n")
    turns = itertools.count()

    def wait() -> None:
        # Each look that finds nothing lets the daemon log some more; at the third the file is rotated.
        turn = next(turns)
        if turn == 9:
            raise KeyboardInterrupt
        log.write(f"while {turn} ......\n")

    found: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        found.extend(added(file, file.stat().st_size, wait))
    log.close()
    assert "".join(found).splitlines() == [f"while {turn} ......" for turn in range(9)]
    assert list(last_lines([file], 1)) == ["while 8 ......"]


def test_a_line_that_is_written_just_before_a_rotation_is_shown(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = home / "logs" / "daemon.log"
    log = RotatingFile(file, limit=40)
    log.write("before\n")
    file_stat = Path.stat
    looks = itertools.count()

    def stat(path: Path, **more: bool) -> os.stat_result:
        # The second look is at the name of the file that has just been read to its end.
        if next(looks) == 1:
            log.write("the last of the old .......\n")
            log.write("the first of the new .......\n")
        return file_stat(path, **more)

    following = added(file, file.stat().st_size, lambda: None)
    monkeypatch.setattr(Path, "stat", stat)
    assert next(following) == "the last of the old .......\n"
    assert next(following) == "the first of the new .......\n"
    log.close()


def test_following_begins_anew_in_a_file_that_was_rotated_meanwhile(home: Path) -> None:
    file = home / "logs" / "daemon.log"
    file.write_text("the first of the new\n")
    assert next(added(file, 1_000_000, lambda: pytest.fail("there is a line"))) == "the first of the new\n"


def test_a_pause_is_kept_until_resume(home: Path, capsys: Out) -> None:
    assert run(["pause"]) == 0
    assert "until `malibu-provider resume`" in capsys.readouterr().out
    kept = PauseFile(home).read()
    assert kept is not None
    assert kept.until is None
    assert run(["pause", "--for", "2h"]) == 0
    kept = PauseFile(home).read()
    assert kept is not None
    assert kept.until == pytest.approx(time.time() + 7200, abs=60)
    assert run(["resume"]) == 0
    assert PauseFile(home).read() is None


@pytest.mark.parametrize(("text", "seconds"), [("90m", 5400), ("2h", 7200), ("1d", 86400)])
def test_times(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "0h", "2 h", "-1h", "1w"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError, match="write 90m, 2h or 1d"):
        duration(text)


def record(at: float, model: str, end: str) -> JobRecord:
    return JobRecord(
        at_ms=int(at * 1000),
        job_id="j",
        attempt=1,
        model=model,
        end=end,
        finish_reason="stop",
        error=None,
        prompt_tokens=10,
        cached_tokens=0,
        completion_tokens=5,
        reasoning_tokens=0,
        duration_ms=1500,
        ttft_ms=100,
    )


def test_history_sums_by_day_and_model(home: Path, capsys: Out) -> None:
    assert run(["history"]) == 0
    assert capsys.readouterr().out == "no jobs in the last 30 days\n"
    history = HistoryFile(home)
    now = time.time()
    for each in (
        record(now - 86400 * 40, "old", "completed"),
        record(now, "m", "completed"),
        record(now, "m", "failed"),
    ):
        history.append(each)
    history.close()
    assert run(["history", "--json"]) == 0
    (day,) = json.loads(capsys.readouterr().out)["days"]
    assert (day["model"], day["jobs"], day["completed"], day["failed"]) == ("m", 2, 1, 1)
    assert day["completion_tokens"] == 10
    assert run(["history", "--days", "60"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert run(["history", "--days", "0"]) == 2


@pytest.mark.parametrize("arguments", [["status"], ["status", "--watch"], ["status", "--json"]])
def test_a_daemon_that_ends_while_it_is_asked_is_not_running(
    home: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """Its socket goes first, then its lock."""
    lock = acquire(home / "daemon.lock")
    monkeypatch.setattr("cli.status.time.sleep", lambda seconds: lock.release())
    assert run(arguments) == 1
    assert "not running" in capsys.readouterr().out
