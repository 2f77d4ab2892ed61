"""The part of the simulated ``jax.numpy`` that makes and rearranges arrays: zeros, reshape, concatenate, ..."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tpusim.errors import NotModelledError, ShapeMismatchError
from tpusim.values import arrays as values
from tpusim.values import shapes
from tpusim.values.arrays import Array, Charger, convert, run, shape_of
from tpusim.values.numerics import NDArray, cast
from tpusim.values.promotion import FLOAT32, DType, canonical_dtype, kind_of, promote
from tpusim.values.scalars import captured_constant, from_numpy, is_scalar, to_numpy
from tpusim.values.traced import Traced


class ShapeFunctions:
    """Creation and shape functions of jax.numpy, charged to ``core``; without ``data`` only shapes and charges."""

    def __init__(self, core: Charger, data: bool = True) -> None:
        self._core = core
        self._data = data

    def _make(self, primitive: str, shape: Any, dtype: DType, make: Callable[[], NDArray], weak: bool = False) -> Any:
        """A new value without operands."""
        wanted = shapes.as_shape(shape)
        if wanted:
            self._core.charge(primitive, dtype, () if primitive == "iota" else ((),), wanted)
        data = make() if self._data or not wanted else None
        return values.make_value(self._core, data, wanted, dtype, weak)

    # -- creation -----------------------------------------------------------------------------------

    def zeros(self, shape: Any, dtype: Any = None) -> Any:
        """Zeros; float32 by default."""
        return self.full(shape, 0, FLOAT32 if dtype is None else dtype)

    def ones(self, shape: Any, dtype: Any = None) -> Any:
        """Ones; float32 by default."""
        return self.full(shape, 1, FLOAT32 if dtype is None else dtype)

    def empty(self, shape: Any, dtype: Any = None) -> Any:
        """Zeros, as jax.numpy gives them."""
        return self.zeros(shape, dtype)

    def full(self, shape: Any, fill_value: Any, dtype: Any = None) -> Any:
        """``fill_value`` everywhere, in its own dtype (weak if that is) by default."""
        own, weak = kind_of(fill_value)
        wanted = own if dtype is None else canonical_dtype(dtype)
        value = convert(self._core, fill_value, wanted)
        target = shapes.as_shape(shape)
        if shapes.broadcast("full", (target, shape_of(value))) != target:
            raise ShapeMismatchError(f"full: a value of shape {shape_of(value)} does not fit shape {target}")
        if type(value) is Array:
            return self.broadcast_to(value, target)
        fill = to_numpy(value)
        return self._make(
            "broadcast_in_dim", target, wanted, lambda: np.full(target, fill, wanted), weak and dtype is None
        )

    def zeros_like(self, a: Any, dtype: Any = None, shape: Any = None) -> Any:
        """Zeros with the shape and dtype of ``a``."""
        return self.full_like(a, 0, dtype, shape)

    def ones_like(self, a: Any, dtype: Any = None, shape: Any = None) -> Any:
        """Ones with the shape and dtype of ``a``."""
        return self.full_like(a, 1, dtype, shape)

    def full_like(self, a: Any, fill_value: Any, dtype: Any = None, shape: Any = None) -> Any:
        """``fill_value`` with the shape and dtype of ``a``."""
        wanted = kind_of(a)[0] if dtype is None else dtype
        return self.full(self.shape(a) if shape is None else shape, fill_value, wanted)

    def arange(self, start: Any, stop: Any = None, step: Any = None, dtype: Any = None) -> Any:
        """Evenly spaced values; the bounds are Python numbers."""
        bounds = [bound for bound in (start, stop, step) if bound is not None]
        for bound in bounds:
            if isinstance(bound, Traced):
                bound.__index__()  # raises: the shape would depend on a tracked value
        wanted = promote(*bounds)[0] if dtype is None else canonical_dtype(dtype)
        first, last = (0, start) if stop is None else (start, stop)
        whole = np.arange(first, last, 1 if step is None else step)
        return self._make("iota", whole.shape, wanted, lambda: cast(whole, wanted))

    def asarray(self, a: Any, dtype: Any = None) -> Any:
        """A number or a value itself, in ``dtype`` if given; lists would be captured constants."""
        if isinstance(a, list | tuple | np.ndarray) and not is_scalar(a):
            raise captured_constant(np.asarray(a))
        if dtype is not None:
            return convert(self._core, a, canonical_dtype(dtype))
        return a if isinstance(a, Traced) else from_numpy(to_numpy(a), *kind_of(a))

    array = asarray

    def astype(self, x: Any, dtype: Any) -> Any:
        """``x`` converted as XLA converts."""
        return convert(self._core, x, canonical_dtype(dtype))

    # -- shape --------------------------------------------------------------------------------------

    def shape(self, a: Any) -> shapes.Shape:
        """The shape of ``a``."""
        return shape_of(a) if not hasattr(a, "shape") or isinstance(a, Traced) else tuple(a.shape)

    def ndim(self, a: Any) -> int:
        """The number of dimensions of ``a``."""
        return len(self.shape(a))

    def size(self, a: Any) -> int:
        """The number of elements of ``a``."""
        return math.prod(self.shape(a))

    def reshape(self, a: Any, shape: Any) -> Any:
        """The same elements in row-major order in a new shape; one size may be -1."""
        return values.reshape(self._core, self._typed(a), shape)

    def ravel(self, a: Any) -> Any:
        """All elements in one dimension."""
        return self.reshape(a, (-1,))

    def broadcast_to(self, array: Any, shape: Any) -> Any:
        """``array`` repeated along new or size-1 dimensions."""
        target, (dtype, weak) = shapes.as_shape(shape), kind_of(array)
        if shapes.broadcast("broadcast_to", (target, shape_of(array))) != target:
            raise ShapeMismatchError(f"broadcast_to: shape {shape_of(array)} does not fit shape {target}")
        if shape_of(array) == target:
            return self._typed(array)
        if type(array) is not Array:
            return self.full(target, array)
        return run(
            self._core,
            "broadcast_in_dim",
            (array,),
            target,
            dtype,
            lambda data: np.broadcast_to(data, target),
            weak=weak,
        )

    def expand_dims(self, a: Any, axis: Any) -> Any:
        """New dimensions of size 1 at ``axis``."""
        count = len(axis) if isinstance(axis, tuple | list) else 1
        ndim = len(shape_of(a)) + count
        axes = shapes.axes_of("expand_dims", axis, ndim)
        sizes = iter(shape_of(a))
        wanted = tuple(1 if position in axes else next(sizes) for position in range(ndim))
        return self._reshaped("broadcast_in_dim", a, wanted)

    def squeeze(self, a: Any, axis: Any = None) -> Any:
        """``a`` without the dimensions of size 1 at ``axis``, all of them by default."""
        shape = shape_of(a)
        if axis is None:
            axis = tuple(position for position, size in enumerate(shape) if size == 1)
        axes = shapes.axes_of("squeeze", axis, len(shape))
        if any(shape[position] != 1 for position in axes):
            raise ShapeMismatchError(f"squeeze: axis {axis} of shape {shape} has a size other than 1")
        return self._reshaped("squeeze", a, shapes.reduced(shape, axes, False))

    def transpose(self, a: Any, axes: Any = None) -> Any:
        """The dimensions in the order of ``axes``, reversed by default."""
        return values.transpose(self._core, self._typed(a), axes)

    def swapaxes(self, a: Any, axis1: int, axis2: int) -> Any:
        """Two dimensions exchanged."""
        order = list(range(len(shape_of(a))))
        first, second = (shapes.axis_of("swapaxes", axis, len(order)) for axis in (axis1, axis2))
        order[first], order[second] = second, first
        return values.transpose(self._core, self._typed(a), order)

    def concatenate(self, arrays: Sequence[Any], axis: int = 0, dtype: Any = None) -> Any:
        """Arrays joined along ``axis``, promoted to one dtype."""
        parts, out, weak = self._promoted(arrays, dtype)
        shape = shape_of(parts[0])
        at = shapes.axis_of("concatenate", axis, len(shape))
        for part in parts:
            if shapes.reduced(shape_of(part), (at,), True) != shapes.reduced(shape, (at,), True):
                listed = " and ".join(str(shape_of(item)) for item in parts)
                raise ShapeMismatchError(f"concatenate: shapes {listed} differ outside axis {at}")
        total = sum(shape_of(part)[at] for part in parts)
        wanted = (*shape[:at], total, *shape[at + 1 :])
        return run(
            self._core, "concatenate", parts, wanted, out, lambda *data: np.concatenate(data, axis=at), weak=weak
        )

    def stack(self, arrays: Sequence[Any], axis: int = 0, dtype: Any = None) -> Any:
        """Arrays of one shape joined along a new dimension."""
        parts, out, weak = self._promoted(arrays, dtype)
        shape = shape_of(parts[0])
        if any(shape_of(part) != shape for part in parts):
            raise ShapeMismatchError(f"stack: shapes {' and '.join(str(shape_of(part)) for part in parts)} differ")
        at = shapes.axis_of("stack", axis, len(shape) + 1)
        wanted = (*shape[:at], len(parts), *shape[at:])
        return run(self._core, "concatenate", parts, wanted, out, lambda *data: np.stack(data, axis=at), weak=weak)

    def tile(self, A: Any, reps: Any) -> Any:
        """``A`` repeated ``reps`` times along each dimension."""
        counts = shapes.as_shape(reps)
        ndim = max(len(counts), len(shape_of(A)))
        sizes = (1,) * (ndim - len(shape_of(A))) + shape_of(A)
        counts = (1,) * (ndim - len(counts)) + counts
        wanted = tuple(size * count for size, count in zip(sizes, counts, strict=True))
        if wanted == shape_of(A):
            return self._typed(A)
        return run(self._core, "tile", (A,), wanted, kind_of(A)[0], lambda data: np.tile(data, counts))

    def repeat(self, a: Any, repeats: int, axis: int | None = None) -> Any:
        """Each element repeated ``repeats`` times along ``axis``, of the flat array by default."""
        if isinstance(repeats, list | tuple | np.ndarray):
            raise NotModelledError("tpusim.np.repeat with a list of counts is not modelled; one Python integer is")
        flat = self.ravel(a) if axis is None or not shape_of(a) else a
        shape = shape_of(flat)
        at = shapes.axis_of("repeat", axis or 0, len(shape))
        count = shapes.as_shape(repeats)[0]
        wanted = (*shape[:at], shape[at] * count, *shape[at + 1 :])
        return run(
            self._core, "broadcast_in_dim", (flat,), wanted, kind_of(a)[0], lambda data: np.repeat(data, count, axis=at)
        )

    def _reshaped(self, primitive: str, a: Any, wanted: shapes.Shape) -> Any:
        dtype, weak = kind_of(a)
        if wanted == shape_of(a):
            return self._typed(a)
        return run(self._core, primitive, (a,), wanted, dtype, lambda data: data.reshape(wanted), weak=weak)

    def _typed(self, a: Any) -> Any:
        """An operand as a tracked value; raises for what is none."""
        shape_of(a)
        return a if isinstance(a, Traced) else from_numpy(to_numpy(a), *kind_of(a))

    def _promoted(self, arrays: Sequence[Any], dtype: Any) -> tuple[list[Any], DType, bool]:
        if not isinstance(arrays, list | tuple) or not arrays:
            raise ShapeMismatchError("expected a list or tuple of at least one array")
        promoted, weak = promote(*arrays)
        wanted = promoted if dtype is None else canonical_dtype(dtype)
        return [convert(self._core, array, wanted) for array in arrays], wanted, weak and dtype is None
