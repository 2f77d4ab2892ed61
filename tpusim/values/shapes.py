"""Arithmetic on shapes: what an operation returns and whether its operands fit, without any data."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tpusim.errors import NotModelledError, OutOfBoundsError, ShapeMismatchError, TracedValueError
from tpusim.values.traced import Traced

Shape: TypeAlias = tuple[int, ...]


def as_shape(shape: Any) -> Shape:
    """A shape argument: an integer or a sequence of integers, never tracked ones."""
    if isinstance(shape, tuple | list):
        return tuple(map(operator.index, shape))
    return (operator.index(shape),)


def broadcast(name: str, shapes: Sequence[Shape]) -> Shape:
    """The common shape of operands of ``name``; raises ``ShapeMismatchError``."""
    first = shapes[0]
    if all(shape == first or not shape for shape in shapes):
        return first or max(shapes, key=len)
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        listed = " and ".join(map(str, shapes))
        raise ShapeMismatchError(f"{name}: shapes {listed} do not broadcast") from None


def axis_of(name: str, axis: Any, ndim: int) -> int:
    """``axis`` counted from the front; raises ``OutOfBoundsError``."""
    index = operator.index(axis)
    if not -ndim <= index < ndim:
        raise OutOfBoundsError(f"{name}: axis {index} is out of bounds for {ndim} dimensions")
    return index % ndim


def axes_of(name: str, axis: Any, ndim: int) -> Shape:
    """The axes that ``axis`` (an integer, a sequence or ``None`` for all) names, counted from the front."""
    if axis is None:
        return tuple(range(ndim))
    axes = tuple(axis_of(name, item, ndim) for item in (axis if isinstance(axis, tuple | list) else (axis,)))
    if len(set(axes)) != len(axes):
        raise ShapeMismatchError(f"{name}: axis {axis} names a dimension twice")
    return axes


def reduced(shape: Shape, axes: Shape, keepdims: bool) -> Shape:
    """``shape`` without ``axes``, or with size 1 there."""
    if keepdims:
        return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def reshaped(shape: Shape, new_shape: Any) -> Shape:
    """``new_shape`` with a ``-1`` filled in."""
    wanted = as_shape(new_shape)
    total, known = math.prod(shape), math.prod(size for size in wanted if size != -1)
    if wanted.count(-1) == 1 and known and total % known == 0:
        wanted = tuple(total // known if size == -1 else size for size in wanted)
    if -1 in wanted or math.prod(wanted) != total:
        raise ShapeMismatchError(f"reshape: an array of shape {shape} does not fit shape {as_shape(new_shape)}")
    return wanted


class Contraction(NamedTuple):
    """A dot product: the shape of its result, and those of the two operands of the equivalent matrix product."""

    shape: Shape
    matrices: tuple[Shape, Shape]


def dot(a: Shape, b: Shape) -> Contraction:
    """``jax.numpy.dot`` of operands with at least one dimension."""
    _check_inner("dot", a, b)
    rows, columns = a[:-1], b[:-2] + b[-1:] if len(b) > 1 else ()
    return Contraction(rows + columns, ((math.prod(rows), a[-1]), (a[-1], math.prod(columns))))


def matmul(a: Shape, b: Shape) -> Contraction:
    """``jax.numpy.matmul``."""
    if not a or not b:
        raise ShapeMismatchError(f"matmul: operands need at least one dimension, not shapes {a} and {b}")
    _check_inner("matmul", a, b)
    batch = broadcast("matmul", (a[:-2], b[:-2]))
    rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else ()
    matrices = (*batch, math.prod(rows), a[-1]), (*batch, a[-1], math.prod(columns))
    return Contraction(batch + rows + columns, matrices)


def _check_inner(name: str, a: Shape, b: Shape) -> None:
    inner = b[-2] if len(b) > 1 else b[0]
    if a[-1] != inner:
        raise ShapeMismatchError(f"{name}: shapes {a} and {b} do not contract: {a[-1]} against {inner}")


def einsum(subscripts: str, a: Shape, b: Shape) -> Contraction:
    """A two-operand einsum with explicit labels, each at most once in an operand; ``...`` is not modelled."""
    text = subscripts.replace(" ", "")
    inputs, arrow, output = text.partition("->")
    left, comma, right = inputs.partition(",")
    if "." in text or len(set(left)) != len(left) or len(set(right)) != len(right):
        raise NotModelledError(f"einsum {subscripts!r}: '...' and a label twice in one operand are not modelled")
    if not comma or len(left) != len(a) or len(right) != len(b):
        raise ShapeMismatchError(f"einsum {subscripts!r} does not fit operands of shapes {a} and {b}")
    sizes: dict[str, int] = {}
    for label, size in zip(left + right, a + b, strict=True):
        if sizes.setdefault(label, size) != size:
            raise ShapeMismatchError(f"einsum {subscripts!r}: label {label} has sizes {sizes[label]} and {size}")
    if not arrow:
        output = "".join(sorted(label for label in sizes if (left + right).count(label) == 1))
    if len(set(output)) != len(output) or not set(output) <= set(sizes):
        raise ShapeMismatchError(f"einsum {subscripts!r}: every output label must occur once, and in an operand")

    def total(labels: set[str]) -> int:
        return math.prod(sizes[label] for label in labels)

    both, kept = set(left) & set(right), set(output)
    batch, inner = total(both & kept), total(both - kept)
    rows, columns = total(set(left) - both), total(set(right) - both)
    lead = (batch,) if both & kept else ()
    matrices = (*lead, rows, inner), (*lead, inner, columns)
    return Contraction(tuple(sizes[label] for label in output), matrices)


class Indexing(NamedTuple):
    """An index into a value: the key for NumPy, the shape of the result, and JAX's primitive (``""``: no work)."""

    key: tuple[Any, ...]
    shape: Shape
    primitive: str


