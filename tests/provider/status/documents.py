"""Status documents for tests: one where all is well, and changes to it."""

from __future__ import annotations

import copy
from typing import Any

WELL: dict[str, Any] = {
    "process": {
        "state": "serving",
        "reason": None,
        "pid": 4711,
        "version": "0.1.0",
        "uptime_s": 12.5,
        "contract": "malibu",
        "provider_id": "prov_abcdefghijklmnopqrstuvwxyz",
        "key_id": "thumb",
        "config_file": "/home/me/config.toml",
        "config_remark": None,
        "local_url": None,
        "tasks": 12,
    },
    "engine": {
        "ready": True,
        "parked": False,
        "reason": None,
        "device": "gpu",
        "slots_total": 4,
        "slots_free": 2,
        "queued": 0,
        "running": 2,
        "restarts": 0,
        "steps": 10,
        "generated_tokens": 100,
        "submitted": 3,
        "cancels": 0,
        "child_pid": 4712,
        "memory": {"active_bytes": 3_000_000_000, "cache_bytes": 100_000_000, "limit_bytes": 10_700_000_000},
    },
    "models": [
        {
            "id": "org/model",
            "state": "ready",
            "family": "qwen",
            "context_length": 32768,
            "max_output_tokens": 8192,
            "can_force": True,
            "revision": None,
        }
    ],
    "link": {
        "gateway": "wss://gateway.example/v1/provider",
        "stage": "registered",
        "connected": True,
        "registered": True,
        "routable": True,
        "reasons": [],
        "session_id": "s",
        "last_error": None,
        "reconnect_in_s": None,
        "links": 1,
        "attempts": 1,
        "minimum_version": None,
        "recommended_version": None,
    },
    "jobs": {"offered": 0, "queued": 0, "running": 2, "settling": 0, "outbox_bytes": 0},
    "counters": {
        "jobs_completed": 7,
        "jobs_failed": 1,
        "jobs_cancelled": 2,
        "jobs_rejected": 3,
        "prompt_tokens": 1000,
        "completion_tokens": 500,
    },
    "policy": {"paused": False, "pauses": [], "changes_at": None, "awake": False},
    "machine": {
        "on_battery": False,
        "battery_percent": 100,
        "low_power": False,
        "thermal": "nominal",
        "memory_pressure": "nominal",
        "user_idle_seconds": 100.0,
        "free_disk_bytes": 10**11,
    },
    "throughput": {"tokens_per_s": 43.21},
    "today": {
        "day": "2026-06-01",
        "jobs": 8,
        "completed": 7,
        "failed": 1,
        "cancelled": 0,
        "rejected": 0,
        "prompt_tokens": 1000,
        "cached_tokens": 0,
        "completion_tokens": 500,
        "busy_s": 10.0,
    },
    "measured": None,
    "reports": {
        "url": "https://gateway.example/v1/providers/prov_x/status",
        "sent": 3,
        "failed": 1,
        "last_sent_ms": 1_780_315_200_000,
        "last_error": None,
    },
    "metrics": {"url": None, "error": None},
}


def document(**changes: Any) -> dict[str, Any]:
    """`WELL`, changed: `part={...}` updates a part, `part__name=...` a member, `part=None` replaces it."""
    changed = copy.deepcopy(WELL)
    for key, value in changes.items():
        part, _, name = key.partition("__")
        if name:
            changed[part][name] = value
        elif isinstance(value, dict) and isinstance(changed[part], dict):
            changed[part] |= value
        else:
            changed[part] = value
    return changed
