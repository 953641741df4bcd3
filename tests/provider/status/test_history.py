from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from provider.status.history import FILE_NAME, HistoryFile, JobRecord, read_history, sum_by_day

JOB = JobRecord(
    at_ms=1_780_315_200_000,
    job_id="job_1",
    attempt=1,
    model="org/model",
    end="completed",
    finish_reason="stop",
    error=None,
    prompt_tokens=100,
    cached_tokens=40,
    completion_tokens=20,
    reasoning_tokens=5,
    duration_ms=1500,
    ttft_ms=200,
)


def numbered(number: int) -> JobRecord:
    return replace(JOB, job_id=f"job_{number}")


def numbers(folder: Path) -> list[int]:
    return [int(record.job_id.removeprefix("job_")) for record in read_history(folder)]


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    history = HistoryFile(tmp_path)
    failed = replace(JOB, end="failed", finish_reason=None, error="provider_error", ttft_ms=None, model=None)
    history.append(JOB)
    history.append(failed)
    history.close()
    assert list(read_history(tmp_path)) == [JOB, failed]
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_a_line_holds_counts_and_codes_and_nothing_else() -> None:
    assert sorted(json.loads(JOB.line())) == [
        "at_ms",
        "attempt",
        "cached_tokens",
        "completion_tokens",
        "duration_ms",
        "end",
        "error",
        "finish_reason",
        "job_id",
        "model",
        "prompt_tokens",
        "reasoning_tokens",
        "ttft_ms",
    ]


def test_there_need_not_be_any_history(tmp_path: Path) -> None:
    assert list(read_history(tmp_path / "nowhere")) == []


def test_full_files_are_put_aside_and_the_oldest_goes(tmp_path: Path) -> None:
    line = len(JOB.line())
    history = HistoryFile(tmp_path, file_bytes=2 * line, old_files=3)
    for number in range(9):
        history.append(numbered(number))
    history.close()
    # Files of two: 8 in the current one, 6–7, 4–5 and 2–3 put aside, 0–1 gone.
    assert numbers(tmp_path) == [2, 3, 4, 5, 6, 7, 8]
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "history.1.jsonl",
        "history.2.jsonl",
        "history.3.jsonl",
        "history.jsonl",
    ]


def test_a_rotation_that_was_cut_off_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "history.1.jsonl").write_bytes(numbered(3).line())
    (tmp_path / "history.3.jsonl").write_bytes(numbered(1).line())
    (tmp_path / FILE_NAME).write_bytes(numbered(4).line())
    history = HistoryFile(tmp_path, file_bytes=1)
    history.append(numbered(5))
    history.close()
    assert numbers(tmp_path) == [1, 3, 4, 5]


def test_half_a_line_harms_no_other(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(numbered(1).line() + numbered(2).line()[:30])
    history = HistoryFile(tmp_path)
    history.append(numbered(3))
    history.close()
    assert numbers(tmp_path) == [1, 3]


def test_lines_of_another_version_are_skipped(tmp_path: Path) -> None:
    newer = json.dumps({**json.loads(JOB.line()), "later": 1}).encode()
    (tmp_path / FILE_NAME).write_bytes(b'{"v": 9}\n[]\nnot json\n' + newer + b"\n")
    assert list(read_history(tmp_path)) == [JOB]


def test_a_full_disk_raises_and_the_next_line_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = HistoryFile(tmp_path)
    history.append(numbered(1))
    real_write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: real_write(descriptor, data[:10]))
        with pytest.raises(OSError, match="part of a line"):
            history.append(numbered(2))
    history.append(numbered(3))
    history.close()
    assert numbers(tmp_path) == [1, 3]


_WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from provider.status.history import HistoryFile, JobRecord

job = JobRecord(0, "job_0", 1, "m", "completed", "stop", None, 1, 0, 1, 0, 1, 1)
history = HistoryFile(Path(sys.argv[1]), file_bytes=2000, old_files=400)
number = int(sys.argv[2])
while True:
    history.append(replace(job, job_id=f"job_{number}"))
    print(number, flush=True)
    number += 1
"""


def test_killed_at_any_moment_no_finished_line_is_lost(tmp_path: Path) -> None:
    said = -1
    for round_ in range(5):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path), str(said + 1)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        lines = iter(writer.stdout)
        for _ in range(40 + 17 * round_):
            said = int(next(lines))
        writer.send_signal(signal.SIGKILL)
        said = max([said, *(int(line) for line in lines if line.endswith("\n"))])
        writer.wait()
        writer.stdout.close()
        kept = numbers(tmp_path)
        # The last line may have been written without having been said.
        assert kept[: said + 1] == list(range(said + 1))
        assert kept[said + 1 :] in ([], [said + 1])
        said = kept[-1]


def test_sums_by_day_and_model() -> None:
    late = JOB.at_ms + 11 * 3_600_000 + 1_800_000
    records = [
        JOB,
        replace(JOB, end="failed", error="provider_error", completion_tokens=0),
        replace(JOB, model="other"),
        replace(JOB, at_ms=late),
        replace(JOB, model=None, end="rejected", prompt_tokens=0, cached_tokens=0, completion_tokens=0),
    ]
    sums = sum_by_day(records, UTC)
    assert list(sums) == [("2026-06-01", "org/model"), ("2026-06-01", "other"), ("2026-06-01", "unknown")]
    assert sums["2026-06-01", "org/model"].document() == {
        "jobs": 3,
        "completed": 2,
        "failed": 1,
        "cancelled": 0,
        "rejected": 0,
        "prompt_tokens": 300,
        "cached_tokens": 120,
        "completion_tokens": 40,
        "busy_s": 4.5,
    }
    # 23:30 UTC is the next day in Berlin.
    assert [day for day, _ in sum_by_day(records, ZoneInfo("Europe/Berlin"))].count("2026-06-02") == 1
    assert list(read_history(Path("/nowhere"), since_ms=late)) == []


def test_only_what_is_new_enough_is_read(tmp_path: Path) -> None:
    history = HistoryFile(tmp_path)
    history.append(JOB)
    history.append(replace(JOB, at_ms=JOB.at_ms + 1))
    history.close()
    assert [record.at_ms for record in read_history(tmp_path, since_ms=JOB.at_ms + 1)] == [JOB.at_ms + 1]
