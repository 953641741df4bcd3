"""What the gateway remembers: ended jobs with usage and receipt, pinned provider keys, its own secret.

`MemoryLedger` forgets with the process; `sqlite_ledger` doesn't. Both answer the same questions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from gateway_protocol.messages import Usage

RECENT: Final = 1000


@dataclass(frozen=True, slots=True)
class JobEntry:
    """One attempt that ended. `terminal`: completed, failed or cancelled. `error`: its code, where it failed.

    `receipt`: where inference ran and its provider could still say so. Times: milliseconds since the epoch.
    """

    job_id: str
    attempt: int
    key_id: str
    model: str
    provider_id: str
    terminal: str
    finish_reason: str | None
    error: str | None
    usage: Usage | None
    receipt: str | None
    created_ms: int
    ended_ms: int


@dataclass(frozen=True, slots=True)
class UsageSum:
    """Counts of one key, model and day (UTC, `YYYY-MM-DD`)."""

    day: str
    key_id: str
    model: str
    jobs: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Ledger(Protocol):
    @property
    def full(self) -> bool:
        """Nothing more can be kept: take no new jobs."""
        ...

    def record(self, entry: JobEntry) -> asyncio.Future[None] | None:
        """Keep an entry, once for each attempt. Done when it would survive a crash; `None`: kept already."""
        ...

    def recent(self, count: int) -> Sequence[JobEntry]:
        """The entries that ended last, newest first."""
        ...

    def pinned(self, provider_id: str) -> str | None: ...

    def pin(self, provider_id: str, public_key: str) -> None: ...

    def all(self) -> list[str]: ...

    async def aclose(self) -> None: ...


class MemoryLedger:
    """For a gateway without a state file, as under `start --local`."""

    def __init__(self) -> None:
        self._entries: deque[JobEntry] = deque(maxlen=RECENT)
        self._pins: dict[str, str] = {}
        self._keys: dict[str, None] = {}
        self.full = False

    def record(self, entry: JobEntry) -> asyncio.Future[None] | None:
        self._entries.append(entry)
        return None

    def recent(self, count: int) -> Sequence[JobEntry]:
        newest = list(self._entries)[::-1]
        return newest[:count]

    def pinned(self, provider_id: str) -> str | None:
        return self._pins.get(provider_id)

    def pin(self, provider_id: str, public_key: str) -> None:
        self._pins[provider_id] = public_key
        self._keys[public_key] = None

    def all(self) -> list[str]:
        return list(self._keys)

    async def aclose(self) -> None:
        return None
