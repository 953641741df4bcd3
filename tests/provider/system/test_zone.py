from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import TZPATH

from provider.system.zone import local_zone

ZONES = next(Path(folder) for folder in TZPATH if (Path(folder) / "Europe" / "Berlin").is_file())


def test_a_zone_has_its_summer_time() -> None:
    for zone in (local_zone({"TZ": ":Europe/Berlin"}), local_zone({}, ZONES / "Europe" / "Berlin")):
        assert datetime(2026, 1, 1, tzinfo=zone).utcoffset() == timedelta(hours=1)
        assert datetime(2026, 7, 1, tzinfo=zone).utcoffset() == timedelta(hours=2)


def test_a_machine_without_a_zone_is_in_utc(tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("no zone")
    assert local_zone({}, tmp_path / "none") is UTC
    assert local_zone({}, tmp_path / "broken") is UTC
    assert local_zone({"TZ": "Nowhere/Land"}, tmp_path / "none") is UTC
