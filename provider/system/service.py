"""The daemon as a service of its user: what both service managers have in common.

`launchd` and `systemd` implement `ServiceManager`. A service that was stopped stays stopped, over a login and
a reboot, until it is started again; one that crashed comes back; one that ended with exit 0 doesn't.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from provider.errors import ProviderError

# A manager that hasn't answered by then is stuck; commands that needn't wait answer within milliseconds.
COMMAND_SECONDS = 30.0
# Between two restarts after a crash, in seconds.
RESTART_INTERVAL = 10


class ServiceError(ProviderError):
    """The service manager refused; the message holds its words and what to do."""


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """What is run. `program`: absolute. `environment`: never a secret.

    `crash_log`: takes what is printed before the daemon's own log is open.
    `exit_timeout`: seconds from the request to end until the manager kills; over the drain time.
    """

    program: Sequence[str]
    crash_log: Path
    exit_timeout: int
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """`enabled`: it starts at login. `last_exit`: of the last run, `None` when there was none.

    `other`: another service of this product, which this manager doesn't drive, in words.
    """

    installed: bool
    enabled: bool
    running: bool
    pid: int | None = None
    last_exit: int | None = None
    where: str | None = None
    other: str | None = None


class ServiceManager(Protocol):
    """Each command is idempotent: what already holds is no error."""

    @property
    def file(self) -> Path:
        """Where the definition is, once it is installed."""
        ...

    def definition(self, spec: ServiceSpec) -> str:
        """The file that `install` writes."""
        ...

    def install(self, spec: ServiceSpec) -> None: ...

    def uninstall(self) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def restart(self) -> None: ...

    def status(self) -> ServiceStatus: ...


def this_program(*, config_file: Path | None) -> list[str]:
    """The command that a service runs, by absolute path, so that no shell's PATH matters."""
    installed = Path(sys.executable).with_name("malibu-provider")
    program = [str(installed)] if installed.is_file() else [sys.executable, "-m", "cli.main"]
    return [*program, "start", "--service", *(["--config", str(config_file)] if config_file else [])]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a manager's command printed and how it ended."""

    code: int
    output: str
    complaint: str


def ask_manager(*command: str, patience: float = 0.0) -> Answer:
    """Run one command of the manager. Raises `ServiceError` when it isn't there or hangs.

    `patience`: seconds that it may wait for the daemon, which finishes its jobs, besides.
    """
    seconds = COMMAND_SECONDS + patience
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except OSError:
        raise ServiceError(
            f"{command[0]} is not there; run `malibu-provider start` by your own means"
        ) from None
    except subprocess.TimeoutExpired:
        raise ServiceError(f"`{' '.join(command)}` didn't answer in {seconds:.0f} s") from None
    return Answer(done.returncode, done.stdout, done.stderr.strip() or done.stdout.strip())


def write_definition(file: Path, text: str) -> None:
    """Put the file there whole or not at all. Raises `ServiceError`."""
    partial = file.with_name(f".{file.name}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.chmod(0o644)
        os.replace(partial, file)
    except OSError as error:
        # On many a Mac an installer has made LaunchAgents the superuser's.
        raise ServiceError(
            f"can't write {file}: {error.strerror}; see to whom {file.parent} belongs"
        ) from None
