"""What MLX may hold on this machine, and what a model's cache costs: read off the live process."""

from __future__ import annotations

from typing import Any, Final

import mlx.core as mx
import psutil
from mlx_lm.models.cache import ArraysCache, CacheList, RotatingKVCache

from provider.engine.kv_cost import KvCost, LayerCost

MIB: Final = 1 << 20
# Kept free for the computation itself, and for the rest of the machine.
_LEAST_RESERVE: Final = 64 * MIB
_LEFT_TO_THE_MACHINE: Final = 256 * MIB
# Without a GPU's own figure: about what Apple recommends of a Mac's memory.
_SHARE_OF_MEMORY: Final = 0.7


class MachineMemory:
    """`limit_bytes`: what MLX may hold in all, weights included."""

    def __init__(self, limit_bytes: int | None) -> None:
        self.limit_bytes = limit_bytes or _machine_limit()
        # What a step's own work may take on top.
        self.working_bytes = max(_LEAST_RESERVE, self.limit_bytes // 32)
        # A limit that the owner set is meant for weights and caches as it stands.
        self._reserve = self.working_bytes if limit_bytes is None else 0
        mx.set_memory_limit(self.limit_bytes)
        # Buffers kept for reuse beyond this would only crowd out other programs.
        mx.set_cache_limit(self.limit_bytes // 8)

    @property
    def most_bytes(self) -> int:
        """What weights, caches and rows may take of it at best."""
        return self.limit_bytes - self._reserve

    @property
    def active_bytes(self) -> int:
        return mx.get_active_memory()

    def ceiling(self) -> int:
        """Bytes that MLX may come to hold now: its limit, or less while the machine is short of memory."""
        held = mx.get_active_memory() + mx.get_cache_memory()
        available = psutil.virtual_memory().available - _LEFT_TO_THE_MACHINE
        return min(self.most_bytes, held + max(0, available))


def _machine_limit() -> int:
    if mx.metal.is_available():
        return int(mx.device_info()["max_recommended_working_set_size"])
    return int(psutil.virtual_memory().total * _SHARE_OF_MEMORY)


def cost_of(cache: list[Any]) -> KvCost:
    """Read off a cache that has seen at least one token of one row."""
    layers: list[LayerCost] = []
    fixed = 0
    for part in _flat(cache):
        if isinstance(part, ArraysCache):
            fixed += part.nbytes
        elif part.nbytes:
            # Space for a few hundred tokens is allocated at once: cost is counted by what was allocated.
            per_token = part.nbytes / max(1, int(part.keys.shape[2]))
            window = part.max_size if isinstance(part, RotatingKVCache) else None
            layers.append(LayerCost(per_token, window))
    return KvCost(tuple(layers), fixed)


def _flat(cache: list[Any]) -> list[Any]:
    flat: list[Any] = []
    for part in cache:
        flat.extend(_flat(list(part.caches)) if isinstance(part, CacheList) else [part])
    return flat
