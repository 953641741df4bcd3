"""Does it serve, and if not, why not? Layer by layer, from the status document. Pure.

process ─▶ engine ─▶ model ─▶ link ─▶ registered ─▶ routable ─▶ jobs, today, throughput, memory, power

The first layer that isn't well explains those above it; `summary` says it in one line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

Document = Mapping[str, Any]


class LayerState(StrEnum):
    """`PAUSED`, `DRAINING`: as its owner wishes. `UNKNOWN`: not told, or not its turn yet."""

    OK = "ok"
    STARTING = "starting"
    PAUSED = "paused"
    DRAINING = "draining"
    FAILING = "failing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Layer:
    """`reason`: in words for the owner, also where it is well."""

    id: str
    state: LayerState
    reason: str


# What the gateway's codes mean for the owner of this machine, and what to do about it.
NOT_ROUTABLE_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "model_not_in_demand": "nobody has asked for its models lately",
        "below_minimum_version": "this version is too old for the gateway; update malibu-provider",
        "draining": "it is finishing its work",
        "failed_recent_jobs": "its last jobs failed; see `malibu-provider logs`, it is tried again soon",
        "no_free_slot": "all its slots are taken",
        "paused_by_policy": "it is paused",
        "model_not_ready": "its model isn't loaded yet",
        "contract_mismatch": "the gateway serves another contract; see the key `contract`",
        "key_not_allowed": "the gateway doesn't allow its key; see `malibu-provider keys show`",
        "degraded": "its engine isn't ready",
        "stale_heartbeat": "its heartbeats come too late",
    }
)
# Reasons for no job at this moment that are no fault: all is well, or it is what the owner wanted.
_BUSY = frozenset({"no_free_slot"})
_WANTED = frozenset({"paused_by_policy", "draining"})


def layers(document: Document) -> tuple[Layer, ...]:
    """Each layer of a status document with its state and reason."""
    return (
        _process(document["process"]),
        _engine(document),
        _model(document),
        _link(document["link"]),
        _registered(document["link"]),
        _routable(document["link"]),
        _jobs(document["jobs"]),
        _today(document["today"]),
        Layer("throughput", LayerState.OK, f"{document['throughput']['tokens_per_s']:.1f} tokens/s"),
        _memory(document),
        _power(document),
    )


def _process(process: Document) -> Layer:
    states = {"starting": LayerState.STARTING, "serving": LayerState.OK, "draining": LayerState.DRAINING}
    state = states.get(process["state"], LayerState.FAILING)
    return Layer("process", state, process["reason"] or f"{process['state']}, PID {process['pid']}")


def _pause_words(document: Document) -> str | None:
    policy = document["policy"]
    if policy is None or not policy["paused"]:
        return None
    return "; ".join(pause["words"] for pause in policy["pauses"])


def _engine(document: Document) -> Layer:
    engine = document["engine"]
    if engine is None:
        return Layer("engine", LayerState.UNKNOWN, "not started")
    if engine["ready"]:
        return Layer("engine", LayerState.OK, f"ready on {engine['device']}")
    if engine["parked"] and _pause_words(document) is None:
        return Layer("engine", LayerState.STARTING, "the pause is over, it comes back")
    if engine["parked"]:
        return Layer("engine", LayerState.PAUSED, "unloaded while paused")
    starting = engine["restarts"] == 0
    return Layer(
        "engine", LayerState.STARTING if starting else LayerState.FAILING, engine["reason"] or "not ready"
    )


def _model(document: Document) -> Layer:
    models, engine = document["models"], document["engine"]
    if not models:
        return Layer("model", LayerState.UNKNOWN, "none yet")
    words = ", ".join(f"{model['id']} {model['state'] or 'unknown'}" for model in models)
    states = {model["state"] for model in models}
    if engine is not None and engine["parked"]:
        return Layer("model", LayerState.PAUSED, words)
    if states & {"ready", "unloaded"}:
        return Layer("model", LayerState.OK, words)
    return Layer("model", LayerState.STARTING if "loading" in states else LayerState.FAILING, words)


def _link(link: Document | None) -> Layer:
    if link is None:
        return Layer("link", LayerState.UNKNOWN, "not dialled yet")
    if link["connected"]:
        return Layer("link", LayerState.OK, f"connected to {link['gateway']}")
    error = f"{link['last_error']}; " if link["last_error"] else ""
    if link["stage"] == "waiting":
        words = f"{error}next try of {link['gateway']} in {link['reconnect_in_s'] or 0:.0f} s"
        return Layer("link", LayerState.FAILING, words)
    if link["stage"] == "stopped":
        return Layer("link", LayerState.FAILING, f"{error}no further try until something changes here")
    return Layer("link", LayerState.STARTING, f"{error}dialling {link['gateway']}")


def _registered(link: Document | None) -> Layer:
    if link is None or not link["connected"]:
        return Layer("registered", LayerState.UNKNOWN, "not connected")
    if not link["registered"]:
        return Layer("registered", LayerState.STARTING, "registering")
    newer = link["recommended_version"]
    return Layer("registered", LayerState.OK, f"the gateway recommends version {newer}" if newer else "known")


def _routable(link: Document | None) -> Layer:
    if link is None or not link["registered"]:
        return Layer("routable", LayerState.UNKNOWN, "not registered")
    if link["routable"]:
        return Layer("routable", LayerState.OK, "the gateway sends jobs here")
    reasons = link["reasons"]
    if not reasons:
        return Layer("routable", LayerState.STARTING, "waiting for the gateway's first word")
    words = "; ".join(f"{NOT_ROUTABLE_WORDS.get(reason, 'no words for it')} ({reason})" for reason in reasons)
    if _BUSY.issuperset(reasons):
        return Layer("routable", LayerState.OK, words)
    paused = not _WANTED.isdisjoint(reasons)
    return Layer("routable", LayerState.PAUSED if paused else LayerState.FAILING, words)


def _jobs(jobs: Document | None) -> Layer:
    if jobs is None:
        return Layer("jobs", LayerState.UNKNOWN, "none taken yet")
    waiting = jobs["offered"] + jobs["queued"]
    return Layer("jobs", LayerState.OK, f"{jobs['running']} running, {waiting} waiting")


def _today(today: Document) -> Layer:
    words = f"{today['completed']} completed, {today['failed']} failed, {today['completion_tokens']} tokens"
    return Layer("today", LayerState.OK, words)


def _memory(document: Document) -> Layer:
    engine, machine = document["engine"], document["machine"]
    pressure = None if machine is None else machine["memory_pressure"]
    used = "" if engine is None else _memory_words(engine["memory"])
    words = "; ".join(filter(None, [used, f"memory pressure {pressure}" if pressure else ""]))
    if pressure == "critical":
        return Layer("memory", LayerState.FAILING, words)
    return Layer("memory", LayerState.OK if words else LayerState.UNKNOWN, words or "not told")


def _memory_words(memory: Document) -> str:
    held = (memory["active_bytes"] + memory["cache_bytes"]) / 1e9
    limit = memory["limit_bytes"]
    return f"{held:.1f} of {limit / 1e9:.1f} GB" if limit else f"{held:.1f} GB"


def _power(document: Document) -> Layer:
    machine = document["machine"]
    if machine is None or machine["on_battery"] is None:
        return Layer("power", LayerState.UNKNOWN, "no battery here, or the system doesn't tell")
    charge = "" if machine["battery_percent"] is None else f" ({machine['battery_percent']}%)"
    words = f"on battery{charge}" if machine["on_battery"] else f"on mains{charge}"
    if machine["low_power"]:
        words += ", low power mode"
    reasons = {pause["reason"] for pause in (document["policy"] or {"pauses": ()})["pauses"]}
    paused = not reasons.isdisjoint({"on_battery", "low_power_mode"})
    return Layer("power", LayerState.PAUSED if paused else LayerState.OK, words)


def summary(document: Document) -> str:
    """One line that tells the truth: "ready" only when the gateway sends jobs here."""
    by_id = {layer.id: layer for layer in layers(document)}
    process = by_id["process"]
    if process.state is LayerState.FAILING:
        return f"not serving: {process.reason}"
    if process.state is LayerState.DRAINING:
        return f"draining: {by_id['jobs'].reason}"
    pause = _pause_words(document)
    if pause is not None:
        return f"paused: {pause}"
    for name in ("engine", "model"):
        layer = by_id[name]
        if layer.state is not LayerState.OK:
            begins = "not serving" if layer.state is LayerState.FAILING else "starting"
            return f"{begins}: {name}: {layer.reason}"
    if by_id["registered"].state is not LayerState.OK:
        layer = by_id["link"] if by_id["link"].state is not LayerState.OK else by_id["registered"]
        return f"not connected: {layer.reason}"
    if by_id["routable"].state is not LayerState.OK:
        return f"connected but gets no jobs: {by_id['routable'].reason}"
    return _ready(document, by_id)


def _ready(document: Document, by_id: Mapping[str, Layer]) -> str:
    engine = document["engine"]
    slots = f"{engine['slots_free']} of {engine['slots_total']} slots free"
    begins = "ready: routable" if document["link"]["routable"] else "busy"
    return f"{begins}, {slots}, {by_id['jobs'].reason}, {by_id['throughput'].reason}"


def health(document: Document) -> dict[str, Any]:
    """The `health` member of the status document."""
    found = layers(document)
    return {
        "summary": summary(document),
        "layers": [{"id": layer.id, "state": layer.state.value, "reason": layer.reason} for layer in found],
    }
