"""`service …`: the daemon under launchd or systemd."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from math import ceil
from pathlib import Path

from cli.setup import config_file as locate
from cli.setup import load_config, paths
from provider.config import ENV_HOME
from provider.errors import ConfigError, UnknownStateError
from provider.system.launchd import Launchd
from provider.system.service import ServiceError, ServiceManager, ServiceSpec, this_program
from provider.system.systemd import Systemd

# Where things are, as far as it isn't where it usually is: a service sees nothing of the shell's environment.
_FOLDERS = (ENV_HOME, "HF_HOME", "HF_HUB_CACHE", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")
# Over the drain time: what a last frame, the engine's child and the log may take.
_EXIT_MARGIN_SECONDS = 15


def manager() -> ServiceManager:
    return Launchd() if sys.platform == "darwin" else Systemd()


def spec(given: Path | None) -> ServiceSpec:
    """What the service runs. A faulty configuration is no hindrance: the daemon waits for it to be mended."""
    try:
        drain = load_config(given).settings.drain.seconds
    except ConfigError as error:
        for line in error.lines:
            print(f"note: {line}", file=sys.stderr)
        drain = 30.0
    file, named = locate(given)
    folders = {name: os.environ[name] for name in _FOLDERS if os.environ.get(name)}
    return ServiceSpec(
        program=this_program(config_file=file if named else None),
        crash_log=paths().crash_log,
        exit_timeout=ceil(drain) + _EXIT_MARGIN_SECONDS,
        environment={name: str(Path(value).expanduser().absolute()) for name, value in folders.items()},
    )


def install(config_file: Path | None) -> None:
    manager().install(spec(config_file))
    print("installed and started; it starts at each login. `malibu-provider status` tells how it is.")


def print_definition(*, systemd: bool, config_file: Path | None) -> None:
    """Show the file that would be written; nothing is touched."""
    chosen: ServiceManager = Systemd() if systemd else Launchd()
    print(chosen.definition(spec(config_file)), end="")


def uninstall() -> None:
    manager().uninstall()
    print("removed; configuration, key and models are still here")


def start() -> None:
    manager().start()
    print("started")


def stop() -> None:
    manager().stop()
    print("stopped, and stays so until `malibu-provider service start`")


def restart() -> None:
    manager().restart()
    print("restarted")


def show_status(*, as_json: bool) -> int:
    """The exit code: 0 it runs, 1 it doesn't (3, raised: could not tell)."""
    try:
        status = manager().status()
    except ServiceError as error:
        raise UnknownStateError(str(error)) from None
    if as_json:
        print(json.dumps(asdict(status)))
        return 0 if status.running else 1
    if status.other:
        print(f"another service of malibu-provider is installed: {status.other}")
    if not status.installed:
        print("not installed; `malibu-provider service install`")
    else:
        print(f"running (PID {status.pid})" if status.running else "not running")
        print("starts at login" if status.enabled else "stays stopped until `malibu-provider service start`")
        if not status.running and status.last_exit:
            print(f"its last run ended with {status.last_exit}; `malibu-provider logs` tells why")
    return 0 if status.running else 1
