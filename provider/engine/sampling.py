"""One row's way from logits to a token: penalties, bias, temperature, cuts, seed.

Each row has its own, so no request needs the batch to itself. A row's random numbers depend on its seed and
on how many tokens it has drawn, on nothing else: the same alone and in company.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from provider.engine.base import SamplingParams

Processor = Callable[[mx.array, mx.array], mx.array]

_MASK64 = (1 << 64) - 1
# A nucleus (top_p) is sought among this many tokens: sorting a whole vocabulary would cost as much as the
# model's step on a CPU, and no nucleus worth sampling from is larger.
_NUCLEUS_AT_MOST = 4096
# Any temperature above 0 is allowed; below this, log-probabilities divided by it leave float32.
_COLDEST = 1e-30
# So do logits multiplied by a repetition penalty beyond this, or divided by one below its inverse.
_STRONGEST_PENALTY = 1e30


@dataclass(frozen=True, slots=True)
class Sampling:
    """What holds for a row once defaults are filled in. `temperature` 0: greedy; `top_k` 0: no cut."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None


def resolve(asked: SamplingParams, defaults: Mapping[str, Any]) -> Sampling:
    """`defaults`: the model's `generation_config.json`; where it is silent, temperature 1 and no cut."""

    def pick(value: float | None, name: str, otherwise: float) -> float:
        if value is not None:
            return value
        default = defaults.get(name)
        known = isinstance(default, int | float) and not isinstance(default, bool)
        return float(default) if known and default is not None else otherwise

    return Sampling(
        temperature=pick(asked.temperature, "temperature", 1.0),
        top_p=pick(asked.top_p, "top_p", 1.0),
        top_k=int(pick(asked.top_k, "top_k", 0)),
        min_p=pick(asked.min_p, "min_p", 0.0),
        repetition_penalty=pick(asked.repetition_penalty, "repetition_penalty", 1.0),
        presence_penalty=asked.presence_penalty or 0.0,
        frequency_penalty=asked.frequency_penalty or 0.0,
        logit_bias=asked.logit_bias,
        seed=asked.seed,
    )


def greedy(logprobs: mx.array) -> mx.array:
    """Shared by all greedy rows, so that a batch of them takes one call."""
    return mx.argmax(logprobs, axis=-1)


class RowSampler:
    """Draws one token each call from log-probabilities of shape (1, vocabulary)."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        seed = sampling.seed
        self._seed = int.from_bytes(os.urandom(8)) if seed is None else seed & _MASK64
        self._drawn = 0

    def __call__(self, logprobs: mx.array) -> mx.array:
        key = _key(self._seed, self._drawn)
        self._drawn += 1
        settings = self._sampling
        scaled = logprobs.astype(mx.float32) * (1.0 / max(settings.temperature, _COLDEST))
        width = scaled.shape[-1]
        if 0 < settings.top_k < width:
            values, ids = _highest(scaled, settings.top_k)
            return _draw(values, ids, mx.logsumexp(values, axis=-1, keepdims=True), settings, key)
        if settings.top_p < 1.0:
            values, ids = _highest(scaled, min(_NUCLEUS_AT_MOST, width))
            return _draw(values, ids, mx.logsumexp(scaled, axis=-1, keepdims=True), settings, key)
        if settings.min_p > 0.0:
            scaled = _cut_min_p(scaled, scaled.max(axis=-1, keepdims=True), settings.min_p)
        return mx.random.categorical(scaled, key=key)


def sampler_for(sampling: Sampling) -> Callable[[mx.array], mx.array]:
    return greedy if sampling.temperature == 0 else RowSampler(sampling)


def _highest(scaled: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """The `count` highest values, descending, and their tokens."""
    best = mx.argpartition(-scaled, kth=count - 1, axis=-1)[..., :count]
    values = mx.take_along_axis(scaled, best, axis=-1)
    order = mx.argsort(-values, axis=-1)
    return mx.take_along_axis(values, order, axis=-1), mx.take_along_axis(best, order, axis=-1)


def _draw(values: mx.array, ids: mx.array, log_mass: mx.array, settings: Sampling, key: mx.array) -> mx.array:
    """Cut by top_p, then min_p, then draw. `log_mass`: the log of the mass that top_p is a share of."""
    if settings.top_p < 1.0:
        mass_before = mx.cumsum(mx.exp(values - log_mass), axis=-1, inclusive=False)
        # The most likely token always stays: the mass before it is 0.
        values = mx.where(mass_before < max(settings.top_p, 1e-9), values, -mx.inf)
    if settings.min_p > 0.0:
        values = _cut_min_p(values, values[..., :1], settings.min_p)
    drawn = mx.random.categorical(values, key=key)
    return mx.take_along_axis(ids, drawn[..., None], axis=-1).squeeze(-1)


def _cut_min_p(values: mx.array, highest: mx.array, min_p: float) -> mx.array:
    return mx.where(mx.exp(values - highest) >= min_p, values, -mx.inf)


def _key(seed: int, drawn: int) -> mx.array:
    """A key for MLX's generator, mixed from both numbers (splitmix64's finaliser)."""
    mixed = (seed + (drawn + 1) * 0x9E3779B97F4A7C15) & _MASK64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK64
    mixed ^= mixed >> 31
    return mx.array([mixed >> 32, mixed & 0xFFFFFFFF], dtype=mx.uint32)


def processors_for(sampling: Sampling, prompt_tokens: int) -> list[Processor]:
    """Changes to a row's logits before sampling, as mlx-lm calls them: (tokens so far, logits (1, V)).

    OpenAI's penalties count what was generated; the repetition penalty, which is Hugging Face's, counts the
    prompt too.
    """
    processors: list[Processor] = []
    if sampling.repetition_penalty != 1.0:
        processors.append(_repetition(sampling.repetition_penalty))
    if sampling.presence_penalty or sampling.frequency_penalty:
        processors.append(
            _presence_and_frequency(sampling.presence_penalty, sampling.frequency_penalty, prompt_tokens)
        )
    if sampling.logit_bias:
        processors.append(_bias(sampling.logit_bias))
    return processors


def _repetition(penalty: float) -> Processor:
    penalty = min(max(penalty, 1 / _STRONGEST_PENALTY), _STRONGEST_PENALTY)

    def process(tokens: mx.array, logits: mx.array) -> mx.array:
        seen = logits[:, tokens]
        logits[:, tokens] = mx.where(seen < 0, seen * penalty, seen / penalty)
        return logits

    return process


def _presence_and_frequency(presence: float, frequency: float, prompt_tokens: int) -> Processor:
    def process(tokens: mx.array, logits: mx.array) -> mx.array:
        generated = tokens[prompt_tokens:]
        if generated.size == 0:
            return logits
        if presence:
            logits[:, generated] = logits[:, generated] - presence
        return logits.at[:, generated].subtract(frequency) if frequency else logits

    return process


def _bias(bias: Mapping[int, float]) -> Processor:
    ids = mx.array(list(bias.keys()), dtype=mx.int32)
    values = mx.array(list(bias.values()), dtype=mx.float32)

    def process(tokens: mx.array, logits: mx.array) -> mx.array:
        return logits.at[:, ids].add(values.astype(logits.dtype))

    return process
