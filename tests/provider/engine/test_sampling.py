"""Sampling on made-up distributions: cuts, seeds, frequencies, penalties."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import mlx.core as mx
import pytest

from provider.engine.base import SamplingParams
from provider.engine.drawing import Greedy, RowSampler, draw, sampler_for
from provider.engine.resident import as_float32
from provider.engine.sampling import processors_for, resolve

PROBABILITIES = [0.02, 0.4, 0.08, 0.3, 0.2]
LOGPROBS = mx.log(mx.array([PROBABILITIES]))


def draws(count: int = 400, **params: Any) -> Counter[int]:
    sampler = RowSampler(resolve(SamplingParams(seed=params.pop("seed", 1), **params), {}))
    tokens = mx.concatenate([sampler(LOGPROBS) for _ in range(count)])
    return Counter(int(token) for token in tokens.tolist())


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 100}, {0, 1, 2, 3, 4}),
        # The least set of the most likely tokens that holds the mass.
        ({"top_p": 0.39}, {1}),
        ({"top_p": 0.41}, {1, 3}),
        ({"top_p": 0.71}, {1, 3, 4}),
        ({"top_p": 1e-12}, {1}),
        ({"min_p": 0.45}, {1, 3, 4}),
        ({"min_p": 1.0}, {1}),
        # top_p counts what top_k has left over.
        ({"top_k": 3, "top_p": 0.44}, {1}),
        ({"top_k": 3, "top_p": 0.45}, {1, 3}),
        ({"top_k": 4, "min_p": 0.6}, {1, 3}),
        ({"top_p": 0.95, "min_p": 0.6}, {1, 3}),
        ({"temperature": 0.001}, {1}),
        # So cold that dividing by it would overflow: the likeliest, whatever cuts come after.
        ({"temperature": 1e-300}, {1}),
        ({"temperature": 1e-45, "top_p": 0.9}, {1}),
        ({"temperature": 1e-300, "top_k": 3, "min_p": 0.5}, {1}),
    ],
)
def test_cuts(params: dict[str, Any], expected: set[int]) -> None:
    assert set(draws(**params)) == expected


def test_the_temperature_comes_before_the_cuts() -> None:
    # At temperature 0.5 the likeliest has 0.16 / 0.2964 = 54% of the mass.
    assert set(draws(temperature=0.5, top_p=0.5)) == {1}
    assert set(draws(temperature=1.0, top_p=0.5)) == {1, 3}


@pytest.mark.parametrize("params", [{}, {"top_k": 5, "top_p": 0.999}, {"top_p": 0.9999}])
def test_frequencies_follow_the_distribution(params: dict[str, Any]) -> None:
    count = 4000
    seen = draws(count, **params)
    for token, probability in enumerate(PROBABILITIES):
        assert seen[token] / count == pytest.approx(probability, abs=0.03)


@pytest.mark.parametrize("kind", [mx.float32, mx.float16, mx.bfloat16])
def test_logits_of_any_kind_are_read_as_floats(kind: mx.Dtype) -> None:
    array = mx.array([[9.0], [1.5], [-2.25], [-1e30 if kind == mx.bfloat16 else -3.0]]).astype(kind)[1:, 0]
    mx.eval(array)
    assert as_float32(array).tolist() == array.astype(mx.float32).tolist()


def test_seeds() -> None:
    def run(seed: int | None) -> list[int]:
        sampler = RowSampler(resolve(SamplingParams(seed=seed), {}))
        return [int(sampler(LOGPROBS).item()) for _ in range(40)]

    assert run(5) == run(5)
    assert run(-1) == run(-1)
    assert run(5) != run(6)
    assert run(0) != run(1 << 63)
    assert run(None) != run(None)


WAYS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.4},
    {"top_k": 3},
    {"top_k": 3, "top_p": 0.9},
    {"top_k": 2, "temperature": 2.0},
    {"top_p": 0.8},
    {"top_p": 0.7, "min_p": 0.2},
    {"min_p": 0.1},
]


def test_a_row_draws_the_same_in_any_company() -> None:
    def samplers() -> list[Any]:
        made = [
            RowSampler(resolve(SamplingParams(seed=seed, **way), {})) for seed, way in enumerate(WAYS * 2)
        ]
        return [*made[:5], Greedy(reported=False), *made[5:]]

    rows = mx.log(mx.array([PROBABILITIES, PROBABILITIES[::-1]] * 9)[: 2 * len(WAYS) + 1])
    alone, together = samplers(), samplers()
    for _ in range(20):
        expected = [int(one(rows[place : place + 1]).item()) for place, one in enumerate(alone)]
        assert draw(together, rows).tolist() == expected


def test_defaults_come_from_the_model_then_from_the_api() -> None:
    model = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05, "min_p": None}
    filled = resolve(SamplingParams(top_p=0.5), model)
    assert (filled.temperature, filled.top_p, filled.top_k) == (0.6, 0.5, 20)
    assert (filled.min_p, filled.repetition_penalty) == (0.0, 1.05)
    bare = resolve(SamplingParams(), {"temperature": "hot", "top_k": True})
    assert (bare.temperature, bare.top_p, bare.top_k) == (1.0, 1.0, 0)
    assert isinstance(sampler_for(resolve(SamplingParams(temperature=0), model)), Greedy)


def processed(tokens: list[int], prompt: int, logits: list[float], **params: Any) -> list[float]:
    out = mx.array([logits])
    for process in processors_for(resolve(SamplingParams(**params), {}), prompt):
        out = process(mx.array(tokens), out)
    return [round(value, 5) for value in out.tolist()[0]]


def test_penalties() -> None:
    logits = [1.0, -1.0, 2.0, 0.5]
    # Tokens 0 and 1 are the prompt; 2 was generated twice, 0 once.
    tokens = [0, 1, 2, 0, 2]
    assert processed(tokens, 2, logits, presence_penalty=0.5) == [0.5, -1.0, 1.5, 0.5]
    assert processed(tokens, 2, logits, frequency_penalty=0.5) == [0.5, -1.0, 1.0, 0.5]
    assert processed(tokens, 2, logits, presence_penalty=0.5, frequency_penalty=-0.25) == [
        0.75,
        -1.0,
        2.0,
        0.5,
    ]
    # The repetition penalty counts the prompt too, and makes a negative logit lower.
    assert processed(tokens, 2, logits, repetition_penalty=2.0) == [0.5, -2.0, 1.0, 0.5]
    # However strong, it makes no logit infinite or no number.
    for penalty in (1e300, 1e-300):
        strong = processed([0, 1, 2], 2, [0.0, -3.0, 3.0, 0.5], repetition_penalty=penalty)
        assert all(math.isfinite(value) for value in strong)
    assert processed(tokens, 2, logits, logit_bias={3: 1.5, 1: -100.0}) == [1.0, -101.0, 2.0, 2.0]
    assert processed([0, 1], 2, logits, presence_penalty=2.0, frequency_penalty=2.0) == logits
