"""Bits of arrays as the TPU tiles them: narrow elements of consecutive rows share a word of one lane."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tpusim.machine.memory import element_bits


def bitcast_rows(array: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
    """The bits of consecutive rows as one row of wider elements, or the reverse; the low bits come first."""
    target = np.dtype(dtype)
    old, new = element_bits(array.dtype), element_bits(target)
    if old < new:
        *outer, rows, columns = array.shape
        array = array.reshape(*outer, rows * old // new, new // old, columns).swapaxes(-1, -2)
    else:
        array = array[..., None]
    units = _units(np.ascontiguousarray(array), min(old, new))
    wide = units if old <= new else units.reshape(*array.shape[:-1], old // new)
    if old >= new:
        values = _values(wide, target)
        if old == new:
            return values[..., 0]
        rows = values.swapaxes(-1, -2)
        return rows.reshape(*rows.shape[:-3], rows.shape[-3] * rows.shape[-2], rows.shape[-1])
    return _values(_join(wide, new), target)[..., 0]


def _units(array: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    """The elements as unsigned integers of so many bits (4 bits: in a byte), the last dimension longer."""
    if array.dtype.name in ("int4", "uint4"):
        return array.astype(np.int8).view(np.uint8) & 15
    if bits == 4:
        octets = array.view(np.uint8)
        return np.stack([octets & 15, octets >> 4], -1).reshape(*octets.shape[:-1], -1)
    return array.view(f"u{bits // 8}")


def _join(units: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    """Units along the last dimension as unsigned integers of so many bits."""
    if bits >= 8 and units.dtype == np.uint8 and units.shape[-1] * 4 == bits:
        units = units[..., 0::2] | units[..., 1::2] << 4
    return np.ascontiguousarray(units).view(f"u{bits // 8}")


def _values(units: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    if dtype.name == "uint4":
        return units.astype(ml_dtypes.uint4)
    if dtype.name == "int4":
        return (units.astype(np.int8) ^ 8).__sub__(8).astype(ml_dtypes.int4)
    return np.ascontiguousarray(units).view(dtype)
