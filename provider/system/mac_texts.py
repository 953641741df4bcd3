"""What macOS' commands print, read. Pure: text in, facts out; `None` for what a text doesn't tell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

# OSThermalNotification.h, kOSThermalNotificationPressureLevelName: nominal, moderate, heavy, trapping,
# sleeping.
_THERMAL = ("nominal", "fair", "serious", "critical", "critical")
# kern.memorystatus_vm_pressure_level, the dispatch memory-pressure bits: 1 normal, 2 warn, 4 critical.
_MEMORY: Mapping[str, str] = MappingProxyType({"1": "nominal", "2": "serious", "4": "critical"})


def on_battery(batt: str) -> bool | None:
    """From `pmset -g batt`. A UPS that carries the machine is a battery as well."""
    source = re.search(r"drawing from '(\w+) Power'", batt)
    return source[1] in ("Battery", "UPS") if source else None


def battery_percent(batt: str) -> int | None:
    """From `pmset -g batt`; a Mac without a battery tells none."""
    charge = re.search(r"InternalBattery\S*.*?(\d{1,3})%;", batt)
    return int(charge[1]) if charge else None


def low_power(settings: str) -> bool | None:
    """From `pmset -g`. Newer Macs print `powermode` instead: 0 automatic, 1 low, 2 high power."""
    mode = re.search(r"^\s*(?:low)?powermode\s+(\d)", settings, re.MULTILINE)
    return mode[1] == "1" if mode else None


def thermal(notification: str) -> str | None:
    """From `notifyutil -g com.apple.system.thermalpressurelevel`. (`pmset -g therm` tells nothing on Apple
    silicon.)"""
    level = re.search(r"thermalpressurelevel\s+(\d+)\s*$", notification)
    return _THERMAL[min(int(level[1]), len(_THERMAL) - 1)] if level else None


def memory_pressure(level: str) -> str | None:
    """From `sysctl -n kern.memorystatus_vm_pressure_level`."""
    return _MEMORY.get(level.strip())


def idle_seconds(registry: str) -> float | None:
    """Time since the last key or pointer event, from `ioreg -c IOHIDSystem` (nanoseconds)."""
    idle = re.search(r'"HIDIdleTime" = (\d+)', registry)
    return int(idle[1]) / 1e9 if idle else None


def gpu_cores(registry: str) -> int | None:
    """From `ioreg -rc AGXAccelerator`."""
    cores = re.search(r'"gpu-core-count" = (\d+)', registry)
    return int(cores[1]) if cores else None
