"""`receipt verify` and `keys` against answers of a real daemon."""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from tests.cli.processes import Running, command, free_port

Out = pytest.CaptureFixture[str]
MODEL = "mlx-community/Qwen3-8B-4bit"


@dataclass
class Record:
    """What a buyer kept, as files, and where the daemon that answered is."""

    folder: Path
    home: Path
    url: str

    def verify(self, *more: str, response: str = "completion.json") -> list[str]:
        files = ("--request", str(self.folder / "request.json"), "--response", str(self.folder / response))
        return ["receipt", "verify", *files, *more]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Record]:
    folder = tmp_path_factory.mktemp("record")
    home = folder / "home"
    script = folder / "script.jsonl"
    script.write_text(json.dumps({"text": "Hello, Zürich!"}) + "\n")
    port = free_port()
    arguments = (
        "--engine",
        "scripted",
        "--script",
        str(script),
        "--model",
        MODEL,
        "--local",
        "--port",
        str(port),
    )
    with Running(home, "start", *arguments) as daemon:
        daemon.wait_for("ready: ")
        url = f"http://127.0.0.1:{port}/v1"
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "user": "me"}
        (folder / "request.json").write_text(json.dumps(body))
        for name, stream in (("completion.json", False), ("stream.sse", True)):
            data = json.dumps({**body, "stream": stream}).encode()
            request = urllib.request.Request(
                f"{url}/chat/completions", data, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request) as response:
                (folder / name).write_bytes(response.read())
        with urllib.request.urlopen(f"{url}/providers/keys") as response:
            (folder / "keys.json").write_bytes(response.read())
        yield Record(folder, home, url)
        assert command(home, "stop").returncode == 0


@pytest.fixture(autouse=True)
def _nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALIBU_PROVIDER_HOME", str(tmp_path / "nobody"))


@pytest.mark.parametrize("response", ["completion.json", "stream.sse"])
@pytest.mark.parametrize("source", ["file", "url"])
def test_a_sound_receipt_is_valid(record: Record, capsys: Out, response: str, source: str) -> None:
    keys = str(record.folder / "keys.json") if source == "file" else f"{record.url}/providers/keys"
    assert run(record.verify("--keys", keys, response=response)) == 0
    assert capsys.readouterr().out.startswith("valid\n")


def test_the_provider_itself_knows_its_key(
    record: Record, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALIBU_PROVIDER_HOME", str(record.home))
    assert run(record.verify("--json")) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "valid"


def test_without_a_known_key_it_is_inconclusive(record: Record, capsys: Out) -> None:
    assert run(record.verify("--json")) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "inconclusive"
    assert [difference["name"] for difference in document["differences"]] == ["key"]
    assert run(record.verify()) == 3
    assert "--keys" in capsys.readouterr().out


def test_one_changed_character_is_named(record: Record, tmp_path: Path, capsys: Out) -> None:
    completion: dict[str, Any] = json.loads((record.folder / "completion.json").read_text())
    completion["choices"][0]["message"]["content"] = "Hello, Zurich!"
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(completion))
    assert run(record.verify("--keys", str(record.folder / "keys.json"), response=str(changed))) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("invalid\n")
    assert "  content: " in printed


def test_a_receipt_in_a_file_of_its_own(record: Record, tmp_path: Path, capsys: Out) -> None:
    completion = json.loads((record.folder / "completion.json").read_text())
    receipt = tmp_path / "receipt.jws"
    receipt.write_text(completion["malibu"]["receipt"] + "\n")
    keys = str(record.folder / "keys.json")
    assert run(record.verify("--receipt", str(receipt), "--keys", keys)) == 0
    receipt.write_text("no receipt")
    assert run(record.verify("--receipt", str(receipt), "--keys", keys)) == 1


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (["--keys", "/no/such"], 2, "--keys: can't read /no/such"),
        (["--keys", "{request}"], 2, "is not a JWK Set"),
        (["--keys", "http://127.0.0.1:9/keys"], 3, "--keys: can't fetch"),
        (["--receipt", "/no/such"], 2, "--receipt: can't read"),
    ],
)
def test_what_cannot_be_read(record: Record, capsys: Out, more: list[str], code: int, words: str) -> None:
    filled = [argument.format(request=record.folder / "request.json") for argument in more]
    assert run(record.verify(*filled)) == code
    assert words in capsys.readouterr().err


def test_a_response_without_a_receipt(record: Record, tmp_path: Path, capsys: Out) -> None:
    completion = json.loads((record.folder / "completion.json").read_text())
    del completion["malibu"]
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(completion))
    assert run(record.verify(response=str(bare))) == 2
    assert "give it with --receipt" in capsys.readouterr().err


def test_a_rotated_key_signs_at_once_and_the_old_receipts_stay_valid(
    record: Record, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = json.loads(command(record.home, "keys", "show", "--json").stdout)
    assert "private" not in json.dumps(shown)
    assert shown["jwk"]["kid"] == shown["key_id"]
    rotated = command(record.home, "keys", "rotate")
    assert rotated.returncode == 0
    assert "the running daemon registers it now" in rotated.stdout
    again = json.loads(command(record.home, "keys", "show", "--json").stdout)
    assert again["provider_id"] == shown["provider_id"]
    assert again["key_id"] != shown["key_id"]
    assert run(record.verify("--keys", f"{record.url}/providers/keys")) == 0
    monkeypatch.setenv("MALIBU_PROVIDER_HOME", str(record.home))
    assert run(record.verify()) == 0
    kept = record.folder / "owner-says.json"
    kept.write_text(json.dumps(again))
    monkeypatch.delenv("MALIBU_PROVIDER_HOME")
    assert run(record.verify("--keys", str(kept))) == 0


@pytest.mark.parametrize(
    ("spoken", "told"),
    [
        (None, "nothing listens there"),
        (b"220 mail.example.org\r\n", "as a web server does"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "404"),
        (b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe", "not UTF-8"),
    ],
    ids=["nobody", "mail", "absent", "binary"],
)
def test_keys_that_cannot_be_fetched_are_one_plain_line(
    record: Record, capsys: Out, spoken: bytes | None, told: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/keys"
        if spoken is None:
            server.close()
            assert run(record.verify("--keys", url)) == 3
        else:
            answering = threading.Thread(target=say_once, args=(server, spoken))
            answering.start()
            assert run(record.verify("--keys", url)) == 3
            answering.join()
    line = capsys.readouterr().err
    assert told in line
    assert line.count("\n") == 1
    assert not set("<>[") & set(line)


def say_once(server: socket.socket, spoken: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(spoken)


def test_keys_before_the_first_start(capsys: Out) -> None:
    for arguments in (["keys", "show"], ["keys", "rotate"]):
        assert run(arguments) == 1
        assert "there is no key yet" in capsys.readouterr().err
