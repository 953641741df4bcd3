"""The status document, `GET /status` on the control socket: layer by layer, each with its reason.

process ─▶ engine ─▶ models ─▶ link (connected, registered, routable) ─▶ jobs now ─▶ counters, and beside them
policy, machine, today, throughput, measured, reports, metrics. `health` says what it comes to
(docs/status.schema.json).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gateway_protocol.messages import Counters
from provider.engine.base import EngineStatus, ModelInfo
from provider.status.health import health
from provider.status.history import Sum


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """`state`: starting, serving, draining, idle. `reason`: why it is idle, in words. Times in seconds.

    `config_remark`: how the configuration as it is now differs from the one in force, in words.

    `tasks`: on its event loop; each job and each connection is one.
    """

    state: str
    reason: str | None
    version: str
    uptime_s: float
    contract: str | None
    provider_id: str | None
    key_id: str | None
    config_file: str
    config_remark: str | None
    local_url: str | None
    tasks: int


def process_part(facts: ProcessFacts) -> dict[str, Any]:
    return {
        "state": facts.state,
        "reason": facts.reason,
        "pid": os.getpid(),
        "version": facts.version,
        "uptime_s": round(facts.uptime_s, 1),
        "contract": facts.contract,
        "provider_id": facts.provider_id,
        "key_id": facts.key_id,
        "config_file": facts.config_file,
        "config_remark": facts.config_remark,
        "local_url": facts.local_url,
        "tasks": facts.tasks,
    }


def engine_part(status: EngineStatus) -> dict[str, Any]:
    return {
        "ready": status.ready,
        "parked": status.parked,
        "reason": status.detail,
        "device": status.device,
        "slots_total": status.slots_total,
        "slots_free": status.slots_free,
        "queued": status.queued,
        "running": status.running,
        "restarts": status.restarts,
        "steps": status.steps,
        "generated_tokens": status.generated_tokens,
        "submitted": status.submitted,
        "cancels": status.cancels,
        "child_pid": status.child_pid,
        "memory": {
            "active_bytes": status.active_bytes,
            "cache_bytes": status.cache_bytes,
            "limit_bytes": status.limit_bytes,
        },
    }


def models_part(infos: Mapping[str, ModelInfo], status: EngineStatus, *, force: bool) -> list[dict[str, Any]]:
    """`force`: the owner lets calls be forced (`tools.force`)."""
    return [
        {
            "id": info.id,
            "state": str(status.models[info.id]) if info.id in status.models else None,
            "family": info.family.value,
            "context_length": info.context_length,
            "max_output_tokens": info.max_output_tokens,
            "can_force": info.can_force and force,
            "revision": info.revision,
        }
        for info in infos.values()
    ]


def counters_part(counters: Counters, rejected: int) -> dict[str, Any]:
    return {**counters.model_dump(), "jobs_rejected": rejected}


# What there is to tell while nothing is served.
_NOTHING: Mapping[str, Any] = MappingProxyType(
    {
        **dict.fromkeys(("engine", "link", "jobs", "counters", "policy", "machine", "measured", "reports")),
        "models": [],
        "throughput": {"tokens_per_s": 0.0},
    }
)


def whole(
    facts: ProcessFacts, serving: Mapping[str, Any] | None, metrics: Mapping[str, Any], day: str
) -> dict[str, Any]:
    """The status document. `serving`: its part of it, `None` while nothing is served. `day`: this one."""
    parts = {**_NOTHING, "today": {"day": day, **Sum().document()}} if serving is None else serving
    document = {"process": process_part(facts), **parts, "metrics": metrics}
    return {"health": health(document), **document}
