"""How masks are applied to logits: an array operation everywhere, a Metal kernel where it proves equal.

The kernel saves reading and writing the unpacked bits. It can't be tried on every machine it will run on, so
it is compared with the array operation when it is first wanted, on random masks, and any difference or fault
means the array operation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import mlx.core as mx

# Logits (B, V) of any float type and packed masks (B, ceil(V / 32)) of uint32; -inf wherever a bit is 0.
ApplyMasks = Callable[[mx.array, mx.array], mx.array]

_BITS: Final = 32
_TRIED_SHAPES: Final = ((1, 32), (1, 933), (3, 1000), (8, 4097))
_KERNEL: Final = """
    uint token = thread_position_in_grid.x;
    uint row = thread_position_in_grid.y;
    uint width = logits_shape[1];
    if (token >= width) {
        return;
    }
    uint word = packed[row * packed_shape[1] + token / 32];
    uint place = row * width + token;
    out[place] = ((word >> (token % 32)) & 1) ? logits[place] : static_cast<T>(-INFINITY);
"""


def _by_arrays(logits: mx.array, packed: mx.array) -> mx.array:
    rows, width = logits.shape
    bits = (packed[:, :, None] >> mx.arange(_BITS, dtype=mx.uint32)) & 1
    allowed = bits.reshape(rows, -1)[:, :width].astype(mx.bool_)
    return mx.where(allowed, logits, mx.array(-mx.inf, dtype=logits.dtype))


by_arrays: Final[ApplyMasks] = mx.compile(_by_arrays)


def by_metal() -> ApplyMasks:
    """The kernel, built once. Raises where there is no Metal."""
    kernel: Any = mx.fast.metal_kernel(
        name="apply_token_masks", input_names=["logits", "packed"], output_names=["out"], source=_KERNEL
    )

    def apply(logits: mx.array, packed: mx.array) -> mx.array:
        rows, width = logits.shape
        (out,) = kernel(
            inputs=[logits, packed],
            template=[("T", logits.dtype)],
            grid=(width, rows, 1),
            threadgroup=(min(width, 256), 1, 1),
            output_shapes=[logits.shape],
            output_dtypes=[logits.dtype],
        )
        return out  # type: ignore[no-any-return]

    return apply


def agrees(candidate: ApplyMasks) -> bool:
    """Whether it gives, bit by bit, what the array operation gives on random masks."""
    key = mx.random.key(8)
    for rows, width in _TRIED_SHAPES:
        for dtype in (mx.float32, mx.float16, mx.bfloat16):
            key, for_logits, for_masks = mx.random.split(key, 3)
            logits = mx.random.normal((rows, width), key=for_logits).astype(dtype)
            words = (rows, (width + _BITS - 1) // _BITS)
            packed = mx.random.randint(0, 2**16, (2, *words), key=for_masks).astype(mx.uint32)
            packed = (packed[0] << 16) | packed[1]
            got = candidate(logits, packed)
            if got.dtype != dtype or not mx.array_equal(got, by_arrays(logits, packed)):
                return False
    return True


def choose(on_metal: bool, make: Callable[[], ApplyMasks] = by_metal) -> tuple[ApplyMasks, str]:
    """The way to apply masks, and in words why it is this one."""
    if not on_metal:
        return by_arrays, "array operation: there is no Metal here"
    try:
        kernel = make()
        if agrees(kernel):
            return kernel, "Metal kernel: it agrees with the array operation"
    except Exception as error:
        # A kernel that doesn't build must cost nobody an answer.
        return by_arrays, f"array operation: the Metal kernel fails ({type(error).__name__})"
    return by_arrays, "array operation: the Metal kernel gives something else"


@functools.cache
def chosen() -> tuple[ApplyMasks, str]:
    """`choose` for this machine, decided once. For the thread that owns the device."""
    return choose(mx.metal.is_available() and mx.default_device().type == mx.DeviceType.gpu)
