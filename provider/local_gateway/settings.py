"""What a local gateway can be told, as plain values:

the daemon's configuration is turned into these by `app`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gateway_protocol import limits
from gateway_protocol.openai_types import Contract


def _seconds(milliseconds: int) -> float:
    return milliseconds / 1000


@dataclass(frozen=True, slots=True)
class Timers:
    """Every time the gateway waits for, in seconds (docs/protocol.md, "Rules"); tests shorten them.

    `link_dead`: so much silence ends a provider's link, which is looked at each `look`.
    `offer`: an offer may stay unanswered so long (a model may have to be loaded first).
    `first_content` overrides the budget of base + `first_content_per_token` for each uncached prompt token.
    `delivery`: a buyer may take so long to read a whole answer, or what is left of a stream at its job's
    deadline.
    `ack`: chunks are acknowledged at least so often. `send`: without progress on a send, the link is dead.
    """

    heartbeat: float = _seconds(limits.HEARTBEAT_INTERVAL_MS)
    link_dead: float = _seconds(limits.LINK_DEAD_AFTER_MS)
    look: float = _seconds(limits.LINK_LOOK_MS)
    register: float = 10.0
    send: float = _seconds(limits.SEND_TIMEOUT_MS)
    ack: float = 0.25
    redispatch: float = _seconds(limits.REDISPATCH_WAIT_MS)
    resume_window: float = _seconds(limits.RESUME_WINDOW_MS)
    job_deadline: float = _seconds(limits.JOB_DEADLINE_MS)
    offer: float = 120.0
    first_content_base: float = _seconds(limits.FIRST_CONTENT_BASE_MS)
    first_content_per_token: float = _seconds(limits.FIRST_CONTENT_PER_TOKEN_MS)
    first_content: float | None = None
    comment: float = 0.9 * _seconds(limits.SSE_COMMENT_INTERVAL_MS)
    delivery: float = 3600.0
    request_body: float = 60.0
    request_head: float = 30.0
    idle_connection: float = 300.0
    shutdown: float = 10.0


@dataclass(frozen=True, slots=True)
class Access:
    """Who may speak to the gateway.

    `keys_file`: API keys (`keys`); without it any key is taken, and only a loopback address may be bound.
    `provider_tokens`: bearer tokens of providers; empty: none is asked for.
    `provider_keys`: thumbprints of the provider keys that may register; `None`: any.
    `hosts`: further names in `Host` under which the gateway may be addressed; `origins`: further browser
    origins.
    """

    keys_file: Path | None = None
    provider_tokens: frozenset[str] = frozenset()
    provider_keys: frozenset[str] | None = None
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Caps:
    """Bounds on what one buyer or all of them may ask for at a time.

    `requests_per_minute`: for each API key, `None` for no limit. `streams_per_key`: jobs of one key at once.
    `pinned_keys`: of providers, those no longer in use among them.
    """

    requests_per_minute: int | None = None
    streams_per_key: int | None = None
    jobs: int = 1024
    connections: int = 4096
    providers: int = 1024
    pinned_keys: int = 16_384


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """One local gateway.

    `port` 0 lets the system choose (`LocalGateway.url` tells). `max_messages` 0: no cap. `state_file`: the
    SQLite file of jobs, receipts, usage and provider keys; `None` keeps them in memory.
    `secret`: the tenant hash's key, 32 bytes; `None`: kept in the state file, or made at start.
    `demand_seconds`: a model nobody asked for in this time is not in demand. `wall_clock`: seconds since the
    epoch.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    contract: Contract = "malibu"
    max_messages: int = limits.MESSAGES_DEFAULT
    force_tools: bool = True
    queue_seconds: float = 30.0
    queue_length: int = 64
    attempts: int = limits.DISPATCH_ATTEMPTS
    minimum_version: str | None = None
    recommended_version: str | None = None
    demand_seconds: float = 3600.0
    tls_cert: Path | None = None
    tls_key: Path | None = None
    state_file: Path | None = None
    secret: bytes | None = None
    access: Access = Access()
    caps: Caps = Caps()
    timers: Timers = Timers()
    wall_clock: Callable[[], float] = field(default=time.time)
