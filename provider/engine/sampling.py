"""One row's settings, defaults filled in, and what changes its logits before a token is drawn (`drawing`).

Each row has its own, so no request needs the batch to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from provider.engine.base import SamplingParams

Processor = Callable[[mx.array, mx.array], mx.array]

# Logits multiplied by a repetition penalty beyond this, or divided by one below its inverse, leave float32.
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
