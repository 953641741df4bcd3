"""When tokens are handed on: at once by a slow model, a few at a time and never late by a fast one."""

from __future__ import annotations

import itertools

import pytest

from provider.engine.pace import PACE_SECONDS, Pace


def hand_overs(step_seconds: float, seconds: float = 1.0) -> list[float]:
    """When a loop of even steps hands on."""
    pace, now, times = Pace(), 0.0, list[float]()
    while now < seconds:
        began, now = now, now + step_seconds
        if pace.due(began, now):
            pace.handed_on(now)
            times.append(now)
    return times


@pytest.mark.parametrize("step", [PACE_SECONDS, 0.025, 0.5])
def test_a_slow_model_hands_on_each_step(step: float) -> None:
    times = hand_overs(step, 100 * step)
    assert len(times) >= 100


@pytest.mark.parametrize("step", [0.0005, 0.0013, 0.004])
def test_a_fast_one_hands_on_seldom_and_never_late(step: float) -> None:
    times = hand_overs(step)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert max(gaps) <= PACE_SECONDS + 1e-9
    assert len(times) <= 2 / PACE_SECONDS


def test_a_step_that_was_slow_hands_on_what_waited() -> None:
    pace = Pace()
    pace.handed_on(0.0)
    assert not pace.due(0.0, 0.001)
    assert pace.due(0.001, 0.2)
