"""Drawing the next tokens of a batch: each row by its own settings and seed, rows of one way in one go.

A row's random numbers depend on its seed and on how many tokens it has drawn, on nothing else: the same
alone and in company. Rows that cut alike share every operation, so that a batch of eight costs the device
about as many of them as one row does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import mlx.core as mx

from provider.engine.sampling import Sampling

_MASK64 = (1 << 64) - 1
# A nucleus (top_p) is sought among this many tokens: sorting a whole vocabulary would cost as much as the
# model's step on a CPU, and no nucleus worth sampling from is larger.
_NUCLEUS_AT_MOST = 4096
# Any temperature above 0 is allowed; below this, log-probabilities divided by it leave float32.
_COLDEST = 1e-30

# Each row's numbers come from its own key, whoever else is drawn for.
_categorical: Callable[[mx.array, mx.array], mx.array] = mx.vmap(
    lambda values, key: mx.random.categorical(values, key=key)
)


class Way(NamedTuple):
    """Which operations a draw takes. `highest`: among how many tokens, 0 for all of them.

    `share_of_all`: `top_p` is a share of the whole vocabulary's mass, not of the highest tokens'.
    """

    highest: int
    share_of_all: bool
    top_p: bool
    min_p: bool


class Greedy:
    """The most likely token. `reported`: the row's log-probabilities are asked for."""

    def __init__(self, *, reported: bool) -> None:
        self.reported = reported

    def __call__(self, logits: mx.array) -> mx.array:
        return mx.argmax(logits, axis=-1)


class RowSampler:
    """One row's settings and its place in its sequence of random numbers. `reported`: see `Greedy`."""

    def __init__(self, sampling: Sampling, *, reported: bool = False) -> None:
        self.settings = sampling
        self.reported = reported
        seed = sampling.seed
        self._seed = int.from_bytes(os.urandom(8)) if seed is None else seed & _MASK64
        self._drawn = 0

    def __call__(self, logits: mx.array) -> mx.array:
        """Draw for this row alone, from logits of shape (1, vocabulary)."""
        return draw([self], logits)

    def way(self, width: int) -> Way:
        settings = self.settings
        nucleus, min_p = settings.top_p < 1.0, settings.min_p > 0.0
        if 0 < settings.top_k < width:
            return Way(settings.top_k, False, nucleus, min_p)
        return Way(min(_NUCLEUS_AT_MOST, width) if nucleus else 0, True, nucleus, min_p)

    def next_key(self) -> tuple[int, int]:
        """The key of the next draw for MLX's generator, mixed from both numbers (splitmix64's finaliser)."""
        self._drawn += 1
        mixed = (self._seed + self._drawn * 0x9E3779B97F4A7C15) & _MASK64
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK64
        mixed ^= mixed >> 31
        return mixed >> 32, mixed & 0xFFFFFFFF


def sampler_for(sampling: Sampling, *, reported: bool = False) -> Greedy | RowSampler:
    return Greedy(reported=reported) if sampling.temperature == 0 else RowSampler(sampling, reported=reported)


def draw(samplers: Sequence[Greedy | RowSampler], logits: mx.array) -> mx.array:
    """One token for each row of `logits`, shape (rows, vocabulary), by the sampler of the same place.

    Logits need not be normalised: no row's choice depends on what is added to all of them.
    """
    groups: dict[Way | None, list[int]] = {}
    width = logits.shape[-1]
    for place, sampler in enumerate(samplers):
        way = sampler.way(width) if isinstance(sampler, RowSampler) else None
        groups.setdefault(way, []).append(place)
    if len(groups) == 1:
        return _draw_alike(samplers, logits)
    order = [place for places in groups.values() for place in places]
    drawn = [
        _draw_alike([samplers[place] for place in places], logits[mx.array(places)])
        for places in groups.values()
    ]
    back = sorted(range(len(order)), key=order.__getitem__)
    return mx.concatenate(drawn)[mx.array(back)]


def _draw_alike(samplers: Sequence[Greedy | RowSampler], logits: mx.array) -> mx.array:
    rows = [sampler for sampler in samplers if isinstance(sampler, RowSampler)]
    if not rows:
        return samplers[0](logits)
    way = rows[0].way(logits.shape[-1])
    heat = _column(1.0 / max(row.settings.temperature, _COLDEST) for row in rows)
    values = scaled = logits.astype(mx.float32) * heat
    ids = None
    if way.highest:
        values, ids = _highest(scaled, way.highest)
    if way.top_p:
        log_mass = mx.logsumexp(scaled if way.share_of_all else values, axis=-1, keepdims=True)
        mass_before = mx.cumsum(mx.exp(values - log_mass), axis=-1, inclusive=False)
        # The most likely token always stays: the mass before it is 0.
        shares = _column(max(row.settings.top_p, 1e-9) for row in rows)
        values = mx.where(mass_before < shares, values, -mx.inf)
    if way.min_p:
        floor = _column(row.settings.min_p for row in rows)
        values = mx.where(mx.exp(values - values.max(axis=-1, keepdims=True)) >= floor, values, -mx.inf)
    drawn = _categorical(values, mx.array([row.next_key() for row in rows], dtype=mx.uint32))
    return drawn if ids is None else mx.take_along_axis(ids, drawn[..., None], axis=-1).squeeze(-1)


def _column(values: Iterable[float]) -> mx.array:
    return mx.array([[value] for value in values])


def _highest(scaled: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """The `count` highest values, descending, and their tokens."""
    best = mx.argpartition(-scaled, kth=count - 1, axis=-1)[..., :count]
    values = mx.take_along_axis(scaled, best, axis=-1)
    order = mx.argsort(-values, axis=-1)
    return mx.take_along_axis(values, order, axis=-1), mx.take_along_axis(best, order, axis=-1)
