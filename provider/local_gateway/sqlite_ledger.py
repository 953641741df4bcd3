"""The ledger on disk: SQLite in WAL mode, written by one thread that commits what has gathered at once.

    record ─▶ queue ─▶ writer thread: BEGIN … COMMIT (fsync) ─▶ the entries' futures

A crash at any moment loses only what no buyer has been told is complete. An attempt is counted once however
often it is recorded. When the disk is full entries are refused, what is there stays, and a small write is
tried every few seconds until one succeeds.
"""

from __future__ import annotations

import asyncio
import datetime
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from gateway_protocol.messages import Usage
from provider.local_gateway.ledger import RECENT, JobEntry, UsageSum

log = structlog.get_logger("gateway")

_PROBE_SECONDS: Final = 2.0
_BATCH: Final = 500
_KEPT_DAYS: Final = 90
_DAY_MS: Final = 86_400_000

# Each entry takes the file from its index to the next `user_version`.
MIGRATIONS: Final = (
    """
    CREATE TABLE jobs (
        job_id TEXT NOT NULL, attempt INTEGER NOT NULL, key_id TEXT NOT NULL, model TEXT NOT NULL,
        provider_id TEXT NOT NULL, terminal TEXT NOT NULL, finish_reason TEXT, error TEXT,
        prompt_tokens INTEGER, completion_tokens INTEGER, cached_tokens INTEGER, reasoning_tokens INTEGER,
        receipt TEXT, created_ms INTEGER NOT NULL, ended_ms INTEGER NOT NULL,
        PRIMARY KEY (job_id, attempt));
    CREATE INDEX jobs_by_end ON jobs (ended_ms);
    CREATE TABLE usage (
        day TEXT NOT NULL, key_id TEXT NOT NULL, model TEXT NOT NULL, jobs INTEGER NOT NULL,
        prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
        PRIMARY KEY (day, key_id, model));
    CREATE TABLE provider_keys (
        public_key TEXT PRIMARY KEY, provider_id TEXT NOT NULL, pinned_order INTEGER NOT NULL);
    CREATE TABLE facts (name TEXT PRIMARY KEY, value BLOB NOT NULL);
    CREATE TABLE probe (one INTEGER PRIMARY KEY CHECK (one = 1), filler BLOB);
    """,
)

_ADD_JOB: Final = "INSERT OR IGNORE INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_ADD_USAGE: Final = """
    INSERT INTO usage VALUES (?, ?, ?, 1, ?, ?, ?)
    ON CONFLICT (day, key_id, model) DO UPDATE SET
        jobs = jobs + 1,
        prompt_tokens = prompt_tokens + excluded.prompt_tokens,
        completion_tokens = completion_tokens + excluded.completion_tokens,
        cached_tokens = cached_tokens + excluded.cached_tokens
"""
_PIN: Final = """
    INSERT OR REPLACE INTO provider_keys
    VALUES (?, ?, (SELECT coalesce(max(pinned_order), 0) + 1 FROM provider_keys))
"""


class LedgerError(Exception):
    """The state file can't be used; the message says which and why."""


class _Pin:
    def __init__(self, provider_id: str, public_key: str) -> None:
        self.provider_id = provider_id
        self.public_key = public_key


_Work = tuple[JobEntry, "asyncio.Future[None]"] | _Pin | None


def open_database(path: Path) -> sqlite3.Connection:
    """The database in its newest shape. Raises `LedgerError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600, exist_ok=True)
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
    except OSError as error:
        raise _unusable(path, error.strerror) from None
    except sqlite3.Error as error:
        raise _unusable(path, error) from None
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        migrate(database)
    except sqlite3.Error as error:
        database.close()
        raise _unusable(path, error) from None
    return database


def _unusable(path: Path, reason: object) -> LedgerError:
    return LedgerError(f"can't use the gateway's state file {path}: {reason}")


def migrate(database: sqlite3.Connection) -> None:
    """Bring an older file up to date, each step whole or not at all."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise sqlite3.DatabaseError("it was written by a newer version of this program")
    for number, script in enumerate(MIGRATIONS[version:], version + 1):
        database.executescript(f"BEGIN; {script} PRAGMA user_version = {number}; COMMIT;")


