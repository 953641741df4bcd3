"""What is broken on a machine is told in words for its owner: no number, no name of a class, no traceback."""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from cli.control import ask
from provider.errors import UnknownStateError
from provider.status.history import JobRecord
from provider.system.lock import acquire
from tests.cli.processes import free_port

PROGRAMS_WORDS = ("Errno", "internal error", "Error", "Traceback", "_ssl.c", "codec", "object", "b'")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("MALIBU_PROVIDER_HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return home


def said(*arguments: str, code: int) -> str:
    """What the command says on either stream."""
    command = [sys.executable, "-m", "cli.main", *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    text = done.stdout + done.stderr
    assert done.returncode == code, text
    assert not [words for words in PROGRAMS_WORDS if words in text], text
    return text


def configured(home: Path, text: str) -> None:
    (home / "config.toml").write_text(f"[local_gateway]\nport = {free_port()}\n{text}\n")


@pytest.fixture
def locked(home: Path) -> Iterator[Path]:
    with acquire(home / "daemon.lock"):
        yield home


def test_a_daemon_without_its_socket_is_beginning_or_ending(locked: Path) -> None:
    assert "just starting or ending" in said("status", code=3)


def test_a_socket_that_nobody_holds_is_no_answer(locked: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(locked / "control.sock"))
    assert "just starting or ending" in said("status", code=3)


def test_a_daemon_that_hangs_gives_no_answer(locked: Path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(locked / "control.sock"))
        mute.listen()
        with pytest.raises(UnknownStateError, match=r"no answer in 0\.05 s"):
            ask("GET", "status", seconds=0.05)


def keys_that_are_no_text(home: Path) -> str:
    (home / "keys").write_bytes(b"\xff\xfe")
    return f'keys_file = "{home / "keys"}"'


def tokens_that_are_no_text(home: Path) -> str:
    (home / "tokens").write_bytes(b"\xff\xfe")
    return f'provider_tokens_file = "{home / "tokens"}"'


def a_certificate_that_is_none(home: Path) -> str:
    (home / "cert.pem").write_text("a certificate, some day")
    (home / "key.pem").write_text("its key")
    return f'tls_cert = "{home / "cert.pem"}"\ntls_key = "{home / "key.pem"}"'


def a_state_file_that_is_none(home: Path) -> str:
    (home / "gateway.sqlite3").write_text("no database, whatever it is called, and long enough to tell" * 20)
    return ""


def a_state_file_without_its_tables(home: Path) -> str:
    with sqlite3.connect(home / "gateway.sqlite3") as database:
        database.execute("PRAGMA user_version = 1")
    database.close()
    return ""


@pytest.mark.parametrize(
    ("breaking", "code", "words"),
    [
        (keys_that_are_no_text, 2, "not UTF-8"),
        (tokens_that_are_no_text, 1, "it is not UTF-8"),
        (a_certificate_that_is_none, 2, "no certificate and its key in PEM form"),
        (a_state_file_that_is_none, 2, "not a database"),
        (a_state_file_without_its_tables, 2, "no such table"),
    ],
)
def test_a_gateway_that_cannot_begin(
    home: Path, breaking: Callable[[Path], str], code: int, words: str
) -> None:
    configured(home, breaking(home))
    assert words in said("gateway", code=code)


@pytest.mark.parametrize("breaking", [a_state_file_that_is_none, a_state_file_without_its_tables])
def test_sums_of_a_damaged_state_file(home: Path, breaking: Callable[[Path], str]) -> None:
    breaking(home)
    assert "can't use the gateway's state file" in said("gateway", "usage", code=1)


def test_a_key_is_not_added_to_a_file_that_is_no_text(home: Path) -> None:
    configured(home, keys_that_are_no_text(home))
    assert "not UTF-8" in said("gateway", "key", "add", "laptop", code=1)
    assert (home / "keys").read_bytes() == b"\xff\xfe"


def test_a_host_that_is_none_fails_its_check(home: Path) -> None:
    configured(home, 'host = "no..host"')
    assert "correct local_gateway.host" in said("doctor", code=1)


@pytest.mark.skipif(sys.platform != "linux", reason="the other system's service manager is asked elsewhere")
def test_a_service_whose_folder_is_none(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("a file")
    assert f"can't write {tmp_path / 'config'}" in said("service", "install", code=1)


def test_a_line_of_history_with_a_word_for_a_number_is_skipped(home: Path) -> None:
    texts = [f.name for f in fields(JobRecord) if f.type in ("str", "str | None")]
    whole = {
        field.name: "x" if field.name in texts else int(time.time() * 1000) for field in fields(JobRecord)
    }
    broken = [
        {**whole, name: wrong} for name in whole if name not in texts for wrong in ("soon", True, [], 1e400)
    ]
    lines = [json.dumps(line) for line in [whole, *broken]]
    (home / "history.jsonl").write_text("\n".join(lines) + "\n")
    rows = json.loads(said("history", "--json", code=0))["days"]
    assert [row["jobs"] for row in rows] == [1]
