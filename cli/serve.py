"""`start` and `gateway`: check the command line, then hand over to `provider.app`.

That is imported last: a typing mistake is told at once, not after everything is loaded.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import typer

from cli.setup import live_config, paths
from provider.errors import UsageError


def start(
    *,
    local: bool,
    gateway: str | None,
    models: list[str],
    port: str | None,
    engine: str | None,
    script: Path | None,
    config_file: Path | None,
    service: bool,
) -> None:
    """Serve until a signal or `stop`. Raises `UsageError` for flags that don't go together."""
    if port is not None and not local:
        raise UsageError("--port is the local gateway's port; give --local with it")
    if gateway is not None and local:
        raise UsageError("--gateway and --local don't go together: --local serves a gateway of its own")
    flags: dict[str, Any] = {
        "gateway.url": gateway,
        "engine.kind": engine,
        "engine.models": models or None,
        "engine.script": str(script) if script else None,
        "local_gateway.port": port,
    }
    config = live_config(config_file, flags)
    if not service:
        # Told before anything is touched; the service itself waits for the file to be mended.
        config.load()
    from provider.app import run_start

    raise typer.Exit(asyncio.run(run_start(config, paths(), local=local, service=service)))


def gateway(
    *,
    host: str | None,
    port: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    config_file: Path | None,
) -> None:
    """Serve the gateway alone until a signal."""
    flags = {
        "local_gateway.host": host,
        "local_gateway.port": port,
        "local_gateway.tls_cert": str(tls_cert) if tls_cert else None,
        "local_gateway.tls_key": str(tls_key) if tls_key else None,
    }
    config = live_config(config_file, flags)
    config.load()
    from provider.app import run_gateway

    raise typer.Exit(asyncio.run(run_gateway(config, paths())))
