"""Backoff: growing windows with jitter, reset only after a life, and what each ending asks for."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_protocol.messages import CloseCode, Refused, RefusedCode
from provider.link.backoff import (
    Backoff,
    Verdict,
    verdict_for_close,
    verdict_for_http,
    verdict_for_refusal,
)


def test_windows_grow_from_one_second_to_a_minute() -> None:
    low = Backoff(lambda: 0.0)
    high = Backoff(lambda: 0.999999)
    assert [low.next_delay_ms() for _ in range(8)] == [1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000]
    tops = [high.next_delay_ms() for _ in range(8)]
    assert all(
        low_top <= top < low_top + 1
        for low_top, top in zip([1999, 3999, 7999, 15999, 31999, 59999, 59999, 59999], tops, strict=True)
    )


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_every_delay_is_within_the_bounds(seed: int, tries: int) -> None:
    backoff = Backoff(random.Random(seed).random)
    assert all(1000 <= backoff.next_delay_ms() <= 60_000 for _ in range(tries))


def test_a_link_that_is_accepted_and_closed_does_not_reset() -> None:
    backoff = Backoff(lambda: 0.0)
    for _ in range(5):
        backoff.next_delay_ms()
        backoff.ended(29_999)
        backoff.ended(None)
    assert backoff.next_delay_ms() == 30_000


def test_thirty_seconds_of_life_reset() -> None:
    backoff = Backoff(lambda: 0.0)
    for _ in range(5):
        backoff.next_delay_ms()
    backoff.ended(30_000)
    assert backoff.next_delay_ms() == 1_000
    assert backoff.next_delay_ms() == 2_000
    backoff.reset()
    assert backoff.next_delay_ms() == 1_000


def test_at_least_keeps_the_jitter() -> None:
    assert Backoff(lambda: 0.0).next_delay_ms(at_least_ms=60_000) == 60_000
    assert Backoff(lambda: 0.5).next_delay_ms(at_least_ms=60_000) == 60_500


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (1000, Verdict.RETRY),
        (1001, Verdict.RETRY),
        (1006, Verdict.RETRY),
        (1011, Verdict.RETRY),
        (1012, Verdict.RETRY),
        (1008, Verdict.WAIT),
        (1009, Verdict.WAIT),
        (CloseCode.TOO_MANY, Verdict.WAIT),
        (CloseCode.MALFORMED, Verdict.STOP),
        (CloseCode.REFUSED, Verdict.STOP),
        (CloseCode.VERSION, Verdict.STOP),
        (CloseCode.REPLACED, Verdict.STOP),
        (4999, Verdict.RETRY),
    ],
)
def test_close_codes(code: int, verdict: Verdict) -> None:
    assert verdict_for_close(code) is verdict


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (401, Verdict.STOP),
        (403, Verdict.STOP),
        (302, Verdict.WAIT),
        (404, Verdict.WAIT),
        (429, Verdict.WAIT),
        (502, Verdict.RETRY),
    ],
)
def test_refused_upgrades(status: int, verdict: Verdict) -> None:
    assert verdict_for_http(status) is verdict


def test_refusals() -> None:
    def verdict(code: RefusedCode, retry_after_ms: int | None) -> Verdict:
        return verdict_for_refusal(Refused(code=code, message="m", retry_after_ms=retry_after_ms))

    assert verdict(RefusedCode.KEY_MISMATCH, None) is Verdict.STOP
    assert verdict(RefusedCode.BELOW_MINIMUM_VERSION, None) is Verdict.STOP
    assert verdict(RefusedCode.KEY_MISMATCH, 5_000) is Verdict.RETRY
    assert verdict(RefusedCode.TOO_MANY, None) is Verdict.WAIT
    assert verdict(RefusedCode.NONCE_REUSED, None) is Verdict.RETRY
