from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from provider.logs import RotatingFile, configure_logs, set_aside


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_lines_begin_with_the_event() -> None:
    out = io.StringIO()
    configure_logs("info", "auto", out)
    structlog.get_logger().info("job_completed", job_id="j1", tokens=3)
    (line,) = out.getvalue().splitlines()
    document = json.loads(line)
    assert next(iter(document)) == "event"
    assert (document["event"], document["tokens"], document["level"]) == ("job_completed", 3, "info")


def test_what_must_not_be_logged_is_dropped() -> None:
    out = io.StringIO()
    configure_logs("debug", "json", out)
    structlog.get_logger().warning(
        "oops", prompt="secret", content="secret", arguments="secret", token="secret"
    )
    assert "secret" not in out.getvalue()


def test_the_level_is_a_threshold() -> None:
    out = io.StringIO()
    configure_logs("warning", "console", out)
    structlog.get_logger().info("quiet")
    structlog.get_logger().error("loud")
    assert "quiet" not in out.getvalue()
    assert "loud" in out.getvalue()


def test_a_log_file_stays_within_its_bounds(tmp_path: Path) -> None:
    file = tmp_path / "daemon.log"
    log = RotatingFile(file, limit=100, files=3)
    for number in range(100):
        log.write(f"line {number:04}\n")
    log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["daemon.log", "daemon.log.1", "daemon.log.2"]
    assert all(path.stat().st_size <= 100 for path in tmp_path.iterdir())
    assert file.stat().st_mode & 0o777 == 0o600
    kept = "".join((tmp_path / f"daemon.log{suffix}").read_text() for suffix in (".2", ".1", ""))
    assert kept.splitlines() == [f"line {number:04}" for number in range(70, 100)]


def test_a_file_of_others_is_set_aside_once_it_is_large(tmp_path: Path) -> None:
    crashes = tmp_path / "crash.log"
    set_aside(crashes, limit=10)
    for text in ("small", "the first large one", "the second large one"):
        crashes.write_text(text)
        set_aside(crashes, limit=10)
        assert crashes.exists() is (text == "small")
    assert (tmp_path / "crash.log.1").read_text() == "the second large one"


def test_where_no_new_file_can_be_opened_the_log_goes_on_in_the_old_one(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = RotatingFile(folder / "daemon.log", limit=30, files=3)
    log.write("one 000000000000000000000\n")
    gone = folder.rename(tmp_path / "moved")
    log.write("two 000000000000000000000\n")
    # The descriptor is still its own: another file that is opened now gets another number.
    with open(tmp_path / "other", "w+") as other:
        log.write("three\n")
        other.seek(0)
        assert other.read() == ""
    gone.rename(folder)
    log.write("four\n")
    log.close()
    kept = [(folder / name).read_text() for name in ("daemon.log.1", "daemon.log")]
    assert kept == ["one 000000000000000000000\n", "four\n"]


def test_a_stream_that_is_gone_loses_lines_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = io.StringIO()
    monkeypatch.setattr("sys.stderr", gone)
    configure_logs("info", "json")
    gone.close()
    structlog.get_logger().info("started")


def test_the_daemon_logs_to_such_a_file(tmp_path: Path) -> None:
    log = RotatingFile(tmp_path / "daemon.log")
    configure_logs("info", "auto", log)
    structlog.get_logger().info("started", port=8080)
    log.close()
    assert json.loads((tmp_path / "daemon.log").read_text())["port"] == 8080
