"""One line that tells the truth, and a reason for each layer."""

from __future__ import annotations

from typing import Any

import pytest

from gateway_protocol.messages import NotRoutableReason
from provider.status.health import NOT_ROUTABLE_WORDS, LayerState, health, layers, summary
from tests.provider.status.documents import document

NOTHING: dict[str, Any] = {
    "engine": None,
    "link": None,
    "jobs": None,
    "counters": None,
    "policy": None,
    "machine": None,
    "reports": None,
    "models": [],
}


def paused(*reasons: str, until: float | None = None) -> dict[str, Any]:
    pauses = [{"reason": reason, "words": f"words of {reason}", "until": until} for reason in reasons]
    return {"policy": {"paused": True, "pauses": pauses}}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "ready: routable, 2 of 4 slots free, 2 running, 0 waiting, 43.2 tokens/s"),
        (
            {"link__routable": False, "link__reasons": ["no_free_slot"], "engine__slots_free": 0},
            "busy, 0 of 4 slots free, 2 running, 0 waiting, 43.2 tokens/s",
        ),
        (
            {"link__routable": False, "link__reasons": ["model_not_in_demand"]},
            "connected but gets no jobs: nobody has asked for its models lately (model_not_in_demand)",
        ),
        (
            {"link__routable": False, "link__reasons": ["no_free_slot", "failed_recent_jobs"]},
            "connected but gets no jobs: all its slots are taken (no_free_slot); its last jobs failed;"
            " see `malibu-provider logs`, it is tried again soon (failed_recent_jobs)",
        ),
        (
            {"link__routable": False},
            "connected but gets no jobs: waiting for the gateway's first word",
        ),
        (
            {
                "link": {"stage": "waiting", "connected": False, "registered": False, "routable": False},
                "link__last_error": "unreachable: refused",
                "link__reconnect_in_s": 12.4,
            },
            "not connected: unreachable: refused; next try of wss://gateway.example/v1/provider in 12 s",
        ),
        (
            {
                "link": {"stage": "stopped", "connected": False, "registered": False, "routable": False},
                "link__last_error": "close_4003: token refused",
            },
            "not connected: close_4003: token refused; no further try until something changes here",
        ),
        (
            {"link": {"stage": "dialling", "connected": False, "registered": False, "routable": False}},
            "not connected: dialling wss://gateway.example/v1/provider",
        ),
        (
            {"link": {"stage": "registering", "registered": False, "routable": False}},
            "not connected: registering",
        ),
        (
            {"engine": {"ready": False, "reason": "loading the model"}, "models": []},
            "starting: engine: loading the model",
        ),
        (
            {"engine": {"ready": False, "reason": "it died; restarting", "restarts": 2}},
            "not serving: engine: it died; restarting",
        ),
        ({"models": [{"id": "m", "state": "failed"}]}, "not serving: model: m failed"),
        (paused("on_battery", "thermal_pressure"), "paused: words of on_battery; words of thermal_pressure"),
        (
            {**paused("outside_schedule"), "engine": {"ready": False, "parked": True, "reason": "paused"}},
            "paused: words of outside_schedule",
        ),
        (
            {"engine": {"ready": False, "parked": True, "reason": "unloaded while paused"}},
            "starting: engine: the pause is over, it comes back",
        ),
        ({"process__state": "draining"}, "draining: 2 running, 0 waiting"),
        ({**NOTHING, "process__state": "starting"}, "starting: engine: not started"),
        (
            {**NOTHING, "process": {"state": "idle", "reason": "gateway.url: must be a ws:// or wss:// URL"}},
            "not serving: gateway.url: must be a ws:// or wss:// URL",
        ),
    ],
)
def test_the_summary_tells_the_truth(changes: dict[str, Any], line: str) -> None:
    assert summary(document(**changes)) == line


def test_ready_is_never_said_without_the_gateways_word() -> None:
    for reason in NotRoutableReason:
        line = summary(document(link__routable=False, link__reasons=[reason.value]))
        assert not line.startswith("ready")


def test_every_code_of_the_gateway_has_words() -> None:
    assert set(NOT_ROUTABLE_WORDS) == {reason.value for reason in NotRoutableReason}


def states(**changes: Any) -> dict[str, str]:
    return {layer.id: layer.state.value for layer in layers(document(**changes))}


def test_the_layers_in_order() -> None:
    assert states() == dict.fromkeys(
        (
            "process",
            "engine",
            "model",
            "link",
            "registered",
            "routable",
            "jobs",
            "today",
            "throughput",
            "memory",
            "power",
        ),
        "ok",
    )


@pytest.mark.parametrize(
    ("changes", "layer", "state"),
    [
        ({"engine": {"ready": False, "parked": True}}, "engine", LayerState.STARTING),
        ({"engine": {"ready": False, "parked": True}, **paused("x")}, "engine", LayerState.PAUSED),
        ({"engine": {"ready": False, "parked": True}}, "model", LayerState.PAUSED),
        ({"models": [{"id": "m", "state": "loading"}]}, "model", LayerState.STARTING),
        ({"models": [{"id": "m", "state": "unloaded"}]}, "model", LayerState.OK),
        ({"models": [{"id": "m", "state": None}]}, "model", LayerState.FAILING),
        ({"link__routable": False, "link__reasons": ["paused_by_policy"]}, "routable", LayerState.PAUSED),
        ({"link__routable": False, "link__reasons": ["degraded"]}, "routable", LayerState.FAILING),
        ({"link": None}, "registered", LayerState.UNKNOWN),
        ({"machine__memory_pressure": "critical"}, "memory", LayerState.FAILING),
        ({"machine": None, "engine": None}, "memory", LayerState.UNKNOWN),
        ({"machine__on_battery": None}, "power", LayerState.UNKNOWN),
        ({"machine": {"on_battery": True}, **paused("on_battery")}, "power", LayerState.PAUSED),
        ({"machine": {"on_battery": True}}, "power", LayerState.OK),
        (NOTHING, "link", LayerState.UNKNOWN),
    ],
)
def test_the_state_of_a_layer(changes: dict[str, Any], layer: str, state: LayerState) -> None:
    assert states(**changes)[layer] == state


def test_each_layer_has_a_reason() -> None:
    for changes in ({}, NOTHING, paused("on_battery")):
        found = health(document(**changes))
        assert all(layer["reason"] for layer in found["layers"])
    memory = {layer.id: layer.reason for layer in layers(document())}
    assert memory["memory"] == "3.1 of 10.7 GB; memory pressure nominal"
    assert memory["power"] == "on mains (100%)"
    assert memory["today"] == "7 completed, 1 failed, 500 tokens"
