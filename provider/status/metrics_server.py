"""Serves the metrics on a loopback port: GET /metrics, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
from aiohttp import web

log = structlog.get_logger("metrics")

HOST = "127.0.0.1"
_HOST_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})


class MetricsServer:
    """`text` and `content_type`: what a scrape answers. `start` raises `OSError` when the port is taken."""

    def __init__(self, port: int, text: Callable[[], bytes], content_type: str) -> None:
        self._port = port
        self._text = text
        self._content_type = content_type
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Port 0 was a wish for any free one."""
        assert self._runner is not None
        return f"http://{HOST}:{self._runner.addresses[0][1]}/metrics"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/metrics", self._scrape)
        runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await runner.setup()
        try:
            await web.TCPSite(runner, HOST, self._port).start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner

    async def aclose(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _scrape(self, request: web.Request) -> web.Response:
        # A page in a browser may reach loopback under a name of its own (DNS rebinding).
        if request.host.rpartition(":")[0] not in _HOST_NAMES and request.host not in _HOST_NAMES:
            raise web.HTTPForbidden(text="ask for it as 127.0.0.1\n")
        return web.Response(body=self._text(), headers={"Content-Type": self._content_type})


class MetricsEndpoint:
    """The port as configured, which may be none, and may be taken: that is told, and stops nothing."""

    def __init__(self, text: Callable[[], bytes], content_type: str) -> None:
        self._text = text
        self._content_type = content_type
        self._port: int | None = None
        self._server: MetricsServer | None = None
        self._error: str | None = None

    async def use(self, port: int | None) -> None:
        """Serve on `port` from now on; one that was taken is tried again."""
        if port == self._port and self._error is None:
            return
        await self.aclose()
        self._port, self._error = port, None
        if port is None:
            return
        server = MetricsServer(port, self._text, self._content_type)
        try:
            await server.start()
        except OSError as error:
            self._error = f"can't listen on {HOST}:{port}: {error.strerror or type(error).__name__}"
            log.error("no_metrics", reason=self._error)
        else:
            self._server = server

    async def aclose(self) -> None:
        if self._server is not None:
            await self._server.aclose()
            self._server = None

    def document(self) -> dict[str, Any]:
        """The `metrics` member of the status document."""
        return {"url": None if self._server is None else self._server.url, "error": self._error}
