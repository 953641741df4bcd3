from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

from provider.status.history import History, JobRecord, read_history, sum_by_day

RECORD = JobRecord(
    at_ms=1_780_000_000_000,  # 2026-05-28T20:26:40Z
    job_id="job_1",
    model="m",
    terminal="completed",
    finish_reason="stop",
    code=None,
    prompt_tokens=10,
    cached_tokens=4,
    completion_tokens=20,
    ttft_ms=100,
    duration_ms=1500,
)


def test_what_is_written_is_read_oldest_first(tmp_path: Path) -> None:
    log = History(tmp_path)
    records = [replace(RECORD, job_id=f"job_{n}") for n in range(5)]
    for record in records:
        log.add(record)
    log.close()
    assert list(read_history(tmp_path)) == records
    assert (tmp_path / "history.jsonl").stat().st_mode & 0o777 == 0o600


def test_no_line_is_lost_to_a_kill(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from provider.status.history import History, JobRecord\n"
        "log = History(Path(sys.argv[1]))\n"
        "for n in range(3):\n"
        "    log.add(JobRecord(n, f'job_{n}', 'm', 'completed', 'stop', None, 1, 0, 1, 1, 1))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert done.returncode == -9
    assert [record.job_id for record in read_history(tmp_path)] == ["job_0", "job_1", "job_2"]


def test_a_broken_line_hides_no_other(tmp_path: Path) -> None:
    log = History(tmp_path)
    log.add(RECORD)
    log.close()
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write('{"at_ms": 1}\nnot json\n[]\n')
    log = History(tmp_path)
    log.add(RECORD)
    log.close()
    assert list(read_history(tmp_path)) == [RECORD, RECORD]


def test_old_files_are_read_too(tmp_path: Path) -> None:
    log = History(tmp_path, limit=600)
    for n in range(6):
        log.add(replace(RECORD, job_id=f"job_{n}"))
    log.close()
    assert (tmp_path / "history.jsonl.1").stat().st_size
    read = [record.job_id for record in read_history(tmp_path)]
    assert read == [f"job_{n}" for n in range(6)][-len(read) :]
    assert len(read) > 1


def test_sums_are_by_the_owners_day_and_by_model() -> None:
    hour = 3_600_000
    records = [
        RECORD,
        replace(
            RECORD, at_ms=RECORD.at_ms + hour, terminal="failed", code="provider_error", completion_tokens=3
        ),
        replace(RECORD, at_ms=RECORD.at_ms + 2 * hour),
        replace(RECORD, model="other", terminal="rejected"),
    ]
    sums = sum_by_day(records, ZoneInfo("Europe/Berlin"))
    assert [(s.day, s.model, s.completed, s.failed, s.rejected) for s in sums] == [
        ("2026-05-29", "m", 1, 0, 0),
        ("2026-05-28", "other", 0, 0, 1),
        ("2026-05-28", "m", 1, 1, 0),
    ]
    assert sums[2].completion_tokens == 23
    assert sums[2].busy_seconds == 3.0
