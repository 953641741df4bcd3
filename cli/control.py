"""`status` and `stop`: commands to the running daemon, by HTTP over its Unix socket."""

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
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=ANSWER_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def ask(method: str, command: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send one command, return the daemon's document. Raises `UnknownStateError` when it doesn't answer."""
    connection = _UnixConnection(paths().control_socket)
    try:
        connection.request(method, f"/{command}", json.dumps(body or {}) if method == "POST" else None)
        response = connection.getresponse()
        document = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UnknownStateError(f"the daemon doesn't answer ({error or type(error).__name__})") from None
    finally:
        connection.close()
    if response.status != 200 or not isinstance(document, dict):
        raise UnknownStateError(f"the daemon refused `{command}` ({response.status})")
    return document


def show_status(*, as_json: bool) -> int:
    """Print the status; the exit code: 0 a daemon runs, 1 none does (3, raised: it doesn't answer)."""
    running, _ = is_held(paths().lock_file)
    if not running:
        if as_json:
            print(json.dumps({"process": {"state": "not running", "pid": None}}))
        else:
            print("not running; start it with `malibu-provider start`")
        return 1
    document = ask("GET", "status")
    if as_json:
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        print("\n".join(_lines(document)))
    return 0


def _lines(document: dict[str, Any], indent: str = "") -> list[str]:
    lines = []
    for key, value in document.items():
        name = key.replace("_", " ")
        if isinstance(value, dict) and value:
            lines += [f"{indent}{name}:", *_lines(value, indent + "  ")]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines.append(f"{indent}{name}:")
            for item in value:
                lines += [f"{indent}  - " + ", ".join(f"{k} {v}" for k, v in item.items() if v is not None)]
        elif value not in (None, [], {}):
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            lines.append(f"{indent}{name}: {shown}")
    return lines


def stop_daemon() -> None:
    """Drain and end the running daemon, and wait until its process is gone."""
    import psutil

    running, pid = is_held(paths().lock_file)
    if not running or pid is None:
        print("not running")
        return
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
