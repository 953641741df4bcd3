"""Logs: structlog to stderr, the event's name first, keys after.

Never a prompt, an output, a tool argument, a token or a key: only counts, codes and IDs are logged. A value
whose key names such a thing is dropped here as a last guard.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO, cast

import structlog

FORBIDDEN_KEYS = frozenset(
    {
        "prompt",
        "messages",
        "content",
        "output",
        "text",
        "arguments",
        "reasoning",
        "token",
        "api_key",
        "authorization",
        "private_key",
        "body",
    }
)


class LogStream(Protocol):
    """What logs are written to."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...

    def isatty(self) -> bool: ...


class LastingStream:
    """A terminal or file of somebody else's, which may be gone or full: that loses lines and no more."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str, /) -> None:
        # A closed stream is a ValueError.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()


LOG_FILE_BYTES = 10 * 1024 * 1024
LOG_FILES = 5


def older(file: Path, number: int) -> Path:
    """Where the `number`-th file before this one is kept; 0: the file itself."""
    return file.with_name(f"{file.name}.{number}") if number else file


def set_aside(file: Path, *, limit: int = LOG_FILE_BYTES) -> None:
    """Put a file that others append to in an older one's place, once it has grown past `limit` bytes."""
    try:
        if file.stat().st_size > limit:
            os.replace(file, older(file, 1))
    except OSError:
        # Most often there is none yet.
        pass


class RotatingFile:
    """A log file that never grows past `limit` bytes: then it becomes `.1`, `.1` becomes `.2`, up to `files`.

    For this user alone. A line is written whole or not at all; a full disk loses lines, never the daemon.
    """

    def __init__(self, file: Path, *, limit: int = LOG_FILE_BYTES, files: int = LOG_FILES) -> None:
        self._file = file
        self._limit = limit
        self._files = files
        self._descriptor = self._open()

    def write(self, text: str, /) -> None:
        data = text.encode("utf-8", "backslashreplace")
        try:
            if os.fstat(self._descriptor).st_size + len(data) > self._limit:
                self._rotate()
            os.write(self._descriptor, data)
        except OSError:
            pass

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False

    def close(self) -> None:
        os.close(self._descriptor)

    def _open(self) -> int:
        return os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _rotate(self) -> None:
        # Where the last rotation could open no new file the old ones have moved already.
        for number in range(self._files - 1, 0, -1) if self._file.exists() else ():
            last = older(self._file, number - 1)
            if last.exists():
                os.replace(last, older(self._file, number))
        # Opened before the old one is closed: a number that was closed may soon be somebody's socket.
        fresh = self._open()
        os.close(self._descriptor)
        self._descriptor = fresh


def configure_logs(
    level: Literal["debug", "info", "warning", "error"] = "info",
    style: Literal["auto", "console", "json"] = "auto",
    stream: LogStream | None = None,
) -> None:
    """Set up logging for this process. `auto`: console on a terminal, JSON elsewhere."""
    out = stream or LastingStream(sys.stderr)
    console = style == "console" or (style == "auto" and out.isatty())
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=out.isatty(), sort_keys=False)
        if console
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    threshold = getattr(logging, level.upper())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            _drop_forbidden,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _event_first,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, out)),
        cache_logger_on_first_use=False,
    )
    # Libraries log through the standard module; their warnings belong in the same place.
    logging.basicConfig(
        stream=out, level=max(threshold, logging.WARNING), format="%(name)s: %(message)s", force=True
    )


def _drop_forbidden(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key in FORBIDDEN_KEYS & event.keys():
        event[key] = "(not logged)"
    return event


def _event_first(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {"event": event.pop("event", ""), **event}
