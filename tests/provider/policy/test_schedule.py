from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider.policy.schedule import Window, parse_window, schedule_state

BERLIN = ZoneInfo("Europe/Berlin")
ALL = frozenset(range(7))


def at(text: str, zone: ZoneInfo = BERLIN, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


def is_open(window: str, text: str, fold: int = 0) -> bool:
    return schedule_state([parse_window(window)], at(text, fold=fold), BERLIN).open


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("Mon-Fri 22:00-07:00", Window(frozenset(range(5)), 22 * 60, 7 * 60)),
        ("sat,SUN 0:00-24:00", Window(frozenset({5, 6}), 0, 1440)),
        ("Fri-Mon 09:30-17:15", Window(frozenset({4, 5, 6, 0}), 570, 1035)),
        ("Daily 01:00-02:00", Window(ALL, 60, 120)),
        ("Monday, Wednesday 01:00 - 02:00", Window(frozenset({0, 2}), 60, 120)),
    ],
)
def test_windows_are_read(text: str, window: Window) -> None:
    assert parse_window(text) == window


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("22:00-07:00", "is not a window"),
        ("Mon 22-07", "is not a window"),
        ("", "is not a window"),
        ("Mox 22:00-07:00", "'Mox' is no day"),
        ("Mon-Xyz 22:00-07:00", "is no day"),
        ("Mon 25:00-07:00", "25:00 is no time of day"),
        ("Mon 22:60-07:00", "22:60 is no time of day"),
        ("Mon 24:00-07:00", "can't open at 24:00"),
        ("Mon 07:00-07:00", "opens and closes at the same time"),
    ],
)
def test_what_is_no_window_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_window(text)


def test_no_windows_is_always_open() -> None:
    state = schedule_state([], at("2026-06-01T12:00"), BERLIN)
    assert (state.open, state.changes_at) == (True, None)


# 2026-06-05 is a Friday.
@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("2026-06-05T21:59:59", False),
        ("2026-06-05T22:00", True),
        ("2026-06-06T06:59:59", True),
        ("2026-06-06T07:00", False),
        ("2026-06-06T22:00", False),
        ("2026-06-08T06:00", False),
        ("2026-06-08T22:00", True),
    ],
)
def test_an_overnight_window_belongs_to_the_day_it_opens_on(when: str, expected: bool) -> None:
    assert is_open("Mon-Fri 22:00-07:00", when) is expected


def test_the_next_change_is_told() -> None:
    windows = [parse_window("Mon-Fri 22:00-07:00")]
    assert schedule_state(windows, at("2026-06-05T12:00"), BERLIN).changes_at == at("2026-06-05T22:00")
    assert schedule_state(windows, at("2026-06-05T23:00"), BERLIN).changes_at == at("2026-06-06T07:00")
    assert schedule_state(windows, at("2026-06-06T08:00"), BERLIN).changes_at == at("2026-06-08T22:00")


def test_windows_that_touch_are_one() -> None:
    windows = [parse_window("Daily 08:00-12:00"), parse_window("Daily 12:00-14:00")]
    assert schedule_state(windows, at("2026-06-05T09:00"), BERLIN).changes_at == at("2026-06-05T14:00")
    always = [parse_window("Daily 00:00-24:00")]
    state = schedule_state(always, at("2026-06-05T09:00"), BERLIN)
    assert (state.open, state.changes_at) == (True, None)


def test_in_spring_a_window_that_opens_in_the_skipped_hour_opens_after_it() -> None:
    # 2026-03-29: the clock goes from 02:00 to 03:00.
    assert not is_open("Daily 02:30-05:00", "2026-03-29T01:59")
    assert is_open("Daily 02:30-05:00", "2026-03-29T03:30")
    assert is_open("Daily 22:00-07:00", "2026-03-29T06:59")
    state = schedule_state([parse_window("Daily 22:00-07:00")], at("2026-03-28T22:00"), BERLIN)
    assert state.changes_at == at("2026-03-28T22:00") + 8 * 3600


def test_in_autumn_the_repeated_hour_opens_nothing_twice() -> None:
    # 2026-10-25: the clock goes from 03:00 back to 02:00.
    window = "Daily 22:00-02:30"
    assert is_open(window, "2026-10-25T02:29", fold=0)
    assert not is_open(window, "2026-10-25T02:45", fold=0)
    assert not is_open(window, "2026-10-25T02:15", fold=1)
    state = schedule_state([parse_window("Daily 22:00-07:00")], at("2026-10-24T22:00"), BERLIN)
    assert state.changes_at == at("2026-10-24T22:00") + 10 * 3600


@given(
    st.lists(
        st.builds(
            Window, st.frozensets(st.integers(0, 6), min_size=1), st.integers(0, 1439), st.integers(0, 1440)
        ),
        min_size=1,
        max_size=4,
    ).filter(lambda windows: all(window.start != window.end for window in windows)),
    st.integers(0, 14 * 24 * 60),
    st.sampled_from(["2026-03-20T00:00", "2026-06-01T00:00", "2026-10-18T00:00"]),
)
def test_the_state_holds_until_it_is_said_to_change(windows: list[Window], minutes: int, start: str) -> None:
    now = (datetime.fromisoformat(start).replace(tzinfo=UTC) + timedelta(minutes=minutes)).timestamp()
    state = schedule_state(windows, now, BERLIN)
    if state.changes_at is not None:
        assert state.changes_at > now
        middle = (now + state.changes_at) / 2
        assert schedule_state(windows, middle, BERLIN).open is state.open
        assert schedule_state(windows, state.changes_at, BERLIN).open is not state.open
