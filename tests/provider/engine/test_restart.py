"""When a dead child is started again, on a clock of numbers."""

from __future__ import annotations

import pytest

from provider.engine.restart import FIRST_DELAY, LAST_DELAY, LOOP_DEATHS, RestartPolicy


def deaths(policy: RestartPolicy, count: int, *, serving: float | None, start: float = 0.0) -> list[float]:
    """The delays after that many deaths in a row; `serving`: seconds each child served, `None`: never."""
    now, delays = start, []
    for _ in range(count):
        if serving is not None:
            policy.born(now)
            now += serving
        delays.append(policy.died(now))
        now += delays[-1]
    return delays


def test_quickly_first_then_slower_then_once_a_minute() -> None:
    delays = deaths(RestartPolicy(), 8, serving=0.5)
    assert delays[0] == FIRST_DELAY
    assert delays[:4] == sorted(delays[:4])
    assert delays[LOOP_DEATHS - 1 :] == [LAST_DELAY] * 4


def test_one_that_never_gets_to_serve_is_never_forgiven() -> None:
    policy = RestartPolicy()
    policy.born(0.0)
    delays = deaths(policy, 8, serving=None, start=1000.0)
    assert delays[0] == FIRST_DELAY
    assert delays[-1] == LAST_DELAY


@pytest.mark.parametrize("serving", [20.0, 3600.0])
def test_one_that_served_for_a_while_is_back_at_once(serving: float) -> None:
    assert deaths(RestartPolicy(), 10, serving=serving) == [FIRST_DELAY] * 10


def test_a_crash_loop_ends_with_a_child_that_serves_on() -> None:
    policy = RestartPolicy()
    deaths(policy, 6, serving=0.5)
    assert policy.crash_loop(3.0)
    policy.born(1000.0)
    assert policy.died(1000.0 + 20 * LAST_DELAY) == FIRST_DELAY
    assert not policy.crash_loop(1000.0 + 20 * LAST_DELAY)
