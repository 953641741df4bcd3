"""The time zone of this machine, with its rules for summer time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

LOCALTIME = Path("/etc/localtime")


def local_zone(environment: Mapping[str, str] = os.environ, localtime: Path = LOCALTIME) -> tzinfo:
    """`TZ` if it names a zone, else the system's zone; UTC on a machine that has none (tzset(3))."""
    named = environment.get("TZ", "").removeprefix(":")
    try:
        if named:
            return ZoneInfo(named)
        with localtime.open("rb") as file:
            return ZoneInfo.from_file(file)
    except (OSError, ValueError, ZoneInfoNotFoundError):
        return UTC
