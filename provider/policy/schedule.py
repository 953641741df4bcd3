"""When the owner wants this machine to serve: windows of local time, such as "Mon-Fri 22:00-07:00".

A window belongs to the day it opens on and may end on the next. `24:00` is the end of a day. Times are the
clock on the wall: a window's two ends are turned into instants by the zone's own rules, each once, so that an
hour that the clock repeats in autumn neither opens a window a second time nor doubles it, and one that spring
skips opens it an hour later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WINDOW = re.compile(r"\s*([A-Za-z,\s-]+?)\s+(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})\s*")
_MINUTES_A_DAY = 24 * 60
_HORIZON_SECONDS = 8 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Window:
    """`days`: 0 is Monday. `start`, `end`: minutes after midnight; `end` ≤ `start` is on the next day."""

    days: frozenset[int]
    start: int
    end: int


def parse_window(text: str) -> Window:
    """Read one window. Raises `ValueError` saying what is wrong with it."""
    match = _WINDOW.fullmatch(text)
    if match is None:
        raise ValueError(
            f'{text!r} is not a window; write it as "Mon-Fri 22:00-07:00" or "Sat,Sun 00:00-24:00"'
        )
    start = _minutes(text, int(match[2]), int(match[3]))
    end = _minutes(text, int(match[4]), int(match[5]))
    if start == _MINUTES_A_DAY:
        raise ValueError(f"{text!r}: a window can't open at 24:00; write 00:00 of the next day")
    if start == end:
        raise ValueError(f"{text!r} opens and closes at the same time; for a whole day write 00:00-24:00")
    return Window(frozenset(_days(text, match[1])), start, end)


def _minutes(text: str, hour: int, minute: int) -> int:
    if minute > 59 or hour * 60 + minute > _MINUTES_A_DAY:
        raise ValueError(f"{text!r}: {hour:02}:{minute:02} is no time of day")
    return hour * 60 + minute


def _days(text: str, names: str) -> Iterator[int]:
    for part in names.split(","):
        first, dash, last = (word.strip().lower()[:3] for word in part.partition("-"))
        if first == "dai" and not dash:
            yield from range(7)
            continue
        if first not in DAYS or (dash and last not in DAYS):
            raise ValueError(f"{text!r}: {part.strip()!r} is no day; use Mon to Sun, or Daily")
        begin, end = DAYS.index(first), DAYS.index(last if dash else first)
        yield from ((begin + step) % 7 for step in range((end - begin) % 7 + 1))


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """`changes_at`: epoch seconds of the next opening or closing, `None` when there will be none."""

    open: bool
    changes_at: float | None


def schedule_state(windows: Iterable[Window], now: float, zone: tzinfo) -> ScheduleState:
    """Whether a window is open at `now` (epoch seconds) and when that changes. No windows: always open."""
    windows = tuple(windows)
    if not windows:
        return ScheduleState(True, None)
    today = datetime.fromtimestamp(now, zone).date()
    # Yesterday's may still be open; ten days ahead hold every window of a week whole. An edge past the eighth
    # could be one where a window that isn't looked at goes on.
    days = [today + timedelta(days=offset) for offset in range(-1, 10)]
    spans = [span for day in days for window in windows for span in _span(window, day, zone)]
    opened = _is_open(spans, now)
    edges = sorted({edge for span in spans for edge in span if now < edge <= now + _HORIZON_SECONDS})
    # Where two windows touch or overlap, an edge is no change.
    return ScheduleState(opened, next((edge for edge in edges if _is_open(spans, edge) != opened), None))


def _is_open(spans: list[tuple[float, float]], instant: float) -> bool:
    return any(start <= instant < end for start, end in spans)


def _span(window: Window, day: date, zone: tzinfo) -> Iterator[tuple[float, float]]:
    if day.weekday() not in window.days:
        return
    overnight = window.end <= window.start
    start = _instant(day, window.start, zone)
    end = _instant(day + timedelta(days=int(overnight)), window.end, zone)
    if start < end:
        yield start, end


def _instant(day: date, minutes: int, zone: tzinfo) -> float:
    if minutes == _MINUTES_A_DAY:
        day, minutes = day + timedelta(days=1), 0
    return datetime.combine(day, time(minutes // 60, minutes % 60), zone).timestamp()
