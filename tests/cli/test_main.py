"""The command line: one line for each fault, the promised exit codes, nothing heavy for `--help`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from cli.main import app, run

Out = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALIBU_PROVIDER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MALIBU_PROVIDER_CONFIG", raising=False)


def complaint(capsys: Out, *arguments: str, code: int = 2) -> str:
    """Run a command that must fail with one line on stderr and nothing on stdout; that line."""
    assert run(arguments) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("malibu-provider: ")
    return line.removeprefix("malibu-provider: ")


def test_the_version(capsys: Out) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == "malibu-provider 0.1.0\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nonsense"], "No such command 'nonsense'."),
        (["start", "--nonsense"], "No such option: --nonsense"),
        (["models", "pull"], "Missing argument 'ID'."),
        (["start", "--port", "8080"], "--port is the local gateway's port; give --local with it"),
        (["start", "--local", "--gateway", "ws://localhost"], "--gateway and --local don't go together"),
        (["start", "--local", "--port", "http"], "local_gateway.port: must be a whole number, not 'http'"),
        (["start", "--local", "--port", "70000"], "local_gateway.port: must be less than or equal to 65535"),
        (["gateway", "--port", "-1"], "local_gateway.port: must be greater than or equal to 0"),
        (["start", "--gateway", "http://x"], "gateway.url: must be a ws:// or wss:// URL"),
        (["start", "--engine", "cuda"], "engine.kind: must be 'mlx' or 'scripted', not 'cuda'"),
        (["start", "--engine", "scripted"], "engine.script: is needed"),
        (["start", "--engine", "scripted", "--script", "/no/such"], "engine.script: no such file: /no/such"),
        (["start", "--config", "/no/such.toml"], "config: no such file: /no/such.toml"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(capsys: Out, arguments: list[str], line: str) -> None:
    assert complaint(capsys, *arguments).startswith(line)


@pytest.mark.parametrize(
    "command", [["start", "--local"], ["gateway"], ["config", "show"], ["models", "list"]]
)
def test_a_bad_file_stops_every_command_that_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out, command: list[str]
) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("[engine]\nslotz = 3\n")
    expected = f"engine.slotz: unknown key (did you mean engine.slots?) (from {file})"
    assert complaint(capsys, *command, "--config", str(file)) == expected
    monkeypatch.setenv("MALIBU_PROVIDER_CONFIG", str(file))
    assert complaint(capsys, *command) == expected


def test_config_show_tells_values_and_origins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    (tmp_path / "home").mkdir()
    file = tmp_path / "home" / "config.toml"
    file.write_text("[engine]\nslots = 3\n")
    monkeypatch.setenv("MALIBU_PROVIDER_QUEUE__SECONDS", "7")
    assert run(["config", "path"]) == 0
    assert capsys.readouterr().out == f"{file}\n"
    assert run(["config", "show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["engine.slots"] == 3
    assert run(["config", "show", "--origin", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["engine.slots"] == {"value": 3, "origin": str(file)}
    assert shown["queue.seconds"] == {"value": 7.0, "origin": "MALIBU_PROVIDER_QUEUE__SECONDS"}
    assert shown["drain.seconds"] == {"value": 30.0, "origin": "default"}
    assert run(["config", "show", "--origin"]) == 0
    assert "# MALIBU_PROVIDER_QUEUE__SECONDS" in capsys.readouterr().out


def test_where_nothing_runs_status_is_1_and_stop_is_0(capsys: Out) -> None:
    assert run(["status"]) == 1
    assert capsys.readouterr().out.startswith("not running")
    assert run(["status", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["process"]["state"] == "not running"
    assert run(["stop"]) == 0
    assert capsys.readouterr().out == "not running\n"


def test_a_daemon_that_does_not_answer_is_could_not_tell(tmp_path: Path, capsys: Out) -> None:
    from provider.system.lock import acquire

    (tmp_path / "home").mkdir()
    with acquire(tmp_path / "home" / "daemon.lock"):
        assert "the daemon doesn't answer" in complaint(capsys, "status", code=3)


def test_an_internal_error_is_a_line_too_and_its_details_are_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    monkeypatch.setattr("cli.configuration.show_path", lambda **_: 1 / 0)
    line = complaint(capsys, "config", "path", code=1)
    crash = tmp_path / "home" / "logs" / "crash.txt"
    assert line == f"an internal error (ZeroDivisionError); details are in {crash}"
    assert "Traceback" in crash.read_text()
    assert crash.stat().st_mode & 0o777 == 0o600


def all_commands() -> list[list[str]]:
    """Each command and group, as the words that call it."""

    def below(command: Any, words: list[str]) -> Iterator[list[str]]:
        yield words
        for name, inner in getattr(command, "commands", {}).items():
            yield from below(inner, [*words, name])

    return list(below(typer.main.get_command(app), []))


@pytest.mark.parametrize("words", all_commands(), ids=" ".join)
def test_every_command_has_help_with_an_example_that_is_one(capsys: Out, words: list[str]) -> None:
    assert run([*words, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Usage: malibu-provider" in shown
    (example,) = re.findall(r"Example: malibu-provider ([^,]+)", shown)
    typed = example.split()
    assert typed[: len(words)] == words
    command: Any = typer.main.get_command(app)
    while typed and typed[0] in getattr(command, "commands", {}):
        command = command.commands[typed.pop(0)]
    flags = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in typed if word.startswith("--")} <= flags


HEAVY = {
    "aiohttp",
    "asyncio",
    "cryptography",
    "huggingface_hub",
    "mlx",
    "numpy",
    "prometheus_client",
    "psutil",
    "pydantic",
    "rich",
    "structlog",
    "transformers",
    "websockets",
}


def imported_by_help(commands: list[list[str]]) -> set[str]:
    """What a process has imported once it has shown these helps."""
    program = (
        "import json, sys; from cli.main import run\n"
        f"for words in {commands}: run([*words, '--help'])\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr))


def test_help_imports_nothing_heavy() -> None:
    """`--help` within 0.3 s: held by what is imported, which a busy machine can't change."""
    modules = imported_by_help([[]])
    assert not HEAVY & {name.partition(".")[0] for name in modules}
    assert len(modules) < 300


