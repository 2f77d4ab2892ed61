"""Pure operations of Pallas TPU that JAX cannot compute on a CPU, written with its own operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tpusim.errors import NotModelledError
from tpusim.machine.memory import element_bits


def _is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu" or "int" in dtype.name


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
    if packed.name.startswith("uint") or not _is_integer(packed):
        word = lax.bitcast_convert_type(x, f"uint{width}")
        part = lax.shift_right_logical(word, word.dtype.type(bits * index)) & word.dtype.type((1 << bits) - 1)
    else:
        signed = lax.bitcast_convert_type(x, f"int{width}")
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


def masked_extreme(cumulative: Callable[[Any], Any], worst: Callable[[Any], Any], x: Any, mask: Any) -> Any:
    """Running extremes of the elements under the mask; before the first of them the elements themselves."""
    found = cumulative(jnp.where(mask, x, x.dtype.type(worst(x.dtype))))
    return jnp.where(lax.cummax(mask.astype(jnp.int32)) > 0, found, x)


def _limit(which: str, dtype: Any) -> Any:
    infinity = {"min": -np.inf, "max": np.inf}
    return infinity[which] if dtype.kind == "f" else getattr(np.iinfo(dtype), which)


def masked_sort(keys: Any, values: Any, *mask: Any, descending: bool) -> tuple[Any, ...]:
    """Keys in order with their values; what the mask leaves out comes last."""
    order = jnp.argsort(keys, stable=True, descending=descending)
    if mask:
        order = order[jnp.argsort(~mask[0][order], stable=True)]
    return tuple(x[order] for x in (keys, values, *mask))


def _require_one_kind(name: str, one: Any, other: Any) -> None:
    if _is_integer(np.dtype(one)) != _is_integer(np.dtype(other)):
        raise NotModelledError(f"{name} of {np.dtype(one).name} as {np.dtype(other).name}")


def pack(a: Any, b: Any, *, format: Any, preferred_element_type: Any) -> Any:
    """Two vectors as one of elements half as wide: in turns, or one behind the other."""
    narrow = preferred_element_type or {"float32": jnp.bfloat16, "int32": jnp.int16}[a.dtype.name]
    _require_one_kind("pack", a.dtype, narrow)
    both = [x.astype(narrow) for x in (a, b)]
    return jnp.stack(both, 1).ravel() if format.value == "interleaved" else jnp.concatenate(both).reshape(-1, 2)


def unpack(ab: Any, *, format: Any, preferred_element_type: Any) -> tuple[Any, Any]:
    """The two vectors that were packed into one, with elements twice as wide."""
    wide = preferred_element_type or {"bfloat16": jnp.float32, "int16": jnp.int32}[ab.dtype.name]
    _require_one_kind("unpack", ab.dtype, wide)
    both = ab.astype(wide).ravel()
    both = both.reshape(-1, 2).T if format.value == "interleaved" else both.reshape(2, -1)
    return both[0], both[1]


def conv(*operands: Any, window_reversal: Any = None, **params: Any) -> Any:
    """A convolution, added to the third operand where there is one."""
    left, right, *start = operands
    if window_reversal is not None:
        spatial = params["dimension_numbers"].rhs_spec[2:]
        right = jnp.flip(right, [dim for dim, is_reversed in zip(spatial, window_reversal, strict=True) if is_reversed])
    if start and params.get("preferred_element_type") is None:
        params["preferred_element_type"] = start[0].dtype
    found = lax.conv_general_dilated(left, right, **params)
    return found + start[0] if start else found


OWN_VALUES: dict[str, Callable[..., Any]] = {
    "pack_elementwise": pack_elementwise,
    "unpack_elementwise": unpack_elementwise,
    "stochastic_round": stochastic_round,
    "masked_cumsum": masked_cumsum,
    "all_reduce_population_count": population_count,
    "all_reduce_ffs": first_set,
    "scan_count": scan_count,
    "unique": scan_count,  # its name in 0.10
    "masked_cummax": partial(masked_extreme, lax.cummax, partial(_limit, "min")),
    "masked_cummin": partial(masked_extreme, lax.cummin, partial(_limit, "max")),
    "masked_sort": masked_sort,
    "conv": conv,
    "pack": pack,
    "unpack": unpack,
}
