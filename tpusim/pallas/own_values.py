"""Pure operations of Pallas TPU that JAX cannot compute on a CPU, written with its own operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tpusim.errors import NotModelledError
from tpusim.machine.memory import element_bits


def _is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu" or dtype.name in ("int4", "uint4")


def pack_elementwise(*xs: Any, packed_dtype: Any) -> Any:
    """Each array as the next higher bits of one word; floats are rounded to nearest, integers cut."""
    packed = np.dtype(packed_dtype)
    word = np.dtype(f"uint{element_bits(xs[0].dtype)}")
    bits = element_bits(packed)
    total = jnp.zeros(xs[0].shape, word)
    for number, x in enumerate(xs):
        if _is_integer(packed):
            part = lax.convert_element_type(x, word) & word.type((1 << bits) - 1)
        else:
            part = lax.bitcast_convert_type(x.astype(packed), f"uint{bits}").astype(word)
        total = total | part << word.type(bits * number)
    return total


def unpack_elementwise(x: Any, *, index: int, packed_dtype: Any, unpacked_dtype: Any) -> Any:
    """The part ``index`` of each word, counted from the low bits."""
    packed, unpacked = np.dtype(packed_dtype), np.dtype(unpacked_dtype)
    width, bits = element_bits(x.dtype), element_bits(packed)
    signed = lax.bitcast_convert_type(x, f"int{width}")
    if packed.kind == "u" or packed.name == "uint4" or not _is_integer(packed):
        part = lax.shift_right_logical(signed, signed.dtype.type(bits * index)) & signed.dtype.type((1 << bits) - 1)
    else:
        high = lax.shift_left(signed, signed.dtype.type(width - bits * (index + 1)))
        part = lax.shift_right_arithmetic(high, signed.dtype.type(width - bits))
    if _is_integer(packed):
        return part.astype(unpacked)
    return lax.bitcast_convert_type(part.astype(f"uint{bits}"), packed).astype(unpacked)


def stochastic_round(x: Any, random_bits: Any, *, target_dtype: Any) -> Any:
    """float32 to bfloat16, up with the probability of what is cut off."""
    if np.dtype(target_dtype).name != "bfloat16" or x.dtype != jnp.float32:
        raise NotModelledError(f"stochastic_round of {x.dtype} to {np.dtype(target_dtype).name}")
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    moved = (bits + (random_bits & jnp.uint32(0xFFFF))) & jnp.uint32(0xFFFF0000)
    rounded = lax.bitcast_convert_type(moved, jnp.float32)
    return jnp.where(jnp.isfinite(x), rounded, x).astype(jnp.bfloat16)


def masked_cumsum(x: Any, mask: Any) -> Any:
    """Running sums of the elements under the mask."""
    return lax.cumsum(jnp.where(mask, x, x.dtype.type(0)))


def population_count(x: Any, *, reduce: int) -> Any:
    """How many are true, in each element."""
    return jnp.full((x.shape[0] // reduce,), x.sum(dtype=jnp.int32))


def first_set(x: Any, *, reduce: int) -> Any:
    """The place of the first that is true, in each element; the size where none is."""
    first = jnp.where(x.any(), jnp.argmax(x).astype(jnp.int32), jnp.int32(x.shape[0]))
    return jnp.full((x.shape[0] // reduce,), first)


def scan_count(x: Any, mask: Any) -> tuple[Any, Any]:
    """How often each element has come so far, itself included, and whether it is the last of its kind."""
    place = jnp.arange(x.shape[0])
    same = (x[:, None] == x[None, :]) & mask[None, :]
    counts = (same & (place[None, :] <= place[:, None])).sum(1, dtype=jnp.int32)
    return counts, mask & ~(same & (place[None, :] > place[:, None])).any(1)


def _refused(name: str) -> Callable[..., Any]:
    """What stands for an operation of SparseCores that has no values here; the text is that of JAX."""

    def refuse(*operands: Any, **params: Any) -> Any:
        raise NotImplementedError(f"primitive '{name}'")

    return refuse


_SPARSE_WITHOUT_VALUES = ("masked_cummax", "masked_cummin", "masked_sort", "pack", "unpack")

OWN_VALUES: dict[str, Callable[..., Any]] = {
    "pack_elementwise": pack_elementwise,
    "unpack_elementwise": unpack_elementwise,
    "stochastic_round": stochastic_round,
    "masked_cumsum": masked_cumsum,
    "all_reduce_population_count": population_count,
    "all_reduce_ffs": first_set,
    "scan_count": scan_count,
    "unique": scan_count,  # its name in 0.10
    **{name: _refused(name) for name in _SPARSE_WITHOUT_VALUES},
}
