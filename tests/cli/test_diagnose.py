"""`diagnose`: what is shown is what is written, and nothing of it is a secret, a prompt or an answer."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog

from cli.diagnose.redaction import Redaction
from cli.main import run
from provider import app
from tests.each_key.at_the_machine import StandIn
from tests.each_key.installation import Installation
from tests.fakes.core import write_script

Out = pytest.CaptureFixture[str]

TOKEN = "very-secret-token"
PROMPT, OUTPUT, ARGUMENT = "marked-prompt", "marked-output", "marked-argument"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("MALIBU_PROVIDER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(app, "this_machine", lambda disk: StandIn())
    # MLX takes seconds to load, and what is asked here is not whether it does.
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "__init__.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield tmp_path / "home"
    structlog.reset_defaults()


def installation(home: Path, **more: Any) -> Installation:
    token = home.parent / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    keys = {"gateway.url": "ws://127.0.0.1:9", "gateway.token_file": str(token), "local_gateway.port": 0}
    return Installation(home, keys | more)


def held(target: Path) -> dict[str, str]:
    with zipfile.ZipFile(target) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_it_is_shown_then_asked_then_written(
    home: Path, tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation(home)
    (home / "logs").mkdir()
    (home / "logs" / "daemon.log").write_text("".join(f'{{"event": "e{n:02}"}}\n' for n in range(30)))
    target = tmp_path / "d.zip"
    assert run(["diagnose", "--output", str(target)]) == 1
    assert "say --yes" in capsys.readouterr().err

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("no\n"))
    assert run(["diagnose", "--output", str(target)]) == 0
    assert "nothing was written" in capsys.readouterr().out
    assert not target.exists()
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert run(["diagnose", "--output", str(target)]) == 0
    shown, written = capsys.readouterr().out, held(target)
    assert list(written) == ["facts.json", "doctor.json", "config.json", "status.json", "logs/daemon.log"]
    assert all(written[name].strip() in shown for name in written if name.endswith(".json"))
    assert "logs/daemon.log: the last 5 of 30 lines" in shown
    assert all((f'"e{n:02}"' in shown) == (n >= 25) for n in range(30))
    assert all(f'"e{n:02}"' in written["logs/daemon.log"] for n in range(30))
    assert json.loads(written["doctor.json"])["verdict"] == "failing"
    assert json.loads(written["config.json"])["values"]["gateway.token_file"] == str(tmp_path / "token")
    assert target.stat().st_mode & 0o777 == 0o600
    assert run(["diagnose", "--yes", "--output", str(target)]) == 1
    assert "is there already" in capsys.readouterr().err


def test_a_token_where_its_file_belongs_is_not_told(home: Path, tmp_path: Path, capsys: Out) -> None:
    Installation(home, {"gateway.token_file": TOKEN})
    assert run(["diagnose", "--yes", "--output", str(tmp_path / "d.zip")]) == 0
    shown, written = capsys.readouterr().out, held(tmp_path / "d.zip")
    assert "no such file: (secret)" in written["config.json"]
    assert TOKEN not in shown + "".join(written.values())


@pytest.mark.asyncio
async def test_no_secret_prompt_or_output_is_in_it(home: Path, tmp_path: Path, capsys: Out) -> None:
    """After requests were served, one failed, and what others print where logs are kept was full of them."""
    call = f'<tool_call>\n{{"name": "look", "arguments": {{"place": "{ARGUMENT}"}}}}\n</tool_call>'
    script = write_script(
        tmp_path / "script.jsonl",
        {"match": "call", "text": call},
        {"match": "break", "text": OUTPUT * 3, "fault": "raise", "fault_after_tokens": 2},
        {"text": f"{OUTPUT} and more"},
    )
    it = installation(
        home,
        **{"engine.kind": "scripted", "engine.script": str(script), "engine.models": ["qwen3-mine"]},
        **{"log.level": "debug"},
    )
    async with it.daemon(local=True, service=True) as daemon, aiohttp.ClientSession() as session:
        url = (await daemon.routable())["process"]["local_url"]
        tools = [{"type": "function", "function": {"name": "look"}}]
        headers = {"Authorization": f"Bearer {TOKEN}"}
        for word, stream in (("say", False), ("call", True), ("break", False), ("call", False)):
            messages = [{"role": "user", "content": f"{word} {PROMPT}"}]
            body = {"model": "qwen3-mine", "messages": messages, "tools": tools, "stream": stream}
            async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
                await answer.read()
        for file in ("daemon.log", "crash.log", "crash.txt"):
            with (home / "logs" / file).open("a") as log:
                log.write(noise())
        key = (home / "key.pem").read_text().splitlines()[1]
        found = await asyncio.to_thread(run, ["diagnose", "--yes", "--output", str(tmp_path / "d.zip")])
    assert found == 0
    shown, written = capsys.readouterr().out, held(tmp_path / "d.zip")
    assert {f"logs/{name}" for name in ("daemon.log", "crash.log", "crash.txt")} < set(written)
    assert json.loads(written["status.json"])["counters"]["jobs_completed"] == 3
    for secret in (TOKEN, PROMPT, OUTPUT, ARGUMENT, key):
        assert secret not in shown
        assert not [name for name, text in written.items() if secret in text]
    assert 'File "/x/provider/jobs/run.py", line 7, in work' in written["logs/crash.txt"]
    assert "ValueError" in written["logs/crash.txt"]


def noise() -> str:
    """What a crash, a library or a slip of ours might print."""
    try:
        raise ValueError(f"can't read {PROMPT}\nor {OUTPUT}")
    except ValueError as error:
        message = str(error)
    traceback = (
        "Traceback (most recent call last):\n"
        '  File "/x/provider/jobs/run.py", line 7, in work\n'
        f'    work("{ARGUMENT}")\n    ~~~~^^^^\nValueError: {message}\n'
    )
    return (
        f"{traceback}websockets.server: got {PROMPT}\n{OUTPUT}\n"
        + json.dumps({"event": "broken", "exception": traceback, "text": OUTPUT, "token": TOKEN})
        + "\n"
        + json.dumps([PROMPT])
        + f"\nAuthorization: Bearer {TOKEN}\n"
    )


def test_what_helps_is_kept() -> None:
    kept = (
        '{"event": "policy", "paused": true, "reasons": ["on_battery"]}',
        "2026-11-30T23:23:25.123Z [info     ] gateway_started                contract=malibu",
        "Traceback (most recent call last):",
        '  File "/x/y.py", line 3, in f',
        "Fatal Python error: Segmentation fault",
        "Current thread 0x00007f (most recent call first):",
        '  File "/x/y.py", line 3 in f',
    )
    assert Redaction(()).log("\n".join(kept)).splitlines() == list(kept)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("mlx.core.Error: what it said", "mlx.core.Error"),
        ("asyncio: what it said", "asyncio: (left out)"),
        ("anything else", "(left out)"),
        ('["a", "list"]', "(left out)"),
        ('{"event": "e", "prompt": "p"}', '{"event": "e"}'),
        (
            '{"event": "engine_child_stderr", "line": "ValueError: p"}',
            '{"event": "engine_child_stderr", "line": "ValueError"}',
        ),
        (
            '{"reason": "the engine\'s process exited with code 1: p"}',
            '{"reason": "the engine\'s process exited with code 1: (left out)"}',
        ),
        (f'{{"event": "e", "to": "mbu_{"x" * 43}"}}', '{"event": "e", "to": "(secret)"}'),
    ],
)
def test_what_is_anyones_is_left_out(line: str, told: str) -> None:
    assert Redaction(()).log(line) == f"{told}\n"
