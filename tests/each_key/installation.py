"""One configuration as an owner has it: a file in a folder of its own, and what runs from it in here."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from cli import setup
from provider import app
from provider.config import Settings
from provider.local_gateway.server import LocalGateway
from provider.serving import start_gateway
from provider.system.paths import Paths

PATIENCE = 60.0


class Installation:
    """`keys`: dotted key → value, written into the file. `MALIBU_PROVIDER_HOME` must name `home`."""

    def __init__(self, home: Path, keys: dict[str, Any]) -> None:
        self.home = home
        self.keys = keys
        home.mkdir(mode=0o700)
        (home / "config.toml").write_text(_toml(keys), encoding="utf-8")

    @property
    def paths(self) -> Paths:
        return setup.paths()

    @property
    def settings(self) -> Settings:
        return setup.load_config(None).settings

    @asynccontextmanager
    async def daemon(self, *, local: bool, service: bool = False) -> AsyncIterator[Daemon]:
        """`start`, with `--local` and as a service or not; stopped at the end if it isn't by then."""
        config = setup.live_config(None, {})
        run = asyncio.create_task(app.run_start(config, self.paths, local=local, service=service))
        connector = aiohttp.UnixConnector(str(self.paths.control_socket))
        async with aiohttp.ClientSession(connector=connector) as session:
            daemon = Daemon(run, session)
            try:
                yield daemon
            finally:
                if not run.done():
                    with contextlib.suppress(aiohttp.ClientError):
                        await daemon.command("stop")
                await asyncio.wait({run}, timeout=PATIENCE)
        await run

    @asynccontextmanager
    async def gateway(self) -> AsyncIterator[LocalGateway]:
        """`gateway`: the local gateway alone. Raises what the command would say."""
        gateway = await start_gateway(app.gateway_settings(self.settings, self.paths))
        try:
            yield gateway
        finally:
            await gateway.aclose()


class Daemon:
    """A daemon that runs, spoken to by its control socket. `run` is its whole life."""

    def __init__(self, run: asyncio.Task[int], session: aiohttp.ClientSession) -> None:
        self.run = run
        self._session = session

    async def status(self) -> dict[str, Any]:
        async with self._session.get("http://daemon/status") as answer:
            document: dict[str, Any] = await answer.json()
        return document

    async def command(self, name: str) -> None:
        async with self._session.post(f"http://daemon/{name}", json={}):
            pass

    async def routable(self) -> dict[str, Any]:
        """The status document once the gateway sends jobs here. Raises what has ended the daemon before."""
        async with asyncio.timeout(PATIENCE):
            while not self.run.done():
                # Who connects just when the daemon ends is never answered.
                asked = asyncio.ensure_future(self.status())
                await asyncio.wait({asked, self.run}, return_when=asyncio.FIRST_COMPLETED)
                asked.cancel()
                with contextlib.suppress(aiohttp.ClientError, asyncio.CancelledError):
                    document = await asked
                    if document["link"] and document["link"]["routable"]:
                        return document
                await asyncio.sleep(0.02)
        await self.run
        raise AssertionError("the daemon has ended")


def _toml(keys: dict[str, Any]) -> str:
    """TOML's texts, numbers, truth values and lists are written as JSON's are."""
    return "".join(f"{_toml_key(key)} = {json.dumps(value)}\n" for key, value in keys.items())


def _toml_key(key: str) -> str:
    section, _, name = key.rpartition(".")
    model = section.removeprefix("model.")
    return f'model."{model}".{name}' if model != section else key
