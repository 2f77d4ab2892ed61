"""What XLA computes where NumPy computes something else, on plain NumPy arrays.

Integer division and shifts are total, powers wrap, conversions from floats saturate, dot products
accumulate in at least 32 bits.  Small floats (bf16, f16, fp8) are computed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np

from tpusim.values.promotion import BOOL, FLOAT32, DType, kind_letter

NDArray: TypeAlias = np.ndarray[Any, Any]

_INT8: Final = np.dtype(np.int8)
_UINT8: Final = np.dtype(np.uint8)
_FLOAT64: Final = np.dtype(np.float64)


def working_dtype(dtype: DType) -> DType:
    """The dtype in which NumPy computes for ``dtype``: float32 for small floats, a byte for 4-bit integers."""
    if dtype.kind in "biu" or dtype == _FLOAT64:
        return dtype
    letter = kind_letter(dtype)
    return FLOAT32 if letter == "f" else _INT8 if letter == "i" else _UINT8


def integer_limits(dtype: DType) -> tuple[int, int]:
    """The least and the greatest value of an integer dtype."""
    bits = 4 if dtype.kind == "V" else 8 * dtype.itemsize
    return (0, 2**bits - 1) if kind_letter(dtype) == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def cast(array: NDArray, dtype: DType) -> NDArray:
    """``array`` converted as XLA converts: integers wrap, floats saturate to integers, NaN becomes 0."""
    source = array.dtype
    if source == dtype:
        return array
    if dtype is BOOL:
        return np.asarray(array.astype(working_dtype(source)) != 0)
    with np.errstate(all="ignore"):
        array = array.astype(working_dtype(source), copy=False)
        if kind_letter(dtype) == "f":
            return array.astype(FLOAT32, copy=False).astype(dtype, copy=False)
        if array.dtype.kind == "f":
            lowest, highest = integer_limits(dtype)
            whole = np.nan_to_num(array.astype(_FLOAT64), nan=0.0, posinf=np.inf, neginf=-np.inf)
            array = np.clip(whole, lowest, highest).astype(np.int64)
        return array.astype(working_dtype(dtype), copy=False).astype(dtype, copy=False)


def floor_divide(x: NDArray, y: NDArray) -> NDArray:
    """``x // y``; integers by zero give what XLA and jax.numpy give, -1 or -2 (all ones if unsigned)."""
    if x.dtype.kind == "f":
        remainder_ = np.fmod(x, y)
        quotient = np.where(y == 0, x, x - remainder_) / y
        adjust = (remainder_ != 0) & (np.sign(y) != np.sign(remainder_))
        return np.round(np.where(adjust, quotient - 1, quotient)).astype(x.dtype)
    zero = y == 0
    quotient = np.floor_divide(x, np.where(zero, y.dtype.type(1), y))
    if x.dtype.kind == "u":
        return np.where(zero, np.iinfo(x.dtype).max, quotient).astype(x.dtype)
    return np.where(zero, np.where(x == 0, -1, -2), quotient).astype(x.dtype)


def remainder(x: NDArray, y: NDArray) -> NDArray:
    """``x % y`` with the sign of ``y``; an integer by zero gives 0."""
    if x.dtype.kind == "f":
        truncated = np.fmod(x, y)
        return np.asarray(np.where((truncated != 0) & ((truncated < 0) != (y < 0)), truncated + y, truncated))
    return np.asarray(np.remainder(x, np.where(y == 0, y.dtype.type(1), y)))


def power(x: NDArray, y: NDArray) -> NDArray:
    """``x ** y``; integers by binary exponentiation that wraps, over as many bits as jax.numpy takes."""
    return np.asarray(np.power(x, y)) if x.dtype.kind == "f" else _power(x, y, 6)


def integer_pow(x: NDArray, y: NDArray) -> NDArray:
    """``x ** y`` for a ``y`` that is a Python integer: all its bits count."""
    return np.asarray(np.power(x, y)) if x.dtype.kind == "f" else _power(x, y, 32)


def _power(x: NDArray, y: NDArray, bits: int) -> NDArray:
    one = x.dtype.type(1)
    result: NDArray = np.where((x == 0) & (y != 0), x.dtype.type(0), one)
    exponent = y.astype(f"u{y.dtype.itemsize}")
    for _ in range(bits):
        result = np.where(exponent & exponent.dtype.type(1), result * x, result)
        x = x * x
        exponent = exponent >> exponent.dtype.type(1)
    return result


def left_shift(x: NDArray, y: NDArray) -> NDArray:
    """``x << y``; a shift outside the width gives 0."""
    outside = _is_outside(x.dtype, y)
    return np.where(outside, x.dtype.type(0), np.left_shift(x, np.where(outside, y.dtype.type(0), y)))


def right_shift(x: NDArray, y: NDArray) -> NDArray:
    """``x >> y``, arithmetic for signed ``x``; a shift outside the width leaves the sign."""
    last = y.dtype.type(8 * x.dtype.itemsize - 1)
    outside = _is_outside(x.dtype, y)
    shifted = np.right_shift(x, np.where(outside, last, y))
    return np.where(outside, x.dtype.type(0), shifted) if x.dtype.kind == "u" else shifted


def _is_outside(dtype: DType, y: NDArray) -> NDArray:
    return np.asarray((y < 0) | (y >= 8 * dtype.itemsize))


def contract(product: Callable[[NDArray, NDArray], Any], a: NDArray, b: NDArray, dtype: DType) -> NDArray:
    """A dot product ``product`` of ``a`` and ``b`` with result ``dtype``, accumulated in 32 bits or more.

    Integers of up to 16 bits go through float64, where sums of up to 2**23 products are exact.
    """
    with np.errstate(all="ignore"):
        if kind_letter(dtype) == "f":
            return cast(np.asarray(product(cast(a, FLOAT32), cast(b, FLOAT32))), dtype)
        if dtype is BOOL:
            return np.asarray(product(a, b))
        if max(a.dtype.itemsize, b.dtype.itemsize) <= 2:
            exact = np.asarray(product(a.astype(np.float32).astype(_FLOAT64), b.astype(np.float32).astype(_FLOAT64)))
            return cast(exact.astype(np.int64).astype(np.int32), dtype)
        return np.asarray(product(cast(a, dtype), cast(b, dtype)))


def accumulator(dtype: DType) -> DType:
    """The dtype in which JAX sums ``dtype``: float32 for bf16 and f16."""
    return FLOAT32 if dtype.itemsize == 2 and kind_letter(dtype) == "f" else dtype


def widened(array: NDArray) -> NDArray:
    """``array`` in the dtype in which NumPy computes for it."""
    return array.astype(working_dtype(array.dtype), copy=False)
