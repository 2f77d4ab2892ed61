"""Bits of arrays as the TPU tiles them: narrow elements of consecutive rows share a word of one lane."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpusim.machine.memory import NARROW, element_bits


def bitcast_rows(array: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
    """The bits of consecutive rows as one row of wider elements, or the reverse; the low bits come first."""
    target = np.dtype(dtype)
    old, new = element_bits(array.dtype), element_bits(target)
    words = _words(np.ascontiguousarray(array))
    if old < new:
        *outer, rows, columns = words.shape
        parts = words.reshape(*outer, rows * old // new, new // old, columns).swapaxes(-1, -2)
        return _values(_join(parts, old, new), target)
    if old == new:
        return _values(words, target)
    parts = _split(words, old, new).swapaxes(-1, -2)
    return _values(parts.reshape(*parts.shape[:-3], parts.shape[-3] * parts.shape[-2], parts.shape[-1]), target)


def _words(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The elements as unsigned integers; those of less than a byte in a byte each."""
    bits = NARROW.get(array.dtype.name)
    if bits is None:
        return array.view(f"u{array.dtype.itemsize}")
    octets = array.view(np.uint8) if "float" in array.dtype.name else array.astype(np.int8).view(np.uint8)
    return octets & ((1 << bits) - 1)


def _split(words: np.ndarray[Any, Any], old: int, new: int) -> np.ndarray[Any, Any]:
    """Each word of ``old`` bits as several of ``new``, along one more dimension at the end."""
    if new >= 8:
        return np.ascontiguousarray(words[..., None]).view(f"u{new // 8}")
    octets = np.ascontiguousarray(words[..., None]).view(np.uint8)
    per_octet = min(old, 8) // new
    parts = [octets >> new * number & (1 << new) - 1 for number in range(per_octet)]
    return np.stack(parts, -1).reshape(*words.shape, old // new)


def _join(parts: np.ndarray[Any, Any], old: int, new: int) -> np.ndarray[Any, Any]:
    """Words of ``old`` bits along the last dimension as one of ``new`` bits."""
    if old < 8:
        per_octet = min(new, 8) // old
        parts = parts.reshape(*parts.shape[:-1], -1, per_octet)
        joined = parts[..., 0]
        for number in range(1, per_octet):
            joined = joined | parts[..., number] << old * number
        parts = joined
    return parts[..., 0] if new < 8 else np.ascontiguousarray(parts).view(f"u{new // 8}")[..., 0]


def _values(words: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    bits = NARROW.get(dtype.name)
    if bits is not None and dtype.name.startswith("int"):
        top = 1 << bits - 1
        return ((words.astype(np.int8) ^ top) - top).astype(dtype)
    if bits is not None and dtype.name.startswith("uint"):
        return words.astype(dtype)
    return np.ascontiguousarray(words).view(dtype)