def index(shape: Shape, key: Any) -> Indexing:
    """What ``value[key]`` reads of a value of ``shape``.

    Raises ``OutOfBoundsError`` for an integer outside its dimension, ``NotModelledError`` for index
    arrays and masks, ``TracedValueError`` for a slice with tracked bounds.
    """
    items = list(key) if type(key) is tuple else [key]
    used = sum(item is not None and item is not Ellipsis for item in items)
    if used > len(shape):
        raise OutOfBoundsError(f"{used} indices for an Array of shape {shape}")
    ellipses = [at for at, item in enumerate(items) if item is Ellipsis]
    if len(ellipses) > 1:
        raise ShapeMismatchError("an index can have one `...` only")
    at = ellipses[0] if ellipses else len(items)
    items[at : at + 1] = [slice(None)] * (len(shape) - used)
    result: list[int] = []
    primitives = {""}
    axis = 0
    for position, item in enumerate(items):
        if item is None:
            result.append(1)
            primitives.add("broadcast_in_dim")
        elif isinstance(item, slice):
            result.append(_slice_size(item, shape[axis], primitives))
            axis += 1
        else:
            items[position] = _index_value(item, axis, shape)
            primitives.add("dynamic_slice" if isinstance(item, Traced) else "slice")
            axis += 1
    primitive = next(name for name in ("dynamic_slice", "rev", "slice", "broadcast_in_dim", "") if name in primitives)
    return Indexing(tuple(items), tuple(result), primitive)


def _slice_size(item: slice, size: int, primitives: set[str]) -> int:
    if any(isinstance(bound, Traced) for bound in (item.start, item.stop, item.step)):
        raise TracedValueError(
            "a slice of a value needs Python integers as bounds. Slice the ref instead, "
            "`ref[tpusim.ds(start, size)]`, which may start at a tracked scalar."
        )
    start, stop, step = item.indices(size)
    count = len(range(start, stop, step))
    if step < 0:
        primitives.add("rev")
    elif count != size:
        primitives.add("slice")
    return count


def _index_value(item: Any, axis: int, shape: Shape) -> int:
    value = getattr(item, "value", item) if isinstance(item, Traced) else item
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise NotModelledError(
            f"indexing an Array with {_kind_of_index(item)} is not modelled; integers, slices with Python bounds, None "
            "and ... are"
        )
    position, size = operator.index(value), shape[axis]
    if not -size <= position < size:
        raise OutOfBoundsError(
            f"index {position} is out of bounds for dimension {axis} (size {size}) of an Array of shape {shape}"
        )
    return position


def _kind_of_index(item: Any) -> str:
    if isinstance(item, Traced):
        return item._describe()
    return f"a {type(item).__name__}"
