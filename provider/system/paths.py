"""Where things are kept: `~/Library` on macOS, XDG folders on Linux, one override.

`MALIBU_PROVIDER_HOME` moves configuration, state and logs together into one folder, which is how several
daemons live on one machine and how tests stay apart. Models stay in the user's cache, which they share.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from provider.errors import ProviderError

APP = "malibu-provider"
# A Unix socket's path, with its final NUL, must fit `sun_path`: 104 bytes on macOS, 108 on Linux.
SOCKET_PATH_BYTES = 103


@dataclass(frozen=True, slots=True)
class Paths:
    """The folders and files of one daemon. None need exist."""

    state: Path
    config_file: Path
    cache: Path
    logs: Path

    @property
    def lock_file(self) -> Path:
        return self.state / "daemon.lock"

    @property
    def keys_file(self) -> Path:
        """The local gateway's API keys, unless the configuration names another file."""
        return self.config_file.with_name("keys.toml")

    @property
    def gateway_state(self) -> Path:
        """The local gateway's jobs, receipts, usage and provider keys."""
        return self.state / "gateway.sqlite3"

    @property
    def log_file(self) -> Path:
        """The service's own log; older ones are beside it, `.1` to `.4`."""
        return self.logs / "daemon.log"

    @property
    def crash_log(self) -> Path:
        """What launchd or systemd keeps of what the service prints, its crashes; an older one beside it."""
        return self.logs / "crash.log"

    @property
    def models(self) -> Path:
        """Converted and downloaded models that don't live in Hugging Face's own cache."""
        return self.cache / "models"

    @property
    def control_socket(self) -> Path:
        """`control.sock` in the state folder, or a short path for it where that one is too long."""
        direct = self.state / "control.sock"
        if len(os.fsencode(direct)) <= SOCKET_PATH_BYTES:
            return direct
        name = hashlib.sha256(os.fsencode(self.state)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"{APP}-{os.getuid()}" / f"{name}.sock"

    def create(self) -> None:
        """Make the folders, the private ones for this user alone. Raises `ProviderError`."""
        for folder in (self.state, self.logs, self.control_socket.parent):
            _private_folder(folder)


def resolve_paths(
    environment: Mapping[str, str], *, platform: str = sys.platform, home: Path | None = None
) -> Paths:
    """The paths that hold in this environment. Raises `ProviderError` on a platform that isn't served."""
    user = home or Path.home()
    if platform == "darwin":
        support = user / "Library" / "Application Support" / APP
        paths = Paths(
            state=support,
            config_file=support / "config.toml",
            cache=user / "Library" / "Caches" / APP,
            logs=user / "Library" / "Logs" / APP,
        )
    elif platform.startswith("linux"):
        state = _xdg(environment, "XDG_STATE_HOME", user / ".local" / "state")
        paths = Paths(
            state=state,
            config_file=_xdg(environment, "XDG_CONFIG_HOME", user / ".config") / "config.toml",
            cache=_xdg(environment, "XDG_CACHE_HOME", user / ".cache"),
            logs=state / "logs",
        )
    else:
        raise ProviderError(f"malibu-provider runs on macOS (Apple silicon) and Linux, not on {platform}")
    override = environment.get("MALIBU_PROVIDER_HOME")
    if override:
        folder = Path(override).expanduser().absolute()
        paths = Paths(folder, folder / "config.toml", paths.cache, folder / "logs")
    return paths


def _xdg(environment: Mapping[str, str], name: str, default: Path) -> Path:
    # The XDG base directory specification: a relative path in these variables is invalid and ignored.
    given = environment.get(name, "")
    return (Path(given) if os.path.isabs(given) else default) / APP


def _private_folder(folder: Path) -> None:
    """Make it for this user alone; one that exists keeps its mode unless others could write into it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.stat()
    except OSError as error:
        raise ProviderError(f"can't make the folder {folder}: {error.strerror}") from error
    if facts.st_uid != os.getuid() or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ProviderError(
            f"{folder} belongs to another user or others may write to it;"
            " set MALIBU_PROVIDER_HOME to a folder of your own"
        )
