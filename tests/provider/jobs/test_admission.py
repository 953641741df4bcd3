"""Slots are promised once and given back once; every other answer says why and when to ask again."""

from __future__ import annotations

import pytest

from gateway_protocol.messages import ModelState, ProviderState
from provider.jobs.admission import Admission, Readiness

READY = Readiness(ready=True, slots_total=2, model=ModelState.READY)


def test_slots_then_the_queue_then_no_more() -> None:
    admission = Admission(queue_length=1)
    assert [admission.consider(job, READY) for job in "abc"] == [None] * 3
    refusal = admission.consider("d", READY)
    assert refusal is not None
    assert (refusal.code.value, refusal.http_status, refusal.retryable) == ("provider_overloaded", 503, True)
    assert refusal.retry_after_ms
    admission.release("a")
    admission.release("a")
    assert admission.promised == 2
    assert admission.consider("d", READY) is None


@pytest.mark.parametrize("state", [ModelState.READY, ModelState.UNLOADED, ModelState.LOADING])
def test_a_model_that_can_be_loaded_is_taken(state: ModelState) -> None:
    assert Admission(queue_length=0).consider("a", Readiness(True, 1, state)) is None


@pytest.mark.parametrize(
    "readiness",
    [
        Readiness(False, 1, ModelState.READY),
        Readiness(True, 1, ModelState.FAILED),
        Readiness(True, 1, None),
        Readiness(True, 0, ModelState.READY),
    ],
)
def test_an_engine_that_is_not_ready(readiness: Readiness) -> None:
    admission = Admission(queue_length=0)
    refusal = admission.consider("a", readiness)
    assert refusal is not None
    assert refusal.code.value == "provider_overloaded"
    assert admission.promised == 0


def test_draining_and_paused_take_nothing() -> None:
    admission = Admission(queue_length=5)
    admission.paused = "on battery"
    assert admission.consider("a", READY) is not None
    admission.paused = None
    admission.draining = True
    assert admission.consider("a", READY) is not None
    assert admission.promised == 0


def test_what_a_heartbeat_says() -> None:
    admission = Admission(queue_length=5)
    assert admission.state(ready=True, slots_free=1) is ProviderState.READY
    assert admission.state(ready=True, slots_free=0) is ProviderState.BUSY
    assert admission.state(ready=False, slots_free=1) is ProviderState.DEGRADED
    admission.paused = "low power"
    assert admission.state(ready=False, slots_free=1) is ProviderState.PAUSED
    admission.draining = True
    assert admission.state(ready=False, slots_free=1) is ProviderState.DRAINING
