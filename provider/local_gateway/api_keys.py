"""API keys: made once, shown once, kept as hashes in `keys.toml`. Pure but for reading and writing that file.

[keys.laptop]
id = "key_3f…"                   # what usage, tenants and logs know it by
sha256 = "…"                     # of the key's UTF-8 bytes; 256 random bits need no slow hash
created = 2026-01-31T10:00:00Z
admin = true                     # optional: may see the page and its figures
requests_per_minute = 60         # optional, over the gateway's own number
streams = 4                      # optional
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import re
import secrets
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_LOOK_SECONDS: Final = 1.0
KEY_PREFIX: Final = "mbu_"

log = structlog.get_logger("gateway")


class KeysError(Exception):
    """The keys file can't be used; the message says what to mend."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key, without its secret. `requests_per_minute`, `streams`: `None` for the gateway's own numbers."""

    id: str
    name: str
    sha256: str
    admin: bool = False
    requests_per_minute: int | None = None
    streams: int | None = None


def key_hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class KeyRing:
    """The keys in force."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self.keys = tuple(keys)

    def find(self, secret: str) -> ApiKey | None:
        """The key that this secret is, in time that tells nothing about the secrets."""
        wanted = key_hash(secret)
        found: ApiKey | None = None
        for key in self.keys:
            if hmac.compare_digest(key.sha256, wanted):
                found = key
        return found


def parse_keys(text: str) -> KeyRing:
    """The keys of a `keys.toml`. Raises `KeysError` naming the entry that is wrong."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise KeysError(f"not TOML: {error}") from None
    entries = document.get("keys", {})
    if not isinstance(entries, dict):
        raise KeysError("[keys] must be a table")
    keys = [_entry(name, entry) for name, entry in entries.items()]
    if len({key.id for key in keys}) != len(keys):
        raise KeysError("two keys have one id")
    return KeyRing(keys)


def _entry(name: str, entry: Any) -> ApiKey:
    if not _NAME.fullmatch(name) or not isinstance(entry, dict):
        raise KeysError(f"keys.{name}: a name is letters, digits, - and _, its entry a table")
    key_id, digest = entry.get("id"), entry.get("sha256")
    if not isinstance(key_id, str) or not key_id:
        raise KeysError(f"keys.{name}.id: missing")
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise KeysError(f"keys.{name}.sha256: must be 64 hex digits")
    admin = entry.get("admin", False)
    if not isinstance(admin, bool):
        raise KeysError(f"keys.{name}.admin: must be true or false")
    return ApiKey(
        id=key_id,
        name=name,
        sha256=digest,
        admin=admin,
        requests_per_minute=_count(name, entry, "requests_per_minute"),
        streams=_count(name, entry, "streams"),
    )


def _count(name: str, entry: dict[str, Any], field: str) -> int | None:
    value = entry.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise KeysError(f"keys.{name}.{field}: must be a whole number from 1")
    return value


def load_keys(path: Path) -> KeyRing:
    """Read a keys file. Raises `KeysError`; a file that isn't there is one, so that a typo opens nothing."""
    try:
        text = _text(path)
    except FileNotFoundError:
        raise KeysError(f"no such file: {path}") from None
    except OSError as error:
        raise KeysError(f"can't read {path}: {error.strerror}") from None
    try:
        return parse_keys(text)
    except KeysError as error:
        raise KeysError(f"{path}: {error}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise KeysError(f"{path}: not UTF-8") from None


class KeysFile:
    """The keys of a file, taken up again when it changes; a change that can't be read leaves the old ones.

    `now`: seconds, never backwards. Raises `KeysError` at first only.
    """

    def __init__(self, path: Path, now: float) -> None:
        self._path = path
        self._looked_at = now
        self._seen = _stamp(path)
        self._ring = load_keys(path)
        self.fault: str | None = None

    def ring(self, now: float) -> KeyRing:
        """The keys in force; the file is looked at once a second at most."""
        if now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            seen = _stamp(self._path)
            if seen != self._seen:
                self._seen = seen
                self._take_up()
        return self._ring

    def _take_up(self) -> None:
        try:
            self._ring = load_keys(self._path)
            self.fault = None
        except KeysError as error:
            self.fault = str(error)
            log.error("keys_file_not_taken", reason=self.fault)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes with a file's content; `None`: it isn't there."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size, facts.st_ino


def with_new_key(text: str, name: str, *, created: str, admin: bool = False) -> tuple[str, str]:
    """`keys.toml` text with one more key. Returns the new text and the secret, which is kept nowhere.

    `created`: a TOML date-time. Raises `KeysError` for a bad or taken name. Comments and order are kept.
    """
    if not _NAME.fullmatch(name):
        raise KeysError("a key's name is 1 to 64 letters, digits, - and _")
    if any(key.name == name for key in parse_keys(text).keys):
        raise KeysError(f"there is a key named {name} already")
    secret = KEY_PREFIX + secrets.token_urlsafe(32)
    lines = [
        f"[keys.{name}]",
        f'id = "key_{secrets.token_hex(8)}"',
        f'sha256 = "{key_hash(secret)}"',
        f"created = {created}",
    ]
    if admin:
        lines.append("admin = true")
    head = text if not text or text.endswith("\n") else text + "\n"
    gap = "\n" if head else ""
    return f"{head}{gap}" + "\n".join(lines) + "\n", secret


def add_key(path: Path, name: str, *, created: str, admin: bool = False) -> str:
    """Add a key to the file, which is made (mode 0600) if it isn't there. Returns the secret.

    Raises `KeysError` or `OSError`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone_in(path.parent):
        text = _text(path) if path.exists() else ""
        changed, secret = with_new_key(text, name, created=created, admin=admin)
        _replace(path, changed)
    return secret


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold others off that would add a key to what was there before: their keys or ours would be lost."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, text: str) -> None:
    """Whole or not at all."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # mode 0600
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
