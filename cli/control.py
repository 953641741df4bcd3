"""Commands to the running daemon, by HTTP over its Unix socket; `stop`."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from pathlib import Path
from typing import Any

from cli.setup import paths
from provider.errors import UnknownStateError
from provider.system.lock import is_held

# The daemon answers from memory; one that takes longer than this hangs.
ANSWER_SECONDS = 5.0
LOOK_AGAIN_SECONDS = 0.1


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def ask(
    method: str, command: str, body: dict[str, Any] | None = None, *, seconds: float = ANSWER_SECONDS
) -> dict[str, Any]:
    """Send one command, return the daemon's document. Raises `UnknownStateError` when it doesn't answer."""
    connection = _UnixConnection(paths().control_socket, seconds)
    try:
        connection.request(method, f"/{command}", json.dumps(body or {}) if method == "POST" else None)
        response = connection.getresponse()
        document = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UnknownStateError(f"the daemon doesn't answer ({_words(error, seconds)})") from None
    finally:
        connection.close()
    if response.status != 200 or not isinstance(document, dict):
        reason = document.get("error") if isinstance(document, dict) else None
        raise UnknownStateError(f"the daemon can't do `{command}`: {reason or response.status}")
    return document


def _words(error: Exception, seconds: float) -> str:
    match error:
        case FileNotFoundError() | ConnectionRefusedError():
            return "it isn't running, or is just starting or ending"
        case TimeoutError():
            return f"no answer in {seconds:g} s; `malibu-provider stop`, or end its process"
        case PermissionError():
            return "its socket belongs to another user"
        case ValueError():
            return "what it says can't be read"
    return "it ended before its answer"


def stop_daemon() -> None:
    """Drain and end the running daemon, and wait until its process is gone."""
    import psutil

    running, pid = is_held(paths().lock_file)
    if not running:
        print("not running")
        return
    if pid is None:
        # The lock is just taken, or no disk space was left to say by whom.
        pid = ask("GET", "status")["process"]["pid"]
    try:
        process = psutil.Process(pid)
        ask("POST", "stop")
        print(f"stopping (PID {pid}); running jobs may finish first")
        # A zombie has ended, only its parent hasn't asked yet.
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(LOOK_AGAIN_SECONDS)
    except psutil.NoSuchProcess:
        pass
    print("stopped")
