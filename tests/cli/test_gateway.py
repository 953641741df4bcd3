"""`gateway` with API keys: made, asked for, counted."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import COMMAND, Running, command, environment, free_port

MODEL = "mlx-community/Qwen3-8B-4bit"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def ask(port: int, key: str) -> tuple[int, Any]:
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_keys_are_made_asked_for_and_counted(home: Path, tmp_path: Path) -> None:
    nothing = command(home, "gateway", "usage")
    assert nothing.returncode == 1
    assert "there is no state file" in nothing.stderr

    made = command(home, "gateway", "key", "add", "laptop")
    assert made.returncode == 0
    assert "start it again to ask for this one" in made.stdout
    secret = made.stdout.splitlines()[0]
    assert secret not in (home / "keys.toml").read_text()
    assert (home / "keys.toml").stat().st_mode & 0o777 == 0o600
    again = command(home, "gateway", "key", "add", "laptop")
    assert again.returncode == 1
    assert "there is a key named laptop already" in again.stderr

    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps({"text": "Hello!"}) + "\n")
    port = free_port()
    scripted = ("--engine", "scripted", "--script", str(script), "--model", MODEL)
    with Running(home, "start", "--local", "--port", str(port), *scripted) as daemon:
        daemon.wait_for("ready: ")
        status, refusal = ask(port, "wrong")
        assert (status, refusal["error"]["code"]) == (401, "invalid_api_key")
        status, completion = ask(port, secret)
        assert (status, completion["choices"][0]["message"]["content"]) == (200, "Hello!")
        later = command(home, "gateway", "key", "add", "phone").stdout
        assert "A running gateway knows it within a second." in later
        new = later.splitlines()[0]
        soon = time.monotonic() + 60
        while (status := ask(port, new)[0]) == 401 and time.monotonic() < soon:
            time.sleep(0.1)
        assert status == 200
        usage = json.loads(command(home, "gateway", "usage", "--json").stdout)["usage"]
        assert {(row["key"], row["model"], row["jobs"]) for row in usage} == {
            ("laptop", MODEL, 1),
            ("phone", MODEL, 1),
        }
        assert command(home, "stop").returncode == 0
    assert "laptop" in command(home, "gateway", "usage").stdout


def test_a_keys_file_that_is_configured_may_be_made_by_the_command(home: Path, tmp_path: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(f'[local_gateway]\nkeys_file = "{tmp_path}/mine.toml"\n')
    missing = command(home, "gateway")
    assert missing.returncode == 2
    assert "local_gateway.keys_file: no such file" in missing.stderr
    assert command(home, "gateway", "key", "add", "laptop").returncode == 0
    assert (tmp_path / "mine.toml").is_file()


def test_without_keys_only_this_machine_may_be_served(home: Path) -> None:
    refused = command(home, "gateway", "--host", "0.0.0.0", "--port", str(free_port()))
    assert refused.returncode == 2
    assert "gateway key add" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def health(port: int) -> bytes | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60) as response:
            found: bytes = response.read()
            return found
    except OSError:
        return None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no file here that is always full")
def test_a_gateway_whose_log_is_on_a_full_disk_goes_on(home: Path) -> None:
    home.mkdir(mode=0o700)
    port = free_port()
    with (
        open("/dev/full", "w") as full,
        subprocess.Popen(
            [COMMAND, "gateway", "--port", str(port)],
            env=environment(home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=full,
        ) as gateway,
    ):
        try:
            soon = time.monotonic() + 60
            while (answer := health(port)) is None and gateway.poll() is None and time.monotonic() < soon:
                time.sleep(0.1)
            assert answer is not None
            assert json.loads(answer) == {"status": "ok"}
        finally:
            gateway.terminate()
        assert gateway.wait(60) == 0