class SqliteLedger:
    """The gateway's memory in one file. Made on the event loop; `aclose` waits for what is still to write.

    `secret`: the gateway's lasting one; `fresh` becomes it in a new file. Raises `LedgerError`.
    """

    def __init__(self, path: Path, fresh: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        self._path = path
        self._database = open_database(path)
        self._work: queue.SimpleQueue[_Work] = queue.SimpleQueue()
        self._pins: dict[str, str] = {}
        self._keys: dict[str, None] = {}
        self._dropped_on = 0
        try:
            self._recent: deque[JobEntry] = deque(self._read_recent(), maxlen=RECENT)
            self._read_keys()
            self.secret = self._read_secret(fresh)
        except sqlite3.Error as error:
            self._database.close()
            raise _unusable(path, error) from None
        self.full = False
        self._writer = threading.Thread(target=self._write_loop, name="gateway-ledger", daemon=True)
        self._writer.start()

    # --- Ledger --------------------------------------------------------------------------------

    def record(self, entry: JobEntry) -> asyncio.Future[None] | None:
        done = self._loop.create_future()
        self._work.put((entry, done))
        return done

    def recent(self, count: int) -> Sequence[JobEntry]:
        newest = list(self._recent)[::-1]
        return newest[:count]

    def usage(self) -> list[UsageSum]:
        return usage_of(self._path)

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
        self._database.close()

    # --- the writer thread ---------------------------------------------------------------------

    def _write_loop(self) -> None:
        last = False
        while not last:
            batch, last = self._next_batch()
            if not batch and not last:
                self.full = not self._probe()
                continue
            error = self._write(batch)
            if error is not None:
                log.error("ledger_write_failed", reason=str(error), entries=len(batch))
            self.full = error is not None
            entries = [item for item in batch if isinstance(item, tuple)]
            if entries:
                self._loop.call_soon_threadsafe(self._written, entries, error)

    def _next_batch(self) -> tuple[list[tuple[JobEntry, asyncio.Future[None]] | _Pin], bool]:
        """What there is to write, and whether it is the last; empty when only a probe is due."""
        batch: list[tuple[JobEntry, asyncio.Future[None]] | _Pin] = []
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

    def _write(self, batch: Sequence[tuple[JobEntry, asyncio.Future[None]] | _Pin]) -> Exception | None:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            for item in batch:
                if isinstance(item, _Pin):
                    self._database.execute(_PIN, (item.public_key, item.provider_id))
                else:
                    self._add(item[0])
                    self._drop_old(item[0].ended_ms)
            self._database.execute("COMMIT")
        except (sqlite3.Error, ValueError, OverflowError) as error:
            # The latter two: a number or a text that a provider made up and the file can't hold.
            self._roll_back()
            return error
        return None

    def _add(self, entry: JobEntry) -> None:
        usage = entry.usage
        counts = (
            (None, None, None, None)
            if usage is None
            else (
                usage.prompt_tokens,
                usage.completion_tokens,
                usage.cached_tokens,
                usage.reasoning_tokens,
            )
        )
        added = self._database.execute(
            _ADD_JOB,
            (
                *(entry.job_id, entry.attempt, entry.key_id, entry.model, entry.provider_id),
                *(entry.terminal, entry.finish_reason, entry.error, *counts, entry.receipt),
                *(entry.created_ms, entry.ended_ms),
            ),
        )
        if usage is not None and added.rowcount == 1:
            day = datetime.datetime.fromtimestamp(entry.ended_ms / 1000, datetime.UTC).date().isoformat()
            self._database.execute(_ADD_USAGE, (day, entry.key_id, entry.model, *counts[:3]))

    def _drop_old(self, newest_ms: int) -> None:
        """Once a day, and at each start: a gateway may run for years."""
        day = newest_ms // _DAY_MS
        if day > self._dropped_on:
            self._database.execute("DELETE FROM jobs WHERE ended_ms < ?", (newest_ms - _KEPT_DAYS * _DAY_MS,))
            self._dropped_on = day

    def _probe(self) -> bool:
        """Whether there is room again."""
        try:
            self._database.execute("INSERT OR REPLACE INTO probe VALUES (1, zeroblob(65536))")
            self._database.execute("DELETE FROM probe")
        except sqlite3.Error:
            self._roll_back()
            return False
        return True

    def _roll_back(self) -> None:
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")

    def _written(
        self, entries: Sequence[tuple[JobEntry, asyncio.Future[None]]], error: Exception | None
    ) -> None:
        for entry, done in entries:
            if error is None:
                self._recent.append(entry)
            if done.done():
                continue
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

    # --- reading -------------------------------------------------------------------------------

    def _read_keys(self) -> None:
        rows = self._database.execute(
            "SELECT public_key, provider_id FROM provider_keys ORDER BY pinned_order"
        )
        for public_key, provider_id in rows:
            self._pins[provider_id] = public_key
            self._keys[public_key] = None

    def _read_secret(self, fresh: bytes) -> bytes:
        self._database.execute("INSERT OR IGNORE INTO facts VALUES ('secret', ?)", (fresh,))
        (value,) = self._database.execute("SELECT value FROM facts WHERE name = 'secret'").fetchone()
        return bytes(value)

    def _read_recent(self) -> list[JobEntry]:
        """The newest entries, oldest first."""
        (newest,) = self._database.execute("SELECT coalesce(max(ended_ms), 0) FROM jobs").fetchone()
        self._drop_old(newest)
        rows = self._database.execute("SELECT * FROM jobs ORDER BY ended_ms DESC LIMIT ?", (RECENT,))
        return [_entry(row) for row in rows][::-1]


def _entry(row: Sequence[Any]) -> JobEntry:
    """`row`: the columns of `jobs`, which but for the usage are the fields of an entry."""
    job_id, attempt, key_id, model, provider_id, terminal, finish_reason, error, *rest = row
    prompt, completion, cached, reasoning, receipt, created_ms, ended_ms = rest
    usage = None
    if prompt is not None:
        usage = Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=cached,
            reasoning_tokens=reasoning,
        )
    return JobEntry(
        job_id=job_id,
        attempt=attempt,
        key_id=key_id,
        model=model,
        provider_id=provider_id,
        terminal=terminal,
        finish_reason=finish_reason,
        error=error,
        usage=usage,
        receipt=receipt,
        created_ms=created_ms,
        ended_ms=ended_ms,
    )


def read_usage(database: sqlite3.Connection) -> list[UsageSum]:
    rows = database.execute("SELECT * FROM usage ORDER BY day, key_id, model")
    return [UsageSum(*row) for row in rows]


def usage_of(path: Path) -> list[UsageSum]:
    """The sums in a state file, also while a gateway has it open. Raises `LedgerError`."""
    if not path.exists():
        raise LedgerError(f"there is no state file at {path}; no gateway has kept one there")
    database = open_database(path)
    try:
        return read_usage(database)
    except sqlite3.Error as error:
        raise _unusable(path, error) from None
    finally:
        database.close()
