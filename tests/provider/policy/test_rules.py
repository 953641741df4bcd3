from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provider.policy.rules import RULES, Facts, Level, PauseReason, Policy, SteadyDecision, decide
from provider.policy.schedule import parse_window

# A Monday, 12:00 UTC.
NOON = 1780315200.0
GOOD = Facts(
    now=NOON,
    on_battery=False,
    low_power=False,
    thermal=Level.NOMINAL,
    memory_pressure=Level.NOMINAL,
    user_idle_seconds=1000,
    free_disk_bytes=10**12,
)


@pytest.mark.parametrize(
    ("policy", "facts", "reason"),
    [
        ({}, {"paused_by_owner": True}, PauseReason.BY_OWNER),
        ({"windows": (parse_window("Daily 22:00-07:00"),)}, {}, PauseReason.OUTSIDE_SCHEDULE),
        ({}, {"on_battery": True}, PauseReason.ON_BATTERY),
        ({"serve_on_battery": True}, {"on_battery": True}, None),
        ({}, {"low_power": True}, PauseReason.LOW_POWER),
        ({"serve_in_low_power": True}, {"low_power": True}, None),
        ({}, {"thermal": Level.FAIR}, None),
        ({}, {"thermal": Level.SERIOUS}, PauseReason.HOT),
        ({}, {"thermal": Level.CRITICAL}, PauseReason.HOT),
        ({"thermal_limit": Level.FAIR}, {"thermal": Level.FAIR}, PauseReason.HOT),
        ({"thermal_limit": None}, {"thermal": Level.CRITICAL}, None),
        ({}, {"memory_pressure": Level.SERIOUS}, None),
        ({}, {"memory_pressure": Level.CRITICAL}, PauseReason.MEMORY),
        ({}, {"user_idle_seconds": 0}, None),
        ({"user_idle_seconds": 300}, {"user_idle_seconds": 299}, PauseReason.USER_ACTIVE),
        ({"user_idle_seconds": 300}, {"user_idle_seconds": 300}, None),
        ({}, {"free_disk_bytes": 999_999_999}, PauseReason.DISK),
        ({"free_disk_bytes": None}, {"free_disk_bytes": 0}, None),
    ],
)
def test_each_rule(policy: dict[str, Any], facts: dict[str, Any], reason: PauseReason | None) -> None:
    decision = decide(Policy(**policy), replace(GOOD, **facts))
    assert decision.reasons == ((reason,) if reason else ())
    assert decision.paused is (reason is not None)


def test_every_reason_has_its_rule() -> None:
    assert list(RULES) == list(PauseReason)


def test_what_a_system_does_not_tell_pauses_nothing() -> None:
    assert not decide(Policy(user_idle_seconds=300), Facts(now=NOON)).paused


def test_several_reasons_are_all_told() -> None:
    facts = replace(GOOD, on_battery=True, thermal=Level.CRITICAL, paused_by_owner=True)
    assert decide(Policy(), facts).reasons == (PauseReason.BY_OWNER, PauseReason.ON_BATTERY, PauseReason.HOT)


def test_the_schedules_next_change_is_told() -> None:
    decision = decide(Policy(windows=(parse_window("Daily 22:00-07:00"),)), GOOD)
    assert decision.changes_at == NOON + 10 * 3600


def test_a_pause_is_at_once_and_serving_again_waits_for_steady_facts() -> None:
    steady, hot = SteadyDecision(), replace(GOOD, thermal=Level.SERIOUS)
    assert not steady.update(Policy(), GOOD).paused
    assert steady.update(Policy(), replace(hot, now=NOON + 1)).reasons == (PauseReason.HOT,)
    assert steady.update(Policy(), replace(GOOD, now=NOON + 30)).paused
    assert steady.update(Policy(), replace(hot, now=NOON + 30.5)).paused
    assert steady.update(Policy(), replace(GOOD, now=NOON + 60)).paused
    assert not steady.update(Policy(), replace(GOOD, now=NOON + 60.5)).paused


def test_the_owners_word_and_the_clock_need_no_waiting() -> None:
    steady, policy = SteadyDecision(), Policy(windows=(parse_window("Daily 12:00-13:00"),))
    assert steady.update(policy, replace(GOOD, now=NOON - 1)).reasons == (PauseReason.OUTSIDE_SCHEDULE,)
    assert not steady.update(policy, GOOD).paused
    assert steady.update(policy, replace(GOOD, paused_by_owner=True)).paused
    assert not steady.update(policy, replace(GOOD, now=NOON + 1)).paused


def test_a_clock_that_is_set_back_does_not_hold_a_pause() -> None:
    steady = SteadyDecision()
    assert steady.update(Policy(), replace(GOOD, thermal=Level.SERIOUS)).paused
    assert not steady.update(Policy(), replace(GOOD, now=NOON - 7200)).paused
