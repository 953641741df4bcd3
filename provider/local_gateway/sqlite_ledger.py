"""The ledger on disk: SQLite in WAL mode, written by one thread that commits what has gathered at once.

    record ─▶ queue ─▶ writer thread: BEGIN … COMMIT (fsync) ─▶ the entries' futures

A crash at any moment loses only what no buyer has been told is complete. An attempt is counted once however
often it is recorded. When the disk is full entries are refused, what is there stays, and a small write is
tried every few seconds until one succeeds.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from provider.local_gateway.ledger import RECENT, JobEntry, UsageSum
from provider.local_gateway.ledger_file import LedgerFile, unusable, usage_of

log = structlog.get_logger("gateway")

_PROBE_SECONDS: Final = 2.0
_BATCH: Final = 500


class _Pin(NamedTuple):
    provider_id: str
    public_key: str


class _Record(NamedTuple):
    entry: JobEntry
    done: asyncio.Future[None]


_Work = _Record | _Pin


class SqliteLedger:
    """The gateway's memory in one file. Made on the event loop; `aclose` waits for what is still to write.

    `secret`: the gateway's lasting one; `fresh` becomes it in a new file. Raises `LedgerError`.
    """

    def __init__(self, path: Path, fresh: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        self._file = LedgerFile(path)
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._late: list[_Pin] = []
        self._pins: dict[str, str] = {}
        self._keys: dict[str, None] = {}
        try:
            self._recent: deque[JobEntry] = deque(self._file.recent(RECENT), maxlen=RECENT)
            for public_key, provider_id in self._file.pins():
                self._pins[provider_id] = public_key
                self._keys[public_key] = None
            self.secret = self._file.secret(fresh)
        except sqlite3.Error as error:
            self._file.close()
            raise unusable(path, error) from None
        self.full = False
        self._writer = threading.Thread(target=self._write_loop, name="gateway-ledger", daemon=True)
        self._writer.start()

    # --- Ledger --------------------------------------------------------------------------------

    def record(self, entry: JobEntry) -> asyncio.Future[None] | None:
        done = self._loop.create_future()
        self._work.put(_Record(entry, done))
        return done

    def recent(self, count: int) -> Sequence[JobEntry]:
        newest = list(self._recent)[::-1]
        return newest[:count]

    def usage(self) -> list[UsageSum]:
        return usage_of(self._file.path)

    def pinned(self, provider_id: str) -> str | None:
        return self._pins.get(provider_id)

    def pin(self, provider_id: str, public_key: str) -> None:
        self._pins[provider_id] = public_key
        self._keys[public_key] = None
        self._work.put(_Pin(provider_id, public_key))

    def all(self) -> list[str]:
        return list(self._keys)

    async def aclose(self) -> None:
        self._work.put(None)
        await asyncio.to_thread(self._writer.join)
        self._file.close()

    # --- the writer thread ---------------------------------------------------------------------

    def _write_loop(self) -> None:
        last = False
        while not last:
            batch, last = self._next_batch()
            error = self._write(batch)
            if error is not None and batch:
                log.error("ledger_write_failed", reason=str(error), entries=len(batch))
            self.full = error is not None
            records = [item for item in batch if isinstance(item, _Record)]
            if records:
                self._loop.call_soon_threadsafe(self._written, records, error)

    def _next_batch(self) -> tuple[list[_Work], bool]:
        """What there is to write, and whether it is the last; empty when only a probe is due."""
        batch: list[_Work] = []
        try:
            item = self._work.get(timeout=_PROBE_SECONDS if self.full else None)
            while item is not None and len(batch) < _BATCH:
                batch.append(item)
                item = self._work.get_nowait()
        except queue.Empty:
            return batch, False
        if item is not None:
            batch.append(item)
        return batch, item is None

    def _write(self, batch: Sequence[_Work]) -> Exception | None:
        """All of it or nothing. Jobs that can't be written are refused; a pinned key is tried again."""
        try:
            if self.full:
                self._file.probe()
            self._file.begin()
            for item in (*self._late, *batch):
                if isinstance(item, _Pin):
                    self._file.pin(*item)
                else:
                    self._file.add(item.entry)
            self._file.commit()
        except (sqlite3.Error, ValueError, OverflowError) as error:
            # The latter two: a number or a text that a provider made up and the file can't hold.
            self._file.roll_back()
            self._late += [item for item in batch if isinstance(item, _Pin)]
            return error
        self._late.clear()
        return None

    def _written(self, records: Sequence[_Record], error: Exception | None) -> None:
        for entry, done in records:
            if error is None:
                self._recent.append(entry)
            if done.done():
                continue
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)
