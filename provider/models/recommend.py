"""Which models of the catalogue fit a machine, and about how fast each would be. Pure.

Decoding one token reads the weights once (of a mixture of experts the active ones), so memory bandwidth over
the bytes read bounds the speed; MLX reaches about two thirds of it. `malibu-provider measure` tells more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from provider.models.catalogue import DEMO_MODEL, CatalogueEntry

# What macOS lets the GPU hold by itself: two thirds of the memory, three quarters from 64 GB up.
GPU_SHARE_SMALL, GPU_SHARE_LARGE = 2 / 3, 3 / 4
LARGE_MEMORY_GB = 64
# The cache of a few conversations of 8,192 tokens, and what MLX needs to compute.
WORKING_GB = 2.0
REACHED = 0.65

# Memory bandwidth in GB/s, as Apple's technical specifications give it: chip → (GPU cores up to, GB/s), ….
BANDWIDTH: Mapping[str, tuple[tuple[int, int], ...]] = MappingProxyType(
    {
        "Apple M1": ((99, 68),),
        "Apple M1 Pro": ((99, 200),),
        "Apple M1 Max": ((99, 400),),
        "Apple M1 Ultra": ((99, 800),),
        "Apple M2": ((99, 100),),
        "Apple M2 Pro": ((99, 200),),
        "Apple M2 Max": ((99, 400),),
        "Apple M2 Ultra": ((99, 800),),
        "Apple M3": ((99, 100),),
        "Apple M3 Pro": ((99, 150),),
        "Apple M3 Max": ((30, 300), (99, 400)),
        "Apple M3 Ultra": ((99, 819),),
        "Apple M4": ((99, 120),),
        "Apple M4 Pro": ((99, 273),),
        "Apple M4 Max": ((32, 410), (99, 546)),
        "Apple M5": ((99, 153),),
        "Apple M5 Pro": ((99, 307),),
        "Apple M5 Max": ((32, 460), (99, 614)),
    }
)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """`tokens_per_s`: one stream, expected; `None` for a chip that isn't known.

    `machine_gb`: the memory of the smallest machine that holds it.
    """

    id: str
    fits: bool
    tool_calls: bool
    weights_gb: float
    machine_gb: float
    tokens_per_s: float | None


def bandwidth_gb_s(chip: str | None, gpu_cores: int | None) -> int | None:
    """Of a Mac's chip; the fewer cores where two kinds exist and the number isn't known."""
    kinds = BANDWIDTH.get(chip or "", ())
    return next((speed for cores, speed in kinds if (gpu_cores or 0) <= cores), None)


def usable_gb(memory_bytes: int) -> float:
    """What models may take of this much memory."""
    total = memory_bytes / 2**30
    return total * (GPU_SHARE_LARGE if total >= LARGE_MEMORY_GB else GPU_SHARE_SMALL)


def machine_gb(needed: float) -> float:
    """The inverse of `usable_gb`, in GB."""
    small = needed / GPU_SHARE_SMALL
    return small if small < LARGE_MEMORY_GB else max(needed / GPU_SHARE_LARGE, LARGE_MEMORY_GB)


def recommend(
    entries: Iterable[CatalogueEntry], *, memory_bytes: int, chip: str | None, gpu_cores: int | None
) -> list[Recommendation]:
    """What fits first, the largest before smaller ones; the demo model never."""
    usable, bandwidth = usable_gb(memory_bytes), bandwidth_gb_s(chip, gpu_cores)
    found = []
    for entry in entries:
        if entry.id == DEMO_MODEL:
            continue
        needs = entry.weights_gb + WORKING_GB
        found.append(
            Recommendation(
                id=entry.id,
                fits=needs <= usable,
                tool_calls=entry.family != "none",
                weights_gb=entry.weights_gb,
                machine_gb=round(machine_gb(needs), 1),
                tokens_per_s=round(bandwidth * REACHED / entry.read_gb, 1) if bandwidth else None,
            )
        )
    return sorted(found, key=lambda each: (not each.fits, -each.weights_gb, each.id))
