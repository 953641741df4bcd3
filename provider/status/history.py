"""What this machine has done: one JSON line for each job that ended, on this machine alone.

Counts, times and codes; never a prompt, an output or an argument. A line is written with one `write` to a
file opened for appending, so a process that is killed has written all of it or none. `history.jsonl` becomes
`history.1.jsonl` when it is full, that one `history.2.jsonl`, and so on; the oldest is deleted.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime, tzinfo
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any

FILE_NAME = "history.jsonl"
_FILE_BYTES = 10_000_000
_OLD_FILES = 5
_OLD = re.compile(r"history\.(\d+)\.jsonl")


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One ended job. `at_ms`: its end, since the epoch. `model`: `None` where it wasn't even looked at.

    `end`: "completed", "failed", "cancelled", "rejected". `ttft_ms`: from the offer to the first token.
    """

    at_ms: int
    job_id: str
    attempt: int
    model: str | None
    end: str
    finish_reason: str | None
    error: str | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    duration_ms: int
    ttft_ms: int | None

    def line(self) -> bytes:
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


# What a field of a line may hold, by its annotation.
_TYPES: Mapping[Any, tuple[type, ...]] = MappingProxyType(
    {"int": (int,), "str": (str,), "int | None": (int, NoneType), "str | None": (str, NoneType)}
)
_FIELDS = {field.name: _TYPES[field.type] for field in fields(JobRecord)}


class HistoryFile:
    """Appends records, in microseconds: fit for an event loop. Raises `OSError` on a full disk."""

    def __init__(self, folder: Path, *, file_bytes: int = _FILE_BYTES, old_files: int = _OLD_FILES) -> None:
        self._folder = folder
        self._file_bytes = file_bytes
        self._old_files = old_files
        self._descriptor: int | None = None
        self._size = 0
        self._broken = False

    def append(self, record: JobRecord) -> None:
        if self._descriptor is None:
            self._open()
        assert self._descriptor is not None
        line = record.line()
        if self._broken:
            # A line that a full disk cut short must not swallow this one.
            line = b"\n" + line
        written = os.write(self._descriptor, line)
        self._size += written
        self._broken = written < len(line)
        if self._broken:
            raise OSError("the disk took only a part of a line")
        if self._size >= self._file_bytes:
            self._rotate()

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(self._folder / FILE_NAME, flags, 0o600)
        self._size = os.fstat(self._descriptor).st_size
        # A machine that lost its power may have kept half a line.
        self._broken = self._size > 0 and os.pread(self._descriptor, 1, self._size - 1) != b"\n"

    def _rotate(self) -> None:
        self.close()
        # Only files up to the first gap move: a rotation that was cut off by a kill loses nothing.
        filled = 0
        while filled < self._old_files and self._old(filled + 1).exists():
            filled += 1
        for number in range(min(filled, self._old_files - 1), 0, -1):
            self._old(number).replace(self._old(number + 1))
        (self._folder / FILE_NAME).replace(self._old(1))

    def _old(self, number: int) -> Path:
        return self._folder / f"history.{number}.jsonl"


def read_history(folder: Path, *, since_ms: int = 0) -> Iterator[JobRecord]:
    """The records that ended at or after `since_ms`, oldest first. Lines that can't be read are skipped."""
    numbered = [(int(match[1]), file) for file in _files(folder) if (match := _OLD.fullmatch(file.name))]
    ordered = [file for _, file in sorted(numbered, reverse=True)]
    for file in [*ordered, folder / FILE_NAME]:
        try:
            with file.open("rb") as lines:
                yield from (
                    record
                    for line in lines
                    if (record := _read(line)) is not None and record.at_ms >= since_ms
                )
        except FileNotFoundError:
            continue


def _files(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def _read(line: bytes) -> JobRecord | None:
    """`None` for half a line, a damaged one, and one of a future version that lacks what is known here."""
    try:
        document = json.loads(line)
        values = {name: document[name] for name in _FIELDS}
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    sound = all(type(value) in _FIELDS[name] for name, value in values.items())
    return JobRecord(**values) if sound else None


@dataclass(slots=True)
class Sum:
    """What jobs have in common: their number by end, their tokens, their time in seconds."""

    jobs: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    rejected: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    busy_s: float = 0.0

    def add(self, record: JobRecord) -> None:
        self.jobs += 1
        if record.end in ("completed", "failed", "cancelled", "rejected"):
            setattr(self, record.end, getattr(self, record.end) + 1)
        self.prompt_tokens += record.prompt_tokens
        self.cached_tokens += record.cached_tokens
        self.completion_tokens += record.completion_tokens
        self.busy_s += record.duration_ms / 1000

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "busy_s": round(self.busy_s, 1)}


def sum_by_day(records: Iterable[JobRecord], zone: tzinfo | None) -> dict[tuple[str, str], Sum]:
    """(day, model) → sum, in order. A day is that of `zone`, `None`: of this machine."""
    sums: dict[tuple[str, str], Sum] = {}
    for record in records:
        day = day_of(record.at_ms, zone)
        sums.setdefault((day, record.model or "unknown"), Sum()).add(record)
    return dict(sorted(sums.items()))


def day_of(at_ms: int, zone: tzinfo | None) -> str:
    """The date of an instant, as "2026-06-01"."""
    moment = (
        datetime.fromtimestamp(at_ms / 1000, zone)
        if zone
        else datetime.fromtimestamp(at_ms / 1000).astimezone()
    )
    return moment.date().isoformat()
