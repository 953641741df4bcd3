"""How commands talk to the running daemon: HTTP over a Unix socket that only its owner may open.

GET  /status   the status document
POST /stop     begin to drain; answers at once, the process ends when the drain is over
POST /COMMAND  any further command that the daemon hands in, answering with its document
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from provider.errors import ProviderError

Document = Mapping[str, Any]
Command = Callable[[Document], Awaitable[Document]]


class ControlServer:
    """Serves `status` and `commands` (name → coroutine: body in, document out) until `aclose`.

    The caller holds the daemon's lock, so a socket file that is already there is a dead daemon's.
    """

    def __init__(
        self, socket: Path, *, status: Callable[[], Document], commands: Mapping[str, Command]
    ) -> None:
        self._socket = socket
        self._status = status
        self._commands = commands
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/status", self._get_status)
        app.router.add_post("/{command}", self._post_command)
        runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await runner.setup()
        self._socket.unlink(missing_ok=True)
        # `bind` creates the file with the umask's mode; a chmod after it would leave a moment for others.
        umask = os.umask(0o177)
        try:
            await web.UnixSite(runner, str(self._socket)).start()
        finally:
            os.umask(umask)
        self._runner = runner

    async def aclose(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
            self._socket.unlink(missing_ok=True)

    async def _get_status(self, request: web.Request) -> web.Response:
        return _answer(self._status())

    async def _post_command(self, request: web.Request) -> web.Response:
        command = self._commands.get(request.match_info["command"])
        if command is None:
            return _answer({"error": "unknown command"}, status=404)
        text = await request.text()
        body = json.loads(text) if text else {}
        try:
            return _answer(await command(body))
        except ProviderError as error:
            return _answer({"error": "; ".join(error.lines)}, status=500)
        except OSError as error:
            return _answer({"error": error.strerror}, status=500)


def _answer(document: Document, status: int = 200) -> web.Response:
    return web.json_response(document, status=status)
