"""Outputs against the reference: equal, equal within rounding, or where they differ."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

from tpusim.declare import Declared, Dims
from tpusim.program import Kernel

_Array = np.ndarray[Any, Any]
_TOLERANCES = {"float64": 1e-5, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}
"""Greatest difference that is rounding, as a share of the reference's largest magnitude."""


@dataclass(frozen=True)
class Check:
    """What a comparison found; ``text`` says it, such as ``equal within 1.2e-06``."""

    verdict: Literal["equal", "close", "different", "unchecked"]
    text: str

    @property
    def is_wrong(self) -> bool:
        """Whether the outputs are not what they should be."""
        return self.verdict == "different"


@dataclass(frozen=True)
class Sharding:
    """Which outputs a native kernel has, and which device holds an element of one."""

    kernel: Kernel
    declared: Declared
    axis_sizes: Mapping[str, int]

    def names(self, outputs: int) -> list[str]:
        """The outputs' names, those of the kernel's parameters."""
        return _output_names(self.kernel, len(self.declared.in_shards), outputs)

    def owner(self, position: int, index: tuple[int, ...]) -> tuple[int, ...]:
        """Mesh coordinates of the (first) device that holds an element of an output."""
        shard = self.declared.out_shards[position].shape
        return _owner(index, self.declared.shard_out[position], shard, self.axis_sizes)


def compare(outputs: Sequence[Any], expected: Any, sharding: Sharding | None = None) -> Check:
    """Compare GLOBAL outputs with what ``reference`` returned: exactly, then within the dtype's rounding.

    The first difference is reported with its index and, where ``sharding`` says it, the device that holds it.
    """
    wanted = tuple(expected) if isinstance(expected, tuple | list) else (expected,)
    if len(wanted) != len(outputs):
        return Check("different", f"reference() returns {len(wanted)} arrays, the kernel has {len(outputs)} outputs")
    names = sharding.names(len(outputs)) if sharding else [f"output {i}" for i in range(len(outputs))]
    worst = 0.0
    for position, (got, want) in enumerate(zip(outputs, wanted, strict=True)):
        got, want = np.asarray(got), np.asarray(want)
        name = names[position]
        if got.shape != want.shape:
            return Check("different", f"{name} has shape {got.shape}, reference() {want.shape}")
        error, tolerance, differs = _difference(got, want)
        if error > tolerance:
            index = tuple(int(i) for i in np.argwhere(differs)[0])
            place = f" (device {sharding.owner(position, index)})" if sharding else ""
            count = int(differs.sum())
            return Check(
                "different",
                f"{count} of {got.size} values differ{'s' if count == 1 else ''}; the first is {name}{list(index)}"
                f"{place}: got {got[index]}, expected {want[index]}",
            )
        worst = max(worst, error)
    return Check("close", f"equal within {worst:.1e}") if worst else Check("equal", "equal")


def _difference(got: _Array, want: _Array) -> tuple[float, float, _Array]:
    """The greatest difference as a share of the largest magnitude, what is allowed, and where it is more."""
    is_float = _is_float(got.dtype)
    tolerance = _tolerance(got.dtype) if is_float else 0.0
    g, w = _wide(got), _wide(want)
    with np.errstate(all="ignore"):
        same = (g == w) | ((g != g) & (w != w))
        if same.all():
            return 0.0, tolerance, ~same
        if not is_float:
            return np.inf, tolerance, ~same
        finite = np.abs(w[np.isfinite(w)])
        scale = float(finite.max()) if finite.size else 0.0
        share = np.abs(np.where(same, 0.0, g - w)) / (scale or 1.0)
        share = np.where(np.isnan(share), np.inf, share)
    return float(share.max()), tolerance, share > tolerance


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "fc" or "float" in dtype.name


def _tolerance(dtype: np.dtype[Any]) -> float:
    known = _TOLERANCES.get(dtype.name)
    return known if known is not None else 2 * float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]  # ml_dtypes' own


def _wide(array: _Array) -> _Array:
    """The array in a type of NumPy's own in which differences mean something."""
    if _is_float(array.dtype):
        return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    return array.astype(np.int64) if array.dtype.kind == "V" else array


def _owner(index: tuple[int, ...], dims: Dims, shard: Sequence[int], axis_sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Mesh coordinates of the (first) device that holds an element of a global array."""
    coords = dict.fromkeys(axis_sizes, 0)
    for at, names, extent in zip(index, dims, shard, strict=True):
        block = at // extent
        for name in reversed(names):
            block, coords[name] = divmod(block, axis_sizes[name])
    return tuple(coords.values())


def _output_names(kernel: Kernel, inputs: int, outputs: int) -> list[str]:
    try:
        names = list(inspect.signature(kernel.fn).parameters)[inputs : inputs + outputs]
    except (TypeError, ValueError):
        names = []
    return names + [f"output {i}" for i in range(len(names), outputs)]
