"""A gateway as a process of its own, to be stopped and killed.

As a program: `python gateway_process.py SETTINGS`, a JSON object of settings. It prints its URL once the port
is open. SIGTERM closes it properly; SIGKILL doesn't.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from websockets.exceptions import WebSocketException

from provider.local_gateway.server import create_gateway
from provider.local_gateway.settings import GatewaySettings, Timers
from provider.logs import configure_logs

if TYPE_CHECKING:
    from tests.fakes.fake_provider import FakeProvider


class GatewayProcess:
    """A gateway that can be killed and started again on the same port and state file."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.url = ""
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            __file__,
            json.dumps(self.settings),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,  # it grows, and nobody reads it
        )
        assert self._process.stdout is not None
        self.url = (await self._process.stdout.readline()).decode().strip()
        assert self.url, "the gateway did not start"
        self.settings["port"] = int(self.url.rsplit(":", 1)[1])

    async def end(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        await self._process.wait()

    async def keep_serving(self, provider: FakeProvider) -> None:
        """Keep a provider connected, whatever becomes of the gateway; never returns."""
        while True:
            provider.url = self.url.replace("http", "ws", 1) + "/v1/provider"
            try:
                await provider.dial()
                await provider.until(lambda: provider.closed_with is not None)
            except (OSError, TimeoutError, WebSocketException):
                await asyncio.sleep(0.02)


async def main(options: dict[str, object]) -> None:
    configure_logs()
    timers = Timers(**options.pop("timers", {}))  # type: ignore[arg-type]
    if "state_file" in options:
        options["state_file"] = Path(str(options["state_file"]))
    gateway = create_gateway(GatewaySettings(timers=timers, **options))  # type: ignore[arg-type]
    await gateway.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print(gateway.url, flush=True)
    await stop.wait()
    await gateway.aclose()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
