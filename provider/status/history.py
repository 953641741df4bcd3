"""What this machine has done, job by job: JSON Lines without any prompt, output or name of a buyer.

A line is appended whole at a job's end, so `kill -9` loses no line that was written. The file is rotated.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Literal

from provider.logs import RotatingFile

FILE = "history.jsonl"
FILE_BYTES = 10 * 1024 * 1024
FILES = 5


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One finished job. Times in milliseconds; `ttft_ms`: from the offer to the first token, if there was one.

    `at_ms`: its end, since the epoch. `code`: the error's, where it failed.
    """

    at_ms: int
    job_id: str
    model: str
    terminal: Literal["completed", "failed", "cancelled", "rejected"]
    finish_reason: str | None
    code: str | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    ttft_ms: int | None
    duration_ms: int


@dataclass(slots=True)
class DaySum:
    """One day's work of one model, in the owner's time zone."""

    day: str
    model: str
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    rejected: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    busy_seconds: float = 0.0


class History:
    """Appends to the history under the state folder."""

    def __init__(self, state: Path, *, limit: int = FILE_BYTES) -> None:
        self._file = RotatingFile(state / FILE, limit=limit, files=FILES)

    def add(self, record: JobRecord) -> None:
        self._file.write(json.dumps(asdict(record), ensure_ascii=False) + "\n")

    def close(self) -> None:
        self._file.close()


_NAMES = frozenset(field.name for field in fields(JobRecord))


def read_history(state: Path) -> Iterator[JobRecord]:
    """All records, oldest first. A line cut by a full disk, or of another version, is passed over."""
    for number in range(FILES - 1, -1, -1):
        file = state / (FILE if number == 0 else f"{FILE}.{number}")
        if not file.is_file():
            continue
        with file.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                record = _record(line)
                if record is not None:
                    yield record


def _record(line: str) -> JobRecord | None:
    try:
        document = json.loads(line)
        return JobRecord(**{name: document[name] for name in _NAMES})
    except (ValueError, KeyError, TypeError):
        return None


def sum_by_day(records: Iterable[JobRecord], zone: tzinfo) -> list[DaySum]:
    """The records summed by day and model, newest day first."""
    sums: dict[tuple[str, str], DaySum] = {}
    for record in records:
        day = datetime.fromtimestamp(record.at_ms / 1000, zone).date().isoformat()
        total = sums.setdefault((day, record.model), DaySum(day, record.model))
        setattr(total, record.terminal, getattr(total, record.terminal) + 1)
        total.prompt_tokens += record.prompt_tokens
        total.cached_tokens += record.cached_tokens
        total.completion_tokens += record.completion_tokens
        total.busy_seconds += record.duration_ms / 1000
    return sorted(sums.values(), key=lambda total: (total.day, total.model), reverse=True)
