"""The gateway's state file: its tables, what is written into them and read from them. No threads here.

An attempt is counted once however often it is added. `sqlite_ledger` says when something is written.
"""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gateway_protocol.messages import Usage
from provider.local_gateway.ledger import JobEntry, UsageSum

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


class LedgerFile:
    """An open state file. Every method but `close` may raise `sqlite3.Error`.

    `add` and `pin` also raise `ValueError` or `OverflowError` for what SQLite can't hold.
    """

    def __init__(self, path: Path) -> None:
        """Raises `LedgerError`."""
        self.path = path
        self._database = _open(path)
        self._dropped_on = 0

    def close(self) -> None:
        self._database.close()

    # --- writing -------------------------------------------------------------------------------

    def begin(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self._database.execute("COMMIT")

    def roll_back(self) -> None:
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")

    def add(self, entry: JobEntry) -> None:
        """The entry and its usage, once however often it comes."""
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
        self._drop_old(entry.ended_ms)

    def pin(self, provider_id: str, public_key: str) -> None:
        self._database.execute(_PIN, (public_key, provider_id))

    def probe(self) -> None:
        """Take some room and give it back; raises where there is none."""
        self._database.execute("INSERT OR REPLACE INTO probe VALUES (1, zeroblob(65536))")
        self._database.execute("DELETE FROM probe")

    def _drop_old(self, newest_ms: int) -> None:
        """Once a day, and at each start: a gateway may run for years."""
        day = newest_ms // _DAY_MS
        if day > self._dropped_on:
            self._database.execute("DELETE FROM jobs WHERE ended_ms < ?", (newest_ms - _KEPT_DAYS * _DAY_MS,))
            self._dropped_on = day

    # --- reading -------------------------------------------------------------------------------

    def pins(self) -> list[tuple[str, str]]:
        """(public key, provider ID), in the order of pinning."""
        rows = self._database.execute(
            "SELECT public_key, provider_id FROM provider_keys ORDER BY pinned_order"
        )
        return rows.fetchall()

    def secret(self, fresh: bytes) -> bytes:
        """The gateway's lasting one; `fresh` becomes it in a new file."""
        self._database.execute("INSERT OR IGNORE INTO facts VALUES ('secret', ?)", (fresh,))
        (value,) = self._database.execute("SELECT value FROM facts WHERE name = 'secret'").fetchone()
        return bytes(value)

    def recent(self, count: int) -> list[JobEntry]:
        """The newest entries, oldest first."""
        (newest,) = self._database.execute("SELECT coalesce(max(ended_ms), 0) FROM jobs").fetchone()
        self._drop_old(newest)
        rows = self._database.execute("SELECT * FROM jobs ORDER BY ended_ms DESC LIMIT ?", (count,))
        return [_entry(row) for row in rows][::-1]

    def usage(self) -> list[UsageSum]:
        rows = self._database.execute("SELECT * FROM usage ORDER BY day, key_id, model")
        return [UsageSum(*row) for row in rows]


def usage_of(path: Path) -> list[UsageSum]:
    """The sums in a state file, also while a gateway has it open. Raises `LedgerError`."""
    if not path.exists():
        raise LedgerError(f"there is no state file at {path}; no gateway has kept one there")
    file = LedgerFile(path)
    try:
        return file.usage()
    except sqlite3.Error as error:
        raise unusable(path, error) from None
    finally:
        file.close()


def _open(path: Path) -> sqlite3.Connection:
    """The database in its newest shape. Raises `LedgerError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600, exist_ok=True)
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
    except OSError as error:
        raise unusable(path, error.strerror) from None
    except sqlite3.Error as error:
        raise unusable(path, error) from None
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        migrate(database)
    except sqlite3.Error as error:
        database.close()
        raise unusable(path, error) from None
    return database


def unusable(path: Path, reason: object) -> LedgerError:
    """What to raise where the file turns out to be damaged."""
    return LedgerError(f"can't use the gateway's state file {path}: {reason}")


def migrate(database: sqlite3.Connection) -> None:
    """Bring an older file up to date, each step whole or not at all."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise sqlite3.DatabaseError("it was written by a newer version of this program")
    for number, script in enumerate(MIGRATIONS[version:], version + 1):
        database.executescript(f"BEGIN; {script} PRAGMA user_version = {number}; COMMIT;")


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
