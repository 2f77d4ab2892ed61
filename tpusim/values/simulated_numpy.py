"""The ``jax.numpy`` of the simulated machine: what ``tpusim.np.<name>`` is inside a native kernel.

Elementwise functions come from the table in ``tpusim.values.ufuncs``; the others are methods here.  Each
charges its core once for every JAX primitive it stands for.  A name that jax.numpy has and this lacks
raises ``NotModelledError``: a wrong guess would be worse.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tpusim.errors import NotModelledError, ShapeMismatchError
from tpusim.values import arrays as values
from tpusim.values import numerics, shapes
from tpusim.values.arrays import Array, convert, run, shape_of
from tpusim.values.numerics import cast
from tpusim.values.promotion import BOOL, DTYPES, FLOAT32, INT32, DType, canonical_dtype, kind_letter, kind_of, promote
from tpusim.values.scalars import Scalar, from_numpy, is_scalar, scalar, to_numpy
from tpusim.values.simulated_shapes import ShapeFunctions
from tpusim.values.traced import Traced
from tpusim.values.ufuncs import ROUND, UFUNCS, Ufunc


class ScalarType:
    """A dtype name of jax.numpy such as ``bfloat16``: a dtype argument, and a conversion when called."""

    __slots__ = ("dtype",)

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype

    def __call__(self, value: Any = 0) -> Any:
        """``value`` in this dtype."""
        if isinstance(value, Traced):
            return value.astype(self.dtype)  # type: ignore[attr-defined]
        if type(value) is int and kind_letter(self.dtype) in "iu":
            value = np.asarray(value, np.int64)
        return from_numpy(cast(np.asarray(value), self.dtype), self.dtype)

    def __repr__(self) -> str:
        return f"tpusim.np.{self.dtype.name}"

    def __eq__(self, other: object) -> bool:
        return self.dtype == getattr(other, "dtype", other)

    def __hash__(self) -> int:
        return hash(self.dtype)


class SimulatedNumpy(ShapeFunctions):
    """jax.numpy's functions, computed with NumPy and charged to ``core``.

    With ``data=False`` only shapes, dtypes and charges are computed.
    """

    pi, e, inf, nan, newaxis = math.pi, math.e, math.inf, math.nan, None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found: Any
        if name in UFUNCS:
            found = self._elementwise(name, UFUNCS[name])
        elif name in DTYPES or name == "bool_":
            found = ScalarType(DTYPES[name.rstrip("_")])
        else:
            known = [*UFUNCS, *DTYPES, *(item for item in dir(type(self)) if not item.startswith("_"))]
            close = difflib.get_close_matches(name, known, 3)
            hint = f"did you mean {' or '.join(close)}?" if close else "build it from the functions that are"
            raise NotModelledError(f"tpusim.np.{name} is not modelled; {hint}")
        setattr(self, name, found)
        return found

    def _elementwise(self, name: str, ufunc: Ufunc) -> Callable[..., Any]:
        def function(*operands: Any) -> Any:
            if len(operands) != ufunc.arity:
                raise TypeError(f"tpusim.np.{name} takes {ufunc.arity} arguments, not {len(operands)}")
            return values.apply(self._core, ufunc, *operands)

        function.__name__ = name
        return function

    # -- choice -------------------------------------------------------------------------------------

    def where(self, condition: Any, x: Any = None, y: Any = None) -> Any:
        """``x`` where ``condition`` holds, else ``y``."""
        if x is None or y is None:
            raise NotModelledError("tpusim.np.where without x and y is not modelled: its shape would depend on values")
        dtype, weak = promote(x, y)
        condition = self._as_bool(condition)
        if type(condition) is Scalar and is_scalar(x) and is_scalar(y):
            chosen = x if condition.value else y
            if dtype is INT32:
                return scalar(int(chosen.value if type(chosen) is Scalar else chosen), INT32, weak)
            return from_numpy(cast(to_numpy(chosen), dtype), dtype, weak)
        x, y = convert(self._core, x, dtype), convert(self._core, y, dtype)
        shape = shapes.broadcast("where", tuple(map(shape_of, (condition, x, y))))
        return run(self._core, "select_n", (condition, x, y), shape, dtype, np.where, weak=weak)

    def select(self, condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
        """The first choice whose condition holds, else ``default``."""
        if len(condlist) != len(choicelist) or not condlist:
            raise ShapeMismatchError("select: condlist and choicelist need the same length, at least 1")
        choices, dtype, weak = self._promoted([*choicelist, default], None)
        result = choices.pop()
        for condition, choice in zip(reversed(condlist), reversed(choices), strict=True):
            result = self.where(condition, choice, result)
        if not weak:
            return result
        return (
            Array(self._core, result.data, result.shape, dtype, True)
            if type(result) is Array
            else scalar(result.value, dtype, True)
        )

    def clip(self, arr: Any, /, min: Any = None, max: Any = None) -> Any:
        """``arr`` kept between ``min`` and ``max``; either may be absent."""
        result = self._typed(arr)
        if min is not None:
            result = values.apply(self._core, UFUNCS["maximum"], min, result)
        return result if max is None else values.apply(self._core, UFUNCS["minimum"], max, result)

    def round(self, a: Any, decimals: int = 0) -> Any:
        """``a`` rounded to ``decimals``, ties to even."""
        if decimals < 0:
            raise NotModelledError("tpusim.np.round with decimals < 0 is not modelled, nor is it in every jax.numpy")
        if decimals == 0 or kind_letter(kind_of(a)[0]) != "f":
            return values.apply(self._core, ROUND, a)
        factor = Scalar(float(10**decimals), FLOAT32, weak=True)
        scaled = values.apply(self._core, ROUND, values.apply(self._core, UFUNCS["multiply"], a, factor))
        return values.apply(self._core, UFUNCS["divide"], scaled, factor)

    def _as_bool(self, condition: Any) -> Any:
        if kind_of(condition)[0] is BOOL:
            return self._typed(condition)
        return values.apply(self._core, UFUNCS["not_equal"], condition, 0)

    # -- reductions ---------------------------------------------------------------------------------

    def sum(self, a: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Any:
        """The sum; bf16 and f16 accumulate in float32, bool and small integers in 32 bits."""
        return values.reduce(self._core, "sum", a, axis, dtype, keepdims)

    def prod(self, a: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Any:
        """The product, with the dtypes of ``sum``."""
        return values.reduce(self._core, "prod", a, axis, dtype, keepdims)

    def mean(self, a: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Any:
        """The mean, in a floating dtype."""
        return values.mean(self._core, a, axis, dtype, keepdims)

    def max(self, a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
        """The largest element; NaN if one is NaN."""
        return values.reduce(self._core, "max", a, axis, None, keepdims)

    def min(self, a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
        """The smallest element; NaN if one is NaN."""
        return values.reduce(self._core, "min", a, axis, None, keepdims)

    def any(self, a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Whether an element is not zero."""
        return values.reduce(self._core, "any", self._as_bool(a), axis, None, keepdims)

    def all(self, a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Whether no element is zero."""
        return values.reduce(self._core, "all", self._as_bool(a), axis, None, keepdims)

    def argmax(self, a: Any, axis: int | None = None, *, keepdims: bool = False) -> Any:
        """The index (int32) of the first largest element, in the flat array by default."""
        return self._arg("argmax", np.argmax, a, axis, keepdims)

    def argmin(self, a: Any, axis: int | None = None, *, keepdims: bool = False) -> Any:
        """The index (int32) of the first smallest element, in the flat array by default."""
        return self._arg("argmin", np.argmin, a, axis, keepdims)

    def _arg(self, name: str, function: Callable[..., Any], a: Any, axis: int | None, keepdims: bool) -> Any:
        shape = shape_of(a)
        axes = shapes.axes_of(name, axis, len(shape))
        if 0 in (shape[item] for item in axes):
            raise ShapeMismatchError(f"{name}: the dimensions reduced of shape {shape} hold no element")
        one = axes[0] if axis is not None else None
        return run(
            self._core,
            name,
            (a,),
            shapes.reduced(shape, axes, keepdims),
            INT32,
            lambda data: function(numerics.widened(data), axis=one, keepdims=keepdims).astype(np.int32),
            charged_dtype=kind_of(a)[0],
        )

    def cumsum(self, a: Any, axis: int | None = None, dtype: Any = None) -> Any:
        """Running sums along ``axis``, of the flat array by default; bool counts as int32."""
        flat = self.ravel(a) if axis is None or not shape_of(a) else self._typed(a)
        own = kind_of(a)[0]
        wanted = canonical_dtype(dtype) if dtype is not None else INT32 if own is BOOL else own
        operand = convert(self._core, flat, wanted)
        at = shapes.axis_of("cumsum", axis or 0, len(shape_of(operand)))
        return run(
            self._core,
            "cumsum",
            (operand,),
            shape_of(operand),
            wanted,
            lambda data: cast(np.cumsum(numerics.widened(data), axis=at, dtype=numerics.widened(data).dtype), wanted),
        )

    # -- contractions -------------------------------------------------------------------------------

    def dot(self, a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Any:
        """The dot product; ``precision`` is accepted, the accumulation is in at least 32 bits anyway."""
        if shape_of(a) and shape_of(b):
            plan = shapes.dot(shape_of(a), shape_of(b))
            return values.contract(self._core, np.dot, plan, a, b, preferred_element_type)
        if preferred_element_type is not None:
            a, b = self.astype(a, preferred_element_type), self.astype(b, preferred_element_type)
        return values.apply(self._core, UFUNCS["multiply"], a, b)

    def matmul(self, a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Any:
        """The matrix product; ``precision`` is accepted, the accumulation is in at least 32 bits anyway."""
        return values.matmul(self._core, a, b, preferred_element_type)

    def einsum(self, subscripts: str, *operands: Any, precision: Any = None, preferred_element_type: Any = None) -> Any:
        """An einsum of two operands with explicit labels, charged as one ``dot_general``."""
        if len(operands) != 2 or not isinstance(subscripts, str):
            raise NotModelledError("tpusim.np.einsum is modelled for a string and two operands only")
        a, b = operands
        plan = shapes.einsum(subscripts, shape_of(a), shape_of(b))
        return values.contract(
            self._core, lambda x, y: np.einsum(subscripts, x, y, optimize=True), plan, a, b, preferred_element_type
        )

    # -- dtypes -------------------------------------------------------------------------------------

    def finfo(self, dtype: Any) -> Any:
        """Limits of a floating dtype."""
        return ml_dtypes.finfo(canonical_dtype(dtype))  # type: ignore[no-untyped-call]

    def iinfo(self, dtype: Any) -> Any:
        """Limits of an integer dtype."""
        return ml_dtypes.iinfo(canonical_dtype(dtype))  # type: ignore[no-untyped-call]

    def result_type(self, *operands: Any) -> DType:
        """The dtype that an operation of ``operands`` has."""
        return promote(*operands)[0]

    def promote_types(self, a: Any, b: Any) -> DType:
        """The dtype that an operation of two dtypes has."""
        return promote(canonical_dtype(a), canonical_dtype(b))[0]
