"""Whether a process that is idle again holds more than it held when it was idle before. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# What comes with use and stays: pools of threads and connections, the allocator's slack, and histories that
# have a bound. Anything that leaks for each job goes past these within minutes.
ALLOWED: Mapping[str, float] = {"rss_mib": 24.0, "fds": 8, "threads": 12, "tasks": 3}
ALLOWED_SHARE = 0.15


@dataclass(frozen=True, slots=True)
class Rest:
    """One process while nothing runs. `tasks`: of its event loop, `None` where it doesn't tell."""

    pid: int
    rss_mib: float
    fds: int
    threads: int
    tasks: int | None = None


def grown(name: str, rests: Sequence[Rest]) -> list[str]:
    """What grew too much from the first rest to the last, in words; of one and the same process alone.

    A process that was killed and started again is compared from its own first rest on. The first rest comes
    after a warm-up, since caches are filled by use.
    """
    if not rests:
        return []
    same = [rest for rest in rests if rest.pid == rests[-1].pid]
    first, last = same[0], same[-1]
    faults = []
    for figure, allowed in ALLOWED.items():
        before, after = getattr(first, figure), getattr(last, figure)
        if before is None or after is None:
            continue
        bound = before + max(allowed, before * ALLOWED_SHARE if figure == "rss_mib" else 0)
        if after > bound:
            faults.append(f"{name}: {figure} grew from {before:g} to {after:g}")
    return faults
