"""Facts of the machine: macOS by stand-ins that print what the real commands print, Linux by files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from provider.system.facts import Condition, LinuxMachine, Mac, this_machine

FAKES = Path(__file__).parents[2] / "fakes" / "macos"

# What a MacBook and its IO registry print; where each text was seen is told in test_mac_texts.
ON_BATTERY = (
    "Now drawing from 'Battery Power'\n"
    " -InternalBattery-0 (id=5374051)\t95%; discharging; 3:06 remaining present: true"
)
SETTINGS = "System-wide power settings:\nCurrently in use:\n standby              1\n lowpowermode         {}"
HEAT = "com.apple.system.thermalpressurelevel"
IDLE = '+-o IOHIDSystem  <class IOHIDSystem>\n    {\n      "HIDIdleTime" = 7500000000\n    }'
GPU = '+-o AGXAcceleratorG16G  <class AGXAcceleratorG16G>\n    {\n      "gpu-core-count" = 10\n    }'


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(FAKES), prepend=":")
    monkeypatch.setenv("FAKE_PYTHON", sys.executable)
    monkeypatch.setenv("FAKE_MAC", str(tmp_path / "answers.json"))
    (tmp_path / "answers.json").write_text("{}")
    return tmp_path / "answers.json"


def test_a_macbook_under_strain(answers: Path, tmp_path: Path) -> None:
    answers.write_text(
        json.dumps(
            {
                "pmset -g batt": ON_BATTERY,
                "pmset -g": SETTINGS.format(1),
                f"notifyutil -g {HEAT}": f"{HEAT} 2",
                "sysctl -n kern.memorystatus_vm_pressure_level": "4",
                "ioreg -c IOHIDSystem -d 4": IDLE,
                "sysctl -n machdep.cpu.brand_string": "Apple M2",
                "ioreg -rc AGXAccelerator -d 1": GPU,
            }
        )
    )
    condition = Mac(tmp_path).condition()
    assert (condition.on_battery, condition.battery_percent, condition.low_power) == (True, 95, True)
    assert (condition.thermal, condition.memory_pressure) == ("serious", "critical")
    assert condition.user_idle_seconds == 7.5
    assert condition.free_disk_bytes
    hardware = Mac(tmp_path).hardware()
    assert (hardware.chip, hardware.gpu_cores) == ("Apple M2", 10)
    assert hardware.memory_bytes > 0


def test_a_desktop_mac_at_ease(answers: Path, tmp_path: Path) -> None:
    answers.write_text(
        json.dumps({"pmset -g batt": "Now drawing from 'AC Power'", "pmset -g": SETTINGS.format(0)})
    )
    condition = Mac(tmp_path).condition()
    assert (condition.on_battery, condition.low_power) == (False, False)


def test_what_a_mac_does_not_tell_is_unknown(answers: Path, tmp_path: Path) -> None:
    condition = Mac(tmp_path / "not" / "there").condition()
    assert condition.free_disk_bytes
    assert condition == Condition(free_disk_bytes=condition.free_disk_bytes)
    assert Mac(tmp_path).hardware().chip is None


def linux(root: Path, **files: str) -> LinuxMachine:
    for name, text in files.items():
        file = root / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return LinuxMachine(root, root)


def battery(root: Path, status: str) -> LinuxMachine:
    return linux(
        root,
        sys__class__power_supply__AC__type="Mains\n",
        sys__class__power_supply__BAT0__type="Battery\n",
        sys__class__power_supply__BAT0__status=f"{status}\n",
        sys__class__power_supply__BAT0__capacity="86\n",
        # A wireless mouse is a battery too, and says nothing about this machine.
        sys__class__power_supply__mouse__type="Battery\n",
        sys__class__power_supply__mouse__scope="Device\n",
        sys__class__power_supply__mouse__status="Discharging\n",
    )


def test_a_laptop_with_linux(tmp_path: Path) -> None:
    condition = battery(tmp_path, "Discharging").condition()
    assert (condition.on_battery, condition.battery_percent) == (True, 86)
    assert battery(tmp_path, "Charging").condition().on_battery is False


def test_a_linux_machine_without_a_battery(tmp_path: Path) -> None:
    assert linux(tmp_path).condition().on_battery is None


@pytest.mark.parametrize(
    ("available", "level"), [(500, "nominal"), (100, "fair"), (50, "serious"), (10, "critical")]
)
def test_linux_memory(tmp_path: Path, available: int, level: str) -> None:
    text = f"MemTotal:       1000 kB\nMemFree:          1 kB\nMemAvailable:   {available} kB\n"
    assert linux(tmp_path, proc__meminfo=text).condition().memory_pressure == level


def test_linux_hardware(tmp_path: Path) -> None:
    machine = linux(
        tmp_path,
        proc__cpuinfo="processor\t: 0\nmodel name\t: AMD EPYC 9B45\n",
        **{"etc__os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12"\n'},
    )
    hardware = machine.hardware()
    assert (hardware.chip, hardware.os) == ("AMD EPYC 9B45", "Debian GNU/Linux 12")


def test_this_machine_tells_something(tmp_path: Path) -> None:
    machine = this_machine(tmp_path)
    assert machine.condition().free_disk_bytes
    assert machine.hardware().memory_bytes > 0