def test_no_commands_help_imports_anything_heavy() -> None:
    modules = imported_by_help(all_commands())
    # Typer itself brings pydantic for a command's flags, a tenth of a second.
    assert not (HEAVY - {"pydantic"}) & {name.partition(".")[0] for name in modules}
    assert not any(name.startswith("provider.") for name in modules - {"provider.errors"})


def test_shell_completion_knows_the_commands() -> None:
    command = Path(sys.executable).with_name("malibu-provider")
    asked = {
        "_MALIBU_PROVIDER_COMPLETE": "complete_bash",
        "COMP_WORDS": "malibu-provider mod",
        "COMP_CWORD": "1",
    }
    done = subprocess.run([command], env={**os.environ, **asked}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["models"]


def test_the_installed_command_speaks_for_itself(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("malibu-provider")
    done = subprocess.run([command, "config", "show", "--config", tmp_path], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"malibu-provider: config: can't read {tmp_path}")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("below", ["", "deeper"], ids=["itself", "above"])
@pytest.mark.parametrize(
    "command",
    [
        "status",
        "pause",
        "resume",
        "stop",
        "history",
        "doctor",
        "diagnose --yes",
        "keys show",
        "gateway key add me",
        "start --local",
        "gateway",
        "measure",
    ],
)
def test_a_file_in_the_place_of_the_state_folder_is_one_plain_line(
    command: str, below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("MALIBU_PROVIDER_HOME", str(file / below))
    assert complaint(capsys, *command.split()).endswith(f"{file} is not a folder")


def test_a_key_that_cannot_be_kept_is_one_plain_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    keys = tmp_path / "file" / "keys.toml"
    keys.parent.touch()
    monkeypatch.setenv("MALIBU_PROVIDER_LOCAL_GATEWAY__KEYS_FILE", str(keys))
    line = complaint(capsys, "gateway", "key", "add", "me", code=1)
    assert line.startswith(f"can't write {keys}: ")
    assert "Errno" not in line
