"""What every command begins with: where things are, and the configuration in force."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provider.config import ENV_CONFIG, LoadedConfig, load, named_files
from provider.errors import ConfigError
from provider.live_config import LiveConfig
from provider.system.paths import Paths, resolve_paths

# The flag that sets a key, as typed, for messages and `config show --origin`.
FLAG_NAMES: Mapping[str, str] = {
    "gateway.url": "--gateway",
    "engine.kind": "--engine",
    "engine.models": "--model",
    "engine.script": "--script",
    "local_gateway.host": "--host",
    "local_gateway.port": "--port",
    "local_gateway.tls_cert": "--tls-cert",
    "local_gateway.tls_key": "--tls-key",
}


def paths() -> Paths:
    """Where this machine's things are. Raises `ConfigError` where a file stands in a folder's place."""
    found = resolve_paths(os.environ)
    there = next(place for place in (found.state, *found.state.parents) if os.path.exists(place))
    if not os.path.isdir(there):
        raise ConfigError([f"the state folder can't be {found.state}: {there} is not a folder"])
    return found


def config_file(given: Path | None) -> tuple[Path, bool]:
    """The file to read, and whether it must exist: one that was named must, the usual one need not."""
    named = given or (Path(os.environ[ENV_CONFIG]) if os.environ.get(ENV_CONFIG) else None)
    if named is not None:
        return named.expanduser().absolute(), True
    return paths().config_file, False


def load_config(
    given: Path | None, flags: Mapping[str, Any] | None = None, *, made_now: str | None = None
) -> LoadedConfig:
    """The checked configuration. `made_now`: see `provider.config.load`. Raises `ConfigError`."""
    file, required = config_file(given)
    return load(
        file=file,
        file_required=required,
        environment=os.environ,
        flags=flags or {},
        flag_names=FLAG_NAMES,
        made_now=made_now,
    )


def live_config(given: Path | None, flags: Mapping[str, Any]) -> LiveConfig:
    """The configuration of a command that goes on, which is read again when its files change."""
    file, _ = config_file(given)
    return LiveConfig(
        lambda: load_config(given, flags),
        lambda: (file, *named_files(file=file, environment=os.environ, flags=flags)),
    )
