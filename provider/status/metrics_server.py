"""Serves the metrics on a loopback port: GET /metrics, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

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
