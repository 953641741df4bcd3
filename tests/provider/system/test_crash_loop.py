from __future__ import annotations

from pathlib import Path

import pytest

from provider.system.crash_loop import CRASHES, REST_SECONDS, WITHIN_SECONDS, CrashLoopGuard, rest_until

NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("ages", "rests"),
    [
        ([], False),
        ([1] * (CRASHES - 1), False),
        ([1] * CRASHES, True),
        ([WITHIN_SECONDS + 1] * 100, False),
        ([WITHIN_SECONDS - 1] * CRASHES, True),
        ([-1000] * 100, False),
    ],
)
def test_five_crashes_in_ten_minutes_are_too_many(ages: list[float], rests: bool) -> None:
    expected = NOW + REST_SECONDS if rests else None
    assert rest_until([NOW - age for age in ages], NOW) == expected


def test_a_crashing_daemon_rests_and_then_gets_a_new_chance(tmp_path: Path) -> None:
    guard = CrashLoopGuard(tmp_path / "starts.json")
    assert [guard.begin(NOW + 10 * i) for i in range(CRASHES)] == [None] * CRASHES
    resumes = guard.begin(NOW + 60)
    assert resumes == NOW + 60 + REST_SECONDS
    assert guard.begin(resumes) is None


def test_a_clean_end_is_forgotten(tmp_path: Path) -> None:
    guard = CrashLoopGuard(tmp_path / "starts.json")
    for i in range(100):
        assert guard.begin(NOW + i) is None
        guard.end()
    guard.end()


@pytest.mark.parametrize("text", ["{oops", "", "null", "7", '{"a": 1}', '["soon"]'])
def test_a_broken_file_is_no_history(tmp_path: Path, text: str) -> None:
    (tmp_path / "starts.json").write_text(text)
    assert CrashLoopGuard(tmp_path / "starts.json").begin(NOW) is None


def test_a_file_that_cannot_be_written_stops_no_start(tmp_path: Path) -> None:
    (tmp_path / "starts.json").mkdir()
    assert CrashLoopGuard(tmp_path / "starts.json").begin(NOW) is None
