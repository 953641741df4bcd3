"""Errors of the engine that end a command.

    ProviderError
    ├── EngineStartError    1  the engine can't come up as configured; the message says what to do
    └── UsageError
        └── ScriptError     2  a line of the scripted engine's file is wrong

What happens to a running job is never raised: it is that job's `Rejected` or `Failed` (`base`).
"""

from __future__ import annotations

from pathlib import Path

from provider.errors import ProviderError, UsageError


class EngineStartError(ProviderError):
    """The child can't start, or a model can't be loaded; trying again by itself would not help."""


class ScriptError(UsageError):
    """`line` counts from 1; `None` when the file as a whole can't be read."""

    def __init__(self, script: Path, line: int | None, problem: str) -> None:
        where = f"{script}:{line}" if line is not None else str(script)
        super().__init__(f"{where}: {problem}")
        self.line = line
