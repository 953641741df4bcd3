"""`service` against stand-ins for launchctl and systemctl that keep state and answer with the real texts."""

from __future__ import annotations

import json
import plistlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provider.system.launchd import LABEL, Launchd
from provider.system.service import (
    Answer,
    ServiceError,
    ServiceSpec,
    ServiceStatus,
    ask_manager,
    this_program,
)
from provider.system.systemd import UNIT, Systemd

FAKES = Path(__file__).parents[2] / "fakes"
UID = 501
GUI, USER = f"gui/{UID}/{LABEL}", f"user/{UID}/{LABEL}"


@pytest.fixture
def spec(tmp_path: Path) -> ServiceSpec:
    return ServiceSpec(
        program=["/opt/malibu/bin/malibu-provider", "start", "--service"],
        crash_log=tmp_path / "logs" / "crash.log",
        exit_timeout=45,
        environment={"MALIBU_PROVIDER_HOME": "/Users/me/My Folder"},
    )


class FakeLaunchd:
    """The state file of the stand-in, and what happens to a Mac around the commands."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.write({"uid": UID, "gui": True, "disabled": [], "loaded": {}, "calls": []})

    def read(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.file.read_text())
        return document

    def write(self, state: dict[str, Any]) -> None:
        self.file.write_text(json.dumps(state))

    def change(self, **changes: Any) -> None:
        self.write({**self.read(), **changes})

    def commands(self) -> list[str]:
        """What was changed, without the looks."""
        return [call[0] for call in self.read()["calls"] if not call[0].startswith("print")]

    def reboot(self, agents: Path) -> None:
        """launchd loads every agent that isn't disabled, and runs those that say so."""
        state = self.read()
        state["loaded"] = {}
        for plist in agents.glob("*.plist"):
            document = plistlib.loads(plist.read_bytes())
            if document["Label"] not in state["disabled"]:
                domain = "user" if document.get("LimitLoadToSessionType") == "Background" else "gui"
                target = f"{domain}/{UID}/{document['Label']}"
                pid = 900 if document["RunAtLoad"] else None
                state["loaded"][target] = {
                    "plist": str(plist),
                    "pid": pid,
                    "last_exit": None,
                    "leaving": None,
                }
        self.write(state)


@pytest.fixture
def launchd_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeLaunchd:
    monkeypatch.setenv("PATH", f"{FAKES / 'macos'}:/usr/bin:/bin", prepend=":")
    monkeypatch.setenv("FAKE_PYTHON", sys.executable)
    monkeypatch.setenv("FAKE_LAUNCHD", str(tmp_path / "launchd.json"))
    return FakeLaunchd(tmp_path / "launchd.json")


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    return tmp_path / "LaunchAgents"


@pytest.fixture
def launchd(agents: Path, launchd_state: FakeLaunchd) -> Launchd:
    clock = iter(range(10_000))
    return Launchd(agents=agents, uid=UID, clock=lambda: float(next(clock)), sleep=lambda seconds: None)


def test_the_plist_says_what_it_must(launchd: Launchd, spec: ServiceSpec) -> None:
    document = plistlib.loads(launchd.definition(spec).encode())
    assert document["Label"] == "tech.malibu.provider"
    assert document["ProgramArguments"] == ["/opt/malibu/bin/malibu-provider", "start", "--service"]
    assert document["RunAtLoad"] is True
    assert document["KeepAlive"] == {"SuccessfulExit": False}
    assert document["ThrottleInterval"] == 10
    assert document["ExitTimeOut"] == 45
    assert document["ProcessType"] == "Interactive"
    assert document["Umask"] == 0o077
    assert document["EnvironmentVariables"] == {"MALIBU_PROVIDER_HOME": "/Users/me/My Folder"}
    assert document["StandardErrorPath"].endswith("crash.log")


def test_install_starts_it_and_a_second_install_renews_it(
    launchd: Launchd, launchd_state: FakeLaunchd, spec: ServiceSpec
) -> None:
    assert launchd.status() == ServiceStatus(installed=False, enabled=False, running=False)
    launchd.install(spec)
    status = launchd.status()
    assert (status.installed, status.enabled, status.running, status.pid) == (True, True, True, 500)
    assert launchd_state.commands() == ["enable", "bootstrap", "kickstart"]
    launchd.install(spec)
    assert launchd.status().pid == 501
    assert launchd_state.commands()[3:] == ["bootout", "enable", "bootstrap", "kickstart"]


def test_bootout_is_waited_for_before_the_next_bootstrap(
    launchd: Launchd, launchd_state: FakeLaunchd, spec: ServiceSpec
) -> None:
    launchd.install(spec)
    launchd_state.change(bootout_looks=5)
    launchd.restart()
    assert launchd.status().pid == 501


def test_a_label_that_is_not_free_at_once_is_waited_for_where_it_was(
    launchd: Launchd, launchd_state: FakeLaunchd, spec: ServiceSpec
) -> None:
    launchd.install(spec)
    launchd_state.change(settle=6)
    launchd.restart()
    assert launchd.status().where == f"gui/{UID}"


