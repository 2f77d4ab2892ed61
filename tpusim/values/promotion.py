"""JAX's rules for the dtype of a result: the promotion lattice, with x64 disabled.

A dtype is *weak* when it comes from a Python number (or from a loop over Python bounds): it gives way
to the other operand's dtype.  The lattice is the one of JAX's page "Type promotion semantics"; a test
compares every pair with ``jax.numpy.promote_types``.  NumPy's 64-bit dtypes count as 32-bit ones.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np

from tpusim.errors import NotModelledError, ShapeMismatchError
from tpusim.specs import as_dtype

DType: TypeAlias = np.dtype[Any]
Kind: TypeAlias = tuple[DType, bool]
"""A dtype, and whether it is weak."""

BOOL: Final = np.dtype(np.bool_)
INT32: Final = np.dtype(np.int32)
UINT32: Final = np.dtype(np.uint32)
FLOAT32: Final = np.dtype(np.float32)
INT32_MIN: Final = -(2**31)
INT32_MAX: Final = 2**31 - 1

_LATTICE: Final = {
    "bool": ("int*",),
    "int*": ("uint4", "uint8", "int4", "int8"),
    "uint4": (),
    "uint8": ("int16", "uint16"),
    "uint16": ("int32", "uint32"),
    "uint32": ("int32",),
    "int4": (),
    "int8": ("int16",),
    "int16": ("int32",),
    "int32": ("float*",),
    "float*": ("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "bfloat16", "float16"),
    "float8_e4m3fn": (),
    "float8_e5m2": (),
    "float8_e4m3b11fnuz": (),
    "bfloat16": ("float32",),
    "float16": ("float32",),
    "float32": (),
}
"""Each node and its immediate successors; a star marks the weak ones."""

DTYPES: Final = {name: as_dtype(name) for name in _LATTICE if not name.endswith("*")}
"""The dtypes a kernel's values may have, by JAX's name."""

_CANONICAL: Final = {dtype: dtype for dtype in DTYPES.values()} | {
    np.dtype(np.int64): INT32,
    np.dtype(np.uint64): UINT32,
    np.dtype(np.float64): FLOAT32,
}
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}
_KINDS: Final = {
    dtype: "b" if name == "bool" else "u" if name[0] == "u" else "i" if name[0] == "i" else "f"
    for name, dtype in DTYPES.items()
}


def canonical_dtype(dtype: Any) -> DType:
    """``dtype`` as JAX stores it: 64-bit becomes 32-bit; raises ``NotModelledError`` for others, such as complex."""
    found = _CANONICAL.get(dtype) if isinstance(dtype, np.dtype) else _CANONICAL.get(as_dtype(dtype))
    if found is None:
        name = as_dtype(dtype).name
        raise NotModelledError(f"values of dtype {name} are not modelled; modelled: {', '.join(DTYPES)}")
    return found


def kind_letter(dtype: DType) -> str:
    """``b`` (bool), ``i`` (signed), ``u`` (unsigned) or ``f`` (any floating type, fp8 included)."""
    return _KINDS.get(dtype, dtype.kind)  # of the host's 64-bit types too


def inexact(dtype: DType) -> DType:
    """The floating dtype in which JAX computes a division or ``exp`` of ``dtype``."""
    return dtype if _KINDS[dtype] == "f" else FLOAT32


def numeric(dtype: DType) -> DType:
    """``dtype``, with int32 in place of bool."""
    return INT32 if dtype is BOOL else dtype


def summed(dtype: DType) -> DType:
    """The dtype of a sum over ``dtype``: small integers and bools grow to 32 bits."""
    letter = _KINDS[dtype]
    return dtype if letter == "f" else UINT32 if letter == "u" else INT32


def kind_of(operand: Any) -> Kind:
    """Dtype and weakness of a Python number, NumPy scalar, dtype, or anything with ``dtype``.

    Raises ``OverflowError`` for a Python integer that does not fit int32, as JAX does.
    """
    cls = type(operand)
    if cls is int:
        if not INT32_MIN <= operand <= INT32_MAX:
            raise OverflowError(f"the Python integer {operand} does not fit int32; write tpusim.np.uint32({operand})")
        return INT32, True
    if cls is float:
        return FLOAT32, True
    if cls is bool:
        return BOOL, False
    if isinstance(operand, np.dtype):
        return canonical_dtype(operand), False
    if hasattr(operand, "dtype"):
        return canonical_dtype(operand.dtype), getattr(operand, "weak", False)
    if cls is complex:
        raise NotModelledError("complex values are not modelled")
    raise ShapeMismatchError(f"expected an array or a number, not {operand!r}")


def promote(*operands: Any) -> Kind:
    """Dtype of a result of ``operands`` under JAX's promotion, and whether it is weak.

    Raises ``ShapeMismatchError`` where JAX has no implicit promotion, such as fp8 with bf16.
    """
    return join(*map(kind_of, operands))


@lru_cache(maxsize=1024)
def join(*kinds: Kind) -> Kind:
    """:func:`promote`, given dtypes and weakness."""
    if len(set(kinds)) == 1:
        return kinds[0]
    names = {_NAMES[dtype] for dtype, _ in kinds}
    if len(names) == 1:
        return kinds[0][0], False
    if all(weak for _, weak in kinds):
        dtype = DTYPES[_least_upper_bound(frozenset(names))]
        return dtype, dtype is not BOOL
    bound = _least_upper_bound(frozenset(_node(dtype, weak) for dtype, weak in kinds))
    if bound.endswith("*"):
        return (INT32, True) if bound == "int*" else (FLOAT32, True)
    return DTYPES[bound], False


def _node(dtype: DType, weak: bool) -> str:
    if weak and _KINDS[dtype] != "b":
        return "float*" if _KINDS[dtype] == "f" else "int*"
    return _NAMES[dtype]


def _least_upper_bound(names: frozenset[str]) -> str:
    common = frozenset.intersection(*(_above(name) for name in names))
    least = [name for name in common if common <= _above(name)]
    if len(least) != 1:
        listed = " and ".join(sorted(names))
        raise ShapeMismatchError(f"JAX has no implicit promotion of {listed}: convert one operand with .astype(...)")
    return least[0]


@lru_cache(maxsize=32)
def _above(name: str) -> frozenset[str]:
    return frozenset((name,)).union(*(_above(successor) for successor in _LATTICE[name]))
