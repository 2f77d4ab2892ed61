"""How arrays lie in vector registers: element widths, padded vregs, and which axes an operation moves."""

from __future__ import annotations

from math import prod
from typing import Any, TypeAlias

import numpy as np

Shape: TypeAlias = tuple[int, ...]

_VREG_BITS = 8 * 128 * 32


def ceil_div(amount: int, unit: int) -> int:
    """``amount / unit`` rounded up."""
    return -(-amount // unit)


def element_bits(dtype: np.dtype[Any]) -> int:
    """Bits an element takes in a vreg: 4 for ``int4``, 32 for ``bool``, whose masks go with 32-bit words."""
    if dtype.kind == "b":
        return 32
    if dtype.itemsize == 1 and dtype.name.startswith(("int4", "uint4", "int2", "uint2", "float4")):
        return 4
    return dtype.itemsize * 8


def vregs(shape: Shape, bits: int, tile: tuple[int, int]) -> int:
    """Registers that hold an array, its last two dimensions padded to ``tile``; none are shared by two planes."""
    rows, lanes = (1, 1, *shape)[-2:]
    padded = ceil_div(rows, tile[0]) * tile[0] * ceil_div(lanes, tile[1]) * tile[1]
    return prod(shape[:-2]) * ceil_div(padded * bits, _VREG_BITS)


def rows_and_lanes(shape: Shape, tile: tuple[int, int]) -> tuple[int, int]:
    """Vregs along the last two dimensions, for 32-bit words."""
    rows, lanes = (1, 1, *shape)[-2:]
    return ceil_div(rows, tile[0]), ceil_div(lanes, tile[1])


def reduced_axes(shape: Shape, out_shape: Shape) -> tuple[int, ...]:
    """The axes a reduction from ``shape`` to ``out_shape`` removed; the last ones where several fit."""
    if len(shape) == len(out_shape):
        return tuple(axis for axis, size in enumerate(shape) if size != out_shape[axis])
    gone, left = [], list(out_shape)
    for axis, size in enumerate(shape):
        if left and left[0] == size:
            left.pop(0)
        else:
            gone.append(axis)
    return tuple(gone)


def broadcast_groups(shape: Shape, out_shape: Shape, axes: tuple[int, ...] | None, sublanes: int) -> int:
    """Groups of 8 rows that a broadcast has to spread over the lanes; 0 where it only repeats rows or planes.

    ``axes`` are JAX's ``broadcast_dimensions``; without them the last dimensions are aligned, as in NumPy.
    """
    rank = len(out_shape)
    if axes is None:
        axes = tuple(range(rank - len(shape), rank))
    sizes = dict(zip(axes, shape, strict=True))
    if prod(shape) <= 1 or out_shape[-1] <= 1 or sizes.get(rank - 1, 1) == out_shape[-1]:
        return 0
    planes = prod(size for axis, size in sizes.items() if axis < rank - 2)
    return planes * ceil_div(sizes.get(rank - 2, 1), sublanes)