def test_a_job_that_is_loaded_but_not_started_is_started(
    launchd: Launchd, launchd_state: FakeLaunchd, spec: ServiceSpec
) -> None:
    launchd_state.change(lazy=True)
    launchd.install(spec)
    assert launchd.status().running
    launchd.restart()
    assert launchd.status().running


def test_a_job_that_never_leaves_is_reported(
    launchd: Launchd, launchd_state: FakeLaunchd, spec: ServiceSpec
) -> None:
    launchd.install(spec)
    launchd_state.change(bootout_looks=10_000)
    with pytest.raises(ServiceError, match=r"launchd still has tech.malibu.provider after 60 s"):
        launchd.restart()


def test_a_long_drain_is_waited_for(launchd: Launchd, launchd_state: FakeLaunchd, spec: ServiceSpec) -> None:
    launchd.install(replace(spec, exit_timeout=300))
    launchd_state.change(bootout_looks=70)
    launchd.restart()
    assert launchd.status().pid == 501


def test_what_was_stopped_stays_stopped_until_it_is_started(
    launchd: Launchd, launchd_state: FakeLaunchd, agents: Path, spec: ServiceSpec
) -> None:
    launchd.install(spec)
    launchd_state.reboot(agents)
    assert launchd.status().running
    launchd.stop()
    disabled = {call[1] for call in launchd_state.read()["calls"] if call[0] == "disable"}
    assert disabled == {GUI, USER}
    launchd.stop()
    assert not launchd.status().running
    launchd_state.reboot(agents)
    assert launchd.status() == ServiceStatus(installed=True, enabled=False, running=False)
    launchd.start()
    launchd.start()
    launchd_state.reboot(agents)
    assert launchd.status().running


def test_uninstall_leaves_nothing_not_even_a_disabled_label(
    launchd: Launchd, launchd_state: FakeLaunchd, agents: Path, spec: ServiceSpec
) -> None:
    launchd.install(spec)
    launchd.stop()
    launchd.uninstall()
    launchd.uninstall()
    assert list(agents.iterdir()) == []
    state = launchd_state.read()
    assert (state["loaded"], state["disabled"]) == ({}, [])


def test_error_5_is_tried_again_and_then_explained(
    launchd: Launchd, launchd_state: FakeLaunchd, spec: ServiceSpec
) -> None:
    launchd_state.change(eio=2)
    launchd.install(spec)
    assert launchd.status().running
    launchd_state.change(eio=99)
    with pytest.raises(ServiceError, match=r"can't load .*: Bootstrap failed: 5: Input/output error; log in"):
        launchd.restart()


def test_a_mac_that_refuses_the_screens_domain_gets_it_in_the_users(
    launchd: Launchd, launchd_state: FakeLaunchd, spec: ServiceSpec
) -> None:
    launchd_state.change(gui_broken=True)
    launchd.install(spec)
    assert launchd.status().where == f"user/{UID}"
    launchd_state.reboot(launchd.file.parent)
    assert launchd.status().running


def test_without_a_login_at_the_screen_it_runs_in_the_users_domain(
    launchd: Launchd, launchd_state: FakeLaunchd, spec: ServiceSpec
) -> None:
    launchd_state.change(gui=False)
    launchd.install(spec)
    assert list(launchd_state.read()["loaded"]) == [USER]
    assert launchd.status().where == f"user/{UID}"
    # That domain takes no agent of the default session type, and the screen's takes no other.
    assert plistlib.loads(launchd.file.read_bytes())["LimitLoadToSessionType"] == "Background"
    launchd_state.reboot(launchd.file.parent)
    assert list(launchd_state.read()["loaded"]) == [USER]
    launchd_state.change(gui=True)
    launchd.restart()
    assert list(launchd_state.read()["loaded"]) == [GUI]
    assert "LimitLoadToSessionType" not in plistlib.loads(launchd.file.read_bytes())


def test_a_disabled_label_is_enabled_by_install(
    launchd: Launchd, launchd_state: FakeLaunchd, spec: ServiceSpec
) -> None:
    launchd_state.change(disabled=[LABEL, "other"])
    launchd.install(spec)
    assert launchd_state.read()["disabled"] == ["other"]
    # By hand, or in System Settings, while it runs: `start` means at the next login, too.
    launchd_state.change(disabled=[LABEL])
    assert not launchd.status().enabled
    launchd.start()
    assert launchd.status().enabled


def test_a_plist_that_was_spoilt_is_told(
    launchd: Launchd, launchd_state: FakeLaunchd, spec: ServiceSpec
) -> None:
    launchd.install(spec)
    launchd.stop()
    launchd.file.write_text("<plist>")
    with pytest.raises(ServiceError, match=r"can't be read .* `malibu-provider service install`"):
        launchd.start()
    launchd.install(spec)
    assert launchd.status().running


