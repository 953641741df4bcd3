"""A gateway as a process of its own: `python gateway_process.py SETTINGS`, a JSON object of settings.

Prints its URL once the port is open. SIGTERM closes it properly; SIGKILL doesn't.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

from provider.local_gateway.server import create_gateway
from provider.local_gateway.settings import GatewaySettings, Timers
from provider.logs import configure_logs


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
