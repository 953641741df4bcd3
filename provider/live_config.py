"""The configuration over the life of a process: read again on demand, and looked at from outside meanwhile.

stamps ─▶ load ─▶ Settings in force      later: stamps differ ─▶ load again, or `remark` for the status
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from provider.config import LoadedConfig, Settings
from provider.errors import ConfigError, ProviderError

log = structlog.get_logger()

# Who waits for a change of a file looks so often.
LOOK_SECONDS = 2.0

Stamps = Mapping[Path, tuple[int, int, int] | None]
"""What changes with a file's content, for each file; `None`: it isn't there."""


class LiveConfig:
    """`read` reads and checks the layers each time it is called, raising `ConfigError`.

    `files`: the configuration file first, then those it names, whether they exist or not. Files are small
    and local, so looking at them blocks no longer than any other work of an event loop.
    """

    def __init__(self, read: Callable[[], LoadedConfig], files: Callable[[], tuple[Path, ...]]) -> None:
        self._read = read
        self._files = files
        self._in_force: Settings | None = None
        self._remarked: Stamps = {}
        self._remark: str | None = None

    @property
    def file(self) -> Path:
        return self._files()[0]

    def load(self) -> Settings:
        """The settings as the files are now; they count as those in force. Raises `ConfigError`."""
        settings = self._read().settings
        self._in_force = settings
        self._remarked, self._remark = {}, None
        return settings

    def stamps(self) -> Stamps:
        """The state of every file there is to watch, those included that are named and missing."""
        return {file: _stamp(file) for file in self._files()}

    def remark(self) -> str | None:
        """How the files differ from what is in force, in one line; `None` where they don't."""
        if self._in_force is None:
            return None
        stamps = self.stamps()
        if stamps != self._remarked:
            self._remarked, self._remark = stamps, self._compare(self._in_force)
        return self._remark

    def _compare(self, in_force: Settings) -> str | None:
        try:
            changed = self._read().settings != in_force
        except ConfigError as error:
            return f"can't be used any more, the earlier one stays in force: {'; '.join(error.lines)}"
        return "has changed; in force after a restart" if changed else None


async def follow(config: LiveConfig, adopt: Callable[[Settings], None]) -> None:
    """Hand the settings to `adopt` at each change of a file, for ever. What can't be used changes nothing."""
    stamps = config.stamps()
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        now = config.stamps()
        if now != stamps:
            stamps = now
            try:
                adopt(config.load())
            except ProviderError as error:
                log.error("configuration_not_taken", reason="; ".join(error.lines))


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        facts = file.stat()
    except (OSError, ValueError):  # ValueError: a zero byte in the name
        return None
    return facts.st_mtime_ns, facts.st_size, facts.st_ino
