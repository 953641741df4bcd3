"""`service` as its owner types it, against a stand-in for systemctl; launchd is in tests/provider/system."""

from __future__ import annotations

import json
import plistlib
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.main import run

Out = pytest.CaptureFixture[str]
FAKES = Path(__file__).parents[1] / "fakes"

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="there it is launchd's")


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in's state file; a machine of its own around it."""
    for name in ("HF_HOME", "HF_HUB_CACHE", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{FAKES / 'linux'}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_PYTHON", sys.executable)
    monkeypatch.setenv("FAKE_SYSTEMD", str(tmp_path / "systemd.json"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("MALIBU_PROVIDER_HOME", str(tmp_path / "home"))
    (tmp_path / "systemd.json").write_text(json.dumps({"enabled": False, "running": False}))
    return tmp_path / "systemd.json"


def said(capsys: Out, *arguments: str, code: int = 0) -> list[str]:
    assert run(["service", *arguments]) == code
    return capsys.readouterr().out.splitlines()


def test_its_life_in_words(systemd: Path, capsys: Out) -> None:
    assert said(capsys, "status", code=1) == ["not installed; `malibu-provider service install`"]
    for _ in range(2):
        assert said(capsys, "install")[0].startswith("installed and started; it starts at each login.")
    assert said(capsys, "status") == ["running (PID 700)", "starts at login"]
    assert said(capsys, "stop") == ["stopped, and stays so until `malibu-provider service start`"]
    stays = "stays stopped until `malibu-provider service start`"
    assert said(capsys, "status", code=1) == ["not running", stays]
    assert said(capsys, "start") == ["started"]
    assert said(capsys, "restart") == ["restarted"]
    document = json.loads("\n".join(said(capsys, "status", "--json")))
    assert document == {
        "installed": True,
        "enabled": True,
        "running": True,
        "pid": 700,
        "last_exit": 0,
        "where": str(systemd.parent / "config" / "systemd" / "user" / "malibu-provider.service"),
        "other": None,
    }
    for _ in range(2):
        assert said(capsys, "uninstall") == ["removed; configuration, key and models are still here"]
    assert said(capsys, "status", code=1) == ["not installed; `malibu-provider service install`"]


def test_a_crash_is_told(systemd: Path, capsys: Out) -> None:
    said(capsys, "install")
    systemd.write_text(json.dumps({"enabled": True, "running": False, "last_exit": 9}))
    assert said(capsys, "status", code=1)[2] == "its last run ended with 9; `malibu-provider logs` tells why"


def test_without_a_manager_it_could_not_tell(
    systemd: Path, capsys: Out, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "no-commands"))
    assert said(capsys, "status", code=3) == []
    assert said(capsys, "install", code=1) == []
    assert not (tmp_path / "config" / "systemd" / "user" / "malibu-provider.service").exists()


def printed_plist(capsys: Out) -> dict[str, Any]:
    document: dict[str, Any] = plistlib.loads("\n".join(said(capsys, "install", "--print")).encode())
    return document


def test_printing_touches_nothing(systemd: Path, capsys: Out, tmp_path: Path) -> None:
    assert printed_plist(capsys)["Label"] == "tech.malibu.provider"
    unit = said(capsys, "install", "--print", "--systemd")
    assert unit[0] == "[Unit]"
    assert any(line.startswith("ExecStart=") for line in unit)
    assert json.loads(systemd.read_text()) == {"enabled": False, "running": False}
    assert [file.name for file in tmp_path.iterdir()] == ["systemd.json"]
    assert said(capsys, "install", "--systemd", code=2) == []


def test_the_services_environment_is_folders_and_never_a_secret(
    systemd: Path, capsys: Out, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", "models")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("MALIBU_PROVIDER_ENGINE__SLOTS", "2")
    assert printed_plist(capsys)["EnvironmentVariables"] == {
        "MALIBU_PROVIDER_HOME": str(tmp_path / "home"),
        "HF_HOME": str(tmp_path / "models"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }


def test_the_configuration_that_is_named_is_the_services_and_gives_it_its_time(
    systemd: Path, capsys: Out, tmp_path: Path
) -> None:
    config = tmp_path / "mine.toml"
    config.write_text("[drain]\nseconds = 100\n")
    assert run(["service", "install", "--print", "--config", str(config)]) == 0
    document = plistlib.loads(capsys.readouterr().out.encode())
    assert document["ProgramArguments"][-2:] == ["--config", str(config)]
    assert document["ExitTimeOut"] > 100
    config.write_text("[drain]\nsecond = 100\n")
    assert run(["service", "install", "--print", "--config", str(config)]) == 0
    assert "drain.second: unknown key" in capsys.readouterr().err
