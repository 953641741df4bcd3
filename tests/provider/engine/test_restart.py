"""When a dead child is started again, on a clock of numbers."""

from __future__ import annotations

from provider.engine.restart import FIRST_DELAY, FORGIVEN_AFTER, LAST_DELAY, RestartPolicy


def test_quickly_first_then_slower_then_once_a_minute() -> None:
    policy = RestartPolicy()
    now = 0.0
    delays = []
    for _ in range(7):
        policy.born(now)
        now += 1
        delays.append(policy.died(now))
    assert delays[0] == FIRST_DELAY
    assert delays[:4] == sorted(delays[:4])
    assert delays[4:] == [LAST_DELAY] * 3
    assert policy.crash_loop(now)


def test_a_child_that_lived_for_a_while_is_forgiven() -> None:
    policy = RestartPolicy()
    for start in range(4):
        policy.born(float(start))
        policy.died(start + 0.5)
    policy.born(100.0)
    assert policy.died(100.0 + FORGIVEN_AFTER) == FIRST_DELAY
    assert not policy.crash_loop(100.0 + FORGIVEN_AFTER)


def test_one_that_never_gets_to_serve_is_never_forgiven() -> None:
    policy = RestartPolicy()
    policy.born(0.0)
    now = 1000.0
    delays = []
    for _ in range(8):
        delays.append(policy.died(now))
        now += delays[-1] + 0.5
    assert delays[0] == FIRST_DELAY
    assert delays[-1] == LAST_DELAY


def test_deaths_far_apart_are_no_crash_loop() -> None:
    policy = RestartPolicy()
    for start in range(0, 10_000, 400):
        policy.born(float(start))
        assert policy.died(start + 30.0) <= LAST_DELAY
        assert not policy.crash_loop(start + 30.0)
