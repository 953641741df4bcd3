"""What the system tells of this machine: power, heat, memory, idle time. Nothing here decides anything.

On macOS the facts come from commands every Mac has; on Linux from `/sys` and `/proc`. What a system doesn't
tell is `None`. Levels are "nominal", "fair", "serious", "critical".
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from provider.system import mac_texts

_COMMAND_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Condition:
    """The machine at this moment."""

    on_battery: bool | None = None
    battery_percent: int | None = None
    low_power: bool | None = None
    thermal: str | None = None
    memory_pressure: str | None = None
    user_idle_seconds: float | None = None
    free_disk_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Hardware:
    """What doesn't change: `chip` as its maker calls it, `os` with its version."""

    chip: str | None
    memory_bytes: int
    gpu_cores: int | None
    os: str


class Machine(Protocol):
    """One of `Mac` and `LinuxMachine`. Both calls take up to a second: not for an event loop."""

    def condition(self) -> Condition: ...

    def hardware(self) -> Hardware: ...


def this_machine(disk: Path) -> Machine:
    """`disk`: a folder on the disk whose free space counts."""
    return Mac(disk) if sys.platform == "darwin" else LinuxMachine(disk)


def _free_bytes(folder: Path) -> int | None:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


class Mac:
    """Asks `pmset`, `notifyutil`, `sysctl` and `ioreg`; `mac_texts` reads what they print."""

    def __init__(self, disk: Path) -> None:
        self._disk = disk

    def condition(self) -> Condition:
        batt = _printed("pmset", "-g", "batt")
        return Condition(
            on_battery=mac_texts.on_battery(batt),
            battery_percent=mac_texts.battery_percent(batt),
            low_power=mac_texts.low_power(_printed("pmset", "-g")),
            thermal=mac_texts.thermal(_printed("notifyutil", "-g", "com.apple.system.thermalpressurelevel")),
            memory_pressure=mac_texts.memory_pressure(
                _printed("sysctl", "-n", "kern.memorystatus_vm_pressure_level")
            ),
            user_idle_seconds=mac_texts.idle_seconds(_printed("ioreg", "-c", "IOHIDSystem", "-d", "4")),
            free_disk_bytes=_free_bytes(self._disk),
        )

    def hardware(self) -> Hardware:
        return Hardware(
            chip=_printed("sysctl", "-n", "machdep.cpu.brand_string").strip() or None,
            memory_bytes=psutil.virtual_memory().total,
            gpu_cores=mac_texts.gpu_cores(_printed("ioreg", "-rc", "AGXAccelerator", "-d", "1")),
            os=f"macOS {platform.mac_ver()[0]}".strip(),
        )


class LinuxMachine:
    """Reads `/sys` and `/proc` under `root`."""

    # Below these shares of memory that can still be had, the kernel is about to swap or to kill.
    _MEMORY_LEFT = ((0.03, "critical"), (0.08, "serious"), (0.15, "fair"))

    def __init__(self, disk: Path, root: Path = Path("/")) -> None:
        self._disk = disk
        self._root = root

    def condition(self) -> Condition:
        batteries = self._batteries()
        return Condition(
            # No battery says nothing about the power: `None`, as on a desktop or in a container.
            on_battery=any(_text(each / "status") == "Discharging" for each in batteries)
            if batteries
            else None,
            battery_percent=next(map(_number, (_text(each / "capacity") for each in batteries)), None),
            memory_pressure=self._memory_pressure(),
            free_disk_bytes=_free_bytes(self._disk),
        )

    def hardware(self) -> Hardware:
        model = re.search(r"^model name\s*: (.+)$", _text(self._root / "proc/cpuinfo"), re.MULTILINE)
        release = re.search(r'^PRETTY_NAME="?([^"\n]*)', _text(self._root / "etc/os-release"), re.MULTILINE)
        return Hardware(
            chip=model[1] if model else (platform.machine() or None),
            memory_bytes=psutil.virtual_memory().total,
            gpu_cores=None,
            os=release[1] if release else f"Linux {os.uname().release}",
        )

    def _batteries(self) -> list[Path]:
        """Those that carry the machine, not its mouse."""
        supplies = sorted((self._root / "sys/class/power_supply").glob("*"))
        return [s for s in supplies if _text(s / "type") == "Battery" and _text(s / "scope") != "Device"]

    def _memory_pressure(self) -> str | None:
        facts = dict(re.findall(r"^(\w+):\s+(\d+)", _text(self._root / "proc/meminfo"), re.MULTILINE))
        if "MemAvailable" not in facts or not int(facts.get("MemTotal", 0)):
            return None
        left = int(facts["MemAvailable"]) / int(facts["MemTotal"])
        return next((level for share, level in self._MEMORY_LEFT if left < share), "nominal")


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _printed(*command: str) -> str:
    """What a command prints; nothing where it isn't there, fails or hangs: the fact is then unknown."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
