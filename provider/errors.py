"""Errors that end a command or the daemon, each with its exit code.

    ProviderError              1  it failed; the message says what to do
    ├── ConfigError            2  one line for each wrong key
    ├── UsageError             2  the command line can't be served as given
    ├── UnknownStateError      3  could not tell
    ├── AlreadyRunningError    1  another daemon owns the state folder
    └── ModelError             1  a model can't be found, fetched, converted or loaded

Exit codes everywhere: 0 done, 1 failed, 2 usage or configuration, 3 could not tell. `cli` is the one place
that turns these into a line on stderr; no traceback reaches a user.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class ProviderError(Exception):
    """Root of what the daemon and its commands raise on purpose. The text is for the machine's owner."""

    exit_code: ClassVar[int] = 1

    @property
    def lines(self) -> Sequence[str]:
        """What to print, one fault a line."""
        return (str(self),)


class ConfigError(ProviderError):
    """The configuration is wrong. `problems`: each `key: what is wrong with it (where it was set)`."""

    exit_code = 2

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)

    @property
    def lines(self) -> Sequence[str]:
        return self.problems


class UsageError(ProviderError):
    """The command line asks for something that doesn't go together."""

    exit_code = 2


class UnknownStateError(ProviderError):
    """Nothing is known to be wrong, and nothing is known to be right."""

    exit_code = 3


class AlreadyRunningError(ProviderError):
    """Another daemon holds the state folder. `pid` is `None` when it wrote none."""

    def __init__(self, pid: int | None, lock_file: str) -> None:
        who = f"PID {pid}" if pid is not None else "an unknown PID"
        super().__init__(
            f"malibu-provider is already running ({who}, {lock_file}); stop it with `malibu-provider stop`"
        )
        self.pid = pid


class ModelError(ProviderError):
    """A model can't be used; the message says what is missing and what to type."""
