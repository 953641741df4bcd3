"""`logs`: the service's own log, from all its files, and what is added to it."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from cli.setup import paths
from provider.errors import ProviderError
from provider.logs import LOG_FILES, older

_LOOK_AGAIN_SECONDS = 0.25


def log_files(file: Path) -> list[Path]:
    """The files that are there, oldest first."""
    files = [older(file, number) for number in range(LOG_FILES - 1, -1, -1)]
    return [path for path in files if path.is_file()]


def show_logs(*, lines: int, follow: bool) -> None:
    """Print the last `lines` lines; with `follow`, go on until Ctrl-C."""
    file = paths().log_file
    found = log_files(file)
    if not found and not follow:
        raise ProviderError(f"no log in {file.parent}; a daemon in the foreground logs to its terminal")
    end = file.stat().st_size if file.is_file() else 0
    for line in last_lines(found, lines):
        print(line)
    if follow:
        for text in added(file, end, lambda: time.sleep(_LOOK_AGAIN_SECONDS)):
            print(text, end="", flush=True)


def last_lines(files: list[Path], count: int) -> Iterator[str]:
    """The last lines over all files, without their line ends."""
    kept: deque[str] = deque(maxlen=count)
    for file in files:
        with file.open(encoding="utf-8", errors="replace") as stream:
            kept.extend(line.rstrip("\n") for line in stream)
    yield from kept


def added(file: Path, position: int, wait: Callable[[], None]) -> Iterator[str]:
    """What is appended after `position`, also over a rotation, for ever. `wait` is called between looks."""
    stream = None
    try:
        while True:
            if stream is None and file.is_file():
                stream = file.open(encoding="utf-8", errors="replace")
                # A shorter file is a new one, rotated in before this look.
                stream.seek(position if position <= os.fstat(stream.fileno()).st_size else 0)
                position = 0
            text = stream.read() if stream is not None else ""
            if text:
                yield text
            elif stream is not None and _replaced(file, stream.fileno()):
                # What came between the reading and the rotation, which nothing follows any more.
                if rest := stream.read():
                    yield rest
                stream.close()
                stream = None
            else:
                wait()
    finally:
        if stream is not None:
            stream.close()


def _replaced(file: Path, descriptor: int) -> bool:
    """Whether the open file was rotated away and a new one stands in its place."""
    try:
        return file.stat().st_ino != os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False
