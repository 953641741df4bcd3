"""The service on Linux: a systemd user unit, driven by `systemctl --user`."""

from __future__ import annotations

import os
import re
from pathlib import Path

from provider.system.service import (
    RESTART_INTERVAL,
    ServiceError,
    ServiceSpec,
    ServiceStatus,
    ask_manager,
    write_definition,
)

UNIT = "malibu-provider.service"
_NO_BUS = "Failed to connect to bus"


def _quoted(word: str) -> str:
    """systemd's own quoting; `%` and `$` would be expanded."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


class Systemd:
    """`units`: the user's unit folder."""

    def __init__(self, *, units: Path | None = None, unit: str = UNIT) -> None:
        self._unit = unit
        config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        self._units = units or config / "systemd" / "user"

    @property
    def file(self) -> Path:
        return self._units / self._unit

    def definition(self, spec: ServiceSpec) -> str:
        environment = "".join(
            f"Environment={_quoted(f'{name}={value}')}\n" for name, value in spec.environment.items()
        )
        return (
            "[Unit]\n"
            "Description=Malibu provider daemon\n"
            "After=network-online.target\n"
            # The daemon itself rests after five crashes in ten minutes and then tries again. This is for one
            # that ends before it can count them.
            "StartLimitIntervalSec=600\n"
            "StartLimitBurst=20\n"
            "\n"
            "[Service]\n"
            f"ExecStart={' '.join(_quoted(word) for word in spec.program)}\n"
            f"{environment}"
            "Restart=on-failure\n"
            f"RestartSec={RESTART_INTERVAL}\n"
            f"TimeoutStopSec={spec.exit_timeout}\n"
            # The daemon ends its own child: a signal to the whole group would cut the jobs that drain.
            "KillMode=mixed\n"
            "UMask=0077\n"
            f"StandardOutput=append:{spec.crash_log}\n"
            f"StandardError=append:{spec.crash_log}\n"
            "\n"
            "[Install]\n"
            "WantedBy=default.target\n"
        )

    def install(self, spec: ServiceSpec) -> None:
        spec.crash_log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        was_there = self.file.is_file()
        write_definition(self.file, self.definition(spec))
        try:
            self._systemctl("daemon-reload")
        except ServiceError:
            # Nobody there to take it: a unit that lies around would be started by some later login.
            if not was_there:
                self.file.unlink()
            raise
        self._systemctl("enable", self._unit)
        self._systemctl("restart", self._unit)

    def uninstall(self) -> None:
        if self.file.is_file():
            self._systemctl("disable", "--now", self._unit)
            self.file.unlink()
            self._systemctl("daemon-reload")

    def start(self) -> None:
        self._must_be_installed()
        # A unit that crashed too often must be forgiven first.
        self._systemctl("reset-failed", self._unit, refused_is_fine=True)
        self._systemctl("enable", "--now", self._unit)

    def stop(self) -> None:
        self._must_be_installed()
        self._systemctl("disable", "--now", self._unit)

    def restart(self) -> None:
        self._must_be_installed()
        self._systemctl("reset-failed", self._unit, refused_is_fine=True)
        self._systemctl("enable", self._unit)
        self._systemctl("restart", self._unit)

    def status(self) -> ServiceStatus:
        wanted = "ActiveState,MainPID,ExecMainStatus,UnitFileState"
        text = self._systemctl("show", "--property", wanted, self._unit)
        facts = dict(line.partition("=")[::2] for line in text.splitlines())
        pid = int(facts.get("MainPID") or 0)
        return ServiceStatus(
            installed=self.file.is_file(),
            enabled=facts.get("UnitFileState") == "enabled",
            running=pid > 0,
            pid=pid or None,
            last_exit=int(facts["ExecMainStatus"]) if facts.get("ExecMainStatus") else None,
            where=str(self.file),
        )

    def _systemctl(self, *arguments: str, refused_is_fine: bool = False) -> str:
        answer = ask_manager("systemctl", "--user", *arguments, patience=self._exit_timeout())
        if answer.code != 0 and not refused_is_fine:
            words = answer.complaint.splitlines()[0] if answer.complaint else f"code {answer.code}"
            remedy = "; log in as this user: sudo and su open no session" if _NO_BUS in words else ""
            raise ServiceError(f"systemd can't {arguments[0]} {self._unit}: {words}{remedy}")
        return answer.output

    def _exit_timeout(self) -> float:
        """What the unit gives the daemon to end; `stop` and `restart` return only then."""
        try:
            found = re.search(r"^TimeoutStopSec=(\d+)$", self.file.read_text("utf-8"), re.MULTILINE)
        except OSError:
            return 0.0
        return float(found[1]) if found else 0.0

    def _must_be_installed(self) -> None:
        if not self.file.is_file():
            raise ServiceError("the service is not installed; `malibu-provider service install`")
