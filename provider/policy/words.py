"""Why nothing is served, in words for the owner of the machine. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, tzinfo

from provider.policy.rules import RESUME_AFTER_SECONDS, Decision, Facts, PauseReason, Policy, decide


@dataclass(frozen=True, slots=True)
class Pause:
    """One reason. `until`: epoch seconds of the moment it ends by itself, `None` where nobody can know."""

    reason: PauseReason
    words: str
    until: float | None


def pauses(decision: Decision, policy: Policy, facts: Facts) -> Iterator[Pause]:
    """Each reason of `decision`, with what the owner can do about it or wait for."""
    holding = decide(policy, facts).reasons
    for reason in decision.reasons:
        if reason not in holding:
            words = f"{reason.replace('_', ' ')} until a moment ago; serving goes on when that has lasted"
            yield Pause(reason, f"{words} {RESUME_AFTER_SECONDS:.0f} s", None)
            continue
        until = None
        if reason is PauseReason.OUTSIDE_SCHEDULE:
            until = decision.changes_at
        elif reason is PauseReason.BY_OWNER:
            until = facts.owner_pause_until
        yield Pause(reason, _words(reason, until, policy, facts), until)


def _words(reason: PauseReason, until: float | None, policy: Policy, facts: Facts) -> str:
    match reason:
        case PauseReason.BY_OWNER:
            ends = f"until {moment(until, policy.zone)}" if until else "until `malibu-provider resume`"
            return f"paused by its owner {ends}"
        case PauseReason.OUTSIDE_SCHEDULE:
            opens = f"; it opens {moment(until, policy.zone)}" if until else ""
            return f"outside the windows of policy.windows{opens}"
        case PauseReason.ON_BATTERY:
            charge = "" if facts.battery_percent is None else f" ({facts.battery_percent}%)"
            return f"running on battery{charge}; plug it in, or set policy.on_battery = true"
        case PauseReason.LOW_POWER:
            return "in low power mode; turn it off, or set policy.low_power = true"
        case PauseReason.HOT:
            return f"too hot (thermal pressure: {facts.thermal}); it goes on when the machine has cooled down"
        case PauseReason.MEMORY:
            return (
                f"short of memory (memory pressure: {facts.memory_pressure}); close programs you don't need"
            )
        case PauseReason.USER_ACTIVE:
            return f"in use by its owner; it goes on after {policy.user_idle_seconds:g} s without input"
        case PauseReason.DISK:
            free = "" if facts.free_disk_bytes is None else f" ({facts.free_disk_bytes / 1e9:.1f} GB left)"
            return f"the disk is nearly full{free}; free some space"


def moment(at: float | None, zone: tzinfo) -> str:
    """A time of day within a week, as "Mon 22:00"."""
    return "" if at is None else datetime.fromtimestamp(at, zone).strftime("%a %H:%M")
