"""Applying masks: bit by bit right, and no kernel is trusted that differs anywhere."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from provider.engine.mask_kernel import ApplyMasks, agrees, by_arrays, by_metal, choose, chosen


@pytest.mark.parametrize("width", [32, 933, 1024])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_masks_are_applied_bit_by_bit(width: int, dtype: Any) -> None:
    chance = np.random.default_rng(1)
    for rows in (1, 3):
        logits = mx.array(chance.normal(size=(rows, width)).astype(np.float32)).astype(dtype)
        words = chance.integers(0, 2**32, size=(rows, (width + 31) // 32), dtype=np.uint32)
        bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :width].astype(bool)
        expected = np.where(bits, np.array(logits.astype(mx.float32)), -np.inf)
        masked = by_arrays(logits, mx.array(words))
        assert masked.dtype == dtype
        assert np.array_equal(np.array(masked.astype(mx.float32)), expected)


def swapped_bits(logits: mx.array, packed: mx.array) -> mx.array:
    return by_arrays(logits, (packed >> 16) | (packed << 16))


def last_word_forgotten(logits: mx.array, packed: mx.array) -> mx.array:
    return by_arrays(logits, packed.at[:, -1].maximum(mx.array(0xFFFFFFFF, dtype=mx.uint32)))


def low_instead_of_nothing(logits: mx.array, packed: mx.array) -> mx.array:
    return mx.maximum(by_arrays(logits, packed), mx.array(-1e4, dtype=logits.dtype))


def one_row_for_all(logits: mx.array, packed: mx.array) -> mx.array:
    return by_arrays(logits, mx.broadcast_to(packed[:1], packed.shape))


def another_type(logits: mx.array, packed: mx.array) -> mx.array:
    return by_arrays(logits, packed).astype(mx.float32)


WRONG: list[ApplyMasks] = [
    swapped_bits,
    last_word_forgotten,
    low_instead_of_nothing,
    one_row_for_all,
    another_type,
]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_kernel_that_differs_is_not_used(wrong: ApplyMasks) -> None:
    assert not agrees(wrong)
    apply, why = choose(True, lambda: wrong)
    assert apply is by_arrays
    assert "something else" in why


def test_one_that_agrees_is() -> None:
    def kernel(logits: mx.array, packed: mx.array) -> mx.array:
        return by_arrays(logits, packed)

    assert choose(True, lambda: kernel)[0] is kernel


def test_one_that_fails_to_build_is_not() -> None:
    def broken() -> ApplyMasks:
        raise RuntimeError("no such device")

    apply, why = choose(True, broken)
    assert apply is by_arrays
    assert "RuntimeError" in why


def test_this_machine_has_decided() -> None:
    apply, why = chosen()
    assert agrees(apply)
    if not mx.metal.is_available():
        assert apply is by_arrays
        # Even if someone believed there was Metal.
        assert choose(True, by_metal)[0] is by_arrays
    assert why