def test_a_crash_shows_in_the_status(launchd: Launchd, launchd_state: FakeLaunchd, spec: ServiceSpec) -> None:
    launchd.install(spec)
    state = launchd_state.read()
    state["loaded"][GUI] |= {"pid": None, "last_exit": 1}
    launchd_state.write(state)
    status = launchd.status()
    assert (status.running, status.last_exit) == (False, 1)


def test_homebrews_service_is_not_doubled(launchd: Launchd, agents: Path, spec: ServiceSpec) -> None:
    agents.mkdir()
    rival = agents / "homebrew.mxcl.malibu-provider.plist"
    rival.touch()
    with pytest.raises(ServiceError, match="brew services stop malibu-provider"):
        launchd.install(spec)
    rival.unlink()
    launchd.install(spec)
    rival.touch()
    for command in (launchd.start, launchd.restart):
        with pytest.raises(ServiceError, match="brew services stop malibu-provider"):
            command()
    assert launchd.status().other == "Homebrew's (`brew services`)"
    launchd.stop()
    assert launchd.status().other
    launchd.uninstall()
    throw_away = Launchd(agents=agents, uid=UID, label="tech.malibu.provider.selftest.1")
    throw_away.install(spec)
    assert throw_away.status().running
    throw_away.uninstall()


@pytest.mark.parametrize("command", ["start", "stop", "restart"])
def test_what_is_not_installed_cannot_be_driven(launchd: Launchd, command: str) -> None:
    with pytest.raises(ServiceError, match="malibu-provider service install"):
        getattr(launchd, command)()


def test_without_launchctl_the_message_says_so(
    launchd: Launchd, spec: ServiceSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ServiceError, match="launchctl is not there"):
        launchd.install(spec)


@pytest.fixture
def systemd_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{FAKES / 'linux'}:/usr/bin:/bin", prepend=":")
    monkeypatch.setenv("FAKE_PYTHON", sys.executable)
    monkeypatch.setenv("FAKE_SYSTEMD", str(tmp_path / "systemd.json"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "systemd.json").write_text(json.dumps({"enabled": False, "running": False}))
    return tmp_path / "systemd.json"


def test_the_unit_says_what_it_must(systemd_state: Path, spec: ServiceSpec) -> None:
    text = Systemd().definition(spec)
    assert 'ExecStart="/opt/malibu/bin/malibu-provider" "start" "--service"\n' in text
    assert 'Environment="MALIBU_PROVIDER_HOME=/Users/me/My Folder"\n' in text
    for line in ("Restart=on-failure", "RestartSec=10", "TimeoutStopSec=45", "UMask=0077", "KillMode=mixed"):
        assert f"{line}\n" in text


def test_a_units_whole_life(systemd_state: Path, spec: ServiceSpec) -> None:
    systemd = Systemd()
    assert not systemd.status().installed
    systemd.install(spec)
    systemd.install(spec)
    status = systemd.status()
    assert (status.installed, status.enabled, status.running, status.pid) == (True, True, True, 700)
    systemd.stop()
    assert (systemd.status().enabled, systemd.status().running) == (False, False)
    systemd.start()
    systemd.restart()
    assert systemd.status().running
    systemd.uninstall()
    systemd.uninstall()
    assert not systemd.file.exists()
    assert not systemd.status().running
    with pytest.raises(ServiceError, match="not installed"):
        systemd.stop()


def test_commands_that_wait_for_the_daemons_jobs_get_its_time(
    systemd_state: Path, spec: ServiceSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of their own they would have none.
    monkeypatch.setattr("provider.system.service.COMMAND_SECONDS", 0.0)
    systemd = Systemd()
    systemd.install(spec)
    systemd.restart()
    systemd.stop()
    assert not systemd.status().running
    systemd.file.write_text("[Unit]\n")
    with pytest.raises(ServiceError, match=r"`systemctl --user reset-failed .*` didn't answer in 0 s"):
        systemd.restart()


def test_without_a_session_bus_systemds_words_are_passed_on(systemd_state: Path, spec: ServiceSpec) -> None:
    systemd_state.write_text(json.dumps({"no_bus": True}))
    words = f"can't daemon-reload {UNIT}: Failed to connect to bus.*; log in as this user"
    with pytest.raises(ServiceError, match=words):
        Systemd().install(spec)
    assert not Systemd().file.exists()


def test_the_program_is_named_by_absolute_paths() -> None:
    program = this_program(config_file=Path("/etc/malibu.toml"))
    assert Path(program[0]).is_absolute()
    assert program[-4:] == ["start", "--service", "--config", "/etc/malibu.toml"]


def test_what_a_manager_prints_need_be_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = tmp_path / "manager"
    manager.write_text("#!/bin/sh\nprintf 'pid = \\377'\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(ServiceError, match="manager is not there"):
        ask_manager("manager")
    manager.chmod(0o755)
    assert ask_manager("manager") == Answer(0, "pid = \ufffd", "pid = \ufffd")
