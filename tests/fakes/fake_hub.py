"""A stand-in for Hugging Face's hub: one repository, its files and commits, over HTTP on this machine.

Routes as huggingface_hub asks for them: `/api/models/{id}/revision/{name}`, `/api/models/{id}/tree/{commit}`,
HEAD and GET `/{id}/resolve/{commit}/{file}` with `Range`.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

REPOSITORY = "someone/Qwen3-tiny"


class FakeHub:
    """`commits`: name → files; `main`: the name's newest. `requests`: what was asked for, in order.

    `cut_after`: how many bytes of the weights are sent before the connection breaks, once. `flip_once`: their
    last byte arrives changed, once. `claimed_size`: what their size is said to be.
    """

    def __init__(self) -> None:
        self.commits: dict[str, dict[str, bytes]] = {}
        self.main = ""
        self.requests: list[tuple[str, str, str | None]] = []
        self.cut_after: int | None = None
        self.flip_once = False
        self.claimed_size: int | None = None
        self.url = ""

    def commit(self, files: dict[str, bytes]) -> str:
        """A new commit on main; its hash."""
        name = hashlib.sha1(json.dumps(sorted((k, v.hex()) for k, v in files.items())).encode()).hexdigest()
        self.commits[name] = files
        self.main = name
        return name

    def fetched(self) -> list[str]:
        """The files whose content was asked for."""
        return [
            path.rsplit("/", 1)[1]
            for method, path, _ in self.requests
            if method == "GET" and "/resolve/" in path
        ]


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            path = urlsplit(self.path).path
            hub.requests.append((self.command, path, self.headers.get("Range")))
            parts = path.strip("/").split("/")
            if parts[:2] == ["api", "models"] and "/".join(parts[2:4]) == REPOSITORY:
                self._api(parts[4:])
            elif "/".join(parts[:2]) == REPOSITORY and parts[2:3] == ["resolve"]:
                self._file(parts[3], "/".join(parts[4:]))
            else:
                self._send(404, b"{}")

        def _api(self, rest: list[str]) -> None:
            commit = hub.main if rest[1:] in ([], ["main"]) else rest[1]
            files = hub.commits.get(commit)
            if files is None:
                self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            elif rest[:1] == ["tree"]:
                self._json([self._entry(name, data) for name, data in files.items()])
            else:
                siblings = [{"rfilename": name} for name in files]
                self._json(
                    {"id": REPOSITORY, "sha": commit, "siblings": siblings, "private": False, "tags": []}
                )

        def _entry(self, name: str, data: bytes) -> dict[str, Any]:
            entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": etag(name, data)}
            if name.endswith(".safetensors"):
                size = hub.claimed_size or len(data)
                entry |= {"size": size, "lfs": {"oid": etag(name, data), "size": size, "pointerSize": 130}}
            return entry

        def _file(self, commit: str, name: str) -> None:
            data = hub.commits.get(commit, {}).get(name)
            if data is None:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
                return
            headers = {"X-Repo-Commit": commit, "ETag": f'"{etag(name, data)}"', "Accept-Ranges": "bytes"}
            start = 0
            if wanted := self.headers.get("Range"):
                start = int(wanted.removeprefix("bytes=").partition("-")[0])
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            body = data[start:]
            if self.command == "GET" and hub.flip_once and name.endswith(".safetensors"):
                body = body[:-1] + bytes([body[-1] ^ 1])
                hub.flip_once = False
            if self.command == "GET" and hub.cut_after is not None and name.endswith(".safetensors"):
                self._send(206 if start else 200, body, headers, cut=hub.cut_after)
                hub.cut_after = None
            else:
                self._send(206 if start else 200, body, headers)

        def _json(self, document: object) -> None:
            self._send(200, json.dumps(document).encode(), {"Content-Type": "application/json"})

        def _send(
            self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: int | None = None
        ) -> None:
            self.send_response_only(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            length = len(body)
            if self.command == "HEAD" and hub.claimed_size is not None and self.path.endswith(".safetensors"):
                length = hub.claimed_size
            self.send_header("Content-Length", str(length))
            self.end_headers()
            if self.command == "HEAD":
                return
            self.wfile.write(body if cut is None else body[:cut])
            if cut is not None:
                self.wfile.flush()
                self.close_connection = True

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


def etag(name: str, data: bytes) -> str:
    """Large files are known by their SHA-256, others by git's hash of a blob."""
    if name.endswith(".safetensors"):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
