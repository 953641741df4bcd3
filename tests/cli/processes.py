"""The installed command as real processes, each with its own state folder."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

COMMAND = str(Path(sys.executable).with_name("malibu-provider"))
SECONDS = 120.0


def free_port() -> int:
    """A port that nobody has, nor gets before it is used: systems give outgoing connections higher ones."""
    while True:
        port = random.randrange(12_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MALIBU_PROVIDER_")}
    return {**kept, "MALIBU_PROVIDER_HOME": str(home), **more}


def command(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [COMMAND, *arguments],
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


class Running:
    """A command that goes on; its stderr is read line by line as it comes."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.home = home
        self.process = subprocess.Popen(
            [COMMAND, *arguments],
            env=environment(home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def wait_for(self, text: str) -> str:
        """The first line that contains `text`."""

        def found() -> str | None:
            return next((line for line in self.lines if text in line), None)

        with self._news:
            self._news.wait_for(lambda: found() is not None or self._ended, SECONDS)
            line = found()
        assert line is not None, "\n".join(self.lines)
        return line

    def wait_for_log(self, text: str) -> None:
        """Wait until a line of a service's log contains `text`."""
        log, ends = self.home / "logs" / "daemon.log", time.monotonic() + SECONDS
        while not (log.is_file() and text in log.read_text("utf-8")):
            assert self.process.poll() is None, self.lines
            assert time.monotonic() < ends, log.read_text("utf-8") if log.is_file() else "no log"
            time.sleep(0.05)

    def end(self) -> int:
        """Wait for its end; the exit code."""
        code = self.process.wait(SECONDS)
        self._reader.join()
        return code

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(command(self.home, "status", "--json").stdout)
        return document

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.end()
        assert self.process.stderr is not None
        self.process.stderr.close()
