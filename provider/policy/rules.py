"""May this machine serve now? Pure rules over facts; each that says no gives its reason.

The owner's machine comes first: a pause takes effect at once, and serving goes on only after the facts have
been good for a while, so that a machine at the edge of a limit doesn't flap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, tzinfo
from enum import StrEnum
from types import MappingProxyType

from provider.policy.schedule import ScheduleState, Window, schedule_state

RESUME_AFTER_SECONDS = 30.0


class PauseReason(StrEnum):
    """Why nothing is served: a closed set, told in `status` and in each heartbeat."""

    BY_OWNER = "paused_by_owner"
    OUTSIDE_SCHEDULE = "outside_schedule"
    ON_BATTERY = "on_battery"
    LOW_POWER = "low_power_mode"
    HOT = "thermal_pressure"
    MEMORY = "memory_pressure"
    USER_ACTIVE = "user_active"
    DISK = "disk_nearly_full"


class Level(StrEnum):
    """Thermal and memory pressure, as the system grades them, from good to bad."""

    NOMINAL = "nominal"
    FAIR = "fair"
    SERIOUS = "serious"
    CRITICAL = "critical"


_ORDER = list(Level)

# Reasons for which the models leave memory as soon as the running jobs are done: the owner wants the machine,
# and it will last. The others come and go within minutes, which a reload would cost as well.
UNLOADING = frozenset(
    {PauseReason.BY_OWNER, PauseReason.OUTSIDE_SCHEDULE, PauseReason.MEMORY, PauseReason.USER_ACTIVE}
)
# Reasons whose moment was known: running jobs get the drain time and no more.
DRAINING = frozenset({PauseReason.OUTSIDE_SCHEDULE})


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the machine; `None` for what this system doesn't tell, which pauses nothing.

    `now`: epoch seconds, as `owner_pause_until` (`None`: until taken back). `user_idle_seconds`: since the
    last key or pointer event. `battery_percent` decides nothing, it is told.
    """

    now: float
    paused_by_owner: bool = False
    owner_pause_until: float | None = None
    on_battery: bool | None = None
    battery_percent: int | None = None
    low_power: bool | None = None
    thermal: Level | None = None
    memory_pressure: Level | None = None
    user_idle_seconds: float | None = None
    free_disk_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """What the owner allows. A limit that is `None` is no limit.

    `thermal_limit`, `memory_limit`: the level from which on nothing is served.
    `user_idle_seconds`: serve only after the owner has left the keyboard for so long.
    """

    windows: tuple[Window, ...] = ()
    zone: tzinfo = UTC
    serve_on_battery: bool = False
    serve_in_low_power: bool = False
    thermal_limit: Level | None = Level.SERIOUS
    memory_limit: Level | None = Level.CRITICAL
    user_idle_seconds: float | None = None
    free_disk_bytes: int | None = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Decision:
    """`reasons`: empty when the machine may serve. `changes_at`: when the schedule opens or closes next."""

    reasons: tuple[PauseReason, ...]
    changes_at: float | None

    @property
    def paused(self) -> bool:
        return bool(self.reasons)

    @property
    def unload(self) -> bool:
        return not UNLOADING.isdisjoint(self.reasons)

    @property
    def drain(self) -> bool:
        return not DRAINING.isdisjoint(self.reasons)


def _too_high(level: Level | None, limit: Level | None) -> bool:
    return level is not None and limit is not None and _ORDER.index(level) >= _ORDER.index(limit)


def _too_little(value: float | None, limit: float | None) -> bool:
    return value is not None and limit is not None and value < limit


_Rule = Callable[[Policy, Facts, ScheduleState], bool]

RULES: Mapping[PauseReason, _Rule] = MappingProxyType(
    {
        PauseReason.BY_OWNER: lambda policy, facts, schedule: facts.paused_by_owner,
        PauseReason.OUTSIDE_SCHEDULE: lambda policy, facts, schedule: not schedule.open,
        PauseReason.ON_BATTERY: lambda policy, facts, schedule: (
            bool(facts.on_battery) and not policy.serve_on_battery
        ),
        PauseReason.LOW_POWER: lambda policy, facts, schedule: (
            bool(facts.low_power) and not policy.serve_in_low_power
        ),
        PauseReason.HOT: lambda policy, facts, schedule: _too_high(facts.thermal, policy.thermal_limit),
        PauseReason.MEMORY: lambda policy, facts, schedule: _too_high(
            facts.memory_pressure, policy.memory_limit
        ),
        PauseReason.USER_ACTIVE: lambda policy, facts, schedule: _too_little(
            facts.user_idle_seconds, policy.user_idle_seconds
        ),
        PauseReason.DISK: lambda policy, facts, schedule: _too_little(
            facts.free_disk_bytes, policy.free_disk_bytes
        ),
    }
)


def decide(policy: Policy, facts: Facts) -> Decision:
    """What the facts ask for at this moment, the most deliberate reason first."""
    schedule = schedule_state(policy.windows, facts.now, policy.zone)
    reasons = tuple(reason for reason, holds in RULES.items() if holds(policy, facts, schedule))
    return Decision(reasons, schedule.changes_at)


# Reasons that end by a decision or by the clock, not by a value that swings around a limit.
_NO_WAIT = frozenset({PauseReason.BY_OWNER, PauseReason.OUTSIDE_SCHEDULE})


class SteadyDecision:
    """Holds a pause until its reasons have been gone for `RESUME_AFTER_SECONDS`."""

    def __init__(self, resume_after: float = RESUME_AFTER_SECONDS) -> None:
        self._resume_after = resume_after
        self._held: dict[PauseReason, float] = {}

    def update(self, policy: Policy, facts: Facts) -> Decision:
        """The decision to act upon; call it every few seconds with fresh facts."""
        decision = decide(policy, facts)
        for reason in decision.reasons:
            self._held[reason] = facts.now
        for reason, last_seen in list(self._held.items()):
            wait = 0.0 if reason in _NO_WAIT else self._resume_after
            # A clock set back must not hold a pause for hours.
            if reason not in decision.reasons and not 0 <= facts.now - last_seen < wait:
                del self._held[reason]
        held = tuple(reason for reason in PauseReason if reason in self._held)
        return Decision(held, decision.changes_at)
